"""Random command lines: of every command as far as its libraries, and of those that search and update an index to their end."""

import argparse
import contextlib
import importlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dsi.commands import arguments, libraries
from dsi.commands.main import build_parser, command_modules, run_command
from dsi.store.retriever import load
from tests.support.grammars import condition, words
from tests.support.tiny_index import QUERIES, RECORDS, TinyIndex
from tests.support.trials import Case

NUMBERS = [
    "5", "0", "1", "-1", "2.5", "nan", "inf", "-inf", "1e400", "abc", "", " ", "9" * 5000, "0x10", "1,5", "--", "²",
    "True", "None",
]  # fmt: skip
WRONG_NUMBERS = ["nan", "abc", "", " ", "0x10", "1,5", "²", "True", "None", "-1e400", "1 2"]
TEXTS = [
    "neon", "", " ", "é", "a b", "x" * 300, "\0", "a\nb", "../..", "/dev/null", "/", "-", "%s", "~", "\udcff",
    "missing/run",
]  # fmt: skip


class Ready(BaseException):
    """The command line was taken: the command would load its libraries or begin its work now."""


def command(name: str, given: Sequence[str], stdin: bytes = b"") -> str:
    """What a command prints.

    Raises:
        The error that made it end with status 2, after looking at what the user saw of it.
    """
    seen: list[BaseException] = []
    module = importlib.import_module(command_modules()[name])

    def watched(argv: Sequence[str]) -> None:
        try:
            module.main(argv)
        except BaseException as error:
            seen.append(error)
            raise

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _stdin(stdin):
        status = run_command(watched, given)
    lines = err.getvalue().splitlines()
    if status == 2:
        if len(lines) != 1 or not lines[0].startswith("dsi: "):
            raise RuntimeError(f"not one line that begins with dsi: {err.getvalue()!r}")
        if not isinstance(seen[0], OSError):
            seen[0].args = (lines[0],)  # what the user saw of it
        raise seen[0]
    if status or "Traceback" in err.getvalue():
        raise RuntimeError(f"status {status}: {err.getvalue()!r}")
    return out.getvalue()


@contextlib.contextmanager
def _stdin(content: bytes) -> Any:
    import sys

    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content), encoding="ascii")
    try:
        yield
    finally:
        sys.stdin = before


# As far as the libraries


