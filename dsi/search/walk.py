"""The walk by vectors, of an index without a generator: a constrained beam search down its docid tree.

A node n has the score

    z.v_n + .09 bonus_n,    bonus_n = spread_n sqrt(2 ln |n|),

z the query's embedding, v_n the mean of the document embeddings below n, |n| their number and spread_n their root mean squared
distance from v_n. The whole bonus would make the score an estimate of the best document below (`bonuses`); the share of it that
dev queries chose favours large and wide nodes a little. Each level keeps `beam_width` nodes, and only their children are
candidates. Knows of documents only their vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsi.docids.tree import DocidTree, pad, ranges
from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.vectors import dots, multiply, reads_all
from dsi.search.queries import QueryBatch
from dsi.search.results import LevelTrace
from dsi.search.top import highest_in_rows

_KEPT = 32_768
"""Levels of up to this many nodes are kept as floats."""
SIZE_WEIGHT = 0.09
"""Weight of the bonus; chosen on dev queries."""
_NONE = np.zeros(0, dtype=np.int64)


def bonuses(tree: DocidTree) -> Floats:
    """[inner nodes] spread_n sqrt(2 ln |n|): how far the best document below a node is likely to lie above its mean vector.

    The largest of |n| normal values lies about sqrt(2 ln |n|) deviations above their mean. Removed documents do not count.
    """
    squares, count = tree.embeddings.squares(), tree.doc_end - tree.doc_start
    if tree.num_removed:
        present = tree.doc_rows >= 0
        squares, before = np.where(present, squares, 0), np.concatenate([[0], np.cumsum(present)])
        count = before[tree.doc_end] - before[tree.doc_start]
    sums = np.zeros(tree.num_places + 1)
    np.cumsum(squares, dtype=np.float64, out=sums[1:])
    count = np.maximum(count, 1)
    variance = (sums[tree.doc_end] - sums[tree.doc_start]) / count - tree.centroids.squares()
    return np.sqrt(np.maximum(variance, 0) * 2 * np.log(count)).astype(np.float32)


class _Ends:
    """The nodes at which the walks of some queries end."""

    def __init__(self, queries: int) -> None:
        self._queries, self._found = queries, list[tuple[Ints, Ints]]()

    def take(self, nodes: Ints, ended: Bools) -> None:
        """Add the nodes [queries, n] where `ended` is True."""
        queries, columns = ended.nonzero()
        if len(queries):
            self._found.append((queries, nodes[queries, columns]))

    def in_order(self, tree: DocidTree) -> list[Ints]:
        """Return the nodes [n] of each query, in docid order."""
        queries, nodes = (np.concatenate(parts) for parts in zip((_NONE, _NONE), *self._found, strict=True))
        if len(self._found) > 1:  # those of one level are in order
            order = np.lexsort((tree.doc_start[nodes], queries))
            queries, nodes = queries[order], nodes[order]
        return np.split(nodes, np.searchsorted(queries, np.arange(1, self._queries)))


@dataclass(frozen=True)
class Reached:
    """Where a walk ended, for one query."""

    nodes: Ints  # [n] the last nodes that were kept, in docid order
    pruned: bool  # whether a node was left out
    read: int  # nodes that were scored; none of a level at which all are kept, unless it is traced


class VectorWalk:
    """Walks down a tree by the vectors of its nodes, to `ends` [inner nodes]; by default those whose children are documents."""

    def __init__(self, tree: DocidTree, ends: Bools | None = None) -> None:
        self.tree = tree
        self.ends = tree.first_child >= tree.num_inner if ends is None else ends
        self._first, self._count = (array.astype(np.int64) for array in (tree.first_child, tree.num_children))
        self._some_end = [bool(self.ends[level].any()) for level in tree.levels]
        self._vectors: dict[int, Floats] = {}

    def descend(
        self, node_scores: "NodeScores", queries: Sequence[int], beam_width: int, alive: Bools | None = None,
        trace: list[LevelTrace] | None = None,
    ) -> list[Reached]:  # fmt: skip
        """Return where the walks of some queries of a batch end: the last `beam_width` nodes that each keeps.

        `alive`: [inner nodes] True at those with a document that may be returned below; `trace`: receives one `LevelTrace` a
        level, for one query.
        """
        numbers = np.asarray(queries)
        beam: Ints = np.zeros((len(queries), 1), dtype=np.int64)  # [queries, nodes], -1 at padding
        ends = _Ends(len(queries))
        pruned, read = np.zeros(len(queries), dtype=bool), np.zeros(len(queries), dtype=np.int64)
        for level in range(self.tree.depth):
            if self._some_end[level]:
                ended = self.ends[beam] & (beam >= 0)
                ends.take(beam, ended)
                beam = np.where(ended, -1, beam)
            nodes, counts = self._children(beam, alive)
            if not nodes.size:
                break
            if trace is None and counts.max() <= beam_width:  # all are kept, whatever their scores
                beam = nodes
                continue
            scores = node_scores.scores(level, numbers, nodes)
            chosen, _ = highest_in_rows(scores, beam_width)
            read += counts
            pruned |= counts > beam_width
            beam = pad(nodes[chosen], np.count_nonzero(chosen, axis=1))
            if trace is not None:
                trace.append(LevelTrace(nodes, scores, chosen))
        return [Reached(*row) for row in zip(ends.in_order(self.tree), pruned.tolist(), read.tolist(), strict=True)]

    def _children(self, beam: Ints, alive: Bools | None) -> tuple[Ints, Ints]:
        """Return the children of nodes [queries, n], ascending, as [queries, m], -1 at padding, and how many each query has."""
        filled = beam >= 0
        parents, sizes = beam[filled], np.where(filled, self._count[beam], 0)
        nodes, counts = ranges(self._first[parents], self._count[parents]), sizes.sum(axis=1)
        if alive is not None:
            queries, living = np.repeat(np.arange(len(beam)), counts), alive[nodes]
            nodes, counts = nodes[living], np.bincount(queries[living], minlength=len(beam))
        return pad(nodes, counts), counts

    def vectors(self, level: int) -> Floats | None:
        """[nodes, dim] the vectors of the nodes chosen at a level; None if the level is too large to be kept."""
        nodes = self.tree.levels[level + 1]
        if nodes.stop - nodes.start > _KEPT:
            return None
        vectors = self._vectors.get(level)
        if vectors is None:
            vectors = self._vectors[level] = self.tree.centroids[nodes]
        return vectors

    @cached_property
    def bonuses(self) -> Floats:
        """[inner nodes] the weighted bonuses."""
        return np.float32(SIZE_WEIGHT) * bonuses(self.tree)


class _Level(NamedTuple):
    """What scores the nodes that are chosen at one level, for a batch of queries."""

    vectors: Floats | None  # [nodes, dim] of the level's inner nodes; None if they are read from the tree
    bonus: Floats  # [nodes] the weighted bonus
    all_scores: Floats | None = None  # [batch, nodes] of all nodes; None if scoring the candidates is less work


class NodeScores:
    """Scores of nodes for a batch of queries, computed level by level as walks reach them."""

    def __init__(self, walk: VectorWalk, batch: QueryBatch) -> None:
        self.walk, self._embeddings = walk, batch.embeddings
        self._levels: dict[int, _Level] = {}

    def scores(self, level: int, queries: Ints, nodes: Ints) -> Floats:
        """[queries, n] the scores of nodes [queries, n] that are chosen at a level, -inf at -1, for some of the batch."""
        scorer = self._levels.get(level)
        if scorer is None:
            scorer = self._levels[level] = self._level(level, nodes.shape[1])
        vectors, bonus, all_scores = scorer
        tree = self.walk.tree
        columns = np.maximum(nodes - tree.levels[level + 1].start, -1)
        if all_scores is not None:
            return np.where(nodes < 0, -np.inf, all_scores[queries[:, None], columns])
        embeddings = self._embeddings[queries]
        products = tree.centroids.dots(embeddings, nodes) if vectors is None else dots(vectors, embeddings, columns)
        return np.asarray(products + bonus[columns])

    def _level(self, level: int, candidates: int) -> _Level:
        """Return what scores a level, with the scores of all its nodes if that is less work than those of candidates."""
        vectors, bonus = self.walk.vectors(level), self.walk.bonuses[self.walk.tree.levels[level + 1]]
        if vectors is None or not reads_all(candidates, len(vectors), len(self._embeddings)):
            return _Level(vectors, bonus)
        products = np.empty((len(self._embeddings), len(vectors)), dtype=np.float32)
        multiply(self._embeddings, vectors, products)
        return _Level(vectors, bonus, products + bonus)
