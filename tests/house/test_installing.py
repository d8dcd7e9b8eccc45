"""What is installed: all files are in sdists and wheels, versions agree, and modules that hide ours are named."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.support.small_index import small_index

ROOT = Path(__file__).parents[2]
LINKED = ("contrastive", "docids", "eval")
"""Folders that dsi has links to: one package is installed."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WING = tomllib.loads((ROOT / "scripts" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"dr_scl-{PROJECT['version']}"
WING_NAME = f"dr_scl_experiments-{WING['version']}"
BUILD = """
import os, tarfile
from setuptools import build_meta
with tarfile.open(os.path.join("..", build_meta.build_sdist(".."))) as sdist:
    sdist.extractall("..", filter="data")
os.chdir("../NAME")
build_meta.build_wheel("..")
"""


def build(checkout, name):
    """Make an sdist of a checkout, and a wheel of the sdist, beside the checkout."""
    code = BUILD.replace("NAME", name)
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a checkout, the sdist made of it, and the wheel made of the sdist."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("dsi", *LINKED, "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "checkout" / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / "checkout")
    build(folder / "checkout", NAME)
    return folder


@pytest.fixture(scope="module")
def wing(tmp_path_factory):
    """The same of the papers' wing."""
    folder = tmp_path_factory.mktemp("wing")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "scripts", folder / "checkout", ignore=ignored)
    build(folder / "checkout", WING_NAME)
    return folder


def package_files(folder, *packages):
    files = {
        path.relative_to(folder) for package in packages for path in (folder / package).rglob("*") if path.is_file()
    }
    return {("dsi" / file if file.parts[0] in LINKED else file).as_posix() for file in files}


