"""Small products on one thread: BLAS would share each among several, which takes longer than the product itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


class _OneThread:
    """Lets BLAS use one thread while any thread of the process is inside; the last one out restores what was there."""

    def __init__(self) -> None:
        self._pools = ThreadpoolController().select(user_api="blas")
        self._lock, self._inside = threading.Lock(), 0

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = self._pools.limit(limits=1)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread in this block, in all threads of the process; blocks may lie within each other."""
    limit = _one_thread()
    limit.enter()
    try:
        yield
    finally:
        limit.leave()


@cache
def _one_thread() -> _OneThread:
    return _OneThread()
