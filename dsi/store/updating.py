"""Adds documents to an index and removes them: tree, document table, lexical part and memory change together.

Nothing is changed in place; an update makes new content. Knows no index on disk.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dsi.contrastive.blocks import warn_cut, warn_unread
from dsi.contrastive.text_encoder import TextEncoder
from dsi.contrastive.tokens import TokenHead
from dsi.docids.data.locations import FILE, PLACE, SOURCE, VERSION, base_of
from dsi.docids.data.records import COLUMNS, Row, checked_documents, converted, kind_of
from dsi.docids.data.sources import records_of
from dsi.docids.data.tables import Column
from dsi.docids.files.checks import shown
from dsi.docids.query_memory import QueryMemory
from dsi.docids.token_vectors import TokenCodes
from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents, without_traces
from dsi.docids.words.bm25 import BM25
from dsi.search.best_scores import BestScores
from dsi.store.documents.table import DocumentTable

logger = logging.getLogger(__name__)

CHANGING = ("docids", "lexical", "memory")
"""The parts that an update may replace, by new folders with the generation in their name; the manifest points to them."""
_BLOCK = 1_024
"""Rows of the document table that are copied at a time."""


class Content(NamedTuple):
    """The parts of an index that an update changes: docids, document table, lexical part, what it has learned, best scores."""

    tree: DocidTree
    documents: pa.Table
    lexical: BM25 | None
    memory: QueryMemory
    best_scores: BestScores | None = None


def changed_parts(content: Content, held: Content | None) -> list[str]:
    """Return the names of the parts of an index that an update has changed since it was saved or loaded."""
    if held is None:
        return [*CHANGING]
    same_table = content.tree is held.tree and content.documents is held.documents
    is_same = {
        "docids": same_table,
        "lexical": content.lexical is held.lexical,
        "memory": content.memory is held.memory,
    }
    return [name for name, same in is_same.items() if not same]


def new_rows(documents: Iterable[Any]) -> list[Row]:
    """Return the rows of new documents, checked: of records or a table, or of paths of files."""
    are_files = isinstance(documents, Sequence) and documents and all(isinstance(path, Path) for path in documents)
    if are_files:
        from dsi.files.documents import path_records  # a room that can be torn off

        return list(checked_documents(path_records(documents), "documents"))  # type: ignore[arg-type]
    return list(checked_documents(records_of(documents, texts=False), "documents"))


def with_documents(
    content: Content, encoder: TextEncoder, records: Sequence[Row], *, replace: bool = False,
    removed: Sequence[int] = (),
) -> Content:  # fmt: skip
    """Return the content with more documents, and without some rows; with `replace` known ones too, encoded if changed."""
    table = content.documents
    rows = _known_rows(table, records) if records else {}
    if not replace and (taken := sorted({*rows.values()} - {*removed})):
        file = Column(table[FILE])[taken[0]] if FILE in table.column_names else None
        raise ValueError(
            f"The doc_id {shown(Column(table['doc_id'])[taken[0]])} is in the index already{f', from {file}' if file else ''}; "
            "replace it (add(…, replace=True), update(add=…, remove=…), in the shell --remove beside --add, in a request "
            '"replace": true), or leave one out.'
        )
    if same := _with_same_texts(table, records, rows):
        logger.info("%d of %d documents have unchanged texts and are not encoded again.", len(same), len(records))
        content = content._replace(documents=_with_metadata(table, same))
    new = [record for record in records if rows.get(record["doc_id"]) not in same]
    gone = sorted({*rows.values(), *removed} - same.keys())
    again = {rows[record["doc_id"]]: number for number, record in enumerate(new) if record["doc_id"] in rows}
    again = _renamed(table, gone, new) | again
    return _with_new(content, encoder, new, gone, again) if new else _without_documents(content, gone)


def _with_new(
    content: Content, encoder: TextEncoder, records: Sequence[Row], gone: Sequence[int], again: Mapping[int, int]
) -> Content:
    """Return the content with new documents and without some rows; `again` is as for `_moved`."""
    # 1) the table, which refuses metadata of other columns
    doc_ids, titles, texts = ([record[name] for record in records] for name in COLUMNS)
    old = content.documents
    text_column = {"text": texts} if "text" in old.column_names else {}
    columns = {"doc_id": doc_ids, "title": titles, **text_column, **_metadata_columns(records, old.schema)}
    table = _with(_without(old, gone), pa.table(columns, schema=old.schema))
    # 2) the pieces of the new documents, encoded
    cuts = encoder.cut(titles, texts, content.tree.pieces)
    warn_cut(sum(not cut.is_whole for cut in cuts), len(cuts), content.tree.pieces, encoder)
    pieces = [piece for *of, cut in zip(titles, texts, cuts, strict=True) for piece in cut.texts(*of)]
    full_texts = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    warn_unread(full_texts, encoder)
    embeddings, tokens = encoded_pieces(content.tree, encoder, pieces)
    numbers = np.repeat(np.arange(len(cuts)), [len(cut.spans) for cut in cuts])  # of the new document of each piece
    spans = np.array([span for cut in cuts for span in cut.spans], dtype=np.int32)
    kept_spans = spans if content.tree.spans is not None or len(pieces) > len(records) else None
    # 3) the other parts
    tree = remove_documents(content.tree, np.array(gone)) if gone else content.tree
    tree = without_traces(add_documents(tree, embeddings, numbers, tokens, kept_spans))
    lexical = content.lexical.update(gone, Column(table["doc_id"]), full_texts) if content.lexical else None
    best = content.best_scores and content.best_scores.after(len(gone) + len(records))
    return Content(tree, table, lexical, _moved(content, gone, again), best)


def _known_rows(table: pa.Table, records: Sequence[Row]) -> dict[str, int]:
    """Return {doc_id: row} of documents that are in the table: under their ids, or as the same place of the same file."""
    rows = DocumentTable(table).find(record["doc_id"] for record in records)
    names = {(str(record[FILE]), str(record.get(PLACE))): record["doc_id"] for record in records if FILE in record}
    if not names or FILE not in table.column_names:
        return rows
    held = enumerate(zip(Column(table[FILE]), Column(table[PLACE]), strict=True))
    return {names[place]: row for row, place in held if place in names and not place[1].startswith("row=")} | rows


def _renamed(table: pa.Table, gone: Sequence[int], new: Sequence[Row]) -> dict[int, int]:
    """Return {row: number among the new} of documents that go, as their files have other names now: what is learned stays."""
    numbers = {(record[VERSION], record.get(PLACE)): number for number, record in enumerate(new) if record.get(VERSION)}
    if not numbers or not gone or FILE not in table.column_names:
        return {}
    known = zip(*(Column(table[name]).take(np.array(gone)) for name in (VERSION, PLACE)), strict=True)
    return {row: numbers[content] for row, content in zip(gone, known, strict=True) if content in numbers}


def _with_same_texts(table: pa.Table, records: Sequence[Row], rows: Mapping[str, int]) -> dict[int, Row]:
    """Return {row: record} of the records that have the title and the text of their row; none if the table has no texts."""
    known = {
        rows[record["doc_id"]]: record
        for record in records
        if record["doc_id"] in rows and "text" in table.column_names
    }
    held = zip(*(Column(table[name]).take(np.array([*known])) for name in COLUMNS[1:] if known), strict=True)
    return {
        row: record
        for (row, record), texts in zip(known.items(), held, strict=True)
        if texts == (record["title"], record["text"])
    }


def _with_metadata(table: pa.Table, records: Mapping[int, Row]) -> pa.Table:
    """Return the table with the metadata of the records of some rows."""
    rows, order = np.array([*records]), np.arange(len(table))
    order[rows] = len(table) + np.arange(len(rows))
    for name, values in _metadata_columns([*records.values()], table.schema).items():
        if Column(table[name]).take(rows) != values.to_pylist():
            column = pa.chunked_array([*table[name].chunks, values]).take(pa.array(order))
            table = table.set_column(table.column_names.index(name), table.schema.field(name), column)
    return table


def _moved(content: Content, gone: Sequence[int], again: Mapping[int, int] | None = None) -> QueryMemory:
    """Return the memory without documents that are gone; of those replaced, `again` has {row before: number among the new}."""
    stays = np.ones(len(content.documents), dtype=bool)
    stays[list(gone)] = False
    rows = np.where(stays, np.cumsum(stays) - 1, -1)
    for row, number in (again or {}).items():
        rows[row] = int(stays.sum()) + number
    return content.memory.moved(rows)


def encoded_pieces(
    tree: DocidTree, encoder: TextEncoder, pieces: Sequence[str]
) -> tuple[NDArray[np.float32], TokenCodes | None]:
    """Return embeddings of pieces of texts, and the codes of their tokens if the index has token vectors."""
    if tree.tokens is None:
        return encoder.encode(pieces, "document"), None
    return TokenHead(tree.tokens.head, tree.tokens.bits).encode(encoder, pieces)


def _metadata_columns(rows: Sequence[Row], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return {column: values of the new documents}, null where a document has none."""
    types = {field.name: field.type for field in schema if field.name not in COLUMNS}
    for row in rows:
        if new := [name for name in row if name not in types and name not in (*COLUMNS, *SOURCE)]:
            raise ValueError(
                f"Document {shown(row['doc_id'])} has metadata {shown(new[0])}, for which the index has no column; "
                f"it has {', '.join(types) or 'none'}. Leave it out, or make the index again, which forgets what it learned."
            )
    return {
        name: pa.array([fitted(row["doc_id"], name, row.get(name), arrow) for row in rows], type=arrow)
        for name, arrow in types.items()
    }


