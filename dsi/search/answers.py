"""What an index answers with: hits of a search, documents. Knows nothing of trees or models."""

from collections.abc import Sequence
from typing import NamedTuple


class Hit(NamedTuple):
    """One document found: its rank (from 1), score, doc_id, title, docid, and its text if the index keeps texts."""

    rank: int
    score: float
    doc_id: str
    title: str
    digits: tuple[int, ...]
    text: str | None = None


class Document(NamedTuple):
    """One document of an index: doc_id, title, text (None if the index keeps no texts), metadata and docid."""

    doc_id: str
    title: str
    text: str | None
    metadata: dict[str, bool | int | float | str]
    digits: tuple[int, ...]


class Hits(list[Hit]):
    """The documents found for one query, best first.

    Attributes:
        exact: True if they are provably the top k of all documents under the scores of the search.
    """

    def __init__(self, hits: Sequence[Hit], exact: bool) -> None:
        super().__init__(hits)
        self.exact = exact
