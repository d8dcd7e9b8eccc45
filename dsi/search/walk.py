"""The walk down the docid tree of an index with tied tokens: a constrained beam search over its nodes.

A node n that is chosen at level l has the score

    q.v_n + w_l bonus_n,    q = (1 - alpha) z + alpha q_l,    bonus_n = spread_n sqrt(2 ln |n|),

z.v_n the encoder's ANN centroid score and q_l.v_n the generator's token score (DR-SCL eq. 9, tied tokens); beyond beta levels
q = q_l. v_n is the mean of the document embeddings below n, |n| their number and spread_n their root mean squared distance from
v_n, so that the score estimates that of the best document below (`dsi.generator.bonus`). Each level keeps `beam_width` nodes,
and only their children are candidates. Knows nothing of documents but how many lie below a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsi.docids.tree import DocidTree, pad, ranges
from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.vectors import dots, multiply, reads_all
from dsi.generator.bonus import SIZE_WEIGHT, bonuses
from dsi.generator.tied import TiedGenerator
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig
from dsi.search.results import LevelTrace
from dsi.search.top import highest_in_rows

_KEPT = 32_768
"""Levels of up to this many nodes are kept as floats, with the generator's map of the level applied to them."""
_NONE = np.zeros(0, dtype=np.int64)


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
    """Where a walk ended, for one query.

    Attributes:
        nodes: [n] the last nodes that were kept, in docid order.
        pruned: whether a node was left out.
        read: how many nodes were scored; none of a level at which all are kept.
    """

    nodes: Ints
    pruned: bool
    read: int


class Walk:
    """Walks down one tree by the scores of one generator.

    Args:
        tree: the docids.
        generator: the weights of the level queries.
        ends: [inner nodes] True at nodes where a walk ends; by default those whose children are documents.
    """

    def __init__(self, tree: DocidTree, generator: TiedGenerator, ends: Bools | None = None) -> None:
        self.tree, self.generator = tree, generator
        self.reads_states = generator.reads_states
        self.ends = tree.first_child >= tree.num_inner if ends is None else ends
        self._first, self._count = (array.astype(np.int64) for array in (tree.first_child, tree.num_children))
        self._some_end = [bool(self.ends[level].any()) for level in tree.levels]
        self._vectors: dict[tuple[int, float], Floats] = {}
        self._weighted_bonuses: dict[tuple[int, float], Floats] = {}

    def node_scores(self, batch: QueryBatch, config: SearchConfig) -> "NodeScores":
        """Return the scores of all nodes for a batch of queries."""
        return NodeScores(self, batch, config)

    def descend(
        self,
        node_scores: "NodeScores",
        rows: Sequence[int],
        beam_width: int,
        alive: Bools | None = None,
        trace: list[LevelTrace] | None = None,
    ) -> list[Reached]:
        """Return where the walks of some queries of a batch end: the last nodes that each keeps.

        Args:
            node_scores: of the batch.
            rows: of the queries.
            beam_width: nodes kept per level.
            alive: [inner nodes] True at those with a document that may be returned below; all by default.
            trace: if not None, receives one `LevelTrace` a level; for one query.
        """
        own = np.asarray(rows)
        kept: Ints = np.zeros((len(rows), 1), dtype=np.int64)  # [queries, nodes], -1 at padding
        ends = _Ends(len(rows))
        pruned, read = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=np.int64)
        for level in range(self.tree.depth):
            if self._some_end[level]:
                ended = self.ends[kept] & (kept >= 0)
                ends.take(kept, ended)
                kept = np.where(ended, -1, kept)
            nodes, counts = self._children(kept, alive)
            if not nodes.size:
                break
            if trace is None and counts.max() <= beam_width:  # all are kept, whatever their scores
                kept = nodes
                continue
            scores = node_scores.scores(level, own, nodes)
            chosen, _ = highest_in_rows(scores, beam_width)
            read += counts
            pruned |= counts > beam_width
            kept = pad(nodes[chosen], np.count_nonzero(chosen, axis=1))
            if trace is not None:
                trace.append(LevelTrace(nodes, scores, chosen))
        return [Reached(*each) for each in zip(ends.in_order(self.tree), pruned.tolist(), read.tolist(), strict=True)]

    def _children(self, kept: Ints, alive: Bools | None) -> tuple[Ints, Ints]:
        """Return the children of nodes [queries, n], ascending, as [queries, m], -1 at padding, and how many each query has."""
        there = kept >= 0
        parents, sizes = kept[there], np.where(there, self._count[kept], 0)
        nodes, counts = ranges(self._first[parents], self._count[parents]), sizes.sum(axis=1)
        if alive is not None:
            queries, living = np.repeat(np.arange(len(kept)), counts), alive[nodes]
            nodes, counts = nodes[living], np.bincount(queries[living], minlength=len(kept))
        return pad(nodes, counts), counts

    def vectors(self, level: int, alpha: float) -> Floats | None:
        """[nodes, dim] v + alpha A_l' v of the nodes chosen at a level, which z scores as z + alpha A_l z scores v.

        None if the level is too large to be kept.
        """
        nodes = self.tree.levels[level + 1]
        if nodes.stop - nodes.start > _KEPT:
            return None
        vectors = self._vectors.get((level, alpha))
        if vectors is None:
            vectors = self.tree.centroids[nodes]
            if alpha:
                vectors = vectors + np.float32(alpha) * (vectors @ self.generator.map_array(level))
            self._vectors[level, alpha] = vectors
        return vectors

    def weighted_bonus(self, level: int, alpha: float) -> Floats:
        """[nodes] the weighted bonus of the nodes chosen at a level; its weight is mixed by alpha too."""
        bonus = self._weighted_bonuses.get((level, alpha))
        if bonus is None:
            weight = SIZE_WEIGHT + alpha * (self.generator.size_weight(level) - SIZE_WEIGHT)
            bonus = self._weighted_bonuses[level, alpha] = (
                np.float32(weight) * self._bonuses[self.tree.levels[level + 1]]
            )
        return bonus

    @cached_property
    def _bonuses(self) -> Floats:
        """[inner nodes] what the size weight multiplies."""
        return bonuses(self.tree)


