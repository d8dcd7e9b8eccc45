"""The system to beat: tuned BM25. Knows nothing of trees or encoders."""

from collections.abc import Mapping
from itertools import product

from dsi.docids.data.identical import Identical, most_identical, without_identical
from dsi.docids.types import Qrels
from dsi.docids.words.bm25 import BM25
from dsi.eval.measures import evaluate, mean

BM25_GRID = tuple(product((0.6, 0.9, 1.2, 1.6, 2.0), (0.2, 0.4, 0.6, 0.75, 0.9)))
"""(k1, b) pairs that `tune_bm25` chooses from."""


def tune_bm25(bm25: BM25, queries: Mapping[str, str], qrels: Qrels, identical: Identical | None = None) -> None:
    """Set k1 and b to the pair in `BM25_GRID` with the best RR@10 on dev queries; of equals they stay as they are."""
    results, now, left = [], (bm25.k1, bm25.b), identical or {}
    for k1, b in sorted(BM25_GRID, key=lambda pair: pair != now):
        bm25.weigh(k1, b)
        run = without_identical(bm25.run(queries, 10 + most_identical(left)), left, 10)
        results.append((mean(evaluate(run, qrels, ["RR@10"])["RR@10"]), k1, b))
    _, k1, b = max(results, key=lambda result: result[0])
    bm25.weigh(k1, b)
