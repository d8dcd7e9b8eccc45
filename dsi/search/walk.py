"""The walk down the docid tree of an index with tied tokens: a constrained beam search over its nodes.

A node n that is chosen at level l has the score

    q.v_n + w_l bonus_n,    q = (1 - alpha) z + alpha q_l,    bonus_n = spread_n sqrt(2 ln |n|),

z.v_n the encoder's ANN centroid score and q_l.v_n the generator's token score (DR-SCL eq. 9, tied tokens); beyond beta levels
q = q_l. v_n is the mean of the document embeddings below n, |n| their number and spread_n their root mean squared distance from
v_n, so that the score estimates that of the best document below (`dsi.trees.bonus`). Each level keeps `beam_width` nodes, and
only their children are candidates. Knows nothing of documents but how many lie below a node.
"""

from dataclasses import dataclass

import numpy as np

from docids.tree import DocidTree
from docids.vectors import reads_all
from dsi.search.results import Bools, Floats, Ints, LevelTrace, highest


@dataclass(frozen=True)
class Level:
    """What scores the nodes that are chosen at one level, for a batch of queries.

    Attributes:
        queries: [batch, dim].
        vectors: [nodes, dim] of the level's inner nodes; None if they are read from the tree.
        bonus: [nodes] what is added, weighted.
    """

    queries: Floats
    vectors: Floats | None
    bonus: Floats


@dataclass(frozen=True)
class Reached:
    """Where a walk ended, for one query.

    Attributes:
        nodes: [n] the last nodes that were kept, in docid order.
        pruned: whether a node was left out.
        read: how many nodes were scored.
    """

    nodes: Ints
    pruned: bool
    read: int


class Walk:
    """Walks down one tree.

    Args:
        tree: the docids.
        ends: [inner nodes] True at nodes where a walk ends; by default those whose children are documents.
    """

    def __init__(self, tree: DocidTree, ends: Bools | None = None) -> None:
        self.tree, self.ends = tree, tree.first_child >= tree.num_inner if ends is None else ends
        self._first, self._count = (np.array(own, dtype=np.int64) for own in (tree.first_child, tree.num_children))
        self._some_end = [bool(self.ends[level].any()) for level in tree.levels]

    def of_query(
        self,
        levels: "Levels",
        row: int,
        beam_width: int,
        alive: Bools | None = None,
        trace: list[LevelTrace] | None = None,
    ) -> Reached:
        """Return the last nodes that one query of a batch keeps.

        Args:
            levels: what scores the nodes of each level.
            row: of the query.
            beam_width: nodes kept per level.
            alive: [inner nodes] True at those with a document that may be returned below; all by default.
            trace: if given, receives one `LevelTrace` a level.
        """
        kept: Ints = np.zeros(1, dtype=np.int64)
        last, pruned, read = [], False, 0
        for level in range(self.tree.depth):
            if self._some_end[level]:
                ended = self.ends[kept]
                if ended.any():
                    last.append(kept[ended])
                    kept = kept[~ended]
            if not len(kept):
                break
            nodes = ranges(self._first[kept], self._count[kept])  # ascending
            if alive is not None:
                nodes = nodes[alive[nodes]]
            scores = levels.scores(level, row, nodes)
            read += len(nodes)
            chosen = slice(None) if len(nodes) <= beam_width else highest(scores, beam_width)
            kept = nodes[chosen]
            pruned |= len(kept) < len(nodes)
            if trace is not None:
                is_kept = np.zeros(len(nodes), dtype=bool)
                is_kept[chosen] = True
                trace.append(LevelTrace(nodes[None], scores[None], is_kept[None]))
        if len(last) > 1:  # in docid order
            nodes = np.concatenate(last)
            last = [nodes[self.tree.doc_start[nodes].argsort()]]
        return Reached(last[0] if last else kept, pruned, read)


class Levels:
    """Scores of the nodes of every level, for a batch of queries; each level is looked up when a walk comes to it.

    Args:
        tree: the docids.
        batch: number of queries.
    """

    def __init__(self, tree: DocidTree, batch: int) -> None:
        self.tree, self.batch = tree, batch
        self._known: dict[int, tuple[Level, Floats | None]] = {}

    def level(self, level: int) -> Level:
        """Return what scores the nodes that are chosen at a level."""
        raise NotImplementedError

    def scores(self, level: int, row: int, nodes: Ints) -> Floats:
        """[n] the scores of nodes [n] that are chosen at a level, for one query."""
        first = self.tree.levels[level + 1].start
        if level not in self._known:
            self._known[level] = self._score(level, len(nodes))
        own, every = self._known[level]
        if every is not None:
            return every[row, nodes - first]
        vectors = self.tree.centroids[nodes] if own.vectors is None else own.vectors[nodes - first]
        return vectors @ own.queries[row] + own.bonus[nodes - first]

    def _score(self, level: int, candidates: int) -> tuple[Level, Floats | None]:
        """Return a level, and the scores [batch, nodes] of all its nodes if that is less work than those of candidates."""
        own = self.level(level)
        if own.vectors is None or not reads_all(candidates, len(own.vectors), self.batch):
            return own, None
        return own, own.queries @ own.vectors.T + own.bonus


def ranges(first: Ints, counts: Ints) -> Ints:
    """[total] the numbers first, first + 1, … (`counts` of them) of all entries one after the other.

    >>> ranges(np.array([5, 9]), np.array([2, 1])).tolist()
    [5, 6, 9]
    """
    if len(first) == 1:
        return np.arange(first[0], first[0] + counts[0])
    ends = counts.cumsum()
    found = np.repeat(first - ends + counts, counts)
    found += np.arange(len(found))
    return found
