"""Dot products with documents that have a vector at each of their places: the best one counts. Knows nothing of nodes."""

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats
from dsi.docids.vectors import BLOCK


def document_scores(queries: Floats, documents: Floats) -> Floats:
    """[queries, documents] dot products of queries [queries, dim] and the best places of documents [documents, places, dim].

    >>> document_scores(np.eye(2), np.array([[[1.0, 2.0], [3.0, 0.0]]])).tolist()
    [[3.0], [2.0]]
    """
    count, places, dim = documents.shape
    scores: Floats = (queries @ documents.reshape(-1, dim).T).reshape(-1, count, places).max(axis=2)
    return scores


def nearest_places(tree: DocidTree, rows: NDArray[np.integer], vectors: Floats) -> NDArray[np.integer]:
    """[n] the docid position of each document in `rows` [n]; of several the one whose vector is nearest to its of `vectors`.

    Args:
        tree: the docids.
        rows: of the document table.
        vectors: [n, dim].
    """
    places, best = tree.places[rows], np.empty((len(rows), 1), dtype=np.int64)  # places: [n, most]
    for start in range(0, len(rows), BLOCK):
        own = slice(start, start + BLOCK)
        best[own, 0] = np.einsum("npd,nd->np", tree.embeddings[places[own]], vectors[own]).argmax(axis=1)
    return np.take_along_axis(places, best, axis=1)[:, 0]
