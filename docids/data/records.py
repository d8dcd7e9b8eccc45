"""Checks of documents and queries, the same for files, for records in memory, and for documents added to an index.

Reads no files.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

from dsi.docids.files.checks import shown, text, unpack

logger = logging.getLogger(__name__)

COLUMNS = ("doc_id", "title", "text")
"""The columns of every document table; metadata has others."""
MOST_COLUMNS = 1000
"""Columns of a document table, at most."""
_EXACT = 2**53
"""Up to this every whole number is a float."""
_LARGE_TABLE = 2 * 10**7
"""Cells of metadata, from which on some part must hold values."""
NO_ID = r"^$|[\pZ\x00\t-\r\x1c-\x20\x{85}]"
"""A regular expression (RE2) that is found in what is no id: in an empty text, white space or NUL."""
MOST_OF_ID = 4096
"""Bytes of an id in UTF-8: as many as a path has, and few enough for the address of an HTTP request."""
TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}
"""{type of metadata: type of its column}."""
ID_KEYS = ("_id", "doc_id", "id", "docno")
"""Keys under which a record may have its id."""
QUERY_ID_KEYS = ("_id", "query_id", "id", "qid")
"""Keys under which a query may have its id."""
TEXT_KEYS = ("text", "contents")
"""Keys under which a record may have its text."""
_OWN_KEYS = {*ID_KEYS, *TEXT_KEYS, "title", "metadata"}
"""Keys of a document that have a meaning; all others are metadata."""

Numbered = Iterable[tuple[str, Mapping[str, Any]]]
"""Records, each with the words that name it in messages."""


def document_record(record: Mapping[str, Any], source: str, told: set[str]) -> dict[str, Any]:
    """Return doc_id, title, text and metadata of one document; a warning names metadata that are left out.

    Args:
        record: with an id and a text under one of `ID_KEYS` and `TEXT_KEYS`; optionally with title and metadata {key: value}.
            All other keys are metadata too.
        source: names the record in messages.
        told: metadata keys that were warned of in earlier records; new ones are added.

    Raises:
        ValueError: no id or text, an id with white space, a value of another type, or metadata that cannot be columns.
    """
    document = {
        "doc_id": _record_id(record, source, "doc_id"),
        "title": get_text(record, "title", source, ""),
        "text": _given_once(record, TEXT_KEYS, source, "text"),
    }
    metadata = _all_metadata(record, source)
    plain = _plain_values(metadata, source)
    for key, value in metadata.items():
        if isinstance(value, list | dict) and key not in told:
            logger.warning(
                "%s: metadata %r is %s, which no column can hold: such values of %r are left out; write them as texts.",
                source,
                key,
                "a list" if isinstance(value, list) else "an object",
                key,
            )
            told.add(key)
    return {**document, "metadata": plain}


def check_documents(records: Numbered, name: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield doc_id, title, text and metadata of each document, checked one by one, after the words that name it.

    Args:
        records: with the words that name each in messages.
        name: of all of them, for messages.

    Raises:
        ValueError: a malformed document, a doc_id that occurs twice, or no document with a text.
    """
    seen, told = dict[str, int](), set[str]()
    empty = 0
    for number, (source, record) in enumerate(records, start=1):
        document = document_record(record, source, told)
        doc_id = document["doc_id"]
        if doc_id in seen:
            raise ValueError(
                f"{source}: duplicate doc_id {shown(doc_id)}: of all documents, number {seen[doc_id]:,} and number {number:,} "
                "have it; ids must be unique."
            )
        if not (document["title"] + document["text"]).strip():
            empty += 1
            logger.warning("%s: document %r has neither title nor text; no query can ask for it.", source, doc_id)
        seen[doc_id] = number
        yield source, document
    if seen and empty == len(seen):
        raise ValueError(f"{name}: none of the {empty} documents has a title or a text; give them texts.")


def column_types(records: Numbered) -> dict[str, str]:
    """Return {column: Arrow type} of a document table.

    Raises:
        ValueError: the values of a metadata key have several types, or there are too many keys.
    """
    types: dict[str, type] = {}
    first: dict[str, str] = {}
    large: dict[str, tuple[str, int]] = {}  # whole numbers that a float cannot hold
    filled = 0
    for number, (source, record) in enumerate(records, start=1):
        metadata = get_metadata(record, source)
        filled += len(metadata)
        for key, value in metadata.items():
            before, kind = types.get(key, type(value)), type(value)
            place = first.setdefault(key, source)
            if before is not kind and {before, kind} != {int, float}:
                raise ValueError(
                    f"{source}: metadata {shown(key)} is {shown(value)}, but of type {before.__name__} in {place}; give it "
                    "one type."
                )
            types[key] = kind if before is kind else float
            if isinstance(value, int) and abs(value) > _EXACT:
                large.setdefault(key, (source, value))
        if (cells := number * len(types)) > _LARGE_TABLE and 50 * filled < cells:
            raise ValueError(
                f"{source}: metadata make a table of {cells:,} cells by now, of which {filled:,} hold a value; leave out "
                "keys that few documents have."
            )
        if len(types) + len(COLUMNS) > MOST_COLUMNS:
            raise ValueError(
                f"{source}: documents may have at most {MOST_COLUMNS - len(COLUMNS)} different keys of metadata, this makes "
                f"them {len(types)}; leave some out."
            )
    for key, (source, value) in large.items():
        if types[key] is float:
            raise ValueError(
                f"{source}: metadata {shown(key)} is {value}, which cannot be kept exactly beside numbers with a point; write "
                "texts."
            )
    return {column: TYPES[types.get(column, str)] for column in (*COLUMNS, *types)}