def fitted(doc_id: str, name: str, value: Any, arrow: pa.DataType) -> Any:
    """Return a value of metadata as its column has it; only texts take values of other types."""
    try:
        found = None if value is None else converted(value, kind_of(arrow))
        pa.array([found], type=arrow)
    except (ValueError, pa.ArrowException):
        raise ValueError(
            f"Document {shown(doc_id)}: metadata {shown(name)} must be of type {arrow}, got {shown(value)}."
        ) from None
    return found


class FileChanges(NamedTuple):
    """How many files an update found new, changed, gone and as they were; one that cannot be read counts as it was."""

    new: int
    changed: int
    gone: int
    same: int


def rows_to_remove(documents: DocumentTable, names: Sequence[str]) -> list[int]:
    """Return the rows of documents, and of all documents of files, that a removal names.

    A name is a doc_id; or what the ids of a file's pages begin with, its path, or the end of that.
    """
    if FILE not in documents.column_names:
        return documents.rows_of(names, "remove")
    documents.rows_of([name for name in names if not isinstance(name, str)], "remove")  # which refuses them
    known = documents.find(names)
    rows, unknown = {*known.values()}, [name for name in names if name not in known]
    rows_of, bases = defaultdict[str, list[int]](list), defaultdict[str, set[str]](set)
    columns = (documents.column(name) for name in ("doc_id", FILE, PLACE))
    for row, (doc_id, file, place) in enumerate(zip(*columns, strict=True) if unknown else ()):
        if file:
            rows_of[file].append(row)
            bases[base_of(doc_id, place)].add(file)
    for name in unknown:
        paths = [path for path in (name, os.path.realpath(name)) if path in rows_of]
        files = sorted(bases.get(name, paths[:1])) or [file for file in rows_of if name and file.endswith(f"/{name}")]
        if len(files) > 1:
            raise ValueError(
                f"remove names {shown(name)}, which {len(files)} files are called; give a path, as {files[0]}."
            )
        rows.update(rows_of[files[0]] if files else documents.rows_of([name], "remove"))
    return sorted(rows)


def _without_documents(content: Content, rows: Sequence[int]) -> Content:
    """Return the content without the documents in some rows of the table, which may not be all."""
    if not rows:
        return content
    if len(set(rows)) == len(content.documents):
        raise ValueError("An index cannot be left without documents; keep at least one.")
    table = _without(content.documents, rows)
    lexical = content.lexical.update(rows, Column(table["doc_id"]), ()) if content.lexical else None
    tree = without_traces(remove_documents(content.tree, np.array(rows)))
    best = content.best_scores and content.best_scores.after(len(set(rows)))
    return Content(tree, table, lexical, _moved(content, rows), best)


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


def with_texts(content: Content, documents: Any) -> Content:
    """Return the content with the texts of its documents, from a table with doc_id and text that may hold more documents."""
    if not isinstance(documents, pa.Table) and not hasattr(documents, "with_format"):
        documents = pa.Table.from_pylist(new_rows(documents))  # type: ignore[arg-type]
    given, held = DocumentTable(documents), DocumentTable(content.documents)
    texts = given.texts_of(held.column("doc_id")[:])
    table = held.table.drop_columns(["text"]) if held.has_texts else held.table
    return content._replace(documents=table.append_column("text", pa.array(texts, type=pa.string())))
