"""What a search returns."""

from collections.abc import Sequence
from typing import NamedTuple


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
