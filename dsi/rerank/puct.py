"""Monte Carlo tree search guided by a prior and a value (PUCT), for many problems side by side.

One simulation in every problem is one pass: selections are array operations over all problems, and the nodes they end at are
evaluated in one call. So a network, or a decoder, is asked for whole batches although the search in each problem is sequential.

Selection takes argmax over actions a of Q(s, a) + c p(a|s) sqrt(sum_b N(s, b) + eps) / (1 + N(s, a)): the eps lets the prior
decide where nothing was visited yet, instead of the order of the actions. Knows nothing of lists or docids.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from docids.checks import at_least, one_of

Ints = NDArray[np.integer]
Floats = NDArray[np.floating]
EPSILON = 1e-8


@dataclass(frozen=True)
class NewNodes:
    """Nodes that a search asks about, one in each of some problems.

    Attributes:
        problems: [m] which problem each is of.
        nodes: [m] their numbers in it; 0 is the root.
        parents: [m] the nodes they were reached from; -1 for a root.
        actions: [m] by which action; -1 for a root.
        histories: [m, depth] all actions from the root, -1 past the end.
    """

    problems: Ints
    nodes: Ints
    parents: Ints
    actions: Ints
    histories: Ints


class Evaluator(Protocol):
    """What a search asks."""

    def evaluate(self, new: NewNodes) -> tuple[Floats, Floats]:
        """Prior [m, actions] and value [m] of new nodes.

        The prior is 0 where an action is not possible, and everywhere where a node is terminal; the value is what is expected
        of the node, or its reward where it is terminal.
        """


@dataclass(frozen=True)
class PuctConfig:
    """How a tree is searched.

    Attributes:
        simulations: a call of `Puct.simulate`.
        exploration: c, the weight of the prior's term.
        backup: "mean" of the values found below an action (M2Div, AlphaGo Zero), or "max": the best of them.
        unvisited: Q of an action that was not tried: "zero" (M2Div), or "parent": the value of its node.
        once: visit a terminal node once, then look for others: what is below a node counts as searched when all of it was.
    """

    simulations: int = 200
    exploration: float = 3.0
    backup: str = "mean"
    unvisited: str = "zero"
    once: bool = False

    def __post_init__(self) -> None:
        at_least(self, simulations=1, exploration=0)
        one_of(self, backup=("mean", "max"), unvisited=("zero", "parent"))


class Puct:
    """The search trees of some problems: `simulate`, look at `policy`, `advance` to a child; what was found below it is kept.

    Args:
        evaluator: gives priors and values.
        problems: how many.
        depth: of the deepest terminal node.
        config: the settings.
        moves: calls of `simulate` that will come, for which room is made.

    Attributes:
        root: [problems] node that the next simulations start from.
        visits: [problems, nodes, actions] N.
        values: [problems, nodes, actions] Q.
        prior: [problems, nodes, actions] p.
    """

    def __init__(self, evaluator: Evaluator, problems: int, depth: int, config: PuctConfig, moves: int = 1) -> None:
        self.evaluator, self.config, self.depth = evaluator, config, depth
        self._all = np.arange(problems)
        self.root = np.zeros(problems, dtype=np.int64)
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
        """[problems, actions] N of the roots' actions."""
        return self.visits[self._all, self.root]

    @property
    def policy(self) -> Floats:
        """[problems, actions] N / sum N at the roots; 0 at terminal roots."""
        visits = self.root_visits
        return visits / np.maximum(visits.sum(axis=1, keepdims=True), 1)

    @property
    def best(self) -> Ints:
        """[problems] the most visited action of each root, of several the one with the highest prior; -1 at terminal roots."""
        visits, prior = self.root_visits, self.prior[self._all, self.root]
        most = visits == visits.max(axis=1, keepdims=True)
        return np.where(visits.any(axis=1), np.where(most, prior, -1.0).argmax(axis=1), -1)

    def simulate(self) -> None:
        """Run the simulations in every problem."""
        for _ in range(self.config.simulations):
            self._simulate()

    def advance(self, actions: Ints) -> None:
        """Take an action in each problem; it must have been visited (-1 leaves a problem where it is)."""
        children = self._children[self._all, self.root, actions]
        if (children[actions >= 0] < 0).any():
            raise ValueError("Only an action that was visited can be taken.")
        self.root = np.where(actions >= 0, children, self.root)

    def _simulate(self) -> None:
        """One way from each root to a node that is new or terminal, and what is found there put on the way."""
        nodes, going = self.root.copy(), self._all
        way: list[tuple[Ints, Ints, Ints]] = []
        fresh: list[tuple[Ints, Ints, Ints]] = []
        while len(going):
            going = going[(self.prior[going, nodes[going]] > 0).any(axis=1)]  # the others are at a terminal node
            own = nodes[going]
            actions = self._select(going, own)
            way.append((going, own, actions))
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
        self._back_up(way, self._value[self._all, nodes])
        if self.config.once:
            self._close(way)

    def _select(self, problems: Ints, nodes: Ints) -> Ints:
        prior, visits = self.prior[problems, nodes], self.visits[problems, nodes]
        values = self.values[problems, nodes]
        if self.config.unvisited == "parent":
            values = np.where(visits > 0, values, self._value[problems, nodes][:, None])
        bonus = prior * np.sqrt(visits.sum(axis=1, keepdims=True) + EPSILON) / (1 + visits)
        return np.where(prior > 0, values + self.config.exploration * bonus, -np.inf).argmax(axis=1)

    def _back_up(self, way: list[tuple[Ints, Ints, Ints]], found: Floats) -> None:
        for problems, nodes, actions in way:
            index = problems, nodes, actions
            visits, values, new = self.visits[index], self.values[index], found[problems]
            if self.config.backup == "mean":
                self.values[index] = (values * visits + new) / (visits + 1)
            else:
                self.values[index] = np.where(visits > 0, np.maximum(values, new), new)
            self.visits[index] = visits + 1

    def _close(self, way: list[tuple[Ints, Ints, Ints]]) -> None:
        """Take actions that lead to nothing new out of the prior, from the ends of the ways upwards."""
        for problems, nodes, actions in reversed(way):
            children = self._children[problems, nodes, actions]
            done = ~(self.prior[problems, children] > 0).any(axis=1)
            self.prior[problems[done], nodes[done], actions[done]] = 0

    def _add(self, problems: Ints, parents: Ints, actions: Ints) -> Floats:
        """One new node in each of some problems, evaluated; its prior."""
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
