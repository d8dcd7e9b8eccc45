"""Adds documents to an index and removes them: tree, document table, lexical part and memory change together.

Nothing is changed in place; an update makes new content. Knows no folders.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import generate_random_fingerprint
from numpy.typing import NDArray

from dsi.contrastive.blocks import warn_cut
from dsi.contrastive.cutting import piece_text
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.tokens import TokenHead, tell_empty
from dsi.docids.data.folders import path_records, records_of_files, source_files
from dsi.docids.data.locations import FILE, SOURCE, VERSION
from dsi.docids.data.records import COLUMNS, Oddities, Row, checked_documents, converted, kind_of
from dsi.docids.data.sources import records_of
from dsi.docids.files.checks import plain, shown
from dsi.docids.query_memory import QueryMemory
from dsi.docids.token_vectors import TokenCodes
from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents, without_traces
from dsi.docids.words.bm25 import BM25
from dsi.store.documents import DocumentTable, document_table
from dsi.store.verify import CHANGING

_BLOCK = 1_024
"""Rows of the document table that are copied at a time."""


class Content(NamedTuple):
    """The parts of an index that an update changes: docids, document table, lexical part, what it has learned."""

    tree: DocidTree
    documents: datasets.Dataset
    lexical: BM25 | None
    memory: QueryMemory


def changed_parts(content: Content, held: Content | None) -> list[str]:
    """Return the names of the parts of an index that an update has changed since it was saved or loaded."""
    if held is None:
        return [*CHANGING]
    same_table = content.tree is held.tree and content.documents is held.documents
    is_same = same_table, content.lexical is held.lexical, content.memory is held.memory
    return [name for name, same in zip(CHANGING, is_same, strict=True) if not same]


def with_documents(
    content: Content, encoder: Encoder, documents: Iterable[Any], *, replace: bool = False, removed: Sequence[int] = ()
) -> Content:
    """Return the content with more documents, and without others.

    Args:
        content: the parts of an index.
        encoder: of the index.
        documents: the new ones: records or a table, or paths of files.
        replace: put a document in the place of one that has its doc_id.
        removed: rows of documents that go, or are replaced.

    Raises:
        TypeError: documents are no list or table of records.
        ValueError: a doc_id is in the index already or twice in the list, or metadata do not fit the columns of the index; the
            message names it.
    """
    records, may_replace, going = _records(documents), plain(bool, replace, "replace"), set(removed)
    if not records:
        return without_documents(content, removed)
    doc_ids, titles, texts = ([record[name] for record in records] for name in COLUMNS)
    rows = DocumentTable(content.documents).find(doc_ids)
    for doc_id in doc_ids:
        if not may_replace and doc_id in rows and rows[doc_id] not in going:
            raise ValueError(_taken(doc_id))
    old, replaced = document_table(content.documents, texts=True), sorted({*rows.values(), *going})
    metadata = _metadata_columns(records, old.schema)
    cuts = encoder.cut(titles, texts, content.tree.pieces)
    warn_cut(sum(not own.is_whole for own in cuts), len(cuts), content.tree.pieces, encoder)
    pieces = [
        piece_text(title, text, span, own.title_end)
        for title, text, own in zip(titles, texts, cuts, strict=True)
        for span in own.spans
    ]
    full_texts = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    embeddings, tokens = _encode(content.tree, encoder, pieces, full_texts)
    places = np.repeat(np.arange(len(cuts)), [len(own.spans) for own in cuts])
    spans = np.array([span for own in cuts for span in own.spans], dtype=np.int32)
    own_spans = spans if content.tree.spans is not None or len(pieces) > len(records) else None
    text_column = {"text": texts} if "text" in old.column_names else {}
    new = pa.table({"doc_id": doc_ids, "title": titles, **text_column, **metadata}, schema=old.schema)
    tree = remove_documents(content.tree, np.array(replaced)) if replaced else content.tree
    table = _dataset(_with(_without(old, replaced), new))
    lexical = content.lexical.update(replaced, table["doc_id"], full_texts) if content.lexical else None
    again = {rows[doc_id]: number for number, doc_id in enumerate(doc_ids) if doc_id in rows}
    memory = _moved(content, replaced, again)
    return Content(without_traces(add_documents(tree, embeddings, places, tokens, own_spans)), table, lexical, memory)


def _moved(content: Content, gone: Sequence[int], again: Mapping[int, int] | None = None) -> QueryMemory:
    """Return the memory after an update: it forgets with the documents, and one that is replaced keeps what was learned.

    Args:
        content: before the update.
        gone: rows of documents that are removed or replaced.
        again: {row of one that is replaced: its number among the new documents}.
    """
    stays = np.ones(len(content.documents), dtype=bool)
    stays[list(gone)] = False
    rows = np.where(stays, np.cumsum(stays) - 1, -1)
    for row, number in (again or {}).items():
        rows[row] = int(stays.sum()) + number
    return content.memory.moved(rows)


def _encode(
    tree: DocidTree, encoder: Encoder, pieces: Sequence[str], full_texts: Sequence[str]
) -> tuple[NDArray[np.float32], TokenCodes | None]:
    """Return embeddings of pieces of texts, and the codes of their tokens if the index has token vectors."""
    if tree.tokens is None:
        return encoder.encode(pieces, "document"), None
    head, model = TokenHead(tree.tokens.head, tree.tokens.bits), encoder.token_model
    if model is None:
        return head.encode(encoder, pieces)
    tokens = head.encode_with(model, full_texts if tree.pieces == 1 else pieces)
    tell_empty(tokens)
    return encoder.encode(pieces, "document"), tokens


def _taken(doc_id: str) -> str:
    return (
        f"The doc_id {shown(doc_id)} is in the index already; have the document replaced (replace=True, in the "
        'shell --remove beside --add, in a request "replace": true), or leave one out.'
    )


def _records(documents: Iterable[Any]) -> list[Row]:
    """Return the rows of new documents, checked."""
    if isinstance(documents, Mapping):
        raise TypeError("add() takes a list of documents, got one; put it into a list.")
    if documents is None or isinstance(documents, str | bytes | Path):
        raise TypeError(f"add() takes a list of documents, got {shown(documents)}.")
    if isinstance(documents, Sequence) and documents and all(isinstance(path, Path) for path in documents):
        return [row for _, row in checked_documents(path_records(documents), "documents")]
    return [row for _, row in checked_documents(records_of(documents, texts=False), "documents")]


def _metadata_columns(rows: Sequence[Row], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return {column: values of the new documents}, null where a document has none."""
    types = {field.name: field.type for field in schema if field.name not in COLUMNS}
    for row in rows:
        if new := [name for name in row if name not in types and name not in (*COLUMNS, *SOURCE)]:
            raise ValueError(
                f"Document {shown(row['doc_id'])} has metadata {shown(new[0])}, for which the index has no column; "
                f"it has {', '.join(types) or 'none'}. Leave it out, or train or index again with it."
            )
    return {name: pa.array([_fitted(row, name, arrow) for row in rows], type=arrow) for name, arrow in types.items()}