def test_every_file_of_the_packages_is_in_the_sdist_and_in_the_wheel(built):
    expected = package_files(built / "checkout", "dsi", *LINKED)
    kept = {"dsi/py.typed", *(f"dsi/{package}/__init__.py" for package in LINKED)}
    kept |= {"dsi/docids/data/minipedia/corpus.jsonl", "dsi/configs/paper.toml", "dsi/server/page/index.html"}
    assert kept <= expected
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        found = {member.name.removeprefix(f"{NAME}/") for member in sdist if member.isfile()}
    assert {name for name in found if name.startswith(("dsi/", *LINKED))} == expected
    assert {"pyproject.toml", "README.md", "LICENSE"} <= found
    assert not [name for name in found if name.startswith("tests/")]
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        found = set(wheel.namelist())
    assert {name for name in found if ".dist-info/" not in name} == expected
    assert {f"{NAME}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= found


def test_every_file_of_the_wing_is_in_its_sdist_and_in_its_wheel(wing):
    expected = package_files(wing / "checkout", "dsi_experiments")
    assert {"dsi_experiments/py.typed", "dsi_experiments/commands/reproduce.py"} <= expected
    with tarfile.open(wing / f"{WING_NAME}.tar.gz") as sdist:
        files = {member.name.removeprefix(f"{WING_NAME}/") for member in sdist if member.isfile()}
    assert {name for name in files if name.startswith("dsi_experiments/")} == expected
    with zipfile.ZipFile(wing / f"{WING_NAME}-py3-none-any.whl") as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wing_has_the_version_that_it_needs_of_the_library():
    assert WING["version"] == PROJECT["version"]
    assert WING["dependencies"] == [f"dr-scl=={PROJECT['version']}"]


@pytest.mark.slow
def test_all_that_the_wing_adds_can_be_loaded(wing, tmp_path):
    with zipfile.ZipFile(wing / f"{WING_NAME}-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "site")
    code = """
import sys
from pathlib import Path
from dsi.docids import extensions
for group in (extensions.SCHEMES, extensions.GENERATORS, extensions.OBJECTIVES, extensions.RERANKERS, extensions.COMMANDS):
    for point in extensions.extensions(group):
        loaded = extensions.load_extension(group, point.name)
        assert extensions.package_of(group, point.name).startswith("dr-scl-experiments ")
        assert Path(sys.modules[loaded.__module__].__file__).is_relative_to(sys.argv[1])
        assert group != extensions.RERANKERS or loaded.kind == point.name
        print(point.name)
"""
    loaded = python(tmp_path, code, str(tmp_path / "site"), path=f"{tmp_path / 'site'}{os.pathsep}{ROOT}")
    assert loaded.returncode == 0, loaded.stderr
    points = [name for group in WING["entry-points"].values() for name in group]
    assert sorted(loaded.stdout.split()) == sorted(points)


def test_the_wheel_runs_without_the_checkout(built, tmp_path):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "site")
        points = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert "dsi = dsi.__main__:main\n" in points
    code = "import dsi, dsi.docids, sys; from dsi.__main__ import main; print(dsi.__file__); sys.exit(main())"
    said = python(tmp_path, code, "--version", path=tmp_path / "site")
    assert said.stdout.splitlines() == [str(tmp_path / "site/dsi/__init__.py"), f"dsi {PROJECT['version']}"]


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def python(folder, code, *arguments, path=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


COMMAND = "import sys; from dsi.__main__ import main; sys.exit(main())"


@pytest.mark.programs
def test_modules_of_a_user_hide_none_of_ours(tmp_path):
    for file in ("eval.py", "contrastive/__init__.py", "docids.py", "scripts.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("raise RuntimeError('the file of a user')")
    code = "import dsi; dsi.train, dsi.evaluate, dsi.read_collection; from dsi.__main__ import main; main()"
    said = python(tmp_path, code, "--version")  # `python -c` finds the modules of its folder first
    assert said.stdout == f"dsi {PROJECT['version']}\n"


def test_a_wheel_installs_one_package(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        assert {name.split("/")[0] for name in wheel.namelist()} == {"dsi", f"{NAME}.dist-info"}


# Searching alone.


def test_what_searching_needs_is_what_the_package_needs_but_for_training():
    lines = (ROOT / "dsi" / "searching.txt").read_text(encoding="utf-8").splitlines()
    needed = {line for line in lines if not line.startswith("#")}
    assert needed <= set(PROJECT["dependencies"])
    trains = {line.partition(">=")[0] for line in set(PROJECT["dependencies"]) - needed}
    assert trains == {
        "accelerate", "datasets", "onnx", "safetensors", "scikit-learn", "scipy", "sentence-transformers", "sentencepiece",
        "tomli-w", "torch", "transformers",
    }  # fmt: skip


SEARCHED = """
import sys
import dsi
index = dsi.load(sys.argv[1])
print(index.search("noble gases", k=3).ids.tolist())
index.add([{"doc_id": "new", "title": "A new one", "text": "Of noble gases."}])
index.learn([("who is new", "new")])
index.save(sys.argv[1])
"""


@pytest.mark.programs
def test_an_environment_without_the_libraries_that_train_searches_serves_and_updates(built, encoder, tmp_path):
    index = small_index(encoder, vectors=True)
    index.save(tmp_path / "index")
    expected = index.search("noble gases", k=3).ids.tolist()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    pip += ["--constraint", str(ROOT / "constraints.txt")]
    server = ["fastapi", "prometheus-client", "uvicorn"]
    subprocess.run([*pip, "--requirement", str(ROOT / "dsi" / "searching.txt"), *server], check=True)
    subprocess.run([*pip, "--no-deps", str(built / f"{NAME}-py3-none-any.whl")], check=True)

    def run(*command, expecting=0):
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")  # to which the index is one from elsewhere
        done = subprocess.run(
            [str(python), *command], capture_output=True, text=True, cwd=tmp_path, env=variables, check=False
        )
        assert done.returncode == expecting, done.stderr
        return done

    for name in ("torch", "transformers", "sentence_transformers", "datasets", "sklearn"):
        assert run("-c", f"import importlib.util; print(importlib.util.find_spec({name!r}))").stdout == "None\n"
    assert run("-c", SEARCHED, "index").stdout == f"{expected}\n"
    again = run("-m", "dsi", "search", "index", "noble gases", "--json", "-k", "51").stdout
    assert '"doc_id": "new"' in again
    assert "fine" in run("-m", "dsi", "verify", "index").stdout
    run("-c", SERVED)
    refused = run("-m", "dsi", "train", "minipedia", "out", expecting=2).stderr
    assert refused == "dsi: This command needs tomli_w, which is not installed; run pip install dr-scl.\n"


SERVED = """
from fastapi import FastAPI
from dsi.server.app import create_app
from dsi.server.settings import ServerSettings
app = create_app(ServerSettings(run="index"))
assert isinstance(app, FastAPI)
found = app.state.service.retriever.search("noble gases", k=1)
assert len(found) == 1
"""
