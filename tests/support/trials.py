"""Random cases and their judge: each runs in a forked process, so that a crash, a hang and a flood of memory are seen too."""

import dis
import json
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import datasets

from tests.support.kills import fork, status_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("dsi", "scripts")
SECONDS, MEMORY, LONGEST = 10, 2 << 30, 1500
"""Limits of a case: its time, the memory it adds in bytes, the characters of a message."""
WELL = ("right", "clear error")
"""Others: taken (wrong input that was not refused), refused (right input), wrong (answer), trace, hang, crash, memory."""
TOGETHER = 50
"""Cases of one process."""


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        what: the input, for people.
        call: takes it.
        names: one of them stands in every message about it; none for any message.
        good: True for input that must be taken, False for one that must be refused, None where either is right.
        check: asserts that what `call` returned is right.
    """

    what: str
    call: Callable[[], Any]
    names: Sequence[str] = ()
    good: bool | None = None
    check: Callable[[Any], object] = lambda answer: None


Kind = Callable[[Random, Path], Case]
"""Makes a case by chance; may write files into an empty folder of its own."""


def judge(case: Case) -> tuple[str, str]:
    """(outcome, error) of a case in this process."""
    try:
        answer = case.call()
    except MemoryError as error:
        return "memory", repr(error)
    except BaseException as error:
        if not is_clear(error, case.names):
            return "trace", f"{type(error).__name__}: {error} (raised in {_place(error)})"
        return ("refused" if case.good else "clear error"), str(error)
    if case.good is False:
        return "taken", repr(answer)[:LONGEST]
    try:
        case.check(answer)
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"[:LONGEST]
    return "right", ""


def is_clear(error: BaseException, names: Sequence[str]) -> bool:
    """True for one line of ours that names the thing, or what Python says about a file."""
    text = str(error)
    of_a_file = (isinstance(error, OSError) and error.filename is not None) or "os.PathLike" in text
    ours, named = of_a_file or _raised_by_us(error), of_a_file or not names or any(name in text for name in names)
    return (
        isinstance(error, ValueError | TypeError | OSError)
        and ours
        and named
        and 0 < len(text) < LONGEST
        and "\n" not in text
    )


def _raised_by_us(error: BaseException) -> bool:
    """True if a `raise` of one of our packages raised it, not a function of Python or of a library that was called there."""
    end = error.__traceback__
    while end is not None and end.tb_next:
        end = end.tb_next
    if end is None or end.tb_lasti < 0:
        return False
    code = end.tb_frame.f_code
    inside = any(Path(code.co_filename).is_relative_to(ROOT / name) for name in PACKAGES)
    return inside and dis.opname[code.co_code[end.tb_lasti]] == "RAISE_VARARGS"


def _place(error: BaseException) -> str:
    end = error.__traceback__
    while end is not None and end.tb_next:
        end = end.tb_next
    return f"{end.tb_frame.f_code.co_filename}:{end.tb_lineno}" if end else "nowhere"


def count_outcomes(name: str, kind: Kind, first: int, cases: int) -> tuple[Counter[str], list[str]]:
    """({outcome: cases}, what did not end well) of the cases first, first + 1, …"""
    counts, bad = Counter[str](), []
    for number, (outcome, what, error) in enumerate(_trials(name, kind, first, cases), start=first):
        counts[outcome] += 1
        if outcome not in WELL:
            alone = f"DSI_SEED={number} DSI_CASES=1 python -m pytest -m fuzz tests/trials/test_fuzz.py -k {name}"
            bad.append(f"{outcome}: {what}\n    {error}\n    alone: {alone}")
    return counts, bad


def _trials(name: str, kind: Kind, first: int, cases: int) -> Iterator[tuple[str, str, str]]:
    """(outcome, input, error) of each case; after one that ends its process, the others go on in a new one."""
    number, end = first, first + cases
    while number < end:
        found = list(_in_child(name, kind, range(number, min(end, number + TOGETHER))))
        yield from found
        number += len(found)


def _in_child(name: str, kind: Kind, numbers: range) -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="dsi-fuzz-") as place:
        status = status_of(fork(lambda: _judge_all(name, kind, numbers, Path(place))))
        report = Path(place) / "report"
        found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        what = [entry["what"] for entry in found if "what" in entry]
        outcomes = [entry["outcome"] for entry in found if "outcome" in entry]
    for text, (outcome, error) in zip(what, outcomes, strict=False):
        yield outcome, text, error
    if len(outcomes) < len(numbers):
        outcome = "hang" if status == -signal.SIGALRM else "crash"
        yield outcome, what[-1] if len(what) > len(outcomes) else "the making of the case", f"status {status}"


def _judge_all(name: str, kind: Kind, numbers: range, place: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    datasets.disable_progress_bars()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    with (place / "report").open("w") as report:
        for number in numbers:
            folder = place / str(number)
            folder.mkdir()
            case = _made(kind, Random(f"{name} {number}"), folder)
            print(json.dumps({"what": case.what[:600]}), file=report, flush=True)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            outcome = judge(case)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps({"outcome": outcome}), file=report, flush=True)


def _made(kind: Kind, chance: Random, folder: Path) -> Case:
    try:
        return kind(chance, folder)
    except Exception as error:
        failed = error  # it ends as a trace, under the number of its case

    def fail() -> None:
        raise RuntimeError(f"the case cannot be made: {failed!r}")

    return Case("the making of the case", fail)
