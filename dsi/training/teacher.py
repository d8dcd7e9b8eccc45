"""The teacher of a generator: for each training text the documents that dense search ranks first, with their shares.

Knows no trees and no training loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from dsi.docids.files.progress import progress
from dsi.docids.types import Floats

_BLOCK = 4096
"""Texts per search."""
_PRODUCTS = 2**28
"""Dot products at a time on a GPU: 1 GB."""
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
    def dense(
        cls,
        queries: Floats,
        documents: Floats,
        temperature: float,
        m: int = _DOCUMENTS,
        device: torch.device | None = None,
    ) -> "Teacher":
        """Return the m documents with the largest dot products, weighted by a softmax.

        Args:
            queries: [texts, dim] embeddings.
            documents: [documents, dim] in docid order.
            temperature: divides the dot products in the softmax.
            m: documents per text; fewer where fewer exist.
            device: computes the products; the CPU by default.
        """
        m, search = min(m, len(documents)), _search(np.ascontiguousarray(documents), device)
        positions, weights = np.empty((len(queries), m), dtype=np.int64), np.empty((len(queries), m), dtype=np.float32)
        for start in progress(range(0, len(queries), _BLOCK), "teacher", unit="block"):
            rows = slice(start, start + _BLOCK)
            scores, positions[rows] = search(np.ascontiguousarray(queries[rows]), m)
            weights[rows] = _softmax(scores / temperature)
        return cls(positions, weights)

    def batch(self, rows: Sequence[int]) -> dict[str, NDArray[np.generic]]:
        """Return positions and weights of some texts, as `taught` and `taught_weights`."""
        return {"taught": self.positions[rows], "taught_weights": self.weights[rows]}


def _search(
    documents: Floats, device: torch.device | None
) -> Callable[[Floats, int], tuple[Floats, NDArray[np.int64]]]:
    """Return a function from queries [n, dim] and m to their m largest dot products [n, m], and the rows of the documents."""
    if device is None or device.type == "cpu":
        index = faiss.IndexFlatIP(documents.shape[1])
        index.add(documents)
        return index.search  # type: ignore[no-any-return]
    held = torch.from_numpy(documents).to(device)

    def search(queries: Floats, m: int) -> tuple[Floats, NDArray[np.int64]]:
        blocks = torch.from_numpy(queries).to(device).split(max(1, _PRODUCTS // len(documents)))
        values, rows = zip(*((block @ held.T).topk(m) for block in blocks), strict=True)
        return torch.cat(values).numpy(force=True), torch.cat(rows).numpy(force=True)

    return search


def _softmax(scores: Floats) -> Floats:
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)  # type: ignore[no-any-return]
