"""Changes to the files of an index, each tried in a process of its own, so that a crash is seen."""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import dsi
import dsi.store.loading
from dsi.docids.files.storage import sha256
from dsi.generator.base import Generator
from dsi.store.loading import ChangedError
from tests.support.kills import fork, status_of

SECONDS = 20
MOST_BYTES = 2 * 2**30
OUTSIDE = 77
DEATHS = {-signal.SIGALRM: "hang", -signal.SIGPROF: "hang", OUTSIDE: "outside"}
CALLS = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "webbrowser", "urllib")
"""Audit events of Python that loading never raises."""
WELL = ("fine", "clear error")
HOSTILE = [0, -1, 1, 2, 3, 7, 1000, 10**6, 10**9, 10**12, 2**63, 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf"), True,
           False, None, "", "x", "../..", "/dev/zero", "gelu_new", [], [0], {}, {"x": 1}]  # fmt: skip
QUERIES = ["noble gas", "which metal is light"]


class Edit(NamedTuple):
    """A change to one file of an index.

    Attributes:
        name: of the file, below the index.
        what: the change, in words.
        change: a function of the file's path; it may return more words.
    """

    name: str
    what: str
    change: Callable[[Path], object]


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Change the value in a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def write_sums(folder: Path) -> None:
    """Make the sums in the manifest fit the files, as a stranger could."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    files = sorted(file for name in dsi.store.loading.PARTS for file in (folder / name).rglob("*") if file.is_file())
    manifest["files"] = {file.relative_to(folder).as_posix(): sha256(file) for file in files}
    path.write_text(json.dumps(manifest))


def use(folder: Path, reranker: str = "") -> None:
    """Load an index, or a reranker beside it, and search with it in every way that reads other parts."""
    retriever = dsi.GenerativeRetriever.from_pretrained(folder, device="cpu")
    rerankers = dsi.load_rerankers(folder, reranker, device="cpu") if reranker else []
    _watching.clear()  # an update writes scratch files
    try:
        for options in ({}, {"method": "exact"}, {"alpha": 0.0}, {"deny": [retriever.documents.dataset["doc_id"][0]]}):
            retriever.search(QUERIES, k=5, **options)
        features = next((own.features for own in rerankers if own.features), None)
        candidates = retriever.candidates(QUERIES, k=5, features=features)
        for own in rerankers:
            with passing_over("These candidates have no feature"):
                dsi.rerank(candidates, own).hits()
        retriever.add([{"doc_id": "a-new-one", "title": "Neon", "text": "a noble gas"}])
        retriever.remove([retriever.documents.dataset["doc_id"][0]])
        retriever.search(QUERIES, k=5)
        retriever.explain(QUERIES[0], k=2)
        # An encoder is not the one of the manifest, whose binding `trial` does not check.
        with suppress(ChangedError), passing_over(f"{folder} can be updated no more"):
            retriever.save_update(folder)
    except Exception as error:  # whatever is wrong must be found when an index is loaded
        raise RuntimeError("after loading") from error


@contextmanager
def passing_over(beginning: str) -> Iterator[None]:
    """Pass over a documented error that is no matter of loading, by how its message begins."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(beginning):
            raise


def outcome(folder: Path, reranker: str) -> tuple[str, str]:
    """What happens in this process, and the error."""
    try:
        use(folder, reranker)
    except (ValueError, FileNotFoundError) as error:
        _watching.clear()  # a traceback reads sources
        clear = (str(folder) in str(error) or "manifest.json" in str(error)) and "\n" not in str(error)
        return "clear error" if clear else "trace", traceback.format_exc() if not clear else str(error)
    except BaseException:
        _watching.clear()
        return "trace", traceback.format_exc()
    return "fine", ""