def _fitted(row: Row, name: str, arrow: pa.DataType) -> Any:
    """Return a value of metadata as its column has it; only texts take values of other types."""
    value = row.get(name)
    try:
        fitted = None if value is None else converted(value, kind_of(arrow))
        pa.array([fitted], type=arrow)
    except (ValueError, pa.ArrowException):
        raise ValueError(
            f"Document {shown(row['doc_id'])}: metadata {shown(name)} must be of type {arrow}, got {shown(value)}."
        ) from None
    return fitted


class FileChanges(NamedTuple):
    """How many files an update found new, changed, gone and as they were."""

    new: int
    changed: int
    gone: int
    same: int


def changed_files(table: datasets.Dataset, paths: Sequence[str | Path]) -> tuple[FileChanges, list[Row], list[int]]:
    """Compare files and folders with the index that was made of them, by their contents, and read what has changed.

    Args:
        table: the documents of the index.
        paths: files and folders; other files of the index are left alone.

    Returns:
        How many files have changed, the documents of new and changed ones, and the rows of documents that go.

    Raises:
        FileNotFoundError: no such path.
        ValueError: the index was not made of files.
    """
    # 1) Compare.
    if FILE not in table.column_names:
        raise ValueError("The index was not made of files, so no folder can be compared with it; use --add or add().")
    roots, odd = [Path(path) for path in paths], Oddities(", ".join(map(str, paths)))
    files, found = table[FILE][:], source_files(roots, odd)
    known, present = dict(zip(files, table[VERSION][:], strict=True)), {file.address: file.version for file in found}
    same, below = (
        {name for name, version in present.items() if known.get(name) == version},
        [root.resolve() for root in roots],
    )
    old = {name for name in known if name and (name in present or _is_below(name, below))} - same
    moved = {version for name, version in present.items() if name not in known}
    old |= {name for name, version in known.items() if name and version in moved and not Path(name).exists()}
    # 2) Read.
    going = [row for row, name in enumerate(files) if name in old]
    kept = [doc_id for doc_id, name in zip(table["doc_id"][:], files, strict=True) if name not in old]
    taken = {*kept, *(doc_id.partition("#")[0] for doc_id in kept)}
    read = records_of_files([file for file in found if file.address not in same], odd, taken)
    schema = document_table(table).schema
    rows = [_fitting(row, schema, odd) for _, row in read]
    odd.warn()
    new = {row[FILE] for row in rows} - old
    return FileChanges(len(new), len(old & present.keys()), len(old - present.keys()), len(same)), rows, going


