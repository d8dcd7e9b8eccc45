"""What stages cost, in words, and the memory that is a process's own. Knows nothing of what is computed."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

_INTERVAL = 0.02
"""Seconds between two looks."""


@dataclass(frozen=True)
class Cost:
    """What a stage costs.

    Attributes:
        seconds: of wall time.
        memory: bytes of the process's own at most, as `own_memory` counts.
        counts: {what: how many}, such as steps and documents.
    """

    seconds: float
    memory: int
    counts: Mapping[str, int] = field(default_factory=dict)


def in_words(costs: Mapping[str, Cost]) -> str:
    """Return {stage: its cost} as one line."""
    parts = [f"{stage} {_words(cost)}" for stage, cost in costs.items()]
    whole = Cost(sum(cost.seconds for cost in costs.values()), max(cost.memory for cost in costs.values()))
    return "; ".join([*parts, f"in all {_words(whole)}"])


def _words(cost: Cost) -> str:
    counts = ", ".join(f"{count:,} {what}" for what, count in cost.counts.items())
    return f"{cost.seconds:.0f} s, {cost.memory / 1e9:.1f} GB{counts and f' ({counts})'}"


def own_memory() -> int:
    """Return the bytes that this process holds and shares with no file; where that is not told apart (macOS), all it holds."""
    held = psutil.Process().memory_info()
    return int(held.rss - getattr(held, "shared", 0))


@contextmanager
def watching_memory() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most bytes of `own_memory` since the block began."""
    most, ended = own_memory(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(_INTERVAL):
            most = max(most, own_memory())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: max(most, own_memory())
    finally:
        ended.set()
        watcher.join()