def option_lines(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """A line of any command with options by chance; what must be refused is."""
    name = chance.choice(sorted(command_modules()))
    own = build_parser(name)
    given, wrong = _line(own, index, chance, folder)
    check = None if wrong else (lambda taken: _check_numbers(own, given, taken))
    return Case(
        f"dsi {name} {given}"[:600],
        lambda: taken_line(name, given),
        (),
        False if wrong else None,
        check or (lambda _: None),
    )


def taken_line(name: str, given: Sequence[str]) -> argparse.Namespace:
    """The arguments that a command reads from a line."""
    found: list[argparse.Namespace] = []
    module, parse = importlib.import_module(command_modules()[name]), arguments._Parser.parse_args

    def parse_args(self: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        found.append(parse(self, argv))
        if name.startswith("prepare"):  # they load nothing, and begin
            raise Ready
        return found[-1]

    def ready(**_: object) -> None:
        raise Ready

    with contextlib.ExitStack() as patches, contextlib.suppress(Ready):
        patches.enter_context(_patched(arguments._Parser, "parse_args", parse_args))
        for place in (module, arguments, libraries):
            if hasattr(place, "load_libraries"):
                patches.enter_context(_patched(place, "load_libraries", ready))
        with contextlib.redirect_stdout(io.StringIO()):
            command(name, given)
    return found[0]


@contextlib.contextmanager
def _patched(place: Any, name: str, value: Any) -> Any:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def _line(parser: argparse.ArgumentParser, index: TinyIndex, chance: Random, folder: Path) -> tuple[list[str], bool]:
    """(arguments, whether one of them must be refused)."""
    given, wrong = [], False
    flaw = chance.choice([None, None, "unknown", "number", "choice", "text"])
    for action in parser._actions:
        needed = action.required or not action.option_strings
        prints = action.option_strings[-1:] in (["--help"], ["--settings"])
        if prints or not (needed or chance.random() < 0.2):
            continue
        values = _right(action, index, chance, folder)
        if flaw == "number" and values and _is_number(action):
            values, wrong = [*values[:-1], chance.choice(WRONG_NUMBERS)], True
        elif flaw == "choice" and action.choices and values:
            values, wrong = [chance.choice(["", "no such", values[0].upper() + "x"])], True
        elif flaw == "text" and values and not _is_number(action) and not action.choices:
            values = [chance.choice(TEXTS)]
        given += (
            [f"{action.option_strings[-1]}={values[0]}", *values[1:]]
            if action.option_strings and values
            else [*action.option_strings[-1:], *values]
        )
    if flaw == "unknown":
        given, wrong = [*given, chance.choice(["--no-such-option", "--x=3", "-Z", "--alpah=0.5"])], True  # misspelt
    return given, wrong


def _is_number(action: argparse.Action) -> bool:
    """True if an option takes numbers (`dsi.commands.values.number`)."""
    return getattr(action.type, "__qualname__", "").startswith("number.")


def _right(action: argparse.Action, index: TinyIndex, chance: Random, folder: Path) -> list[str]:
    if action.nargs == 0:
        return []
    if action.choices:
        return [str(chance.choice(list(action.choices)))]
    if _is_number(action):
        return [chance.choice(["1", "1", "5", "0", "100"])] * (action.nargs if isinstance(action.nargs, int) else 1)
    file = index.collection / "corpus.jsonl"
    places = {
        "index_folder": index.index,
        "collection_folder": chance.choice([index.collection, "minipedia"]),
        "existing_file": file,
        "output_folder": folder / "out",
        "output_file": folder / "out.txt",
        "configuration": "digits",
    }
    return [str(places.get(getattr(action.type, "__name__", ""), chance.choice(["neon", "cpu", "a b"])))]


def _check_numbers(parser: argparse.ArgumentParser, given: Sequence[str], taken: argparse.Namespace) -> None:
    """Each number is the one that was written."""
    for action in parser._actions:
        for text in given:
            option, _, value = text.partition("=")
            if option in action.option_strings and _is_number(action) and action.nargs is None:
                assert getattr(taken, action.dest) == float(value), f"{getattr(taken, action.dest)} for {text}"


# To the end


def whole_lines(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """A search, an explanation or an update from the shell; it answers as Python does."""
    kinds: list[Callable[[TinyIndex, Random, Path], Case]] = [_search, _search, _pipe, _explain, _update]
    return chance.choice(kinds)(index, chance, folder)


def _options(chance: Random) -> tuple[dict[str, Any], list[str]]:
    """Options of a search for Python and for the shell, right ones and wrong ones."""
    ids = [record["_id"] for record in RECORDS]
    values = {
        "beam_width": [40, 3],
        "candidates": [5, 100],
        "lexical_weight": [0.0, 0.3],
        "token_weight": [0.0, 0.1],
        "method": ["generate", "exact"],
        "where": [condition(chance)[0], "yaer = 1"],  # misspelt
        "allow": [ids[:5], ["missing"]],
        "deny": [ids[3:9]],
    }
    options = {name: chance.choice(own) for name, own in values.items() if chance.random() < 0.2}
    line = []
    for name, value in options.items():
        written = value if isinstance(value, list) else [str(value)]
        line += [f"--{name.replace('_', '-')}", *written]
    return options, line


def _search(index: TinyIndex, chance: Random, folder: Path) -> Case:
    (options, line), query, k = (
        _options(chance),
        chance.choice([*QUERIES, words(chance) + " x"]),
        chance.choice([1, 3, 8, 12]),
    )
    given = [str(index.index), "--device", "cpu", "--json", "-k", str(k), *line, "--", query]

    def check(printed: str) -> None:
        (record,) = map(json.loads, printed.rstrip("\n").split("\n"))
        hits = index.retriever.search(query, k, **options)
        assert record["query"] == query
        assert record["exact"] == hits.exact
        assert [(hit["doc_id"], hit["score"]) for hit in record["hits"]] == [(hit.doc_id, hit.score) for hit in hits]

    return Case(f"dsi search {given}", lambda: command("search", given), (), None, check)


def _pipe(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """Lines of any bytes: each has its object, unless it is blank."""
    some = [
        b"noble gas", b":x", b"\xff\xfe", b"a\0b", "é 東京".encode(), b" " * 50, b"x" * 20000, b"\x1b[A",
    ]  # fmt: skip
    lines = [chance.choice(some) for _ in range(chance.randrange(1, 6))]
    given = [str(index.index), "--device", "cpu", "--json", "-k", "2"]
    wanted = sum(1 for line in lines if line.strip())

    def check(printed: str) -> None:
        records = [json.loads(line) for line in printed.split("\n") if line]
        assert len(records) == wanted, printed
        assert not any("error" in record for record in records), "errors with status 0"

    return Case(
        f"dsi search --json, given {lines!r}",
        lambda: command("search", given, b"\n".join(lines)),
        ("lines failed",),
        None,
        check,
    )


def _explain(index: TinyIndex, chance: Random, folder: Path) -> Case:
    options, line = _options(chance)
    given = [str(index.index), "--device", "cpu", *line, "--", QUERIES[0]]

    def check(printed: str) -> None:
        assert printed.rstrip("\n") == index.retriever.explain(QUERIES[0], **options).answer.rstrip("\n")

    return Case(f"dsi explain {given}", lambda: command("explain", given), (), None, check)


def _update(index: TinyIndex, chance: Random, folder: Path) -> Case:
    """Documents added and removed; the index on disk holds all of the change or nothing of it."""
    run, before = folder / "index", {record["_id"] for record in RECORDS}
    shutil.copytree(index.index, run)
    new = [
        {
            "_id": chance.choice(["n1", "n2", "é", RECORDS[0]["_id"]]),
            "title": words(chance),
            "text": words(chance) + " x",
        }
        for _ in range(2)
    ]
    gone = chance.sample(sorted(before), chance.choice([0, 1, 3])) + chance.choice([[], [], ["missing"]])
    (folder / "new.jsonl").write_text(
        "\n".join(map(json.dumps, new)) + chance.choice(["", "", "\n{", "\n[]", '\n{"_id": "x"}'])
    )
    given = [str(run), "--device", "cpu", "--add", str(folder / "new.jsonl"), *(["--remove", *gone] if gone else [])]

    def call() -> str:
        try:
            return command("update", given)
        except (ValueError, OSError):
            assert set(load(run, device="cpu").snapshot.documents.rows) == before, "half an update"
            raise

    def check(printed: str) -> None:
        after = load(run, device="cpu")
        assert set(after.snapshot.documents.rows) == (before - set(gone)) | {record["_id"] for record in new}
        assert f"{len(after.snapshot.documents)} documents now" in printed

    return Case(f"dsi update {given} {new}", call, (), None, check)
