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
    """The top k documents of a batch of queries, best first."""

    # [batch, k] docid positions, of a document with several places its best one; -1 past the last document
    positions: Ints
    scores: Floats  # [batch, k] document scores; -inf at position -1
    exact: Bools  # [batch] True if it is provably the top k of all documents that may be returned
    read: Ints  # [batch] how many vectors of nodes and documents were scored; with a generator, how many nodes
    compared: Ints  # [batch] how many documents were scored by late interaction
    sources: Ints  # [batch, k] where each document was found: `WALK`, `WORDS`, `EXTRA`, `MEMORY` or a sum of them
    coverage: Floats  # [batch] share of the documents that could be searched; below 1 only if shards did not answer
    missing: list[list[int]]  # [batch] numbers of these shards

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

    def put(self, queries: Ints, other: "SearchResult") -> None:
        """Replace the answers of some queries by those of `other`."""
        for name in ("positions", "scores", "exact", "read", "compared", "sources", "coverage"):
            getattr(self, name)[queries] = getattr(other, name)
        for query, missing in zip(queries.tolist(), other.missing, strict=True):
            self.missing[query] = missing

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
    """The candidates of one level of a search; all arrays [batch, candidates]."""

    nodes: Ints  # -1 at padding
    scores: Floats  # what they are ranked by; -inf at padding
    kept: Bools  # True if the candidate entered the beam, or the top k so far


@dataclass
class Trace:
    """How a search came about: the levels of its walk, from the children of the root on, and documents it scored completely.

    [batch, n] docid positions, -1 at padding, scores and sources of these; none where they are among the levels' candidates.
    """

    levels: list[LevelTrace] = field(default_factory=list)
    positions: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.int64))
    scores: Floats = field(default_factory=lambda: np.zeros((1, 0), dtype=np.float32))
    sources: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.uint8))
    beam_width: int = 0  # of the search that answered, after widening

    def add_documents(self, positions: Ints, scores: Floats, sources: Ints) -> None:
        """Take the documents that were scored completely, each [batch, n]."""
        self.positions, self.scores, self.sources = positions, scores, sources
