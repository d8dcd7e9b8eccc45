"""What a search returns."""

from collections.abc import Sequence
from typing import NamedTuple

import datasets

from docids.tree import DocidTree
from dsi.search.beam import SearchResult


class Hit(NamedTuple):
    """One answer: rank from 1, fused score, the document's key and title, and its docid."""

    rank: int
    score: float
    doc_id: str
    title: str
    digits: tuple[int, ...]


class Hits(list[Hit]):
    """The answers to one query, best first.

    Attributes:
        exact: True where they are provably the top k of the whole collection under the scores searched with.
    """

    def __init__(self, hits: Sequence[Hit], exact: bool) -> None:
        super().__init__(hits)
        self.exact = exact


def hits_of(tree: DocidTree, documents: datasets.Dataset, result: SearchResult) -> list[Hits]:
    """The answers to each query of a search."""
    rows = zip(result.positions.tolist(), result.scores.tolist(), result.exact.tolist(), strict=True)
    return [_hits(tree, documents, positions, scores, exact) for positions, scores, exact in rows]


def _hits(
    tree: DocidTree, documents: datasets.Dataset, positions: Sequence[int], scores: Sequence[float], exact: bool
) -> Hits:
    hits = []
    for rank, (position, score) in enumerate(zip(positions, scores, strict=True), start=1):
        if position < 0:
            break
        document = documents[int(tree.doc_rows[position])]
        hits.append(Hit(rank, score, document["doc_id"], document["title"], tree.digits(position)))
    return Hits(hits, exact)
