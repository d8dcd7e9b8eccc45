"""What Python files import, read from their text, of which nothing is run; and imports that fail."""

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file; not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> list[str]:
    """The module of every import in a file, those for type checkers included."""
    return _modules_of(ast.walk(parsed(path)))


def _modules_of(nodes: Iterable[ast.AST]) -> list[str]:
    modules = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return modules


def imported_on_import(path: Path) -> list[str]:
    """The modules that are imported with a file: not those inside functions, nor those for type checkers."""
    kept = [node for node in parsed(path).body if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If)]
    return _modules_of(ast.walk(ast.Module(kept, [])))


@cache
def files_of(module: str) -> set[Path]:
    """The files of this repository that an import of a module runs: its own, and those of the packages around it."""
    parts = module.split(".")
    stems = [place.joinpath(*parts[:end]) for place in (ROOT, ROOT / "scripts") for end in range(1, len(parts) + 1)]
    files = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
    return {path.resolve() for path in files if path.is_file()}  # dsi has links to the folders beside it


def needed_by(files: Iterable[Path]) -> dict[Path, set[Path]]:
    """{file: the files of this repository that its own import runs first}."""
    return {path: {own for name in imported_on_import(path) for own in files_of(name)} for path in files}


def failing_without(gone: set[Path], needed: dict[Path, set[Path]]) -> set[Path]:
    """The files that cannot be imported without some, which they need themselves or by others; those that are gone too."""
    failed, more = set[Path](), gone
    while more:
        failed |= more
        more = {path for path, own in needed.items() if path not in failed and own & failed}
    return failed


def lose_room(monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    """Let every import of a room of dsi fail from now on, as where its files were removed."""
    for name in [name for name in sys.modules if name.startswith(f"dsi.{room}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, f"dsi.{room}", None)
