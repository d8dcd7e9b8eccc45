"""A probabilistic label tree with linear nodes: P(document) = product along its path of sigma(w . x(query)).

Zhuo et al. 2020 (PLT), Parabel and PECOS' XR-Linear. A node's models tell its children apart, on the train queries and texts
of the documents below it, and on train queries that a beam keeps there although their answers are elsewhere (OTM). Trained
level by level. Knows nothing of other scores.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from dsi.docids.types import Bools, Floats, Ints

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class TreeSettings:
    """Settings of a linear tree.

    Attributes:
        branching: children of a node, at most.
        strength: of the fit; the inverse of the penalty.
        beam: nodes that are kept of a level, whose children see the query as a negative; 0 for siblings alone.
        seed: of the clustering.
    """

    branching: int = 16
    strength: float = 10.0
    beam: int = 0
    seed: int = 0


@dataclass
class LinearTree:
    """A tree that has been trained, with the sums of log sigma of the queries that are asked.

    Attributes:
        log_probs: [queries, documents].
        weights: that are not 0, over all nodes.
        nodes: that have been fitted.
    """

    log_probs: Floats
    weights: int = 0
    nodes: int = 0


def grow(points: Floats, settings: TreeSettings) -> list[list[tuple[Ints, Ints]]]:
    """Return the inner nodes of a balanced k-means tree by level: their documents, and the child of each."""
    rng = np.random.RandomState(settings.seed)
    levels = list[list[tuple[Ints, Ints]]]()
    waiting: list[Ints] = [np.arange(len(points))]
    while waiting:
        level = [(members, _split(points[members], settings.branching, rng)) for members in waiting]
        levels.append(level)
        waiting = [
            members[children == child]
            for members, children in level
            for child in range(children.max() + 1)
            if (children == child).sum() > 1
        ]
    return levels


def _split(points: Floats, branching: int, rng: np.random.RandomState) -> Ints:
    """Return the child of each point; every child has as many, up to one."""
    if len(points) <= branching:
        return np.arange(len(points))
    found = KMeans(branching, n_init=1, max_iter=20, random_state=rng).fit(points)
    near = points @ found.cluster_centers_.T
    room = np.full(branching, -(-len(points) // branching))
    children = np.full(len(points), -1)
    for point in np.argsort(-near.max(axis=1), kind="stable"):
        child = next(own for own in np.argsort(-near[point], kind="stable") if room[own])
        children[point], room[child] = child, room[child] - 1
    return np.unique(children, return_inverse=True)[1]


def train_tree(
    examples: sparse.csr_array,
    labels: sparse.csr_array,
    asked: sparse.csr_array,
    points: Floats,
    queries: int,
    settings: TreeSettings,
) -> LinearTree:
    """Return a linear tree, trained, and what it says of the queries that are asked.

    Args:
        examples: [n, features] train queries, then the texts of all documents.
        labels: [n, documents] 1 at the answers.
        asked: [m, features].
        points: [documents, dim] what is clustered.
        queries: how many of the examples are train queries.
        settings: of the tree.
    """
    tree = LinearTree(np.zeros((asked.shape[0], len(points)), dtype=np.float32))
    own_log = np.zeros((queries, len(points)), dtype=np.float32) if settings.beam else None
    by_document = labels.tocsc()
    for level in grow(points, settings):
        kept = [] if own_log is None else _kept(own_log, [members for members, _ in level], settings.beam)
        for number, (members, children) in enumerate(level):
            strangers = kept[number] if kept else np.zeros(0, dtype=np.int64)
            _train_node(tree, own_log, examples, by_document, asked, members, children, strangers, settings)
    return tree


def _kept(log_probs: Floats, nodes: list[Ints], beam: int) -> list[Ints]:
    """Return for each node of a level the train queries whose beam keeps it."""
    scores = np.stack([log_probs[:, members[0]] for members in nodes], axis=1)
    if scores.shape[1] <= beam:
        return [np.arange(len(scores))] * len(nodes)
    last = -np.partition(-scores, beam - 1, axis=1)[:, beam - 1 : beam]
    return [np.flatnonzero(column) for column in (scores >= last).T]


def _train_node(
    tree: LinearTree,
    own_log: Floats | None,
    examples: sparse.csr_array,
    labels: sparse.csc_array,
    asked: sparse.csr_array,
    members: Ints,
    children: Ints,
    strangers: Ints,
    settings: TreeSettings,
) -> None:
    """Fit the models of a node's children, and add their log-probabilities to the documents below."""
    count = int(children.max()) + 1
    if count == 1:
        return
    below = labels[:, members].tocoo()
    rows = np.unique(np.concatenate([below.coords[0], strangers]))
    targets = np.zeros((len(rows), count), dtype=bool)
    targets[np.searchsorted(rows, below.coords[0]), children[below.coords[1]]] = True
    read = examples[rows]
    columns = np.unique(read.indices)
    weights, biases = np.zeros((len(columns), count), np.float32), np.zeros(count, np.float32)
    read = read[:, columns]
    for child in range(count):
        weights[:, child], biases[child] = _fit(read, targets[:, child], settings)
    tree.weights, tree.nodes = tree.weights + int((np.abs(weights) > 0.01).sum()), tree.nodes + 1
    tree.log_probs[:, members] += _log_sigma(asked[:, columns] @ weights + biases)[:, children]
    if own_log is not None:
        own_log[:, members] += _log_sigma(examples[: len(own_log)][:, columns] @ weights + biases)[:, children]


def _fit(read: sparse.csr_array, target: Bools, settings: TreeSettings) -> tuple[Floats, float]:
    """Return weights and bias of a logistic regression; a child that all examples have is certain."""
    if target.all():
        return np.zeros(read.shape[1], np.float32), 30.0
    model = LogisticRegression(solver="liblinear", C=settings.strength, tol=0.1, max_iter=50)
    model.fit(read, target)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _log_sigma(values: NDArray[np.floating]) -> Floats:
    return np.asarray(-np.logaddexp(0, -values), dtype=np.float32)


def floored(log_probs: Floats, floor: float) -> Floats:
    """Return max(log P, -floor) + floor: a bonus, never a penalty."""
    return np.maximum(log_probs, np.float32(-floor)) + np.float32(floor)
