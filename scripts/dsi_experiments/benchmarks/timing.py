"""Wall time of functions, measured alternating. Knows nothing of what they do."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def alternate(functions: Sequence[Callable[[], T]], rounds: int) -> tuple[list[float], list[T]]:
    """Median seconds of each function and its result, over alternating calls, so that other load meets all of them.

    Each is called once before the clock starts.
    """
    results = [function() for function in functions]
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            started = time.perf_counter()
            function()
            own.append(time.perf_counter() - started)
    return [statistics.median(own) for own in times], results
