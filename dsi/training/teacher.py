"""The teacher of a generator: for each training text the documents that dense search ranks first, with their shares.

Knows no trees and no training loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.progress import progress

Floats = NDArray[np.float32]
_BLOCK = 4096
"""Texts per search."""
_DOCUMENTS = 10
"""Documents per text."""


@dataclass(frozen=True)
class Teacher:
    """What the texts are taught.

    Attributes:
        positions: [texts, m] docid positions.
        weights: [texts, m] shares of the documents, which sum to 1 for each text.
    """

    positions: NDArray[np.int64]
    weights: Floats

    @classmethod
    def dense(cls, queries: Floats, documents: Floats, temperature: float, m: int = _DOCUMENTS) -> "Teacher":
        """Return the m documents with the largest dot products, weighted by a softmax.

        Args:
            queries: [texts, dim] embeddings.
            documents: [documents, dim] in docid order.
            temperature: divides the dot products in the softmax.
            m: documents per text; fewer if there are not as many.
        """
        index = faiss.IndexFlatIP(documents.shape[1])
        index.add(np.ascontiguousarray(documents))
        m = min(m, len(documents))
        positions, weights = np.empty((len(queries), m), dtype=np.int64), np.empty((len(queries), m), dtype=np.float32)
        for start in progress(range(0, len(queries), _BLOCK), "teacher", unit="block"):
            rows = slice(start, start + _BLOCK)
            scores, positions[rows] = index.search(np.ascontiguousarray(queries[rows]), m)
            weights[rows] = _softmax(scores / temperature)
        return cls(positions, weights)

    def batch(self, rows: Sequence[int]) -> dict[str, NDArray[np.generic]]:
        """Return positions and weights of some texts, as `taught` and `taught_weights`."""
        return {"taught": self.positions[rows], "taught_weights": self.weights[rows]}


def _softmax(scores: Floats) -> Floats:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]
