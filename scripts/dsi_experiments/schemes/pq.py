"""Docids by product quantization: the vector is cut into `levels` parts, each digit is the nearest codeword of a part."""

import faiss
import numpy as np

from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.lloyd import ITERATIONS
from dsi.docids.types import Floats
from dsi_experiments.schemes.codes import Coder, code, unpack


def make(documents: SchemeInput) -> Docids:
    """Return docids by product quantization, with `branching` codewords a part."""
    return code(documents, _train, bits=True)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    bits, missing = codewords.bit_length() - 1, -points.shape[1] % levels

    def pad(block: Floats) -> Floats:
        """Append zeros so that all parts have one width."""
        return np.ascontiguousarray(np.pad(block, ((0, 0), (0, missing))))

    quantizer = faiss.ProductQuantizer(points.shape[1] + missing, levels, bits)
    quantizer.cp.niter, quantizer.cp.seed = ITERATIONS, seed + 1
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(pad(points))
    return lambda block: unpack(quantizer.compute_codes(pad(block)), levels, bits)
