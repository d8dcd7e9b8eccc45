"""`dsi COMMAND …`: lists the commands and runs one; imports nothing heavy before that."""

import argparse
import ast
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dsi.docids.extensions import COMMANDS as EXTENSIONS
from dsi.docids.extensions import extensions, load_extension
from dsi.docids.files.checks import printable

_OF_ROOMS = {"serve": "dsi.server", "push": "dsi.hub"}
"""{command: the extension room that it is of}; without the room there is no such command."""
COMMANDS = tuple(name for name in (
    "index", "train", "tune", "evaluate", "compare", "search", "explain", "info", "serve",
    "update", "verify",
    "push",
) if name not in _OF_ROOMS or find_spec(_OF_ROOMS[name]))  # fmt: skip
"""The commands of the library, in the order of `dsi --help`; other packages add commands as entry points."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if os.name == "nt" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # into a file or a pipe, Windows writes an older encoding
    if not arguments or arguments[0] in ("-h", "--help"):
        return run_command(lambda _: print(_usage()), [])
    name, *rest = arguments
    if name == "--version":
        print(f"dsi {version('dr-scl')}")
        return 0
    command = find_command(name)
    if command is None:
        near = get_close_matches(name, command_modules(), n=1, cutoff=0.7)
        hint = f"did you mean {near[0]!r}?" if near else "dsi --help lists the commands."
        print(f"dsi: unknown command {name!r}; {hint}", file=sys.stderr)
        return 2
    return run_command(command, rest)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command whose module has a `build_parser`, as ours and the wing's do."""
    return importlib.import_module(command_modules()[command]).build_parser()  # type: ignore[no-any-return]


def command_modules() -> dict[str, str]:
    """Return {command: its module}, ours first, then those of other packages."""
    ours = _our_modules()
    return ours | {point.name: point.module for point in extensions(EXTENSIONS) if point.name not in ours}


def _our_modules() -> dict[str, str]:
    return {name: f"dsi.commands.{name.replace('-', '_')}" for name in COMMANDS}


def find_command(name: str) -> Callable[[Sequence[str]], None] | None:
    """Return the function of a command, ours or that of another package, or None if there is none."""
    if name in COMMANDS:
        return importlib.import_module(_our_modules()[name]).main  # type: ignore[no-any-return]
    return load_extension(EXTENSIONS, name)


def run_command(command: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Call a command's main; bad input becomes one line on stderr and exit status 2.

    A command that is interrupted (Ctrl-C) says so, one whose reader has gone (`| head`) is silent, like other programs.
    """
    try:
        command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return 141
    except (ValueError, OSError, ModuleNotFoundError) as error:
        text = str(error)
        if isinstance(error, ModuleNotFoundError) and text.startswith("No module named"):
            text = f"This command needs {error.name}, which is not installed; run pip install dr-scl."
        print(f"dsi: {printable(text)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ndsi: interrupted", file=sys.stderr)
        return 130
    except MemoryError as error:
        reason = printable(str(error)) or "MemoryError"
        print(f"dsi: out of memory ({reason}); raise the limit (ulimit -v), or do less at once", file=sys.stderr)
        return 2
    return 0


def _usage() -> str:
    groups = {"": _our_modules()}
    for point in extensions(EXTENSIONS):
        added_by = point.dist.name if point.dist else "other packages"
        groups.setdefault(f"added by {added_by}:", {})[point.name] = point.module
    width = max(len(name) for commands in groups.values() for name in commands)
    lines = ["usage: dsi COMMAND …   (dsi COMMAND --help, dsi --version)"]
    for title, commands in groups.items():
        lines += ["", title] if title else [""]
        lines += [f"  {name.ljust(width)}  {purpose(module)}" for name, module in commands.items()]
    return "\n".join(lines)


def purpose(module: str) -> str:
    """Return what a command does: the first line of its module's docstring after "`dsi NAME`: ", read without importing it."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError as error:  # the package is there by name alone
        return f"cannot be run: {error}"
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return (line.partition("`: ")[2] or line).rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
