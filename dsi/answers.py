"""What a search returns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from docids.tree import DocidTree
from dsi.documents import Documents
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


def hits_of(tree: DocidTree, documents: Documents, result: SearchResult) -> list[Hits]:
    """The answers to each query of a search."""
    positions = result.positions.numpy(force=True)
    found = np.maximum(positions, 0)
    _, digits = tree.paths(found.ravel())
    docids = [tuple(digit for digit in own if digit >= 0) for own in digits.tolist()]
    columns = (
        result.scores.tolist(),
        *(documents.values_of(name, tree.doc_rows[found]) for name in ("doc_id", "title")),
    )
    answers, k = [], positions.shape[1]
    for row, (count, exact) in enumerate(zip((positions >= 0).sum(axis=1), result.exact.tolist(), strict=True)):
        own = zip(
            range(1, count + 1), *(column[row] for column in columns), docids[row * k : (row + 1) * k], strict=False
        )
        answers.append(Hits([Hit(*fields) for fields in own], exact))
    return answers
