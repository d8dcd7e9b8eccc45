"""An index as files that other programs read: vectors (.npy), tables (Parquet) and the tree (GraphML).

Row n of `embeddings.npy` belongs to row n of `docids.parquet`, and row n of `centroids.npy` to row n of `nodes.parquet`. Knows
nothing of how an index is kept on disk.
"""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, ElementTree, SubElement

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dsi.docids.files.checks import folder_to_replace
from dsi.docids.files.storage import replace_folder
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.docids.vectors import Vectors
from dsi.integrations.retrieval import open_index
from dsi.store.documents import document_table
from dsi.store.retriever import GenerativeRetriever

_BLOCK = 10_000
"""Vectors that are decoded at a time."""
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ROOT = "root"
"""Id of the tree's root in GraphML; that of any other node is its digits, joined by dots."""
_ATTRIBUTES = {
    "kind": ("node", "string"), "documents": ("node", "long"), "doc_id": ("node", "string"), "title": ("node", "string"),
    "digit": ("edge", "long"),
}  # fmt: skip
"""{attribute in GraphML: (what has it, type)}."""


class Exported(NamedTuple):
    """What was written: how many documents, docids (a document may have several), inner nodes, and dimensions of a vector."""

    documents: int
    docids: int
    nodes: int
    dim: int


def export_index(retriever: GenerativeRetriever | str | Path, folder: str | Path) -> Exported:
    """Write an index for other programs.

    `documents.parquet` has doc_id, title, metadata, and text if the index keeps texts; `docids.parquet` doc_id and digits, a
    row for each docid, with `embeddings.npy`; `nodes.parquet` the inner nodes, node 0 being the root: node, parent, digits and
    how many documents are below, with `centroids.npy`; `tree.graphml` both, for programs that draw graphs. Vectors are float32
    [rows, dim], as search reads them.

    Example:
        >>> from dsi.integrations.export import export_index
        >>> export_index("runs/example", "exported")  # doctest: +SKIP
        Exported(documents=600, docids=600, nodes=48, dim=384)

    Args:
        retriever: the index, or its folder.
        folder: to write, new or empty.

    Raises:
        FileExistsError: the folder is not empty.
        FileNotFoundError: no index in the folder of an index.
        NotADirectoryError: the folder, or one that it is to lie in, is a file.
        TypeError: the index or the folder is neither.
    """
    folder = folder_to_replace(folder, "folder", lambda entry: False)
    index = open_index(retriever).snapshot
    tree, documents = index.tree, document_table(index.documents.dataset, texts=True)
    docids, nodes = _docid_table(tree, documents), _node_table(tree)
    with replace_folder(folder) as new:
        pq.write_table(documents, new / "documents.parquet")
        pq.write_table(docids, new / "docids.parquet")
        pq.write_table(nodes, new / "nodes.parquet")
        _write_vectors(tree.embeddings, tree.by_row, new / "embeddings.npy")
        _write_vectors(tree.centroids, np.arange(tree.num_inner, dtype=np.int32), new / "centroids.npy")
        graph = _graph(docids, nodes, documents)
        ElementTree(graph).write(new / "tree.graphml", encoding="utf-8", xml_declaration=True)
    return Exported(len(documents), len(docids), len(nodes), tree.embeddings.shape[1])


def _docid_table(tree: DocidTree, documents: pa.Table) -> pa.Table:
    """Return doc_id and digits of every docid, in the order of the documents."""
    _, digits = tree.paths(tree.by_row)
    return pa.table(
        {"doc_id": documents["doc_id"].take(pa.array(tree.doc_rows[tree.by_row])), "digits": _lists(digits)}
    )


def _node_table(tree: DocidTree) -> pa.Table:
    """Return number, parent (null for the root), digits and count of documents of every inner node."""
    parents = tree.parents[: tree.num_inner]
    digits = [tree.node_digits(node) for node in range(tree.num_inner)]
    below = np.concatenate([[0], np.cumsum(tree.doc_rows >= 0)])  # free places are not counted
    return pa.table(
        {
            "node": pa.array(np.arange(tree.num_inner), pa.int32()),
            "parent": pa.array(parents, pa.int32(), mask=parents < 0),
            "digits": pa.array(digits, pa.list_(pa.int32())),
            "documents": pa.array(below[tree.doc_end] - below[tree.doc_start], pa.int64()),
        }
    )


def _lists(digits: Ints) -> pa.ListArray:
    """Return rows of digits [n, depth], -1 past the end, as lists."""
    given = digits >= 0
    offsets = np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(digits[given], pa.int32()))


def _write_vectors(vectors: Vectors, rows: Ints, path: Path) -> None:
    """Write some vectors as float32 [rows, dim], in blocks."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(rows), vectors.shape[1]))
    for start in range(0, len(rows), _BLOCK):
        array[start : start + _BLOCK] = vectors[rows[start : start + _BLOCK]]
    array.flush()


def _graph(docids: pa.Table, nodes: pa.Table, documents: pa.Table) -> Element:
    """Return the tree as GraphML: inner nodes and documents, with an edge from each parent to its child."""
    whole = Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
    for name, (owner, kind) in _ATTRIBUTES.items():
        SubElement(whole, "key", {"id": name, "for": owner, "attr.name": name, "attr.type": kind})
    graph = SubElement(whole, "graph", edgedefault="directed")
    for digits, count in zip(nodes["digits"].to_pylist(), nodes["documents"].to_pylist(), strict=True):
        _add(graph, digits, kind="node", documents=str(count))
    titles = dict(zip(documents["doc_id"].to_pylist(), documents["title"].to_pylist(), strict=True))
    for doc_id, digits in zip(docids["doc_id"].to_pylist(), docids["digits"].to_pylist(), strict=True):
        _add(graph, digits, kind="document", doc_id=_xml(doc_id), title=_xml(titles[doc_id]))
    return whole


def _add(graph: Element, digits: list[int], **attributes: str) -> None:
    """Add a node, below its parent, to a graph."""
    node = SubElement(graph, "node", id=_name(digits))
    for name, value in attributes.items():
        SubElement(node, "data", key=name).text = value
    if digits:
        edge = SubElement(graph, "edge", source=_name(digits[:-1]), target=_name(digits))
        SubElement(edge, "data", key="digit").text = str(digits[-1])


def _name(digits: list[int]) -> str:
    return ".".join(map(str, digits)) or ROOT


def _xml(text: str | None) -> str:
    """Return a text without the control characters that XML cannot hold."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text or "")
