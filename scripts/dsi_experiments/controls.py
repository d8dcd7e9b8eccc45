"""A control of the walk: the same search without it."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from dsi.search.vector_search import VectorEngine, WalkSearch
from dsi.search.walk import Reached, VectorWalk


class _NoWalk(VectorWalk):
    def descend(self, node_scores: Any, rows: Sequence[int], *_: Any) -> list[Reached]:
        return [Reached(np.zeros(0, dtype=np.int64), pruned=False, read=0)] * len(rows)


class WordsOnly(WalkSearch):
    """The best by words alone, ranked by the document score, to measure what the walk earns; it certifies nothing."""

    def __init__(self, engine: VectorEngine) -> None:
        alone = copy(engine)
        alone.walk = _NoWalk(engine.tree)
        super().__init__(alone)
