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
for group in (extensions.SCHEMES, extensions.OBJECTIVES, extensions.RERANKERS, extensions.COMMANDS):
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
