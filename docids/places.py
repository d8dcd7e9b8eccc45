"""Dot products with documents that have a vector at each of their places: the best one counts. Knows nothing of nodes."""

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats
from dsi.docids.vectors import BLOCK


def document_scores(queries: Floats, tree: DocidTree) -> Floats:
    """[queries, documents] dense scores of queries [queries, dim]: those of the best place of each document."""
    scores = tree.embeddings.products(queries)
    if tree.place_costs is not None:
        scores -= tree.place_costs
    return np.maximum.reduceat(scores[:, tree.by_row], tree.first_places, axis=1)


def nearest_places(tree: DocidTree, rows: NDArray[np.integer], vectors: Floats) -> NDArray[np.integer]:
    """[n] the docid position of each document in `rows` [n]; of several the one whose vector is nearest to its of `vectors`."""
    places, best = tree.places[rows], np.empty((len(rows), 1), dtype=np.int64)  # places: [n, most]
    for start in range(0, len(rows), BLOCK):
        own = slice(start, start + BLOCK)
        best[own, 0] = np.einsum("npd,nd->np", tree.embeddings[places[own]], vectors[own]).argmax(axis=1)
    return np.take_along_axis(places, best, axis=1)[:, 0]
