"""What a command does before it computes: imports the libraries, keeps them quiet, leaves busy cores alone.

The libraries take seconds to import, and say so on a terminal. They compute on as many threads as there are cores. If others
use some of the cores, or a container may use only a few, threads wait for each other at every step, which can take longer than
one thread alone; so a command counts only the cores that it may use and that are free when it starts. This is the one place
that decides; OMP_NUM_THREADS chooses another number.
"""

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

_SAMPLE = 0.2
"""Seconds in which the load of the cores is measured."""


def load_libraries() -> None:
    """Import what nearly every command needs; from then on show our own messages and progress, and only serious warnings."""
    quiet_logging()
    with _announced("loading libraries …"):
        _choose_threads()
        import datasets
        import sentence_transformers  # noqa: F401
        from transformers.utils import logging as transformers_logging

        datasets.disable_progress_bars()  # reading tables takes no time
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()


def quiet_logging() -> None:
    """Show our own messages, and only serious warnings of the libraries; imports nothing."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for package in ("contrastive", "docids", "dsi", "dsi_experiments", "eval"):
        logging.getLogger(package).setLevel(logging.INFO)
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)


@contextmanager
def _announced(text: str) -> Iterator[None]:
    """Show a text on a terminal until the block ends."""
    shown = sys.stderr.isatty()
    if shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(f"\r{' ' * len(text)}\r", end="", file=sys.stderr, flush=True)


def _choose_threads() -> None:
    """Set OMP_NUM_THREADS, which the libraries read when they are imported, if it is not set and not all cores are ours."""
    if "OMP_NUM_THREADS" in os.environ or "torch" in sys.modules:
        return
    cores, busy = busy_cores(_SAMPLE)
    threads = int(max(1, min(cores - busy, allowed_cores())))
    if threads < cores:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        shown = "1 thread" if threads == 1 else f"{threads} threads"
        why = (
            f"{busy} of {cores} cores are busy"
            if threads == cores - busy
            else f"{threads} of {cores} cores may be used"
        )
        logger.info("%s: computing on %s (OMP_NUM_THREADS changes it)", why, shown)


def allowed_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """How many cores the container of this process may use, at least one; infinite where Linux sets no limit."""
    try:
        quota, period = limit.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no file, or "max"
        return math.inf


def busy_cores(seconds: float) -> tuple[int, int]:
    """Return this process's cores, and how many of them others kept busy for so many seconds; 0 where Linux does not tell."""
    before = _ticks()
    if before:
        time.sleep(seconds)
    shares = [
        (work - before[core][0]) / (total - before[core][1])
        for core, (work, total) in _ticks().items()
        if core in before and total > before[core][1]
    ]
    return len(before), round(sum(shares))


def _ticks() -> dict[int, tuple[int, int]]:
    """{core of this process: (ticks of work, all ticks)}; niced work does not count, as it gives way to ours."""
    try:
        cores, lines = os.sched_getaffinity(0), Path("/proc/stat").read_text().splitlines()
    except (AttributeError, OSError):
        return {}
    found = {}
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks = list(map(int, fields[:8]))  # user, nice, system, idle, iowait, irq, softirq, steal
            found[int(name[3:])] = (sum(ticks) - ticks[1] - ticks[3] - ticks[4], sum(ticks))
    return found
