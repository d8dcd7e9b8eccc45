"""Ways to walk docid trees, and processes that share the work of making them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dsi.docids.files.processes import Processes
from dsi.docids.tree import DocidTree

ROOT = Path(__file__).parents[2]


def walk(tree: DocidTree, prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
    node = tree.node(prefix)
    if node >= tree.num_inner:
        return [prefix]
    return [found for digit in range(tree.num_children[node]) for found in walk(tree, (*prefix, digit))]


def shared(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """What each of some processes (threads here) makes of a piece of work."""
    barrier, given = threading.Barrier(count), [None] * count

    def run(rank: int) -> Any:
        def gather(own: Any) -> list[Any]:
            given[rank] = own
            barrier.wait()
            everything = list(given)
            barrier.wait()
            return everything

        return work(Processes(rank, count, gather))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
