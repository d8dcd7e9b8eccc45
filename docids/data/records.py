"""Checks of documents and queries, the same for lines of files and for documents added to an index. Reads no files."""

from collections.abc import Iterable, Mapping
from typing import Any

from docids.files.checks import text, unpack

COLUMNS = ("doc_id", "title", "text")
"""The columns of every document table; metadata has others."""
TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}
"""{type of metadata: type of its column}."""


def document_record(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return doc_id, title, text and metadata of one document.

    Args:
        record: with `_id` or `doc_id`, and text; optionally with title and metadata {key: value}.
        source: names the record in messages.

    Raises:
        ValueError: no id or text, an id with white space, a value of another type, or metadata that cannot be columns.
    """
    return {
        "doc_id": _doc_id(record, source),
        "title": get_text(record, "title", source, ""),
        "text": get_text(record, "text", source),
        "metadata": get_metadata(record, source),
    }


def query_record(record: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Return query_id and text of a record with `_id` and text; `source` names the record in messages.

    Raises:
        ValueError: a value of another type, an id with white space, or a blank text.
    """
    query_id = _without_space(get_text(record, "_id", source), f"{source}: query_id")
    text = get_text(record, "text", source)
    if not text.strip():
        raise ValueError(f"{source}: query {query_id!r} has empty text; remove it or give it text.")
    return query_id, text


def read_query_records(records: Iterable[tuple[int, Mapping[str, Any]]], name: object) -> dict[str, str]:
    """Return {query_id: text} of numbered records, as `query_record` reads each.

    Args:
        records: of a file, with the numbers of their lines.
        name: of the file, for messages.

    Raises:
        ValueError: a malformed query, a duplicate id, or no query.
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
    """Return a row of a document table as a document, with its metadata columns as one mapping, without missing values.

    >>> table_record({"doc_id": "neon", "title": "Neon", "text": "A gas.", "period": 2, "colour": None})
    {'doc_id': 'neon', 'title': 'Neon', 'text': 'A gas.', 'metadata': {'period': 2}}
    """
    metadata = {name: value for name, value in row.items() if name not in COLUMNS and value is not None}
    return {**{name: row[name] for name in COLUMNS}, "metadata": metadata}


def get_text(record: Mapping[str, Any], key: str, source: str, default: str | None = None) -> str:
    """Return the text under a key of a record, or its default.

    Raises:
        ValueError: it is not text, or missing without a default.
    """
    return text(record.get(key, default), f"{source}: key {key!r}")


def get_metadata(record: Mapping[str, Any], source: str) -> dict[str, bool | int | float | str]:
    """Return the plain values of a record's metadata; null, lists and objects are dropped.

    Raises:
        ValueError: metadata is not a mapping, or has a key or value that no column can hold.
    """
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{source}: metadata must be an object, got {metadata!r}.")
    values = {_key(key, source): _plain(value, f"{source}: metadata {key!r}") for key, value in metadata.items()}
    return {key: value for key, value in values.items() if value is not None}


def _doc_id(record: Mapping[str, Any], source: str) -> str:
    names = [name for name in ("_id", "doc_id") if name in record] or ["_id"]
    doc_ids = {get_text(record, name, source) for name in names}
    if len(doc_ids) > 1:
        raise ValueError(
            f"{source}: _id is {record['_id']!r}, but doc_id is {record['doc_id']!r}; both name the document, give one of them."
        )
    (doc_id,) = doc_ids
    if not doc_id:
        raise ValueError(f"{source} must have a doc_id that is a text and not empty, got ''.")
    return _without_space(doc_id, f"{source}: doc_id")


def _without_space(value: str, name: str) -> str:
    """Return an id that lines of runs and judgements can hold."""
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
    value = unpack(value)
    if value is None or isinstance(value, list | dict):
        return None
    if type(value) not in TYPES:
        raise ValueError(f"{name} must be a text, a number or a boolean, got {value!r}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer of at most 64 bits, got {value}; write it as a text.")
    return text(value, name) if isinstance(value, str) else value
