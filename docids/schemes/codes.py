"""Docids by quantizers: trained on a sample of the documents, then applied block by block, on rank 0."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from docids.progress import Bar
from docids.schemes import Docids, DocidsConfig, SchemeInput
from docids.schemes.kmeans import TRAIN_POINTS_PER_CENTROID
from docids.tree import Floats, Ints
from docids.vectors import BLOCK

Coder = Callable[[Floats], Ints]
"""[n, any] points to [n, levels] numbers."""
Train = Callable[[Floats, DocidsConfig], Coder]


def code(documents: SchemeInput, train: Train) -> Docids:
    """Docids by a quantizer.

    Args:
        documents: to give docids to.
        train: makes a quantizer of some points.
    """
    processes = documents.processes
    return Docids(processes.first(_code(documents, train) if processes.is_main else np.empty((0, 0), np.int32)))


def _code(documents: SchemeInput, train: Train) -> Ints:
    points, config = documents.points, documents.config
    size = min(len(points), config.codewords * TRAIN_POINTS_PER_CENTROID)
    sample = np.random.default_rng(config.seed).choice(len(points), size, replace=False)
    encode = train(np.ascontiguousarray(points[np.sort(sample)], dtype=np.float32), config)
    blocks = []
    with Bar("docids", unit="doc", total=len(points), enabled=documents.progress) as bar:
        for start in range(0, len(points), BLOCK):
            block = np.ascontiguousarray(points[start : start + BLOCK], dtype=np.float32)
            blocks.append(encode(block).astype(np.int32))
            bar.update(len(block))
    return np.concatenate(blocks)


def unpack(codes: NDArray[np.uint8], levels: int, bits: int) -> Ints:
    """[n, levels] the numbers of `bits` bits that faiss packs into bytes, the lowest bit first."""
    own = np.unpackbits(codes, axis=1, bitorder="little")[:, : levels * bits].reshape(-1, levels, bits)
    return (own @ (1 << np.arange(bits, dtype=np.int32))).astype(np.int32)
