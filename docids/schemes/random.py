"""Random docids, a control: shuffled documents, split as evenly as possible."""

import numpy as np

from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.splits import split_from_root
from dsi.docids.types import Floats, Ints


def make(documents: SchemeInput) -> Docids:
    """Return random docids."""
    doc_rows = np.arange(len(documents.embeddings), dtype=np.int32)
    np.random.default_rng(documents.seed).shuffle(doc_rows)
    return split_from_root(documents, _split, doc_rows=doc_rows)


def _split(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    return (np.arange(len(rows)) * documents.config.clusters(len(rows)) // len(rows)).astype(np.int32)
