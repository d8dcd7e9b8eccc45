"""Memory of this process (Linux), read from /proc. Knows nothing of what uses it."""

import ctypes
import gc
import os
import threading
from pathlib import Path
from types import TracebackType


def resident_mib() -> float:
    """Resident memory of this process in MiB, memory-mapped files included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def private_mib() -> float:
    """Private memory of this process in MiB: what the system cannot drop, as it can mapped files, without what was freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _private() / 2**20


def _private() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


class PrivateMemory:
    """Peak private memory of this process while a `with` block runs (Linux); memory-mapped files do not count.

    Attributes:
        peak: in bytes, sampled twenty times a second.
    """

    def __enter__(self) -> "PrivateMemory":
        self.peak, self._done = 0, threading.Event()
        self._sampling = threading.Thread(target=self._sample)
        self._sampling.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._done.wait(0.05):
            self.peak = max(self.peak, _private())
