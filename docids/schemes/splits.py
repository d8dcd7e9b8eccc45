"""Splits clusters into clusters until they are small enough, then numbers their documents.

Several processes share the small clusters, and may split a large one together.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dsi.docids.files.processes import Rows
from dsi.docids.files.progress import Bar
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput
from dsi.docids.types import Floats, Ints

BLOCK = 65_536
"""Documents that are assigned at a time; larger clusters may be split by all processes together."""

Split = Callable[[Rows, DocidsConfig, int], Ints]
"""(points of a cluster's documents, settings, seed) -> cluster number of each document, 0..k-1, none of them empty."""
SplitTogether = Callable[[Floats, Ints, SchemeInput], Ints]
"""(points, rows of a cluster's documents, all documents) -> the same; all processes call it."""


def split_from_root(
    documents: SchemeInput, split: Split, *, doc_rows: Ints | None = None, together: SplitTogether | None = None
) -> Docids:
    """Return docids whose numbers are those of nested clusters, the last that of the document in its cluster.

    Args:
        documents: to be clustered.
        split: splits a cluster into `config.clusters`.
        doc_rows: [N] initial order of the documents, changed in place; collection order by default.
        together: splits large clusters.
    """
    config, processes = documents.config, documents.processes
    points = np.ascontiguousarray(documents.points, dtype=np.float32)
    doc_rows = np.arange(len(points), dtype=np.int32) if doc_rows is None else doc_rows
    columns: list[Ints] = []
    clusters = [(0, len(doc_rows))]
    with Bar("docids", unit="doc", total=len(points), enabled=documents.progress and processes.is_main) as bar:
        while clusters:
            columns.append(np.full(len(doc_rows), -1, dtype=np.int32))
            to_split = []
            for start, end in clusters:
                if end - start > config.max_leaf_size:
                    to_split.append((start, end))
                else:
                    columns[-1][doc_rows[start:end]] = np.arange(end - start)
                    bar.update(end - start)
            labels = _split_all(points, doc_rows, to_split, documents, split, together)
            clusters = [
                below
                for (start, end), cluster_labels in zip(to_split, labels, strict=True)
                for below in _divide(doc_rows[start:end], cluster_labels, columns[-1], start)
            ]
    return Docids(np.stack(columns, axis=1))


def _divide(rows: Ints, labels: Ints, column: Ints, start: int) -> list[tuple[int, int]]:
    """Write the labels of a cluster's documents, sort the documents by label, and return the ranges of equal labels."""
    column[rows] = labels
    rows[:] = rows[np.argsort(labels, kind="stable")]
    return list(pairwise([start, *(start + np.cumsum(np.bincount(labels))).tolist()]))


def _split_all(
    points: Floats,
    doc_rows: Ints,
    clusters: list[tuple[int, int]],
    documents: SchemeInput,
    split: Split,
    together: SplitTogether | None,
) -> list[Ints]:
    """Return the labels of every cluster's documents: large clusters by all processes together, others by one process each."""
    processes = documents.processes
    large = [together is not None and end - start > BLOCK for start, end in clusters]
    small = [cluster for cluster, is_large in zip(clusters, large, strict=True) if not is_large]
    labels = iter(
        processes.map(
            split, small, lambda ends: (Rows(points, doc_rows[slice(*ends)].copy()), documents.config, documents.seed)
        )
    )
    return [
        together(points, doc_rows[start:end], documents) if together and is_large else next(labels)
        for (start, end), is_large in zip(clusters, large, strict=True)
    ]
