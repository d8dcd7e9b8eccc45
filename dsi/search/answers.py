"""What a search returns."""

from collections.abc import Sequence
from typing import NamedTuple

import datasets

from docids.tree import DocidTree


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


def hits_of(
    tree: DocidTree, documents: datasets.Dataset, positions: Sequence[int], scores: Sequence[float], exact: bool
) -> Hits:
    """The answer to one query from docid positions, best first; -1 ends it."""
    hits = []
    for rank, (position, score) in enumerate(zip(positions, scores, strict=True), start=1):
        if position < 0:
            break
        document = documents[int(tree.doc_rows[position])]
        hits.append(Hit(rank, score, document["doc_id"], document["title"], tree.digits(position)))
    return Hits(hits, exact)
