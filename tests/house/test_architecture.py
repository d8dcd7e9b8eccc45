"""Who may import whom: the rooms of the core in a row, extension rooms that can be torn off; no circles; what --help costs."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from dsi.commands.main import COMMANDS
from dsi.docids import extensions
from tests.support.imports import imported, imported_on_import, parsed

ROOT = Path(__file__).parents[2]
LINKED = ("docids", "contrastive", "eval")
"""Folders that are packages of dsi, by links in its folder."""
PACKAGES = (*LINKED, "dsi", "scripts")
FRONT = ("__init__", "__main__")
"""Modules of dsi outside the rooms: they open the package and the command."""
CORE = ("docids", "contrastive", "eval", "search", "config", "store", "measuring", "training", "commands")
"""Rooms, each of which imports only those before it, and itself; contrastive and eval do not import each other."""
EXTENSIONS: dict[str, set[str]] = {
    "generator": {"docids", "contrastive", "search", "config", "training"},
    "language_models": {"docids", "contrastive", "search", "config", "generator"},
    "pseudo_queries": {"docids", "contrastive", "config"},
    "graph": {"docids", "contrastive"},
    "tries": {"docids", "store"},
    "hub": {"contrastive", "docids", "store"},
    "rerankers": {"contrastive", "docids", "search"},
    "integrations": {"docids", "contrastive", "eval", "search", "store", "training"},
    "server": {"docids", "search", "store"},
    "cluster": {"docids", "search", "store"},
    "files": {"docids", "store"},
}
"""{extension room, which can be torn off: rooms that it imports}; of the extensions only language models need another one."""
FROM_WITHIN = {
    ("dsi.config", "generator"),
    ("dsi.store.folder.loading", "generator"),
    ("dsi.store.folder.loading", "graph"),
    ("dsi.store.folder.writing", "graph"),
    ("dsi.training.pipeline", "generator"),
    ("dsi.training.preflight", "generator"),
    ("dsi.generator.kinds", "language_models"),
    ("dsi.training.pipeline", "pseudo_queries"),
    ("dsi.training.preflight", "pseudo_queries"),
    ("dsi.docids.data.collection", "files"),
    ("dsi.docids.data.locations", "files"),
    ("dsi.store.updating", "files"),
    ("dsi.store.retriever", "files"),
    ("dsi.measuring.evaluation", "rerankers"),
    ("dsi.store.folder.loading", "hub"),
    ("dsi.commands.evaluate", "rerankers"),
    ("dsi.commands.push", "hub"),
    ("dsi.commands.search", "rerankers"),
    ("dsi.commands.serve", "server"),
}
"""(module, extension room that it imports inside the function that needs it)."""
WALK = ("dsi.search.engine", "dsi.search.vector_search", "dsi.search.walk", "dsi.search.lists", "dsi.generator.beam")
MODELS = (
    "transformers",
    "sentence_transformers",
    "dsi.contrastive.encoder",
    "dsi.generator.model",
)
DOCIDS = ("dsi.docids.tree", "dsi.docids.schemes", "dsi.docids.clustering", "dsi.docids.updating")
UNKNOWN = {
    "HTTP": ("fastapi", "starlette", "uvicorn", "http"),
    "Hub": ("huggingface_hub.HfApi", "dsi.hub"),
    "decoders?": ("dsi.generator.model", "dsi.generator.cached"),
    "docids|identifiers": DOCIDS,
    "generators?": ("dsi.generator",),
    "indexes": ("dsi.store.retriever", "dsi.store"),
    "launchers": ("accelerate",),
    "manifests": ("dsi.store.folder.verify", "dsi.store.folder.loading"),
    "measures": ("dsi.eval.measures", "dsi.measuring"),
    "models": MODELS,
    "nodes": ("dsi.generator",),
    "ours": ("dsi",),
    "retrievers?": ("dsi.store.retriever",),
    "search(es|ing)?|searched": WALK,
    "tables?": ("dsi.eval.tables",),
    "texts": ("dsi.docids.data.collection", "dsi.contrastive.encoder"),
    "trained|training": ("dsi.training", "dsi.contrastive.training"),
    "trees": ("dsi.docids.tree", "dsi.docids.clustering"),
    "vectors": ("dsi.docids.vectors", "faiss"),
    "words": ("dsi.docids.words.bm25",),
}
"""{what a module's docstring may say that it knows nothing of: modules that it then does not import}."""
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def room_of(module: str) -> str:
    """The room of a module, "" for those in front and what is not ours; dsi.docids is a folder beside dsi with a link in it."""
    package, room, *_ = [*module.split("."), ""]
    if package in ("scripts", "dsi_experiments"):
        return "scripts"
    return room if package == "dsi" and room in (*CORE, *EXTENSIONS) else package if package in LINKED else ""


def module_of(path: Path) -> str:
    """The name that a file is imported by."""
    return name_of(".".join(path.with_suffix("").parts).removesuffix(".__init__"))


def test_imports_follow_the_table():
    assert not [line for path in MODULES for line in wrong_imports(path)]


def wrong_imports(path):
    """What is wrong with the imports of a module."""
    module = module_of(path)
    own = "scripts" if path.parts[0] == "scripts" else room_of(module)
    if not own and path.stem not in FRONT:
        yield f"{path} is in no room"
    for name in imported(ROOT / path):
        first, room = name.split(".")[0], room_of(name)
        if first in LINKED:
            yield f"{path}: {name} is installed as dsi.{name}"
        if own == "docids" and first in ("torch", "transformers", "sentence_transformers"):
            yield f"{path} imports {name}"
        if own not in ("", "scripts") and room not in ("", own) and not may_import(module, own, room):
            yield f"{path} imports {name}"
    for name in imported_on_import(ROOT / path) if own not in ("scripts", *EXTENSIONS) else ():
        if room_of(name) in EXTENSIONS:
            yield f"{path} imports {name}, which can be torn off; import it inside a function"


def may_import(module: str, room: str, other: str) -> bool:
    """True if a module of a room may import another room."""
    if (module, other) in FROM_WITHIN or room in EXTENSIONS:
        return (module, other) in FROM_WITHIN or other in EXTENSIONS[room]
    return other in CORE and CORE.index(other) < CORE.index(room) and {room, other} != {"contrastive", "eval"}


def test_the_table_has_no_row_too_many():
    found = {(module_of(path), room_of(name)) for path in MODULES for name in imported(ROOT / path)}
    assert found >= FROM_WITHIN
    for room, needed in EXTENSIONS.items():
        assert needed == {other for module, other in found - FROM_WITHIN if room_of(module) == room} - {"", room}, room


@pytest.mark.parametrize("package", LINKED)
def test_a_second_copy_of_a_package_is_refused(package):
    with pytest.raises(ImportError, match=f"{package} is a part of dsi; import dsi.{package}."):
        importlib.import_module(package)


def unknown_to(path: Path) -> list[str]:
    """Modules that a module may not import by the sentences of its docstring that begin "Knows nothing of" or "Knows no"."""
    text = " ".join((ast.get_docstring(parsed(ROOT / path)) or "").split())
    sentences = [found for found in re.findall(r"\b[Kk]nows no[^.;`]*", text) if " but " not in found]
    things = [thing for thing in UNKNOWN if any(re.search(rf"\b({thing})\b", sentence) for sentence in sentences)]
    return [module for thing in things for module in UNKNOWN[thing]]


def test_what_a_module_knows_nothing_of_it_does_not_import():
    found = [
        f"{path} imports {module}"
        for path in MODULES
        for unknown in unknown_to(path)
        for module in imported(ROOT / path)
        if f"{module}.".startswith(f"{unknown}.")
    ]
    assert not found


def name_of(module: str) -> str:
    """What a module is imported as, from its place in the repository."""
    return f"dsi.{module}" if module.partition(".")[0] in LINKED else module.removeprefix("scripts.")


def test_no_import_goes_in_a_circle():
    modules = {".".join(path.with_suffix("").parts): path for path in MODULES if path.name != "__init__.py"}
    names = {name_of(module): path for module, path in modules.items()}
    graph = {
        name: {other for other in imported(ROOT / path) if other in names and (name, room_of(other)) not in FROM_WITHIN}
        for name, path in names.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)  # raises CycleError, which shows the circle


def test_no_module_has_the_name_of_a_public_function():
    import dsi

    taken = {path.stem for path in (ROOT / "dsi").iterdir() if path.stem in dsi.__all__}
    assert not taken, "importing such a module would put it in the function's place"
    assert all(getattr(dsi, name).__doc__ for name in dsi.__all__)


def test_modules_open_with_what_they_do_and_stay_short():
    for path in MODULES:
        assert ast.get_docstring(parsed(ROOT / path)), f"{path} has no docstring"
        assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= 600, path
        for node in ast.walk(parsed(ROOT / path)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name} is too long"


def test_help_imports_nothing_heavy_and_groups_every_command():
    code = "import sys, dsi.commands.main as m; m.main(['--help']); print([n for n in ('torch', 'numpy') if n in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.strip().endswith("[]")
    assert "\nadded by dr-scl-experiments:\n" in output
    for name in (*COMMANDS, *extensions.extension_names(extensions.COMMANDS)):
        assert re.search(rf"^  {name} +\w", output, re.MULTILINE)


@pytest.mark.parametrize("command", ["train", "tune", "evaluate", "search", "explain", "update"])
def test_help_of_an_everyday_command_imports_nothing_heavy(command):
    show_help = f"try: m.main([{command!r}, '--help'])"
    code = f"import sys, dsi.commands.main as m\n{show_help}\nexcept SystemExit: print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"usage: dsi {command} ")
    assert output.endswith("False\n")


def test_what_is_wrong_with_a_setting_or_a_device_is_told_before_models_are_imported():
    wrong = [["--set", "encoder.nam=x"], ["--set", "contrastive.epochs=0"], ["--device", "gpu"]]  # misspelt
    code = f"""
import sys, dsi.commands.main as m
print([m.main(["train", "minipedia", "unwritten", *given]) for given in {wrong}])
print([name for name in ("datasets", "sentence_transformers", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2, 2]\n[]\n", done
    assert [line[:5] for line in done.stderr.splitlines()] == ["dsi: "] * 3


@pytest.mark.programs
def test_what_needs_an_extra_is_imported_when_it_is_needed():
    extras = (
        "ir_datasets", "ir_measures", "langchain_core", "lightgbm", "llama_index", "matplotlib", "numba", "pyndeval",
        "beir", "mteb", "pyterrier", "pyversity",
    )  # fmt: skip
    code = f"""
import sys
sys.modules.update(dict.fromkeys({extras!r}))  # importing one of them fails
import dsi.commands.evaluate, dsi.measuring.evaluation, dsi.store.retriever
import dsi_experiments.commands.train_reranker, dsi_experiments.commands.reproduce
from dsi_experiments import figure5, laboratory, objectives_table, synthetic
from dsi.docids.extensions import RERANKERS, load_extension
try:
    load_extension(RERANKERS, "parser")
except ValueError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 'needs numba; pip install "dr-scl-experiments[rerank]"' in output


@pytest.mark.parametrize(
    "module",
    [
        "dsi.search.hits",
        "dsi.search.top",
        *(f"dsi.eval.{name}" for name in ("measures", "fusion", "protocol", "tables")),
        "dsi_experiments.collections.natural_questions",
        "dsi_experiments.published",
        "dsi_experiments.regret",
        *(
            f"dsi.docids.{name}"
            for name in (
                "files.checks",
                "files.processes",
                "files.storage",
                "data.collection",
                "schemes",
            )
        ),
    ],
)
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).attempted > 0
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_no_test_module_imports_another():
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) tests\.(\w+\.)?test_", line)
    ]
    assert not found, "what several of them need belongs in tests/support"
