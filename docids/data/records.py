"""Documents and queries from records to Arrow tables: records -> checked rows -> columns. Reads no files.

The checks are the same for files, memory, `add` and the server. What cannot be understood is refused, and what is odd is
counted, in one line a kind.
"""

import enum
import hashlib
import json
import logging
import math
import re
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dsi.docids.data.sources import (
    ID_KEYS,
    MOST_COLUMNS,
    QUERY_ID_KEYS,
    QUERY_TEXT_KEYS,
    TEXT_KEYS,
    Records,
    is_missing,
    is_table,
    items_of,
)
from dsi.docids.files.checks import and_more, id_of, shown, text, unpack

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)

COLUMNS = ("doc_id", "title", "text")
"""The columns of every document table; metadata has others."""
MOST_OF_ID = 4096
"""Bytes of an id in UTF-8: as many as a path has, and few enough for the address of an HTTP request."""
_KNOWN_KEYS = {*ID_KEYS, *TEXT_KEYS, "title", "metadata"}
"""Keys of a document that have a meaning; all others are metadata."""
_ROWS_AT_ONCE, _CHARACTERS_AT_ONCE = 1000, 2**25
"""About how many rows, and characters of texts, a record batch has at most."""
_LARGE_TABLE, _SPARSE = 2 * 10**7, 50
"""From this many cells of metadata on, one in fifty must hold a value."""
_NAMED = 3
"""How many odd things of a kind are named, at most."""
_EXACT = 2**53
"""Up to this number, floats hold every whole number."""

_TIMES = pa.timestamp("us", "UTC")
_ARROW = {
    "boolean": pa.bool_(), "integer": pa.int64(), "float": pa.float64(), "text": pa.string(), "date": pa.date32(),
    "time": _TIMES,
}  # fmt: skip
"""{kind of metadata: type of its column}; "list of KIND" is a list of them."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")

EMPTY_DOCUMENTS = "documents with neither title nor text; no query finds them by words"
_TITLES_ALONE = "documents with a title and no text; they are found by their titles alone"
EMPTY_QUERIES = "empty queries; their answers are empty, and count as 0 where they are judged"

Row = dict[str, Any]
"""A document: doc_id, title, text and a key for each value of its metadata."""


# 1) Checked rows.


class Oddities:
    """The odd things of a source, a file or an argument, counted by kind.

    >>> odd = Oddities("corpus.jsonl")
    >>> for doc_id in ("a", "b"):
    ...     odd.count("empty documents; no query finds them", doc_id)
    >>> odd.lines()
    ["corpus.jsonl: empty documents: 2 ('a', 'b'); no query finds them."]
    """

    def __init__(self, source: object) -> None:
        self.source = source
        self._found: dict[str, tuple[int, list[str]]] = {}

    def count(self, kind: str, name: object, number: int = 1) -> None:
        """Count things of a kind, "what it is; what follows"; the names of the first ones are shown."""
        before, names = self._found.get(kind, (0, []))
        if len(names) < _NAMED and (short := shown(name)) not in names:
            names.append(short)
        self._found[kind] = before + number, names

    def lines(self) -> list[str]:
        """Return a line for each kind."""
        return [
            f"{self.source}: {what}: {number:,} ({', '.join(names)}{', …' * (number > _NAMED == len(names))}); {then}."
            for kind, (number, names) in self._found.items()
            for what, then in [kind.split("; ", 1)]
        ]

    def warn(self) -> None:
        """Log a warning for each kind."""
        for line in self.lines():
            logger.warning("%s", line)


def checked_documents(records: Records, name: object) -> Iterator[Row]:
    """Yield the row of each document, checked one by one; at the end a line counts each kind of what is odd."""
    seen, odd, has_words = dict[str, int](), Oddities(name), False
    for number, (source, record) in enumerate(records, start=1):
        row = document_row(record, source, odd)
        doc_id = row["doc_id"]
        if doc_id in seen:
            raise ValueError(
                f"{source}: duplicate doc_id {shown(doc_id)}: of all documents, number {seen[doc_id]:,} and number {number:,} "
                "have it; ids must be unique."
            )
        if not row["text"].strip():
            odd.count(_TITLES_ALONE if row["title"].strip() else EMPTY_DOCUMENTS, doc_id)
        has_words |= bool(row["title"].strip() or row["text"].strip())
        seen[doc_id] = number
        yield row
    if seen and not has_words:
        raise ValueError(f"{name}: none of the {len(seen)} documents has a title or a text; give them texts.")
    odd.warn()


def document_row(record: Mapping[str, Any], source: str, odd: Oddities) -> Row:
    """Return the row of one document; `source` names the record in messages."""
    row = {
        "doc_id": _check_id(id_of(_given(record, ID_KEYS, source, "doc_id", needed=True)), f"{source}: doc_id"),
        "title": _text(record.get("title"), f"{source}: key 'title'"),
        "text": _text(_given(record, TEXT_KEYS, source, "text"), f"{source}: key 'text'"),
    }
    for key, value in _metadata(record, source):
        if (read := _value(value, source, key, odd)) is not None:
            row[key] = read
    return row


def checked_queries(records: Records, name: object, *, whole: bool = True) -> dict[str, str]:
    """Return {query_id: text} of records with id and text; a line counts empty ones; `whole`: there must be some."""
    queries, odd = dict[str, str](), Oddities(name)
    for source, record in records:
        query_id, query = query_of(record, source)
        if query_id in queries:
            raise ValueError(f"{source}: duplicate query_id {shown(query_id)}; ids must be unique.")
        if not query.strip():
            odd.count(EMPTY_QUERIES, query_id)
        queries[query_id] = query
    if whole and not queries:
        raise ValueError(f"{name} holds no queries; it needs one a line, with id and text.")
    odd.warn()
    return queries


def query_of(record: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Return query_id and text of a record; `source` names it in messages."""
    query_id = _check_id(id_of(_given(record, QUERY_ID_KEYS, source, "query_id", needed=True)), f"{source}: query_id")
    keys = next(((key,) for key in QUERY_TEXT_KEYS if key in record), QUERY_TEXT_KEYS)
    return query_id, _text(_given(record, keys, source, "text"), f"{source}: key 'text'")


