"""Writes the public interface to tests/interface.txt and its short form to docs: python -m tests.support.interface

What the reference pages document is public: names with their signatures and fields. So are the settings, the options of the
commands, and the entry points that other packages may name. The page docs/reference/public.md has a line for each name that
`dsi` exports, and for the methods that are called most.
"""

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import dsi
from dsi.commands.main import COMMANDS, build_parser
from dsi.config import all_settings
from dsi.docids import extensions

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".txt")
PAGE = ROOT / "docs" / "reference" / "public.md"
METHODS = {
    "Collection": ("from_records", "with_pairs", "save"),
    "Retriever": (
        "search", "similar", "evidence", "explain", "run", "get", "add", "remove", "update", "learn", "forget", "save",
    ),
    "Hits": ("explain", "to_df"),
}  # fmt: skip
"""{class: methods that the page lists}."""
_TABLE = re.compile(r"(?<=^\| name \| what it does \|\n\| --- \| --- \|\n)(\|.*\n)+", re.MULTILINE)
_DOCUMENTED = re.compile(r"^::: ([\w.]+)\n    options: \{([^\n]*)\}", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def interface() -> str:
    """Return the text of the file."""
    parts = {
        "names of dsi": sorted(f"dsi.{name}" for name in dsi.__all__),
        "signatures": _signatures(),
        "settings": (f"{s.section}{s.name} = {s.default!r}   {s.range}".rstrip() for s in all_settings()),
        "commands": (line for command in COMMANDS for line in _options(command)),
        "entry points": (extensions.SCHEMES, extensions.OBJECTIVES, extensions.RERANKERS, extensions.COMMANDS),
    }
    return "\n".join(line for title, lines in parts.items() for line in (f"# {title}", *lines, ""))


def _signatures() -> Iterator[str]:
    for page in ("dsi", "packages"):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        for name, options in _DOCUMENTED.findall(text):
            module, _, attribute = name.rpartition(".")
            members, heading = (
                re.search(pattern, options) for pattern in (r"members: \[(.*?)\]", r"heading: ([\w.]+)")
            )
            shown = members[1].split(", ") if members else None
            yield from _signature(_definition(module, attribute), heading[1] if heading else name, shown)


def _definition(module_name: str, name: str) -> ast.ClassDef | Function:
    """The definition in the module's text, which reads the same on every Python."""
    module = importlib.import_module(getattr(importlib.import_module(module_name), name).__module__)
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef | Function) and node.name == name)
    _Constants(module).visit(found)
    return found


class _Constants(ast.NodeTransformer):
    """Puts the values of a module's constants in the place of their names."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = getattr(self.module, node.id, None)
        return ast.Constant(value) if isinstance(value, int | float | str) else node


def _signature(node: ast.ClassDef | Function, name: str, members: list[str] | None) -> Iterator[str]:
    """The lines of a function, or of a class with its fields and those of its members that the pages show."""
    if isinstance(node, Function):
        yield _line(node, name)
        return
    yield f"class {name}({', '.join(ast.unparse(base) for base in node.bases)})"
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            yield f"    {ast.unparse(part)}"
        elif isinstance(part, Function) and _is_shown(part, members):
            yield f"    {_line(part, part.name)}"


def _is_shown(function: Function, members: list[str] | None) -> bool:
    if _is_overload(function):
        return False
    shown = not function.name.startswith("_") if members is None else function.name in members
    return shown or function.name == "__init__"


def _line(function: Function, name: str) -> str:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    kinds = [kind for kind in decorators if kind in ("property", "classmethod") or kind.endswith(".setter")]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return "".join(f"@{kind} " for kind in kinds) + f"{name}({ast.unparse(function.args)}){returns}"


def _options(command: str) -> Iterator[str]:
    for action in build_parser(command)._actions:
        if action.dest != "help":
            name = " ".join(action.option_strings) or str(action.metavar or action.dest)
            default = None if action.default == argparse.SUPPRESS else action.default
            facts = {"nargs": action.nargs, "default": default, "choices": action.choices}
            about = ", ".join(f"{fact} {value}" for fact, value in facts.items() if value not in (None, []))
            about += " required" if action.required and action.nargs != "*" else ""
            yield f"dsi {command} {name}   {about}".rstrip()


def with_public_table(text: str) -> str:
    """Return the page of public names with the table that the code gives."""
    return _TABLE.sub(lambda _: "".join(f"{line}\n" for line in _public_lines()), text)


def _public_lines() -> Iterator[str]:
    for name in sorted(dsi.__all__, key=lambda name: (name[0].isupper(), name)):
        definition = _definition(dsi._HOMES[name], name)
        yield _public_line(definition, f"dsi.{name}")
        if isinstance(definition, ast.ClassDef):
            own = {part.name: part for part in definition.body if isinstance(part, Function) and not _is_overload(part)}
            for method in METHODS.get(name, ()):
                yield _public_line(own[method], f".{method}")


def _public_line(node: ast.ClassDef | Function, name: str) -> str:
    """The row of a name: arguments with types, keywords by name alone, what it returns, the first line of its docstring."""
    about = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    if isinstance(node, ast.ClassDef):
        return f"| `class {name}` | {about} |"
    arguments = [ast.unparse(argument) for argument in node.args.args if argument.arg not in ("self", "cls")]
    keywords = [argument.arg for argument in node.args.kwonlyargs]
    arguments += ["*", *keywords] if keywords else []
    arguments += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    arguments += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
    return f"| `{name}({', '.join(arguments)}) -> {returns}`".replace(" | ", " \\| ") + f" | {about} |"


def _is_overload(function: Function) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)


if __name__ == "__main__":
    FILE.write_text(interface(), encoding="utf-8", newline="\n")
    PAGE.write_text(with_public_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
