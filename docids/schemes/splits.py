"""Splits clusters level by level until they are small enough, those of about the same size together."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.files.progress import Bar
from dsi.docids.schemes import DocidsConfig, SchemeInput
from dsi.docids.tree import ranges
from dsi.docids.types import Floats, Ints, Numbers

BLOCK = 65_536
"""Documents of a group of clusters; larger clusters may be split by all processes together."""

Split = Callable[[MatrixRows, Ints, DocidsConfig, int], Ints]
"""(points of the documents of clusters, one cluster after another; sizes of the clusters, ascending; settings; seed) -> for
each document the number of its new cluster within its cluster, 0..k-1, none of them empty."""
SplitTogether = Callable[[Floats, Ints, SchemeInput], Ints]
"""(points, rows of a cluster's documents, all documents) -> the same of one cluster; all processes call it."""


@dataclass(frozen=True)
class _Clusters:
    """Clusters of a level: their first positions in the order of the documents, ascending, and their sizes."""

    starts: Numbers
    sizes: Numbers

    def __getitem__(self, chosen: Numbers) -> "_Clusters":
        return _Clusters(self.starts[chosen], self.sizes[chosen])

    @property
    def positions(self) -> Numbers:
        """[documents] of the clusters, one after another."""
        return ranges(self.starts, self.sizes)

    def groups(self) -> list["_Clusters"]:
        """Return them in groups of about the same size, of about `BLOCK` documents each; no group holds two larger ones."""
        ascending = self[np.argsort(self.sizes, kind="stable")]
        (ends,) = np.nonzero(np.diff(ascending.sizes.cumsum() // BLOCK))
        starts, sizes = (np.split(array, ends + 1) for array in (ascending.starts, ascending.sizes))
        return [_Clusters(*group) for group in zip(starts, sizes, strict=True) if len(group[0])]


def split_from_root(
    documents: SchemeInput, split: Split, *, doc_rows: Ints | None = None, together: SplitTogether | None = None
) -> Numbers:
    """Return paths [N, longest] of nested clusters, the last number that of the document in its cluster, -1 past the end.

    `split`: splits clusters into `config.clusters`; `doc_rows`: [N] initial order of the documents, changed in place;
    collection order by default.
    """
    config, processes, count = documents.config, documents.processes, len(documents.embeddings)
    doc_rows = np.arange(count, dtype=np.int32) if doc_rows is None else doc_rows
    kind = np.min_scalar_type(-max(config.max_leaf_size, config.clusters(count)))
    columns: list[Numbers] = []
    clusters = _Clusters(np.zeros(1, dtype=np.int64), np.array([count]))
    with Bar("docids", unit="doc", total=count, enabled=documents.progress and processes.is_main) as bar:
        while len(clusters.starts):
            columns.append(column := np.full(count, -1, dtype=kind))
            done = clusters[clusters.sizes <= config.max_leaf_size]
            column[doc_rows[done.positions]] = ranges(np.zeros_like(done.starts), done.sizes)
            bar.update(int(done.sizes.sum()))
            groups = clusters[clusters.sizes > config.max_leaf_size].groups()
            labels = _split_all(doc_rows, groups, documents, split, together)
            below = [_divide(doc_rows, column, *pair) for pair in zip(groups, labels, strict=True)]
            starts, sizes = (
                np.concatenate([[], *(getattr(c, n) for c in below)]).astype(np.int64) for n in ("starts", "sizes")
            )
            clusters = _Clusters(starts, sizes)[np.argsort(starts)]
    return np.stack(columns, axis=1)


def _divide(doc_rows: Ints, column: Numbers, group: _Clusters, labels: Ints) -> _Clusters:
    """Write the labels of a group's documents, sort the documents of each cluster by label, and return the new clusters."""
    positions = group.positions
    rows = doc_rows[positions]
    column[rows] = labels
    most = int(labels.max()) + 1
    kind = np.min_scalar_type(most * len(group.sizes))  # NumPy sorts small integers in linear time
    keys = np.repeat(np.arange(0, most * len(group.sizes), most, dtype=kind), group.sizes) + labels.astype(kind)
    doc_rows[positions] = rows[np.argsort(keys, kind="stable")]
    sizes = np.bincount(keys)
    sizes = sizes[sizes > 0]
    return _Clusters(positions[sizes.cumsum() - sizes], sizes)


def _split_all(
    doc_rows: Ints, groups: list[_Clusters], documents: SchemeInput, split: Split, together: SplitTogether | None
) -> list[Ints]:
    """Return the labels of every group's documents: large clusters by all processes together, groups by one process each."""
    points, processes = documents.embeddings, documents.processes
    large = [together is not None and int(group.sizes[-1]) > BLOCK for group in groups]
    small = [group for group, is_large in zip(groups, large, strict=True) if not is_large]

    def read(group: _Clusters) -> tuple[MatrixRows, Numbers, DocidsConfig, int]:
        return MatrixRows(points, doc_rows[group.positions]), group.sizes, documents.config, documents.seed

    labels = iter(processes.map(split, small, read))
    return [
        together(points, doc_rows[group.positions], documents) if together and is_large else next(labels)
        for group, is_large in zip(groups, large, strict=True)
    ]
