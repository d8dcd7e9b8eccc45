"""Who may import whom (scripts -> dsi -> eval | contrastive -> docids), without circles; and what --help costs."""

import ast
import doctest
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from dsi.commands.main import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("docids", "contrastive", "dsi", "eval", "scripts")
MAY_IMPORT = {
    "docids": set(),
    "contrastive": {"docids"},
    "eval": {"docids"},
    "dsi": {"docids", "contrastive", "eval"},
    "scripts": {"docids", "contrastive", "eval", "dsi"},
}
COMMAND = Path("dsi", "__main__.py")
"""Where the command `dsi` begins; alone in dsi, it imports scripts."""
ROOMS = ("trees", "generator", "search", "rerankers", "training")
"""Of dsi: each knows only those before it; the modules of dsi itself know all of them."""
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> list[tuple[str, bool]]:
    """(module, was it `import module`?) of every import in a file, those for type checkers included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, True) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", False))
    return found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_follow_the_direction(path):
    package, rooms = path.parts[0], ROOMS[: ROOMS.index(path.parts[1]) + 1] if path.parts[1] in ROOMS else None
    for module, bare in imported(ROOT / path):
        top = module.split(".")[0]
        if top == "dsi" == package and rooms:
            assert module.split(".")[1] in rooms, f"{path} imports {module}"
        if top in PACKAGES and top != package and (path, module) != (COMMAND, "dsi.commands.main"):
            assert top in MAY_IMPORT[package], f"{path} imports {module}"
        assert not (bare and top == "eval"), f"{path}: a bare import of eval hides the builtin"
        if package == "docids":
            assert top not in ("torch", "transformers", "sentence_transformers"), f"{path} imports {module}"


def test_no_import_goes_in_a_circle():
    names = {".".join(path.with_suffix("").parts): path for path in MODULES if path.name != "__init__.py"}
    graph = {name: {module for module, _ in imported(ROOT / path) if module in names} for name, path in names.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)  # raises CycleError, which shows the circle


def test_no_module_has_the_name_of_a_public_function():
    import dsi

    taken = {path.stem for path in (ROOT / "dsi").iterdir() if path.stem in dsi.__all__}
    assert not taken, "importing such a module would put it in the function's place"
    assert all(getattr(dsi, name).__doc__ for name in dsi.__all__)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_open_with_what_they_do_and_stay_short(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert len(text.splitlines()) <= 600
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 70, f"{path}: {node.name} is too long"


def test_help_imports_nothing_heavy_and_groups_every_command():
    code = "import sys, dsi.commands.main as m; m.main(['--help']); print([n for n in ('torch', 'numpy') if n in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.strip().endswith("[]")
    for group in ("everyday", "stages of training", "data", "experiments", "benchmarks"):
        assert f"\n{group}:\n" in output
    for name in COMMANDS:
        assert f"\n  {name} " in output


@pytest.mark.parametrize("command", ["example", "train", "tune", "evaluate", "search", "explain", "update"])
def test_help_of_an_everyday_command_imports_nothing_heavy(command):
    show_help = f"try: m.main([{command!r}, '--help'])"
    code = f"import sys, dsi.commands.main as m\n{show_help}\nexcept SystemExit: print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"usage: dsi {command} ")
    assert output.endswith("False\n")


def test_what_needs_an_extra_is_imported_when_it_is_needed():
    extras = (
        "ir_datasets", "ir_measures", "langchain_core", "lightgbm", "llama_index", "matplotlib", "numba", "pyndeval",
        "pyterrier", "pyversity",
    )  # fmt: skip
    code = f"""
import sys
sys.modules.update(dict.fromkeys({extras!r}))  # importing one of them fails
import dsi.commands.evaluate, dsi.measuring.evaluation, dsi.retriever
import dsi_experiments.commands.train_reranker, dsi_experiments.reproduce
from dsi_experiments import figure5, laboratory, objectives_table, synthetic
from dsi.rerankers.candidates import reranker_class
try:
    reranker_class("parser")
except ValueError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 'needs numba; pip install "dr-scl-experiments[rerank]"' in output


@pytest.mark.parametrize(
    "module",
    [
        *(f"dsi.search.{name}" for name in ("results", "walk")),
        *(f"eval.{name}" for name in ("measures", "fusion", "protocol", "tables", "report")),
        *(f"docids.{name}" for name in ("processes", "storage", "collection", "schemes", "natural_questions")),
    ],
)
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).attempted > 0
    assert doctest.testmod(importlib.import_module(module)).failed == 0
