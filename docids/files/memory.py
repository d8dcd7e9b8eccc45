"""The memory that is this process's own: how much it is, how much it was at most, and keeping it small."""

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

_INTERVAL = 0.02
"""Seconds between two looks by default."""
_MAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 2**25), (-1, 2**28)
"""glibc's parameters: arrays from 32 MB on are given back at once, others when 256 MB are free."""


def keep_few_kernels() -> None:
    """Let oneDNN, which multiplies torch's matrices, keep 128 compiled products of its 1,024, and torch 8 of its own 1,024.

    Texts are computed without padding, so nearly every product has a shape of its own. After six steps of contrastive training
    a process holds .5 GB so, and 1.2 GB with all of them, in the same time. They are read at the first product of a process;
    the variables ONEDNN_PRIMITIVE_CACHE_CAPACITY and LRU_CACHE_CAPACITY say otherwise.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "8")


def own_memory(process: psutil.Process | None = None) -> int:
    """Return the bytes that a process, this one by default, shares with no file; where that is not told apart (macOS), all."""
    held = (process or psutil.Process()).memory_info()
    return int(held.rss - getattr(held, "shared", 0))


@contextmanager
def watching_memory(held: Callable[[], int] = own_memory, interval: float = _INTERVAL) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most bytes held since the block began; what is free is given back first.

    Args:
        held: returns them now; those of this process by default.
        interval: seconds between two looks.
    """
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


def free_memory() -> None:
    """Free what finished work has left, such as trainers, which hold their tensors in cycles; give it back to the system."""
    gc.collect()
    give_back_memory()


def give_back_memory() -> None:
    """Give freed memory back to the system, where the C library can (glibc); it would keep the pieces."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep freed arrays for those to come: to get new ones from the system takes half of a search.

    In a process that imports torch it learns that by itself.
    """
    if sys.platform == "linux" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)):
        for option in (_MAP_THRESHOLD, _TRIM_THRESHOLD):
            set_option(*option)
