"""The system to beat: tuned BM25. Knows nothing of trees or encoders."""

from collections.abc import Mapping
from itertools import product

from dsi.docids.data.identical import Identical, most_identical, without_identical
from dsi.docids.types import Qrels, Run
from dsi.docids.words.bm25 import BM25
from dsi.eval.protocol import best_setting

BM25_GRID = tuple(product((0.6, 0.9, 1.2, 1.6, 2.0), (0.2, 0.4, 0.6, 0.75, 0.9)))
"""(k1, b) pairs that `tune_bm25` chooses from."""


def tune_bm25(bm25: BM25, queries: Mapping[str, str], qrels: Qrels, identical: Identical | None = None) -> None:
    """Set k1 and b to the pair in `BM25_GRID` with the best RR@10 on dev queries; ties keep the present ones."""
    present, excluded = (bm25.k1, bm25.b), identical or {}

    def search(setting: Mapping[str, float]) -> Run:
        bm25.weigh(**setting)
        return without_identical(bm25.run(queries, 10 + most_identical(excluded)), excluded, 10)

    grid = [{"k1": k1, "b": b} for k1, b in sorted(BM25_GRID, key=lambda pair: pair != present)]
    bm25.weigh(**best_setting(search, grid, qrels)[0])
