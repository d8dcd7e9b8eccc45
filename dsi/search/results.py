"""The records of a search: its result, the hits that users see, and a trace of how it came about. Knows no index."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

WALK, WORDS, EXTRA = 1, 2, 4
"""Where a document was found: below the nodes that the walk kept, by words, by extra_scores; several add up."""


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
        sources: [batch, k] where each document was found: `WALK`, `WORDS`, `EXTRA` or a sum of them.
    """

    positions: Ints
    scores: Floats
    exact: Bools
    read: Ints
    sources: Ints

    @classmethod
    def empty(cls, queries: int, k: int) -> "SearchResult":
        """Return a result without documents, to be filled by `put`; with k = 0 it is complete, and exact."""
        return cls(
            np.full((queries, k), -1, dtype=np.int64),
            np.full((queries, k), -np.inf, dtype=np.float32),
            np.ones(queries, dtype=bool),
            np.zeros(queries, dtype=np.int64),
            np.zeros((queries, k), dtype=np.uint8),
        )

    def put(self, rows: Ints, other: "SearchResult") -> None:
        """Replace some rows by those of `other`."""
        for name in ("positions", "scores", "exact", "read", "sources"):
            getattr(self, name)[rows] = getattr(other, name)

    @property
    def counts(self) -> Ints:
        """[batch] how many documents each query has."""
        return np.asarray((self.positions >= 0).sum(axis=1))


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

    def survivors(self, paths: Ints) -> Bools:
        """[n, depth] True at the nodes of paths that the search did not prune.

        A node that was not scored was not pruned: below the last nodes of a walk all documents are read. For one query.

        Args:
            paths: [n, depth] nodes, one a level from the children of the root on.
        """
        kept = np.ones(paths.shape, dtype=bool)
        for level, candidates in enumerate(self.levels):
            kept[:, level] = ~np.isin(paths[:, level], candidates.nodes[~candidates.kept])
        return kept

    def pruned_at(self, path: Ints, num_inner: int) -> tuple[int, float, float] | None:
        """Return where the search pruned an inner node on a path: the level from 0, its score, and the lowest score kept there.

        None if it pruned none. The lowest score is that of an inner node, infinite if none was kept. For one query.

        Args:
            path: [depth] nodes, one a level from the children of the root on.
            num_inner: number of inner nodes of the tree; nodes from there on are documents.
        """
        pruned = ~self.survivors(path[None])[0] & (path >= 0) & (path < num_inner)
        if not pruned.any():
            return None
        level = int(pruned.argmax())
        candidates = self.levels[level]
        kept = candidates.scores[candidates.kept & (candidates.nodes < num_inner)]
        return level, float(candidates.scores[candidates.nodes == path[level]][0]), float(kept.min(initial=np.inf))


def highest(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], ascending; of equal ones the first.

    >>> highest(np.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
    [1, 2]
    """
    return highest_and_rest(scores, count)[0]


def highest_and_rest(scores: Floats, count: int) -> tuple[Ints, float]:
    """Return the indices of the `count` highest of scores [n], ascending, and the highest score of the others, -inf if none."""
    n = len(scores)
    if count >= n:
        return np.arange(n), -np.inf
    ordered = scores.copy()
    ordered.partition((n - count - 1, n - count))
    limit = ordered[n - count]  # the lowest score that is kept
    (indices,) = (scores >= limit).nonzero()
    if len(indices) > count:
        ties = indices[scores[indices] == limit]
        indices = np.setdiff1d(indices, ties[len(ties) - (len(indices) - count) :], assume_unique=True)
    return indices, float(ordered[n - count - 1])


def best(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], best first; ties in ascending order.

    >>> best(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    indices = highest(scores, count)
    return indices[np.argsort(-scores[indices], kind="stable")]
