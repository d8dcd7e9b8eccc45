"""Very many documents are split once, and then clustered part by part.

A process needs memory for one part, and a run that is killed loses the parts in work. Knows nothing of how clusters are found.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.files.progress import Bar
from dsi.docids.files.storage import scratch_array, write_array
from dsi.docids.schemes import DocidsConfig, SchemeInput
from dsi.docids.types import Ints, Numbers

Paths = Callable[[SchemeInput], Numbers]
"""Returns the paths [n, longest] of documents, -1 past their ends; importable."""


def paths_by_parts(documents: SchemeInput, split: Callable[[SchemeInput], Ints], paths_of: Paths) -> Numbers:
    """Return the paths [N, longest] of documents whose first number is that of their part.

    `documents`: to be clustered; in their `folder` finished parts stay; `split`: returns the number of the part [N] of
    each document; all processes call it.
    """
    points, config, folder, processes = documents.points, documents.config, documents.folder, documents.processes
    parts = _parts(documents, split)
    sizes = np.bincount(parts)
    with Bar("docids", unit="doc", total=len(points), enabled=documents.progress and processes.is_main) as bar:

        def part(number: int) -> tuple[MatrixRows, DocidsConfig, int, Path | None, Paths]:
            bar.update(int(sizes[number]))
            rows = np.flatnonzero(parts == number).astype(np.int32)
            file = None if folder is None else folder / f"part-{number}.npy"
            return MatrixRows(points, rows), config, documents.seed, file, paths_of

        below = processes.map(_part_paths, range(len(sizes)), part)
    longest = 1 + max(paths.shape[1] for paths in below)
    paths = scratch_array((len(points), longest), np.result_type(parts, *below).type)
    paths[:, 0], paths[:, 1:] = parts, -1
    for number, own in enumerate(below):
        paths[np.flatnonzero(parts == number), 1 : 1 + own.shape[1]] = own
    return paths


def _parts(documents: SchemeInput, split: Callable[[SchemeInput], Ints]) -> Numbers:
    """Return the number of the part [N] of each document."""
    file = None if documents.folder is None else documents.folder / "parts.npy"
    if file and documents.processes.first(file.exists()):
        return np.load(file)
    labels = split(documents)
    parts = labels.astype(np.min_scalar_type(-int(labels.max()) - 1))
    if file and documents.processes.is_main:
        write_array(file, parts)
    return parts


def _part_paths(documents: MatrixRows, config: DocidsConfig, seed: int, file: Path | None, paths_of: Paths) -> Numbers:
    """Return the paths [n, longest] of the documents of a part; from a file, if they were written to it."""
    if file and file.exists():
        return np.load(file)
    count = len(documents)
    config = replace(config, branching=min(config.branching, count) if count > 1 else 0)  # no part is too small
    paths = paths_of(SchemeInput(documents.read(), config, seed=seed))
    if file:
        write_array(file, paths)
    return paths