def _is_below(file: str, roots: Sequence[Path]) -> bool:
    """True if a file is one of some paths, or lies in one."""
    return any(Path(file).is_relative_to(root) for root in roots)


def _fitting(row: Row, schema: pa.Schema, odd: Oddities) -> Row:
    """Return a row without the metadata that the columns of an index cannot hold, which is counted."""
    fitting = {}
    for name, value in row.items():
        try:
            fitting[name] = value if name in COLUMNS else _fitted(row, name, schema.field(name).type)
        except (KeyError, ValueError):
            odd.count("metadata that no column of the index can hold; they are left out", name)
    return fitting


def without_documents(content: Content, rows: Sequence[int]) -> Content:
    """Return the content without the documents in some rows of the table.

    Raises:
        ValueError: no document would be left.
    """
    if not rows:
        return content
    if len(set(rows)) == len(content.documents):
        raise ValueError("An index cannot be left without documents; keep at least one.")
    table = _dataset(_without(document_table(content.documents, texts=True), rows))
    lexical = content.lexical.update(rows, table["doc_id"], ()) if content.lexical else None
    tree = without_traces(remove_documents(content.tree, np.array(rows)))
    return Content(tree, table, lexical, _moved(content, rows))


def _without(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """Return the table without some rows; only blocks that have one of them are copied."""
    keep = np.ones(len(table), dtype=bool)
    keep[list(rows)] = False
    parts, end = [], 0
    for start in _BLOCK * np.unique(np.array(rows, dtype=np.int64) // _BLOCK):
        block = slice(int(start), int(start) + _BLOCK)
        parts += [table[end : block.start], table[block].filter(pa.array(keep[block]))]
        end = block.stop
    return pa.concat_tables([*parts, table[end:]])


def _with(table: pa.Table, new: pa.Table) -> pa.Table:
    """Return the table and a new one below it; the last block is copied if it is small, so that there are few."""
    batches = table.to_batches()
    if not batches or len(batches[-1]) + len(new) > _BLOCK:
        return pa.concat_tables([table, new])
    *whole, last = (pa.Table.from_batches([batch]) for batch in batches)
    return pa.concat_tables([*whole, pa.concat_tables([last, new]).combine_chunks()])


def _dataset(table: pa.Table) -> datasets.Dataset:
    """Return a table as a dataset; without a fingerprint it would be read to compute one."""
    return datasets.Dataset(table, fingerprint=generate_random_fingerprint())


def with_texts(content: Content, documents: datasets.Dataset) -> Content:
    """Return the content with the texts of its documents, from a table with doc_id and text that may hold more documents.

    Raises:
        ValueError: the table has no texts, or lacks a document of the index.
    """
    rows = DocumentTable(documents).text_rows(content.documents["doc_id"][:])
    texts = documents.select_columns(["text"]).with_format("arrow")[rows]["text"]
    return content._replace(documents=_dataset(document_table(content.documents).append_column("text", texts)))