class _Level(NamedTuple):
    """What scores the nodes that are chosen at one level, for a batch of queries.

    Attributes:
        queries: [batch, dim].
        vectors: [nodes, dim] of the level's inner nodes; None if they are read from the tree.
        bonus: [nodes] the weighted bonus.
        all_scores: [batch, nodes] the scores of all nodes; None if scoring the candidates is less work.
    """

    queries: Floats
    vectors: Floats | None
    bonus: Floats
    all_scores: Floats | None = None


class NodeScores:
    """Scores of nodes for a batch of queries, computed level by level as walks reach them.

    Args:
        walk: the tree and the generator.
        batch: the queries.
        config: alpha and beta.
    """

    def __init__(self, walk: Walk, batch: QueryBatch, config: SearchConfig) -> None:
        self.walk, self.batch, self.config = walk, batch, config
        self._embeddings = batch.vectors
        self._levels: dict[int, _Level] = {}

    def scores(self, level: int, rows: Ints, nodes: Ints) -> Floats:
        """[queries, n] the scores of nodes [queries, n] that are chosen at a level, -inf at -1, for some queries by row."""
        scorer = self._levels.get(level)
        if scorer is None:
            scorer = self._levels[level] = self._score_level(level, nodes.shape[1])
        queries, vectors, bonus, all_scores = scorer
        tree = self.walk.tree
        columns = np.maximum(nodes - tree.levels[level + 1].start, -1)
        if all_scores is not None:
            return np.where(nodes < 0, -np.inf, all_scores[rows[:, None], columns])
        own = queries[rows]
        products = tree.centroids.dots(own, nodes) if vectors is None else dots(vectors, own, columns)
        return np.asarray(products + bonus[columns])

    def _score_level(self, level: int, candidates: int) -> _Level:
        """Return what scores a level, with the scores of all its nodes if that is less work than those of candidates."""
        scorer = self._level(level)
        vectors = scorer.vectors
        if vectors is None or not reads_all(candidates, len(vectors), len(self.batch.texts)):
            return scorer
        products = np.empty((len(scorer.queries), len(vectors)), dtype=np.float32)
        multiply(scorer.queries, vectors, products)
        return scorer._replace(all_scores=products + scorer.bonus)

    def _level(self, level: int) -> _Level:
        """Return what scores the nodes that are chosen at a level: (1 - alpha) z + alpha q_l below beta, then q_l."""
        walk, z = self.walk, self._embeddings
        alpha = self.config.alpha if level < self.config.beta else 1.0
        bonus = walk.weighted_bonus(level, alpha)
        if alpha and walk.reads_states:
            mixed = z + np.float32(alpha) * (self._level_queries[:, walk.generator.row_of(level)] - z)
            return _Level(mixed, walk.vectors(level, 0.0), bonus)
        vectors = walk.vectors(level, alpha)
        if vectors is None and alpha:
            z = z + np.float32(alpha) * (z @ walk.generator.map_array(level).T)
        return _Level(z, vectors, bonus)

    @cached_property
    def _level_queries(self) -> Floats:
        """[batch, depth, dim] the queries of a generator with a decoder."""
        batch = self.batch
        return self.walk.generator.level_queries(batch.embeddings, batch.states, batch.mask)
