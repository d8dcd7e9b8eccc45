"""Small products on one thread: BLAS would share each among several, which takes longer than the product itself."""

import threading
from functools import cache

from threadpoolctl import ThreadpoolController


class _OneThread:
    """Lets BLAS use one thread while any thread of the process is inside; the last one out restores what was there.

    A BLAS that counts threads by OpenMP is left alone: its limit holds for the calling thread only, so another one could not
    restore it.
    """

    def __init__(self) -> None:
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
