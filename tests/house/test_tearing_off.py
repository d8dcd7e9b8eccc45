"""Extension rooms can be torn off: without all of them the core's tests pass, without each everything imports and collects."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import failing_without, needed_by

ROOT = Path(__file__).parents[2]
WING = ("tests/wing",)
LANGUAGE_MODELS = ("dsi/language_models.py", "tests/language_models", "tests/support/language_models.py")
ROOMS: dict[str, tuple[str, ...]] = {
    "generator": ("dsi/generator", "tests/generator", *LANGUAGE_MODELS, "tests/house/test_without_wing.py", *WING),
    "language_models": LANGUAGE_MODELS,
    "graph": ("dsi/graph", "tests/graph"),
    "pseudo_queries": ("dsi/pseudo_queries.py", "tests/pseudo_queries", *WING),
    "tries": ("dsi/tries", "tests/tries", "tests/trials/test_identifiers.py", *WING),
    "hub": ("dsi/hub.py", "tests/hub"),
    "rerankers": ("dsi/rerankers.py", "tests/rerankers", "tests/house/test_without_wing.py", *WING),
    "integrations": ("dsi/integrations", "tests/integrations"),
    "server": ("dsi/server", "tests/server", "tests/cluster/test_cluster_server.py"),
    "files": ("dsi/files", "tests/files", "tests/store/test_file_updates.py"),
    "cluster": ("dsi/cluster", "tests/cluster", "tests/trials/test_soak.py"),
}
"""{extension room: its files and tests, and what else is nothing without it}; the wing uses generators, tries and rerankers."""
NOT_COPIED = shutil.ignore_patterns(".*_cache", ".git", ".venv", "__pycache__", "build", "dist", "runs", "site")
HERE_ALONE = """
import sys
sys.meta_path[:] = [own for own in sys.meta_path if "__editable__" not in getattr(own, "__module__", "")]
"""
"""The finders of editable installations give what a copy lacks."""
WHOLE = ("tests/house", "tests/wing", "tests/trials")
"""Tests of the whole repository, not of the core."""
MEET = (
    "tests/commands",
    "tests/store/test_home_folder.py",
    "tests/evaluating/test_evaluation.py::test_baselines_come_first",
)
"""Tests of the modules of the core that import rooms inside functions."""


def test_the_table_names_what_is_there():
    for room, names in ROOMS.items():
        assert not [name for name in names if not (ROOT / name).exists()], room


def test_neither_the_core_nor_a_test_of_another_room_needs_a_room_to_be_imported():
    core = ("dsi", "docids", "contrastive", "eval")
    needed = needed_by(path for folder in (*core, "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
    for room, names in ROOMS.items():
        gone = {path for path in needed if any(path.is_relative_to(ROOT / name) for name in names)}
        failed = {path.relative_to(ROOT) for path in failing_without(gone, needed) - gone}
        assert not [path for path in failed if path.parts[0] in core or path.stem.startswith(("test_", "conftest"))], (
            f"import {room} inside of the function that needs it, in tests by pytest.importorskip"
        )


@pytest.fixture
def tree(tmp_path):
    """A copy of the repository."""
    shutil.copytree(ROOT, tmp_path / "tree", symlinks=True, ignore=NOT_COPIED)
    (tmp_path / "tree" / "sitecustomize.py").write_text(HERE_ALONE)
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    first = (*author, "commit", "-q", "-m", "A copy")  # results name a commit
    for command in (("init", "-q"), ("add", "dsi"), first):
        subprocess.run(["git", *command], cwd=tmp_path / "tree", check=True)
    return tmp_path / "tree"


def tear_off(tree: Path, *rooms: str) -> None:
    for name in dict.fromkeys(path for room in rooms for path in ROOMS[room]):
        path = tree / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)  # of two rooms, it may be gone


def run_tests(tree: Path, *arguments: str) -> None:
    """Import all and run pytest in the copy, where its packages come before those that are installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "scripts")])}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-c", IMPORT_ALL, "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


IMPORT_ALL = """
import importlib, sys
from pathlib import Path
import dsi, pytest
assert Path(dsi.__file__).is_relative_to(Path.cwd()), dsi.__file__
folders = [Path("dsi"), *(Path("dsi") / name for name in ("docids", "contrastive", "eval"))]
for path in sorted({path for folder in folders for path in folder.rglob("*.py")}):
    if path.stem == "__main__":
        continue
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # a library of an extra
        if error.name.partition(".")[0] == "dsi":
            raise
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_without_a_room_everything_imports_and_collects(room, tree):
    tear_off(tree, room)
    run_tests(tree, "--collect-only", "-m", "", "tests")


@pytest.mark.parametrize(
    "names", [pytest.param(MEET, marks=pytest.mark.programs), pytest.param(("tests",), marks=pytest.mark.slow)],
    ids=["where it meets rooms", "all"],
)  # fmt: skip
def test_without_all_rooms_the_core_passes_its_tests(names, tree):
    tear_off(tree, *ROOMS)
    for name in WHOLE:
        shutil.rmtree(tree / name, ignore_errors=True)
    run_tests(tree, "-x", *names)
