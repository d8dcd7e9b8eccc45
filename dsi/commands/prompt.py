"""The prompt of `dsi search`: lines from a terminal, with history, or from a pipe. Knows nothing of searching."""

import io
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HELP = """A query searches the index.
  :explain QUERY   shows how its documents were found
  :help            shows this
  :quit            leaves; so does Ctrl-D"""


def read_lines(greeting: str) -> Iterator[str]:
    """Yield the lines that are not blank, up to `:quit` or the end; bytes that are not UTF-8 come as lone surrogates."""
    interactive = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    if interactive:
        _load_history()
        print(greeting)
    while True:
        try:
            line = input("dsi> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt) as end:
            if interactive:
                print()  # so that the shell's prompt begins a line
            elif isinstance(end, KeyboardInterrupt):
                raise
            return
        if line == ":quit":
            return
        if line:
            yield line


def command_of(line: str) -> tuple[str, str]:
    """Return the command of a line and its text; a query is the command "search".

    Raises:
        ValueError: an unknown command, :explain without a query, or a line that is not UTF-8.
    """
    if readable(line) != line:
        raise ValueError(f"the line {readable(line)!r} is not UTF-8; decode it again.")
    if not line.startswith(":"):
        return "search", line
    name, _, text = line.partition(" ")
    if name not in (":explain", ":help"):
        raise ValueError(f"unknown command {name!r}; the commands are :explain QUERY, :help and :quit.")
    if name == ":explain" and not text.strip():
        raise ValueError(":explain needs a query, as in `:explain noble gases`.")
    return name[1:], text.strip()


def readable(line: str) -> str:
    """Return a line with the replacement character in place of bytes that are not UTF-8."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _load_history() -> None:
    try:
        import readline
    except ModuleNotFoundError:  # missing on some platforms; the prompt works without it
        return
    import atexit

    history = Path("~/.dsi_history").expanduser()
    with suppress(OSError):  # none yet
        readline.read_history_file(history)
    readline.set_history_length(1000)
    atexit.register(_save_history, history)


def _save_history(path: Path) -> None:
    import readline

    with suppress(OSError):  # a home that cannot be written to keeps none
        readline.write_history_file(path)
