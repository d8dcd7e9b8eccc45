"""Docids by product quantization: the vector is cut into `levels` parts, and each digit is the nearest codeword of a part."""

import faiss
import numpy as np

from docids.schemes import Docids, SchemeInput
from docids.schemes.kmeans import ITERATIONS
from docids.tree import Floats
from dsi_experiments.schemes.codes import Coder, code, unpack


def make(documents: SchemeInput) -> Docids:
    """Docids by product quantization, with `branching` codewords a part."""
    return code(documents, _train, bits=True)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    bits, missing = codewords.bit_length() - 1, -points.shape[1] % levels

    def padded(block: Floats) -> Floats:
        """The points with zeros after them, so that all parts are of one width."""
        return np.ascontiguousarray(np.pad(block, ((0, 0), (0, missing))))

    quantizer = faiss.ProductQuantizer(points.shape[1] + missing, levels, bits)
    quantizer.cp.niter, quantizer.cp.seed = ITERATIONS, seed + 1
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(padded(points))
    return lambda block: unpack(quantizer.compute_codes(padded(block)), levels, bits)
