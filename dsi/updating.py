"""Adds documents to an index and removes them: tree, document table and lexical part change together.

Nothing is changed in place; an update makes new content. Knows no folders.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa

from contrastive.encoder import Encoder
from docids.lexical import Lexical
from docids.tree import DocidTree
from docids.updating import add_documents, remove_documents
from dsi.documents import DocumentTable, document_table


class Content(NamedTuple):
    """The parts of an index that an update changes: docids, document table, lexical part."""

    tree: DocidTree
    documents: datasets.Dataset
    lexical: Lexical | None


def with_documents(content: Content, encoder: Encoder, documents: Sequence[Mapping[str, Any]]) -> Content:
    """Return the content with more documents, each a mapping with doc_id, title, text and optional metadata {column: value}.

    Raises:
        ValueError: a doc_id is in the index already or repeated, a document has no text, or metadata do not fit the columns
            of the index; the message names it.
    """
    known = set(content.documents["doc_id"][:])
    for number, document in enumerate(documents):
        doc_id = document.get("doc_id")
        if not isinstance(doc_id, str) or not doc_id:
            raise ValueError(f"Document {number} must have a doc_id that is a text and not empty, got {doc_id!r}.")
        if doc_id in known:
            raise ValueError(f"The doc_id {doc_id!r} is in the index already, or comes twice; remove it first.")
        if not (document.get("title", "") + document.get("text", "")).strip():
            raise ValueError(f"Document {doc_id!r} has neither title nor text; leave it out or give it text.")
        known.add(doc_id)
    if not documents:
        return content
    doc_ids = [document["doc_id"] for document in documents]
    titles, texts = ([document.get(name, "") for document in documents] for name in ("title", "text"))
    embeddings = encoder.encode(encoder.document_texts(titles, texts), "document")
    old = document_table(content.documents, texts=True)
    metadata = _metadata_columns([document.get("metadata", {}) for document in documents], doc_ids, old.schema)
    own = {"text": texts} if "text" in old.column_names else {}
    new = pa.table({"doc_id": doc_ids, "title": titles, **own, **metadata}, schema=old.schema)
    table = pa.concat_tables([old, new])
    full_texts = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    lexical = content.lexical.changed((), doc_ids, full_texts) if content.lexical else None
    return Content(add_documents(content.tree, embeddings), datasets.Dataset(table), lexical)


def _metadata_columns(
    metadata: Sequence[Mapping[str, Any]], doc_ids: Sequence[str], schema: pa.Schema
) -> dict[str, pa.Array]:
    """Return {column: values of the new documents}, null where a document has none."""
    columns = {field.name: field.type for field in schema if field.name not in ("doc_id", "title", "text")}
    for doc_id, own in zip(doc_ids, metadata, strict=True):
        for name, value in own.items():
            if name not in columns:
                raise ValueError(
                    f"Document {doc_id!r} has metadata {name!r}, for which the index has no column; "
                    f"it has {', '.join(columns) or 'none'}."
                )
            try:
                pa.array([value], type=columns[name])
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise ValueError(
                    f"Document {doc_id!r}: metadata {name!r} must be of type {columns[name]}, got {value!r}."
                ) from None
    return {name: pa.array([own.get(name) for own in metadata], type=kind) for name, kind in columns.items()}


def without_documents(content: Content, rows: Sequence[int]) -> Content:
    """Return the content without the documents in some rows of the table.

    Raises:
        ValueError: no document would be left.
    """
    if not rows:
        return content
    if len(set(rows)) == len(content.documents):
        raise ValueError("An index cannot be left without documents; keep at least one.")
    keep = np.ones(len(content.documents), dtype=bool)
    keep[list(rows)] = False
    table = document_table(content.documents, texts=True).filter(pa.array(keep))
    lexical = content.lexical.changed(rows, (), ()) if content.lexical else None
    return Content(remove_documents(content.tree, np.array(rows)), datasets.Dataset(table), lexical)


def with_texts(content: Content, documents: datasets.Dataset) -> Content:
    """Return the content with the texts of its documents, from a table with doc_id and text that may hold more documents.

    Raises:
        ValueError: the table has no texts, or lacks a document of the index.
    """
    rows = DocumentTable(documents).text_rows(content.documents["doc_id"][:])
    texts = documents.select_columns(["text"]).with_format("arrow")[rows]["text"]
    return content._replace(documents=datasets.Dataset(document_table(content.documents).append_column("text", texts)))