def ids_of(source: Any, name: str) -> list[Any]:
    """Return the ids in a list, a series, records or a table with a column of ids; whole numbers are written out.

    >>> ids_of([7, "neon", {"doc_id": "argon"}], "allow")
    ['7', 'neon', 'argon']
    """
    if isinstance(source, str | bytes | Mapping) or not (isinstance(source, Iterable) or is_table(source)):
        what = f"the string {shown(source)}" if isinstance(source, str) else shown(source)
        raise ValueError(f"{name} must be a list or set of doc_ids, got {what}. Put it into a list.")
    items = source if isinstance(source, Set) else items_of(source, name)
    ids = (
        _given(item, ID_KEYS, f"{name}[{number}]", "doc_id", needed=True) if isinstance(item, Mapping) else item
        for number, item in enumerate(items)
    )
    return [id_of(unpack(item)) for item in ids]


def _check_id(value: object, name: str) -> str:
    """Return an id: a text that is not empty, without NUL and line ends; `name` is what it is, for messages."""
    checked = _text(value, name)
    if not checked or re.search(r"[\0\r\n]", checked):
        raise ValueError(f"{name} {shown(checked)} must be a text that is not empty, without NUL and line ends.")
    if (size := len(checked.encode())) > MOST_OF_ID:
        raise ValueError(f"{name} {shown(checked)} must have at most {MOST_OF_ID:,} bytes, got {size:,}; shorten it.")
    return checked


def _text(value: Any, name: str) -> str:
    """Return a text, "" for a missing one."""
    return "" if is_missing(value) else text(value, name)


def _given(record: Mapping[str, Any], keys: tuple[str, ...], source: str, name: str, *, needed: bool = False) -> Any:
    """Return the value that a record has under one of some keys."""
    values = {key: record[key] for key in keys if key in record}
    present = {key: value for key, value in values.items() if not is_missing(value)}
    if not values or (needed and not present):
        raise ValueError(
            f"{source} has no {name}: none of the keys {', '.join(keys)} has a value; its keys are {_keys(record)}."
        )
    if len(present) > 1 and len({str(id_of(value)) for value in present.values()}) > 1:
        (first, one), (second, other), *_ = present.items()
        raise ValueError(f"{source}: {first} is {shown(one)}, but {second} is {shown(other)}; give one {name}.")
    return next(iter(present.values()), None)


def _keys(record: Mapping[str, Any]) -> str:
    """Return the keys of a record and of its metadata, for a message."""
    metadata = record.get("metadata")
    names = [key for key in record if key != "metadata"] + (list(metadata) if isinstance(metadata, Mapping) else [])
    return ", ".join(map(shown, names[:10])) + and_more(len(names) - 10) or "none"


