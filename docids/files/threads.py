"""How many threads compute; and small products on one: BLAS would share each among several, which takes longer."""

import os
import threading
from functools import cache
from pathlib import Path


def allowed_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use, at least one: by its CPU affinity and, in a container, by its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or the quota "max"
        return cores


def count_threads() -> int:
    """Return how many threads libraries compute on: OMP_NUM_THREADS, or one per core that this process may use."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else allowed_cores()


class _OneThread:
    """Lets BLAS use one thread while any thread of the process is inside; the last one out restores what was there.

    A BLAS that counts threads by OpenMP is left alone: its limit holds for the calling thread only, so another one could not
    restore it.
    """

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController  # it imports much

        blas = ThreadpoolController().select(user_api="blas")
        shared = [library["filepath"] for library in blas.info() if library.get("threading_layer") != "openmp"]
        self._pools = blas.select(filepath=shared)
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._take_control()
                self._limit = self._pools.limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._take_control()
                self._limit.restore_original_limits()
                self._take_control()

    def _take_control(self) -> None:
        """Let this thread set limits: from threadpoolctl 3.8 on only the first one may, until it lets others."""
        for library in self._pools.lib_controllers:
            if clear := getattr(library, "clear_controlling_thread", None):
                clear(force=True)


@cache
def one_thread() -> _OneThread:
    """Return a context in which BLAS uses one thread, in all threads of the process; blocks may lie within each other."""
    return _OneThread()
