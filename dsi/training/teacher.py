"""The teacher of a generator: for each training text the documents that another system ranks first, with their shares.

Knows no trees and no training loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from docids.files.progress import progress

Floats = NDArray[np.float32]
_BLOCK = 4096
"""Texts taught at a time."""
Rescore = Callable[[slice, NDArray[np.int64]], Floats]
"""A function of rows of the texts and their documents' positions [texts, m] that gives scores of the same shape."""


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
    def dense(
        cls, queries: Floats, documents: Floats, m: int, temperature: float, rescore: Rescore | None = None
    ) -> "Teacher":
        """Return the m documents with the largest dot products, weighted by a softmax.

        Args:
            queries: [texts, dim] embeddings.
            documents: [documents, dim] in docid order.
            m: documents per text; fewer if there are not as many.
            temperature: divides the scores in the softmax.
            rescore: gives other scores of the same documents for the softmax; the dot products by default.
        """
        index = faiss.IndexFlatIP(documents.shape[1])
        index.add(np.ascontiguousarray(documents))
        m = min(m, len(documents))
        positions, weights = np.empty((len(queries), m), dtype=np.int64), np.empty((len(queries), m), dtype=np.float32)
        for start in progress(range(0, len(queries), _BLOCK), "teacher", unit="block"):
            own = slice(start, start + _BLOCK)
            scores, positions[own] = index.search(np.ascontiguousarray(queries[own]), m)
            weights[own] = _softmax((scores if rescore is None else rescore(own, positions[own])) / temperature)
        return cls(positions, weights)

    def batch(self, rows: Sequence[int]) -> dict[str, NDArray[np.generic]]:
        """Return positions and weights of some texts, as `taught` and `taught_weights`."""
        return {"taught": self.positions[rows], "taught_weights": self.weights[rows]}


def _softmax(scores: Floats) -> Floats:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]
