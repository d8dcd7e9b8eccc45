"""Monte Carlo tree search guided by a prior and a value (PUCT), for many problems side by side.

A simulation runs in all problems at once: selection is an array operation over the problems, and the nodes they end at are
evaluated in one call. So a network, or a decoder, works on whole batches although the search in each problem is sequential.

Selection takes argmax over actions a of Q(s, a) + c p(a|s) sqrt(sum_b N(s, b) + eps) / (1 + N(s, a)): eps lets the prior decide
where nothing was visited yet, instead of the order of the actions. Knows nothing of lists or docids.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.declarations import Amount, Count, settings

Ints = NDArray[np.integer]
Floats = NDArray[np.floating]
EPSILON = 1e-8


@dataclass(frozen=True)
class NewNodes:
    """Nodes that a search needs evaluated, at most one a problem."""

    problems: Ints  # [m] the problem of each node
    nodes: Ints  # [m] its number in the problem; 0 is the root
    parents: Ints  # [m] the node it was reached from; -1 for a root
    actions: Ints  # [m] the action that led to it; -1 for a root
    histories: Ints  # [m, depth] all actions from the root, -1 past the end


class Evaluator(Protocol):
    """Gives a search the priors and values of nodes."""

    def evaluate(self, new: NewNodes) -> tuple[Floats, Floats]:
        """Prior [m, actions] and value [m] of new nodes.

        The prior is 0 at impossible actions, and everywhere at a terminal node; the value is the expected reward of the node,
        or its reward if it is terminal.
        """


@settings()
class PuctConfig:
    """How a tree is searched."""

    simulations: Count = 200  # in a call of `Puct.simulate`
    exploration: Amount = 3.0  # c, the weight of the prior's term


class Puct:
    """The search trees of several problems: `simulate`, read `policy`, `advance` to a child, whose subtree is kept.

    `visits` N, `values` Q and `prior` p are [problems, nodes, actions]. Memory is reserved for `moves` calls of
    `simulate`.
    """

    def __init__(self, evaluator: Evaluator, problems: int, depth: int, config: PuctConfig, moves: int = 1) -> None:
        self.evaluator, self.config, self.depth = evaluator, config, depth
        self._all = np.arange(problems)
        self.root = np.zeros(problems, dtype=np.int64)  # [problems] node that the next simulations start from
        self._count = np.zeros(problems, dtype=np.int64)
        capacity = 1 + moves * config.simulations
        self._history = np.full((problems, capacity, depth), -1, dtype=np.int32)
        self._length = np.zeros((problems, capacity), dtype=np.int64)
        self._value = np.zeros((problems, capacity))
        nothing = np.full(problems, -1)
        prior = self._add(self._all, nothing, nothing)
        shape = (problems, capacity, prior.shape[1])
        self.prior, self.values = np.zeros(shape, dtype=np.float32), np.zeros(shape)
        self.visits, self._children = np.zeros(shape, dtype=np.int32), np.full(shape, -1, dtype=np.int32)
        self._put(self._all, np.zeros(problems, dtype=np.int64), prior)

    @property
    def root_visits(self) -> Ints:
        """[problems, actions] N at the roots."""
        return self.visits[self._all, self.root]

    @property
    def policy(self) -> Floats:
        """[problems, actions] N / sum N at the roots; 0 at terminal roots."""
        visits = self.root_visits
        return visits / np.maximum(visits.sum(axis=1, keepdims=True), 1)

    @property
    def best(self) -> Ints:
        """[problems] the most visited action of each root, ties by the highest prior; -1 at terminal roots."""
        visits, prior = self.root_visits, self.prior[self._all, self.root]
        most = visits == visits.max(axis=1, keepdims=True)
        return np.where(visits.any(axis=1), np.where(most, prior, -1.0).argmax(axis=1), -1)

    def simulate(self) -> None:
        """Run the simulations in every problem."""
        for _ in range(self.config.simulations):
            self._simulate()

    def advance(self, actions: Ints) -> None:
        """Make the child that an action leads to the root of each problem; -1 leaves a problem where it is."""
        children = self._children[self._all, self.root, actions]
        if (children[actions >= 0] < 0).any():
            raise ValueError("Only an action that was visited can be taken.")
        self.root = np.where(actions >= 0, children, self.root)

    def _simulate(self) -> None:
        """One path from each root to a node that is new or terminal, whose value goes back up the path."""
        nodes, going = self.root.copy(), self._all
        path: list[tuple[Ints, Ints, Ints]] = []
        fresh: list[tuple[Ints, Ints, Ints]] = []
        while len(going):
            going = going[(self.prior[going, nodes[going]] > 0).any(axis=1)]  # the others are at a terminal node
            own = nodes[going]
            actions = self._select(going, own)
            path.append((going, own, actions))
            children = self._children[going, own, actions]
            new = children < 0
            fresh.append((going[new], own[new], actions[new]))
            going = going[~new]
            nodes[going] = children[~new]
        problems, parents, actions = (np.concatenate(each) for each in zip(*fresh, strict=True))
        if len(problems):
            prior = self._add(problems, parents, actions)
            own = self._count[problems] - 1
            self._put(problems, own, prior)
            self._children[problems, parents, actions] = own
            nodes[problems] = own
        self._back_up(path, self._value[self._all, nodes])

    def _select(self, problems: Ints, nodes: Ints) -> Ints:
        prior, visits = self.prior[problems, nodes], self.visits[problems, nodes]
        values = self.values[problems, nodes]
        bonus = prior * np.sqrt(visits.sum(axis=1, keepdims=True) + EPSILON) / (1 + visits)
        return np.where(prior > 0, values + self.config.exploration * bonus, -np.inf).argmax(axis=1)

    def _back_up(self, path: list[tuple[Ints, Ints, Ints]], found: Floats) -> None:
        for problems, nodes, actions in path:
            index = problems, nodes, actions
            visits, values, new = self.visits[index], self.values[index], found[problems]
            self.values[index] = (values * visits + new) / (visits + 1)
            self.visits[index] = visits + 1

    def _add(self, problems: Ints, parents: Ints, actions: Ints) -> Floats:
        """Add and evaluate a new node in each of some problems; returns the priors [m, actions]."""
        nodes = self._count[problems]
        self._count[problems] += 1
        inner = parents >= 0
        own, new, above = problems[inner], nodes[inner], parents[inner]
        length = self._length[own, above]
        self._history[own, new] = self._history[own, above]
        self._history[own, new, length] = actions[inner]
        self._length[own, new] = length + 1
        histories = self._history[problems, nodes]
        prior, values = self.evaluator.evaluate(NewNodes(problems, nodes, parents, actions, histories))
        self._value[problems, nodes] = values
        return prior

    def _put(self, problems: Ints, nodes: Ints, prior: Floats) -> None:
        self.prior[problems, nodes] = prior
