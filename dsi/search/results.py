"""The records of a search: its result, and a trace of how it came about. Knows no index."""

from dataclasses import dataclass, field, replace

import numpy as np

from dsi.docids.types import Bools, Floats, Ints

WALK, WORDS, EXTRA, MEMORY = 1, 2, 4, 8
"""Where a document was found: below the nodes that the walk kept, by words, by extra_scores, by earlier queries; several
add up."""


class ShardError(RuntimeError):
    """The shards of an index cannot answer a search, or not completely where that is required."""


@dataclass(frozen=True)
class SearchResult:
    """The top k documents of a batch of queries, best first.

    Attributes:
        positions: [batch, k] docid positions, of a document with several places its best one; -1 if fewer documents may be
            returned.
        scores: [batch, k] document scores; -inf at position -1.
        exact: [batch] True if the result is provably the top k of all documents that may be returned.
        read: [batch] how many vectors of nodes and documents were scored; with docid tokens that have weights of their own,
            how many nodes.
        compared: [batch] how many documents were scored by late interaction.
        sources: [batch, k] where each document was found: `WALK`, `WORDS`, `EXTRA`, `MEMORY` or a sum of them.
        coverage: [batch] share of the documents that could be searched; below 1 only if shards did not answer.
        missing: [batch] numbers of these shards.
    """

    positions: Ints
    scores: Floats
    exact: Bools
    read: Ints
    compared: Ints
    sources: Ints
    coverage: Floats
    missing: list[list[int]]

    @classmethod
    def empty(cls, queries: int, k: int) -> "SearchResult":
        """Return a result without documents, to be filled by `put`; with k = 0 it is complete, and exact."""
        return cls(
            np.full((queries, k), -1, dtype=np.int64),
            np.full((queries, k), -np.inf, dtype=np.float32),
            np.ones(queries, dtype=bool),
            np.zeros(queries, dtype=np.int64),
            np.zeros(queries, dtype=np.int64),
            np.zeros((queries, k), dtype=np.uint8),
            np.ones(queries, dtype=np.float32),
            [[] for _ in range(queries)],
        )

    def put(self, rows: Ints, other: "SearchResult") -> None:
        """Replace some rows by those of `other`."""
        for name in ("positions", "scores", "exact", "read", "compared", "sources", "coverage"):
            getattr(self, name)[rows] = getattr(other, name)
        for row, missing in zip(rows.tolist(), other.missing, strict=True):
            self.missing[row] = missing

    def down_to(self, score: float) -> "SearchResult":
        """Return the result without the documents whose score is lower."""
        low = self.scores < np.float32(score)
        if not low.any():
            return self
        return replace(
            self,
            positions=np.where(low, -1, self.positions),
            scores=np.where(low, -np.inf, self.scores).astype(np.float32),
        )

    @property
    def counts(self) -> Ints:
        """[batch] how many documents each query has."""
        return np.asarray((self.positions >= 0).sum(axis=1))


@dataclass(frozen=True)
class LevelTrace:
    """The candidates of one level of a search; all arrays [batch, candidates].

    Attributes:
        nodes: candidate nodes, -1 at padding.
        scores: what they are ranked by; -inf at padding.
        kept: True if the candidate entered the beam, or the top k so far.
    """

    nodes: Ints
    scores: Floats
    kept: Bools


@dataclass
class Trace:
    """How a search came about.

    Attributes:
        levels: the candidates of each level of the walk, from the children of the root on.
        positions: [batch, n] docid positions of the documents that were scored completely, -1 at padding; empty where documents
            are among the candidates of the levels.
        scores: [batch, n] their scores.
        sources: [batch, n] where they were found.
        beam_width: of the search that answered, after widening.
    """

    levels: list[LevelTrace] = field(default_factory=list)
    positions: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.int64))
    scores: Floats = field(default_factory=lambda: np.zeros((1, 0), dtype=np.float32))
    sources: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.uint8))
    beam_width: int = 0

    def add_documents(self, positions: Ints, scores: Floats, sources: Ints) -> None:
        """Take the documents that were scored completely, each [batch, n]."""
        self.positions, self.scores, self.sources = positions, scores, sources
