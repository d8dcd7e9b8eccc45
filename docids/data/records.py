"""What documents and queries must be: one rule for the lines of files and for documents added to an index. Knows no files."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from docids.files.checks import text

COLUMNS = ("doc_id", "title", "text")
"""The columns of every document table; metadata has others."""
TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}
"""The types of metadata, and those of their columns."""


def document_record(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return doc_id, title, text and metadata of one document.

    Args:
        record: with `_id` or `doc_id`, and text; optionally with title and metadata {key: value}.
        source: what names the record in messages.

    Raises:
        ValueError: no id or text, an id with white space, a value of another type, or metadata that cannot be columns.
    """
    return {
        "doc_id": _doc_id(record, source),
        "title": text_of(record, "title", source, ""),
        "text": text_of(record, "text", source),
        "metadata": metadata_of(record, source),
    }


def query_record(record: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Return query_id and text of a record with `_id` and text; `source` names the record in messages.

    Raises:
        ValueError: a value of another type, an id with white space, or a text without any other character.
    """
    query_id = _without_space(text_of(record, "_id", source), f"{source}: query_id")
    text = text_of(record, "text", source)
    if not text.strip():
        raise ValueError(f"{source}: query {query_id!r} has empty text; remove it or give it text.")
    return query_id, text


def queries_of(records: Iterable[tuple[int, Mapping[str, Any]]], name: object) -> dict[str, str]:
    """Return {query_id: text} of numbered records, as `query_record` reads each.

    Args:
        records: of a file, with the numbers of their lines.
        name: what names the file in messages.

    Raises:
        ValueError: a malformed query, an id that comes twice, or no query.
    """
    queries: dict[str, str] = {}
    for number, record in records:
        query_id, text = query_record(record, f"{name}, line {number}")
        if query_id in queries:
            raise ValueError(f"{name}, line {number}: duplicate query_id {query_id!r}; ids must be unique.")
        queries[query_id] = text
    if not queries:
        raise ValueError(f"{name} holds no queries; it needs one a line, with id and text.")
    return queries


def table_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a document table as a document: its columns of metadata become one mapping, without missing values.

    >>> table_record({"doc_id": "neon", "title": "Neon", "text": "A gas.", "period": 2, "colour": None})
    {'doc_id': 'neon', 'title': 'Neon', 'text': 'A gas.', 'metadata': {'period': 2}}
    """
    metadata = {name: value for name, value in row.items() if name not in COLUMNS and value is not None}
    return {**{name: row[name] for name in COLUMNS}, "metadata": metadata}


def text_of(record: Mapping[str, Any], key: str, source: str, default: str | None = None) -> str:
    """Return the text under a key of a record, or its default.

    Raises:
        ValueError: it is no text, or missing without a default.
    """
    return text(record.get(key, default), f"{source}: key {key!r}")


def metadata_of(record: Mapping[str, Any], source: str) -> dict[str, bool | int | float | str]:
    """Return the plain values of a record's metadata; null, lists and objects are left out.

    Raises:
        ValueError: metadata is no mapping, or holds a key or value that cannot be in a column.
    """
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{source}: metadata must be an object, got {metadata!r}.")
    values = {_key(key, source): _plain(value, f"{source}: metadata {key!r}") for key, value in metadata.items()}
    return {key: value for key, value in values.items() if value is not None}


def _doc_id(record: Mapping[str, Any], source: str) -> str:
    names = [name for name in ("_id", "doc_id") if name in record] or ["_id"]
    found = {text_of(record, name, source) for name in names}
    if len(found) > 1:
        raise ValueError(
            f"{source}: _id is {record['_id']!r}, but doc_id is {record['doc_id']!r}; both name the document, give one of them."
        )
    (doc_id,) = found
    if not doc_id:
        raise ValueError(f"{source} must have a doc_id that is a text and not empty, got ''.")
    return _without_space(doc_id, f"{source}: doc_id")


def _without_space(value: str, name: str) -> str:
    """Return an id that the lines of runs and judgements can hold."""
    if value.split() != [value] or "\0" in value:
        raise ValueError(f"{name} {value!r} must not be empty or hold white space or NUL; TREC runs cannot hold it.")
    return value


def _key(key: object, source: str) -> str:
    name = text(key, f"{source}: a key of metadata")
    if name.casefold() in COLUMNS:
        raise ValueError(f"{source}: metadata must not have the key {name!r}; give it another name.")
    return name


def _plain(value: Any, name: str) -> bool | int | float | str | None:
    """Return a value that a column can hold; None if it is null, a list or an object."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, list | dict):
        return None
    if type(value) not in TYPES:
        raise ValueError(f"{name} must be a text, a number or a boolean, got {value!r}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer of at most 64 bits, got {value}; write it as a text.")
    return text(value, name) if isinstance(value, str) else value