def _metadata(record: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a record's metadata: those in `metadata`, and those that are not `_KNOWN_KEYS`."""
    metadata = record.get("metadata")
    if is_missing(metadata):
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{source}: metadata must be an object, got {shown(metadata)}.")
    further = {key: value for key, value in record.items() if key not in _KNOWN_KEYS}
    for key in further.keys() & metadata.keys():
        if repr(metadata[key]) != repr(further[key]):
            outer, inner = shown(further[key]), shown(metadata[key])
            raise ValueError(f"{source}: {shown(key)} is {outer}, but {inner} in metadata; give one.")
    for key, value in {**further, **metadata}.items():
        name = _text(key, f"{source}: a key of metadata")
        if "\0" in name:  # where Arrow ends the names of columns
            raise ValueError(f"{source}: the key {shown(name)} of metadata must not hold NUL; give it another name.")
        if name.casefold() in COLUMNS:
            raise ValueError(f"{source}: metadata must not have the key {shown(name)}; give it another name.")
        yield name, value


def _value(value: Any, source: str, key: str, odd: Oddities) -> Any:
    """Return a value as a column holds it, with times in UTC; None if it is missing, or an object, which is counted."""
    if type(value) is str and value.isascii():  # most are
        return value
    if isinstance(value, list | tuple | Set):
        values = sorted(value, key=str) if isinstance(value, Set) else value
        if any(isinstance(item, Mapping | list | tuple | Set) for item in values):
            return odd.count(f"lists of lists or objects as metadata {shown(key)}; they are left out", source)
        return [read for item in values if (read := _value(item, source, key, odd)) is not None]
    if isinstance(value, Mapping):
        return odd.count(f"objects as metadata {shown(key)}; they are left out", source)
    return None if is_missing(value) else _scalar(value, f"{source}: metadata {key!r:.99}")


def _scalar(value: Any, name: str) -> bool | int | float | str | date:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _text(value, name)
    if isinstance(value, datetime):
        plain = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
        return plain.replace(tzinfo=UTC) if plain.tzinfo is None else plain.astimezone(UTC)
    if isinstance(value, date | bool):
        return value
    if isinstance(value, uuid.UUID | Decimal | PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return _text(str(value.value), name)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        raise ValueError(f"{name} must be an integer of at most 64 bits, got {shown(value)}; write it as a text.")
    raise ValueError(
        f"{name} must be a text, a finite number, a boolean, a date or a list of these, got {shown(value)}; write it as a text."
    )


# 2) Arrow.


def table_of(records: Records, name: object, *, on_disk: bool = False) -> "datasets.Dataset":
    """Return a table of documents, whose fingerprint is the sha256 of its contents; texts may be `stored` on disk."""
    from datasets import Dataset  # takes a second

    odd, metadata = Oddities(name), list[Row]()

    def texts() -> Iterator[Row]:
        for row in checked_documents(records, name):
            metadata.append({key: value for key, value in row.items() if key not in COLUMNS})
            yield row

    table = stored(texts(), pa.schema(dict.fromkeys(COLUMNS, pa.string())), on_disk=on_disk)
    kinds = column_kinds(metadata, odd)
    odd.warn()
    for column, kind in kinds.items():
        values = [converted(row[column], kind) if column in row else None for row in metadata]
        table = table.append_column(column, pa.array(values, _arrow(kind)))
    contents = hashlib.sha256(table.schema.serialize())
    for batch in table.to_batches():
        contents.update(batch.serialize())
    return Dataset(table, fingerprint=contents.hexdigest())


def stored(rows: Iterable[Row], schema: pa.Schema, *, on_disk: bool) -> pa.Table:
    """Return rows as a table of some columns, in memory or in a temporary file that lasts as long as the table."""
    file = Path(_temporary_folder().name, f"{uuid.uuid4().hex}.arrow") if on_disk else None
    with pa.OSFile(str(file), "wb") if file else pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, schema) as writer:
            for block in _blocks(rows):
                writer.write_batch(pa.RecordBatch.from_pylist(block, schema))
        buffer = None if file else pa.BufferReader(sink.getvalue())
    table = pa.ipc.open_stream(buffer or pa.memory_map(str(file))).read_all()
    if file:
        with suppress(OSError):  # a system that deletes no file in use does so when the process ends
            file.unlink()
    return table


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dsi-")


def _blocks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows some at a time: fewer where texts are long."""
    block, characters = list[Row](), 0
    for row in rows:
        block.append(row)
        characters += len(row["text"])
        if len(block) == _ROWS_AT_ONCE or characters > _CHARACTERS_AT_ONCE:
            yield block
            block, characters = [], 0
    if block:
        yield block


def column_kinds(rows: Sequence[Row], odd: Oddities) -> dict[str, str]:
    """Return {column: kind} of the metadata of documents: a key of `_ARROW`, or "list of" one.

    Texts that are all dates or times as ISO 8601 writes them are dates or times. Texts beside other values make all of them
    texts, and single values beside lists are lists of one; a line says so. Rare keys are left out and counted where there are
    too many.
    """
    if not rows:
        raise ValueError(f"{odd.source} must hold at least one document, with an id and a text, got none.")
    columns = defaultdict[str, list[Any]](list)
    for row in rows:
        for key, value in row.items():
            columns[key].append(value)
    common, kinds = _common_keys(columns, len(rows), odd), dict[str, str]()
    for key, values in columns.items():
        if key not in common:
            continue
        lists = [value for value in values if isinstance(value, list)]
        single = [value for value in values if not isinstance(value, list)]
        if lists and single:
            odd.count("metadata of lists and single values; these become lists of one", key)
        kinds[key] = "list of " * bool(lists) + _common(key, set(map(_kind, chain(single, *lists))), odd)
    return kinds


def _common_keys(columns: Mapping[str, Sequence[Any]], documents: int, odd: Oddities) -> set[str]:
    """Return as many of the most common keys of metadata as a table of documents can hold; count the others."""
    keys, filled = set[str](), 0
    for key in sorted(columns, key=lambda key: -len(columns[key])):
        filled += len(columns[key])
        cells = documents * (len(keys) + 1)
        if len(keys) + len(COLUMNS) == MOST_COLUMNS or (cells > _LARGE_TABLE and _SPARSE * filled < cells):
            odd.count("metadata keys that few documents have; they are left out", key)
        else:
            keys.add(key)
    return keys


def _kind(value: Any) -> str:
    """Return the kind of a value; "ISO date" and "ISO time" for texts that are dates or times, "large" for large integers."""
    if isinstance(value, str):
        for pattern, kind in ((_DATE, "ISO date"), (_TIME, "ISO time")):
            if pattern.fullmatch(value):
                with suppress(ValueError):
                    datetime.fromisoformat(value)
                    return kind
        return "text"
    if isinstance(value, int) and not isinstance(value, bool):
        return "large" if abs(value) > _EXACT else "integer"
    return {bool: "boolean", float: "float", datetime: "time", date: "date"}[type(value)]


def _common(key: str, kinds: set[str], odd: Oddities) -> str:
    """Return the kind of a column that holds values of some kinds."""
    for kind, accepted in (
        ("boolean", {"boolean"}), ("integer", {"integer", "large"}), ("float", {"float", "integer"}),
        ("date", {"date", "ISO date"}), ("time", {"date", "ISO date", "time", "ISO time"}),
    ):  # fmt: skip
        if kinds and kinds <= accepted:
            return kind
    if not kinds <= {"text", "ISO date", "ISO time"}:
        names = ", ".join(sorted({kind.replace("large", "integer") for kind in kinds}))
        odd.count(f"metadata of several types ({names}); all become texts", key)
    return "text"


def _arrow(kind: str) -> pa.DataType:
    """Return the type of the columns of a kind."""
    single = kind.removeprefix("list of ")
    return _ARROW[kind] if single == kind else pa.list_(_ARROW[single])


def kind_of(arrow: pa.DataType) -> str:
    """Return the kind of the values of a column, as filters name it; Arrow's name for types that metadata does not have."""
    if pa.types.is_list(arrow):
        return f"list of {kind_of(arrow.value_type)}"
    return next((kind for kind, column_type in _ARROW.items() if column_type == arrow), str(arrow))


def converted(value: Any, kind: str) -> Any:
    """Return a checked value as one of a kind.

    >>> converted("2024-01-15", "date"), converted(3, "list of text"), converted(True, "text")
    (datetime.date(2024, 1, 15), ['3'], 'true')
    """
    if kind.startswith("list of "):
        values = value if isinstance(value, list) else [value]
        return [converted(item, kind.removeprefix("list of ")) for item in values]
    if isinstance(value, list):
        raise ValueError("a list")
    if kind == "text":
        return json_value(value) if isinstance(value, str | date) else json.dumps(value)
    if kind in ("date", "time") and isinstance(value, str):
        value = datetime.fromisoformat(value)
    if kind == "time" and isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if kind == "date" and isinstance(value, date):
        return value.date() if isinstance(value, datetime) else value
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not {"boolean": bool, "integer": int, "float": float}.get(kind):
        raise ValueError(f"a value of type {type(value).__name__}")
    return value


def table_record(row: Row) -> dict[str, Any]:
    """Return a row of a document table as a document, with its metadata columns as one mapping, without missing values.

    >>> table_record({"doc_id": "neon", "title": "Neon", "text": "A gas.", "period": 2, "colour": None})
    {'doc_id': 'neon', 'title': 'Neon', 'text': 'A gas.', 'metadata': {'period': 2}}
    """
    metadata = {name: value for name, value in row.items() if name not in COLUMNS and value is not None}
    return {**{name: row[name] for name in COLUMNS}, "metadata": metadata}


def json_value(value: Any) -> Any:
    """Return a value of metadata as JSON has it: dates and times as ISO 8601 writes them."""
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