def change(path: Path, chance: random.Random) -> str:
    """Change a few bytes of a file, more often near its start, or a value in a JSON file; returns what was done."""
    if path.suffix == ".json" and chance.random() < 0.7:
        value = json.loads(path.read_text())
        done = change_value(value, chance)
        path.write_text(json.dumps(value))
        return done
    data, flips = bytearray(path.read_bytes()), []
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(chance.choice([len(data), len(data), min(len(data), 400)]))
        value = ord(chance.choice("0123456789")) if chance.random() < 0.3 else chance.randrange(256)
        flips.append((place, data[place], value))
        data[place] = value
    path.write_bytes(data)
    return str(flips)


def change_value(value: Any, chance: random.Random) -> str:
    """Replace or remove a value at a random place of a JSON object or list."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.8:
        return f"{key}.{change_value(value[key], chance)}"
    if chance.random() < 0.2:
        return f"{key} removed: {value.pop(key)!r}"
    before, value[key] = value[key], chance.choice(HOSTILE)
    return f"{key}: {value[key]!r} for {before!r}"


def random_edits(source: Path, count: int, seed: int) -> Iterator[Edit]:
    """Random changes to all files of an index in turn."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for number in range(count):
        name, chance = names[number % len(names)], random.Random(seed + number)
        yield Edit(name, f"seed {seed + number}", lambda path, chance=chance: change(path, chance))


def trial(source: Path, edit: Edit) -> tuple[str, str]:
    """(outcome, what was changed) of one change to one file."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-")) / "index"
    shutil.copytree(source, folder, copy_function=os.link)
    for name in {edit.name, "manifest.json"}:  # what is written
        if (folder / name).is_file():
            (folder / name).unlink()
            shutil.copy(source / name, folder / name)
    done = f"{edit.name} ({edit.what}): {edit.change(folder / edit.name) or ''}"
    if edit.name != "manifest.json":
        write_sums(folder)
    report = folder.parent / "outcome.json"

    def work() -> None:
        _limit()
        own = [str(folder), str(Path(__file__).parents[2]), *sys.path[1:]]
        watch(folder.parent / "outside", own)
        Generator.check_tree = lambda self, tree: None  # the bindings too can be made to fit
        dsi.store.loading.check_binding = lambda *arguments: None
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        parts = edit.name.split("/")
        found = outcome(folder, parts[1] if parts[0] == "rerank" else "")
        _watching.clear()
        report.write_text(json.dumps(found))

    status = status_of(fork(work))
    opened = (folder.parent / "outside").read_text()
    found, error = DEATHS.get(status, "crash"), f"status {status} {opened}"
    if report.exists():
        found, error = json.loads(report.read_text())
    shutil.rmtree(folder.parent)
    return found, f"{done}\n{error}"


def _limit() -> None:
    """Let this process end after `SECONDS` of work, or 30 times as long on a busy machine, and refuse it `MOST_BYTES`."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(30 * SECONDS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


_watching: list[str] = []
"""Where files may be opened just now; empty if anywhere."""


def watch(path: Path, own: Iterable[str]) -> None:
    """End this process with status `OUTSIDE` if it opens a connection, a process, or a file of neither `own` nor Python.

    Args:
        path: of a file, which will say what was opened.
        own: how paths begin that may be opened.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT)
    known = [*own, sys.prefix, sys.base_prefix, "/proc/", "/sys/", os.devnull]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _watching:
            return
        path = os.fsdecode(arguments[0]) if event == "open" and isinstance(arguments[0], str | bytes) else ""
        if event.startswith(CALLS) or (path and not path.startswith(tuple(_watching))):
            os.write(log, f"{event} {arguments[:2]}".encode())
            os._exit(OUTSIDE)

    sys.addaudithook(hook)
    _watching[:] = known


def count_outcomes(source: Path, edits: Iterable[Edit]) -> tuple[Counter[str], list[str]]:
    """({outcome: edits}, what did not end well)."""
    counts, bad = Counter[str](), []
    for edit in edits:
        found, done = trial(source, edit)
        counts[found] += 1
        if found not in WELL:
            bad.append(f"{found}: {done}")
    return counts, bad
