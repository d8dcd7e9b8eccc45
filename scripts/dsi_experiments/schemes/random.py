"""Random docids, a control: shuffled documents, split as evenly as possible."""

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput
from dsi.docids.schemes.splits import split_from_root
from dsi.docids.types import Ints, Numbers


def make(documents: SchemeInput) -> Docids:
    """Return random docids."""
    doc_rows = np.arange(len(documents.embeddings), dtype=np.int32)
    np.random.default_rng(documents.seed).shuffle(doc_rows)
    return Docids(split_from_root(documents, _split, doc_rows=doc_rows))


def _split(_: MatrixRows, sizes: Numbers, config: DocidsConfig, seed: int) -> Ints:
    labels = [np.arange(size) * config.clusters(size) // size for size in sizes.tolist()]
    return np.concatenate(labels).astype(np.int32)
