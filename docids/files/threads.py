"""Small products on one thread: BLAS would share each among several, which takes longer than the product itself."""

import threading
from functools import cache

from threadpoolctl import ThreadpoolController


class _OneThread:
    """Lets BLAS use one thread while any thread of the process is inside; the last one out restores what was there."""

    def __init__(self) -> None:
        self._pools = ThreadpoolController().select(user_api="blas")
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = self._pools.limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


@cache
def one_thread() -> _OneThread:
    """Return a context in which BLAS uses one thread, in all threads of the process; blocks may lie within each other."""
    return _OneThread()