def table_row(document: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return a document as a row of a table with these columns."""
    values = {name: document[name] for name in COLUMNS} | document["metadata"]
    return {name: values.get(name) for name in columns}


def query_record(record: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Return query_id and text of a record with id and text; `source` names the record in messages.

    Raises:
        ValueError: a value of another type, an id with white space, or a blank text.
    """
    query_id = _record_id(record, source, "query_id", QUERY_ID_KEYS)
    text = _given_once(record, ("text",), source, "text")
    if not text.strip():
        raise ValueError(f"{source}: query {shown(query_id)} has empty text; remove it or give it text.")
    return query_id, text


def read_query_records(records: Numbered, name: object) -> dict[str, str]:
    """Return {query_id: text} of records, as `query_record` reads each.

    Args:
        records: with the words that name each in messages.
        name: of all of them, for messages.

    Raises:
        ValueError: a malformed query, a duplicate id, or no query.
    """
    queries: dict[str, str] = {}
    for source, record in records:
        query_id, text = query_record(record, source)
        if query_id in queries:
            raise ValueError(f"{source}: duplicate query_id {shown(query_id)}; ids must be unique.")
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
    """Return the plain values of a record's metadata; null, lists and objects are left out.

    Raises:
        ValueError: metadata is not a mapping, or has a key or value that no column can hold.
    """
    return _plain_values(_all_metadata(record, source), source)


def _plain_values(metadata: Mapping[str, Any], source: str) -> dict[str, bool | int | float | str]:
    """Return the values of metadata that columns can hold."""
    values = {_key(key, source): _plain(value, source, key) for key, value in metadata.items()}
    return {key: value for key, value in values.items() if value is not None}


def _all_metadata(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the keys of a record that have no meaning of their own, and those of its metadata, with their values."""
    metadata = record.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{source}: metadata must be an object, got {shown(metadata)}.")
    further = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    for key in further:
        if key in metadata and _plain_or_text(metadata[key]) != _plain_or_text(further[key]):
            raise ValueError(
                f"{source}: {shown(key)} is {shown(further[key])}, but {shown(metadata[key])} in metadata; give one."
            )
    return {**further, **metadata}


def _plain_or_text(value: Any) -> Any:
    """Return a value that can be compared: arrays and objects of others may refuse to be."""
    return value if isinstance(value, bool | int | float | str | None) else shown(value)


def _record_id(record: Mapping[str, Any], source: str, name: str, keys: tuple[str, ...] = ID_KEYS) -> str:
    """Return the id of a record; `name` says what it is in messages."""
    value = _given_once(record, keys, source, name)
    if not value:
        raise ValueError(f"{source} must have a {name} that is a text and not empty, got ''.")
    return _usable_id(value, f"{source}: {name}")


def _given_once(record: Mapping[str, Any], keys: tuple[str, ...], source: str, name: str) -> str:
    """Return the text that a record has under one of some keys.

    Raises:
        ValueError: it has none, and the message lists its keys; or several that differ.
    """
    given = {key: get_text(record, key, source) for key in keys if key in record}
    if not given:
        raise ValueError(
            f"{source} has no {name}: none of the keys {', '.join(keys)} has a value; its keys are {_keys(record)}."
        )
    if len(set(given.values())) > 1:
        (first, one), (second, other), *_ = given.items()
        raise ValueError(f"{source}: {first} is {shown(one)}, but {second} is {shown(other)}; give one {name}.")
    return next(iter(given.values()))


def _keys(record: Mapping[str, Any]) -> str:
    """Return the keys of a record and of its metadata, for a message."""
    metadata = record.get("metadata")
    names = [key for key in record if key != "metadata"] + (list(metadata) if isinstance(metadata, Mapping) else [])
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(map(shown, names[:10])) + more or "none"


def _usable_id(value: str, name: str) -> str:
    """Return an id that lines of runs and judgements, and addresses of requests, can hold."""
    if value.split() != [value] or "\0" in value:
        raise ValueError(
            f"{name} {shown(value)} must not be empty or hold white space or NUL; TREC runs cannot hold it."
        )
    if (size := len(value.encode())) > MOST_OF_ID:
        raise ValueError(f"{name} {shown(value)} must have at most {MOST_OF_ID:,} bytes, got {size:,}; shorten it.")
    return value


def _key(key: object, source: str) -> str:
    name = text(key, f"{source}: a key of metadata")
    if "\0" in name:  # where Arrow ends the names of columns
        raise ValueError(f"{source}: the key {shown(name)} of metadata must not hold NUL; give it another name.")
    if name.casefold() in COLUMNS:
        raise ValueError(f"{source}: metadata must not have the key {shown(name)}; give it another name.")
    return name


def _plain(value: Any, source: str, key: object) -> bool | int | float | str | None:
    """Return a value that a column can hold, a date as ISO 8601 writes it; None if it is null, a list or an object."""
    if type(value) is str and value.isascii():  # most are
        return value
    value, name = unpack(value), f"{source}: metadata {key!r:.99}"
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, list | dict):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, which JSON cannot hold; leave it out.")
    if type(value) not in TYPES:
        raise ValueError(
            f"{name} must be a text, a number, a boolean or a date, got {shown(value)}; write it as a text."
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer of at most 64 bits, got {shown(value)}; write it as a text.")
    return text(value, name) if isinstance(value, str) else value
