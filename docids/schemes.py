"""Docid schemes: what a scheme gets, what it gives, and which there are.

A scheme puts documents into clusters of clusters; the path to a document, and its number in the last cluster, are its docid.
Everything after that (numbers, centroids, files, search) is the same for all schemes. Knows nothing of how a scheme works: its
module is imported when it is used.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from docids.checks import at_least, one_of, plain_fields
from docids.processes import ALONE, Processes
from docids.tree import Floats, Ints

SCHEMES = {
    "kmeans": "docids.clustering:kmeans",  # hierarchical k-means (DR-SCL section 3.4)
    "balanced": "docids.clustering:balanced",  # k-means whose clusters differ in size by at most one
    "random": "docids.clustering:random_digits",  # digits that mean nothing: a control
}
"""{`DocidsConfig.method`: where the scheme is, "module:function"}."""

_CLUSTER_ON = ("documents", "queries", "untrained")


@dataclass(frozen=True)
class DocidsConfig:
    """How docids are made."""

    method: str = "kmeans"
    """The scheme: "kmeans" (the paper), "balanced" (k-means whose clusters differ in size by at most one) or "random"
    (digits that mean nothing: a control)."""
    branching: int = 10
    """Clusters a split; digits a level."""
    max_leaf_size: int = 10
    """A cluster of at most this many documents is not split."""
    cluster_on: str = "documents"
    """"documents"; "queries" for the mean of a document's embedding and those of its train queries and pseudo-queries;
    or "untrained" for the documents' embeddings before contrastive training. The documents' own embeddings score them
    in any case."""
    iterations: int = 20
    """Of k-means."""
    seed: int = 0
    """Of k-means; one seed gives one tree."""

    def __post_init__(self) -> None:
        plain_fields(self, "docids.")
        one_of(self, "docids.", method=tuple(SCHEMES), cluster_on=_CLUSTER_ON)
        at_least(self, "docids.", branching=2, max_leaf_size=1, iterations=1, seed=0)


@dataclass(frozen=True)
class SchemeInput:
    """What a scheme gets: documents in collection order. It is checked, so a scheme need not.

    Attributes:
        embeddings: [N, dim] the documents' embeddings, perhaps mapped into memory; they become centroids.
        config: the settings.
        cluster_embeddings: [N, any] what to cluster on instead, if anything.
        doc_ids: [N] the user's keys, for a scheme that looks documents up; none for the others.
        texts: [N] title and text, read by the slice, for a scheme that reads them.
        processes: that share the work; each of them calls the scheme, and each gets the same clusters.
        progress: show a progress bar over documents.

    Raises:
        ValueError: fewer documents than `branching`, shapes that do not fit, or values that are not finite.
    """

    embeddings: Floats
    config: DocidsConfig
    cluster_embeddings: Floats | None = None
    doc_ids: Sequence[str] = ()
    texts: Sequence[str] = ()
    processes: Processes = ALONE
    progress: bool = False

    def __post_init__(self) -> None:
        _check_shapes(self.embeddings, self.points, self.config)
        _check_finite("embeddings", self.embeddings)
        if self.cluster_embeddings is not None:
            _check_finite("cluster_embeddings", self.cluster_embeddings)

    @property
    def points(self) -> Floats:
        """[N, dim or any] what to cluster on."""
        return self.embeddings if self.cluster_embeddings is None else self.cluster_embeddings


@dataclass(frozen=True)
class Clusters:
    """What a scheme gives: documents in the order of their docids, and the clusters of each level.

    The first level is one cluster of all documents. A cluster is either split into clusters of the next level, which together
    hold its documents, or numbers its documents itself.

    Attributes:
        doc_rows: [N] collection row of the document at each docid position.
        levels: root first, [clusters, 2] int32 each, ascending: first docid position of a cluster and one past its last.
    """

    doc_rows: Ints
    levels: list[Ints]


class Scheme(Protocol):
    """A docid scheme: any function from documents to clusters. The same input gives the same clusters on every process."""

    def __call__(self, documents: SchemeInput, /) -> Clusters:
        """The clusters of all documents."""


def find_scheme(name: str) -> Scheme:
    """The scheme of that name.

    >>> find_scheme("kmeans").__name__
    'kmeans'

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in SCHEMES:
        raise ValueError(f"There is no docid scheme {name!r}; use one of {', '.join(SCHEMES)}.")
    module, function = SCHEMES[name].split(":")
    scheme: Scheme = getattr(importlib.import_module(module), function)
    return scheme


def check_branching(documents: int, config: DocidsConfig) -> None:
    """Raise ValueError if there are too few documents for one split."""
    if documents < config.branching:
        raise ValueError(
            f"The collection has {documents} documents, fewer than docids.branching = {config.branching}; "
            f"set branching to at most {documents}."
        )


def _check_shapes(embeddings: Floats, points: Floats, config: DocidsConfig) -> None:
    if embeddings.ndim != 2 or points.ndim != 2 or len(points) != len(embeddings):
        raise ValueError(
            f"embeddings must be [documents, dim] and as many as the points to cluster, got {list(embeddings.shape)} "
            f"and {list(points.shape)}."
        )
    check_branching(len(points), config)


def _check_finite(name: str, array: Floats) -> None:
    bad = ~np.isfinite(array.sum(axis=1, dtype=np.float32))  # [N]
    if bad.any():
        raise ValueError(f"{name} must be finite; row {int(np.argmax(bad))} (and {int(bad.sum()) - 1} more) is not.")
