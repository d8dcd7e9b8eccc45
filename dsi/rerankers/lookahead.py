"""Look-ahead on the docid tree: the documents of highest reward, found by PUCT with the decoder as prior.

Beam search is for scores that add up along a path. For any other reward (a reranker's score, the dot product alone) the
decoder only says where to look: a simulation goes down the tree, from the node it ends at greedily on to a document, and the
document's reward goes back up; each action keeps the best reward found below it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.rerankers.puct import NewNodes, Puct, PuctConfig
from dsi.search.beam import TreeSearcher
from dsi.search.beams import LevelTrace, SearchResult
from dsi.search.queries import QueryBatch

_TEMPERATURE = 0.05
"""Divides a generator's estimates before their softmax over children."""
Ints = NDArray[np.integer]
Floats = NDArray[np.floating]
Reward = Callable[[Ints, Ints], Floats]
"""A function of query numbers [m] in the batch and docid positions [m] that gives rewards [m]."""


@dataclass(frozen=True)
class LookAheadResult(SearchResult):
    """Answers of a look-ahead: never certified, and the generative part of their scores is 0.

    Attributes:
        expansions: [batch] inner nodes whose children the decoder scored.
    """

    expansions: Tensor


def look_ahead(
    searcher: TreeSearcher, batch: QueryBatch, k: int, reward: Reward, config: PuctConfig, alive: Tensor | None = None
) -> LookAheadResult:
    """The k documents of highest reward among those that the simulations reached.

    Args:
        searcher: the tree and the decoder.
        batch: the queries.
        k: documents a query; fewer where the simulations reached fewer.
        reward: of documents.
        config: of the search; `exploration` is in units of the reward.
        alive: [nodes] True at documents that may be returned and the nodes above them.
    """
    evaluator = _Evaluator(searcher, batch, reward, 1 + config.simulations, alive)
    Puct(evaluator, len(batch.rows), searcher.tree.depth, config).simulate()
    positions = torch.full((len(batch.rows), k), -1)  # [batch, k]
    scores = torch.full((len(batch.rows), k), -torch.inf)
    for row, found in enumerate(evaluator.found):
        best = sorted(found, key=lambda position: (-found[position], position))[:k]
        positions[row, : len(best)] = torch.tensor(best, dtype=torch.long)
        scores[row, : len(best)] = torch.tensor([found[position] for position in best])
    exact = torch.zeros(len(batch.rows), dtype=torch.bool)
    expansions = torch.from_numpy(evaluator.expansions)
    return LookAheadResult(positions, scores, exact, torch.zeros_like(scores), expansions)


class _Evaluator:
    """The docid tree for PUCT: priors from the decoder; a node's value is the reward of the document a greedy descent reaches.

    Attributes:
        found: of each query {docid position: reward} of the documents reached so far.
        expansions: [batch] as in `LookAheadResult`.
    """

    def __init__(
        self, searcher: TreeSearcher, batch: QueryBatch, reward: Reward, nodes: int, alive: Tensor | None
    ) -> None:
        self.searcher, self.batch, self.reward, self.tree = searcher, batch, reward, searcher.tree
        everything = np.ones(self.tree.num_inner + self.tree.num_documents, dtype=bool)
        occupied = searcher.occupied if alive is None else alive
        self._alive = everything if occupied is None else occupied.cpu().numpy()
        self._nodes = np.zeros((len(batch.rows), nodes), dtype=np.int64)  # [batch, nodes] tree node of each search node
        self._known: dict[tuple[int, int], Floats] = {}
        self.found: list[dict[int, float]] = [{} for _ in batch.rows]
        self.expansions = np.zeros(len(batch.rows), dtype=np.int64)

    def evaluate(self, new: NewNodes) -> tuple[Floats, Floats]:
        above = self._nodes[new.problems, np.maximum(new.parents, 0)]
        nodes = np.where(new.parents < 0, 0, self.tree.first_child[above] + new.actions)
        self._nodes[new.problems, new.nodes] = nodes
        prior = np.zeros((len(nodes), max(self.tree.fan_out)))  # [m, largest fan-out]
        inner = nodes < self.tree.num_inner
        prior[inner] = self._children(new.problems[inner], nodes[inner])
        at = nodes.copy()
        while (inner := at < self.tree.num_inner).any():
            best = self._children(new.problems[inner], at[inner]).argmax(axis=1)
            at[inner] = self.tree.first_child[at[inner]] + best
        positions = at - self.tree.num_inner
        rewards = np.asarray(self.reward(new.problems, positions), dtype=np.float64)
        for problem, position, value in zip(new.problems.tolist(), positions.tolist(), rewards.tolist(), strict=True):
            self.found[problem][position] = value
        return prior, rewards

    def _children(self, problems: Ints, nodes: Ints) -> Floats:
        """[m, largest fan-out] probabilities of the children of inner nodes; 0 for those without an allowed document."""
        asked = list(zip(problems.tolist(), nodes.tolist(), strict=True))
        new = [number for number, pair in enumerate(asked) if pair not in self._known]
        if new:
            for number, own in zip(new, self._decode(problems[new], nodes[new]), strict=True):
                self._known[asked[number]] = own
            np.add.at(self.expansions, problems[new], 1)
        return np.array([self._known[pair] for pair in asked]).reshape(len(asked), max(self.tree.fan_out))

    def _decode(self, problems: Ints, nodes: Ints) -> Floats:
        """`_children` of nodes not seen before: one pass of the decoder along the digits that lead to them."""
        tree, trace = self.tree, list[LevelTrace]()
        level = np.searchsorted([own.start for own in tree.levels], nodes, side="right") - 1  # [m]
        below = torch.from_numpy(tree.doc_start[nodes].astype(np.int64))[:, None].to(self.searcher.device)  # [m, 1]
        batch = self.batch.select(torch.from_numpy(problems))
        self.searcher.follow(*self.searcher.alone(batch, _TEMPERATURE), below, trace, levels=int(level.max()) + 1)
        result = np.zeros((len(nodes), max(tree.fan_out)))  # [m, largest fan-out]
        for number, own in enumerate(level.tolist()):
            scores, children = (each[number].cpu().numpy() for each in (trace[own].score, trace[own].nodes))
            valid = (children >= 0) & self._alive[children]
            p = np.exp(scores - scores[valid].max()) * valid
            result[number, : len(p)] = p / p.sum()
        return result
