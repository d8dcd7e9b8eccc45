"""Docids by quantizers, trained on a sample of the documents, then applied block by block; on rank 0."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.progress import Bar
from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.lloyd import POINTS_PER_CENTROID
from dsi.docids.types import Floats, Ints
from dsi.docids.vectors import BLOCK

Coder = Callable[[Floats], Ints]
"""Points [n, any] -> numbers [n, levels]."""
Train = Callable[[Floats, int, int, int], Coder]
"""(points, seed, codewords, levels) -> coder."""
_CODEWORDS = 16
"""Values of a digit if `branching` is 0."""


def code(documents: SchemeInput, train: Train, *, bits: bool = False) -> Docids:
    """Return docids with about log(documents) / log(codewords) digits; documents that share all get one more."""
    processes, codewords = documents.processes, documents.config.branching or _CODEWORDS
    if bits and codewords & (codewords - 1):
        near = 1 << codewords.bit_length()
        raise ValueError(
            f'docids.branching must be a power of two with method "{documents.config.method}", got {codewords}; set it to '
            f"{near // 2} or {near}."
        )
    if len(documents.embeddings) < codewords:
        raise ValueError(
            f"The collection has {len(documents.embeddings)} documents, fewer than docids.branching = {codewords}; set "
            f"branching to at most {len(documents.embeddings)}."
        )
    return Docids(
        processes.first(_code(documents, train, codewords) if processes.is_main else np.empty((0, 0), np.int32))
    )


def _code(documents: SchemeInput, train: Train, codewords: int) -> Ints:
    points, seed = documents.embeddings, documents.seed
    levels = max(1, round(math.log(len(points), codewords)))
    size = min(len(points), codewords * POINTS_PER_CENTROID)
    sample = np.random.default_rng(seed).choice(len(points), size, replace=False)
    encode = train(np.ascontiguousarray(points[np.sort(sample)], dtype=np.float32), seed, codewords, levels)
    blocks = []
    with Bar("docids", unit="doc", total=len(points), enabled=documents.progress) as bar:
        for start in range(0, len(points), BLOCK):
            block = np.ascontiguousarray(points[start : start + BLOCK], dtype=np.float32)
            blocks.append(encode(block).astype(np.int32))
            bar.update(len(block))
    return np.concatenate(blocks)


def unpack(codes: NDArray[np.uint8], levels: int, bits: int) -> Ints:
    """Return [n, levels] the numbers of `bits` bits that faiss packs into bytes, lowest bit first."""
    digits = np.unpackbits(codes, axis=1, bitorder="little")[:, : levels * bits].reshape(-1, levels, bits)
    return (digits @ (1 << np.arange(bits, dtype=np.int32))).astype(np.int32)
