"""Memory of this process and of its children, as the benchmarks report it (Linux). Knows nothing of what uses it."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from dsi.docids.files.ram import free_memory, give_back_memory

_INTERVAL = 0.02
"""Seconds between two looks by default."""


def family_memory() -> int:
    """Private bytes of this process and of all that it has started."""
    total = own_memory()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            total += own_memory(child)
    return total


def private_mib() -> float:
    """Private memory of this process in MiB: what the system cannot drop, as it can mapped files, without what was freed."""
    gc.collect()
    give_back_memory()
    return own_memory() / 2**20


def own_memory(process: psutil.Process | None = None) -> int:
    """Return the bytes that a process, this one by default, shares with no file; where that is not told apart (macOS), all."""
    held = (process or psutil.Process()).memory_info()
    return int(held.rss - getattr(held, "shared", 0))


@contextmanager
def watching_memory(held: Callable[[], int] = own_memory, interval: float = _INTERVAL) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most bytes held since the block began; what is free is given back first."""
    free_memory()
    most, ended = held(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(interval):
            most = max(most, held())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: max(most, held())
    finally:
        ended.set()
        watcher.join()
