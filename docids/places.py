"""Dot products with documents that have a vector at each of their places: the best one counts. Knows nothing of nodes."""

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree, pad
from dsi.docids.types import Floats, Numbers
from dsi.docids.vectors import BLOCK


def document_scores(queries: Floats, tree: DocidTree) -> Floats:
    """[queries, documents] dense scores of queries [queries, dim]: those of the best place of each document."""
    scores = tree.embeddings.products(queries)
    if tree.place_costs is not None:
        scores -= tree.place_costs
    return np.maximum.reduceat(scores[:, tree.by_row], tree.first_places, axis=1)


def places_of(tree: DocidTree, rows: NDArray[np.integer]) -> Numbers:
    """[n, most] the docid positions of collection rows [n], ascending; a row with fewer repeats its first."""
    places = pad(*tree.places_of(rows))
    return np.where(places < 0, places[:, :1], places)


def nearest_places(tree: DocidTree, rows: NDArray[np.integer], vectors: Floats) -> NDArray[np.integer]:
    """[n] the docid position of each document in `rows` [n]; of several the one whose vector is nearest to its of `vectors`."""
    nearest = [np.empty(0, dtype=np.int32)]
    blocks = np.cumsum(tree.place_counts[rows]) // BLOCK
    for own in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1) if len(rows) else ():
        places, counts = tree.places_of(rows[own])
        scores = np.einsum("pd,pd->p", tree.embeddings[places], np.repeat(vectors[own], counts, axis=0))
        nearest.append(places[first_of_highest(scores, counts)])
    return np.concatenate(nearest)


def first_of_highest(scores: Floats, counts: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return where the highest score of each of several groups, one after another, comes first.

    >>> first_of_highest(np.array([1, 3, 3, 2]), np.array([3, 1])).tolist()
    [1, 3]
    """
    starts = counts.cumsum() - counts
    highest = np.flatnonzero(scores == np.repeat(np.maximum.reduceat(scores, starts), counts))
    return np.asarray(highest[np.searchsorted(highest, starts)])
