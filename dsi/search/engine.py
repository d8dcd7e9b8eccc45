"""What searches an index: its methods, and the scores on the way to given documents.

There are two engines, by the docid tokens of the index: `dsi.search.generate` for tied ones, `dsi.search.beam` for those with
weights of their own, (level, digit) and word tokens. Knows nothing of how they work.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from docids.tree import DocidTree
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchRequest
from dsi.search.results import Bools, Floats, Ints, SearchResult, Trace


class Method(ABC):
    """One method of search."""

    @abstractmethod
    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k documents of each query.

        Args:
            batch: the queries.
            request: what is asked.
            trace: if given, receives how the search came about; for one query.
        """


class Followed(NamedTuple):
    """How the paths to given documents are scored.

    Attributes:
        positions: [batch, n] docid positions of their best places.
        nodes: [batch, n, depth] score of the node at each level of the path, last the document's; NaN past the end.
        parts: {name: [batch, n]} what the parts of the document's score contribute.
    """

    positions: Ints
    nodes: Floats
    parts: dict[str, Floats]

    @property
    def scores(self) -> Floats:
        """[batch, n] the documents' scores."""
        return np.asarray(np.sum(list(self.parts.values()), axis=0, dtype=np.float32))


class Siblings(NamedTuple):
    """Scores of the nodes on the paths to documents, and of their siblings, at one level.

    Attributes:
        generative: [batch, n, fan_out] the generator's.
        dense: [batch, n, fan_out] the encoder's.
        valid: [batch, n, fan_out] True at siblings that exist.
        digits: [batch, n] which sibling is on the path; arbitrary past the end.
    """

    generative: Floats
    dense: Floats
    valid: Bools
    digits: Ints


class DigitScores(NamedTuple):
    """Log-probabilities of the digits of docids, [batch, n, depth], 0 past the end.

    Attributes:
        generative: by the generator.
        dense: by the encoder.
        entropy: of the generator's choice at that level.
        margin: of the digit over the best other, by the generator.
    """

    generative: Floats
    dense: Floats
    entropy: Floats
    margin: Floats

    @classmethod
    def from_siblings(cls, levels: Sequence[Siblings]) -> "DigitScores":
        """Return those of softmaxes over siblings."""
        columns = [_digit_scores(level) for level in levels]
        return cls(*(np.stack(own, axis=2) for own in zip(*columns, strict=True)))


def _digit_scores(level: Siblings) -> tuple[Floats, Floats, Floats, Floats]:
    exists = level.valid.any(axis=2)
    digits = level.digits[:, :, None]
    found = []
    for scores in (level.generative, level.dense):
        masked = np.where(level.valid, scores, -np.inf)
        highest = np.where(exists, masked.max(axis=2, initial=-np.inf), 0)[:, :, None]
        shares = np.exp(masked - highest)
        log_p = np.where(level.valid, masked - highest - np.log(shares.sum(axis=2, keepdims=True).clip(1e-30)), 0)
        found.append(log_p)
    own, dense = (np.where(exists, np.take_along_axis(log_p, digits, axis=2)[:, :, 0], 0) for log_p in found)
    entropy = -(np.where(level.valid, np.exp(found[0]), 0) * found[0]).sum(axis=2)
    others = np.where(level.valid, found[0], -np.inf)
    np.put_along_axis(others, digits, -np.inf, axis=2)
    best = others.max(axis=2, initial=-np.inf)
    margin = np.where(exists & (best > -np.inf), own - np.where(best > -np.inf, best, 0), 0)
    return tuple(np.asarray(each, dtype=np.float32) for each in (own, dense, entropy, margin))  # type: ignore[return-value]


class Engine(ABC):
    """Searches one index at one moment."""

    tree: DocidTree

    @property
    @abstractmethod
    def methods(self) -> Mapping[str, Method]:
        """The methods of search."""

    @abstractmethod
    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored."""

    @abstractmethod
    def digit_scores(self, batch: QueryBatch, positions: Ints) -> DigitScores:
        """Return log-probabilities of the digits of docids [batch, n]."""


def count_documents(tree: DocidTree, allowed: Bools | None) -> int:
    """Return how many documents may be returned; `allowed`: [places] True at those, None for all."""
    if allowed is None:
        return tree.num_rows
    if tree.most_places == 1:
        return int(np.count_nonzero(allowed))
    return len(np.unique(tree.doc_rows[allowed]))
