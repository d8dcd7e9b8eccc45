"""Builds the docid tree of docids: documents whose paths have a common prefix form a cluster, and clusters are the nodes."""

from dataclasses import replace

import numpy as np

from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.files.storage import scratch_array, scratch_blocks
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput, make_docids, path_lengths
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.tree import DocidTree
from dsi.docids.types import Bools, Floats, Ints, Numbers
from dsi.docids.vectors import BLOCK, Vectors

__all__ = ["DocidsConfig", "assemble", "build_tree"]


def build_tree(
    embeddings: Floats, config: DocidsConfig, *, seed: int = 0, progress: bool = False, processes: Processes = ALONE
) -> DocidTree:
    """Build the docid tree of documents, by a scheme that needs only their embeddings.

    Args:
        embeddings: [N, dim] document embeddings, in collection order.
        config: the settings.
        seed: of k-means, or of what is drawn at random.
        progress: show a progress bar over documents.
        processes: share the clustering; each returns the same tree, whatever their number.

    Raises:
        ValueError: fewer documents than `branching`, values that are not finite, or a scheme that needs more.
    """
    documents = SchemeInput(embeddings, config, seed=seed, processes=processes, progress=progress)
    return assemble(make_docids(documents), embeddings)


def assemble(
    docids: Docids, embeddings: Floats, tokens: TokenVectors | None = None, spans: Ints | None = None
) -> DocidTree:
    """Build the docid tree of docids; its vectors are written to scratch files, block by block.

    Args:
        docids: of any scheme.
        embeddings: [N, dim] of the docids, perhaps memory-mapped; or fewer, of the documents, each of which gives its embedding
            to all its docids.
        tokens: of the same texts, in the same order.
        spans: [N, 2] first character, and one past the last, of the piece of text of each docid; none if all are whole texts.
    """
    order, levels = _clusters(docids.paths)
    ranges = np.concatenate(levels)
    doc_start, doc_end = ranges[:, 0].copy(), ranges[:, 1].copy()
    num_inner = len(ranges)
    first_child, num_children = np.empty(num_inner, np.int32), np.empty(num_inner, np.int32)
    start = 0
    for level, below in zip(levels, [*levels[1:], np.empty((0, 2), np.int32)], strict=True):
        nodes, next_level = slice(start, start + len(level)), start + len(level)
        first, last = (np.searchsorted(below[:, 0], edge) for edge in level.T)
        split = last > first
        first_child[nodes] = np.where(split, next_level + first, num_inner + level[:, 0])
        num_children[nodes] = np.where(split, last - first, level[:, 1] - level[:, 0])
        start = next_level
    doc_rows = order if docids.rows is None else docids.rows[order].astype(np.int32)
    source = order if len(embeddings) == len(order) else doc_rows
    ordered = _take(embeddings, source, np.float32)
    vectors = Vectors((_means_below(ordered, doc_start, doc_end),)), Vectors((ordered,))
    tokens = None if tokens is None else replace(tokens, order=source)
    spans = None if spans is None else spans[source].astype(np.int32)
    return DocidTree(first_child, num_children, doc_start, doc_end, doc_rows, *vectors, tokens=tokens, spans=spans)


def _clusters(paths: Ints) -> tuple[Ints, list[Ints]]:
    """Return the path [N] of each docid position, and the clusters of each level, root first, of different paths [N, longest].

    A cluster [first docid position, one past its last] whose paths differ in the next number and end with it is a leaf cluster.
    Others are split by the next number; a path that ends there goes first.
    """
    order = np.lexsort(paths.T[::-1]).astype(np.int32)
    ordered = _take(paths, order, paths.dtype.type)
    lengths = path_lengths(ordered)
    begins = np.zeros(len(paths) + 1, dtype=bool)  # True where a cluster of the next level begins
    begins[[0, -1]] = True
    levels: list[Ints] = [np.array([[0, len(paths)]], dtype=np.int32)]
    for level, numbers in enumerate(ordered.T):
        begins[1:-1] |= numbers[1:] != numbers[:-1]
        longer = np.zeros(len(paths) + 1, dtype=np.int32)
        np.cumsum(lengths > level + 1, out=longer[1:])
        start, end = levels[-1].T
        start, end = (edge[longer[end] > longer[start]] for edge in (start, end))  # of the clusters that are split
        if not len(start):
            break
        first = np.flatnonzero(begins[:-1] & _are_within(start, end, len(paths))).astype(np.int32)
        last = np.append(first[1:], np.int32(0))
        last[np.searchsorted(first, end) - 1] = end  # a parent's last child ends with it
        levels.append(np.stack([first, last], axis=1))
    return order, levels


def _take(matrix: Numbers, rows: Ints, kind: type[np.generic]) -> Numbers:
    """Return some rows of a matrix, in their order, in a scratch file."""
    blocks = (matrix[rows[start : start + BLOCK]] for start in range(0, len(rows), BLOCK))
    return scratch_blocks((len(rows), matrix.shape[1]), kind, blocks)


def _are_within(start: Ints, end: Ints, count: int) -> Bools:
    """Return [count] True at the numbers within one of some ranges, which ascend."""
    steps = np.zeros(count + 1, dtype=np.int8)
    steps[start] += 1
    steps[end] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)


def _means_below(embeddings: Floats, doc_start: Ints, doc_end: Ints) -> Floats:
    """Return the mean [I, dim] of the embeddings [N, dim] below each node, in a scratch file."""
    means = scratch_array((len(doc_start), embeddings.shape[1]), np.float32)
    sizes = (doc_end - doc_start)[:, None]
    within = doc_start // BLOCK == (doc_end - 1) // BLOCK
    (several,) = np.nonzero(~within)  # the few nodes that span several blocks
    sums = np.zeros((len(several), embeddings.shape[1]))
    nodes = np.flatnonzero(within)[np.argsort(doc_start[within], kind="stable")]
    starts = range(0, len(embeddings), BLOCK)
    edges = np.searchsorted(doc_start[nodes], [*starts, len(embeddings)])
    for number, start in enumerate(starts):
        block = embeddings[start : start + BLOCK]
        before = np.zeros((len(block) + 1, block.shape[1]))
        np.cumsum(block, axis=0, dtype=np.float64, out=before[1:])
        inside = nodes[edges[number] : edges[number + 1]]
        means[inside] = (before[doc_end[inside] - start] - before[doc_start[inside] - start]) / sizes[inside]
        first, last = (np.clip(edge[several] - start, 0, len(block)) for edge in (doc_start, doc_end))
        sums += before[last] - before[first]
    means[several] = sums / sizes[several]
    return means
