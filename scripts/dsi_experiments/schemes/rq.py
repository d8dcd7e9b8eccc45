"""Docids by residual quantization: faiss keeps a beam of the best sums of codewords."""

import faiss

from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.lloyd import ITERATIONS
from dsi.docids.types import Floats
from dsi_experiments.schemes.codes import Coder, code, unpack


def make(documents: SchemeInput) -> Docids:
    """Return docids by residual quantization, with `branching` codewords a level."""
    return code(documents, _train, bits=True)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    bits = codewords.bit_length() - 1
    quantizer = faiss.ResidualQuantizer(points.shape[1], levels, bits)
    quantizer.cp.niter, quantizer.cp.seed = ITERATIONS, seed + 1
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train_type = faiss.ResidualQuantizer.Train_default  # the default needs as many points as dimensions
    quantizer.train(points)
    return lambda block: unpack(quantizer.compute_codes(block), levels, bits)
