"""Documents and queries of whatever holds them: source -> records -> checked rows -> Arrow.

1) `records_of` yields the records of a list, a table or a data set, `dsi.docids.data.sources` those of files;
2) `checked_documents` and `checked_queries` check them, the same for files, memory, `add` and the server;
3) `column_kinds` finds a type for each column of metadata, and `arrow_rows` gives the values these types.

What cannot be understood is refused. What is odd is counted, in one line a kind. Reads no files.
"""

import enum
import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow as pa

from dsi.docids.data.oddities import Oddities
from dsi.docids.files.checks import printable, shown, text, unpack

COLUMNS = ("doc_id", "title", "text")
"""The columns of every document table; metadata has others."""
MOST_COLUMNS = 1000
"""Columns of a document table, at most."""
MOST_OF_ID = 4096
"""Bytes of an id in UTF-8: as many as a path has, and few enough for the address of an HTTP request."""
ID_KEYS = ("_id", "doc_id", "id", "docno")
"""Keys under which a record may have its id."""
QUERY_ID_KEYS = ("_id", "query_id", "id", "qid")
"""Keys under which a query may have its id."""
TEXT_KEYS = ("text", "contents")
"""Keys under which a record may have its text."""
QUERY_TEXT_KEYS = ("text", "query")
"""Keys under which a query may have its text; the first counts."""
_OWN_KEYS = {*ID_KEYS, *TEXT_KEYS, "title", "metadata"}
"""Keys of a document that have a meaning; all others are metadata."""
_ROWS_AT_ONCE = 1000
_LONGEST_ID = 1000
"""Bits of a whole number that is written out as an id."""
_LARGE_TABLE = 2 * 10**7
"""Cells of metadata, from which on some part must hold values."""
_EXACT = 2**53
"""Up to this every whole number is a float."""

_TIMES = pa.timestamp("us", "UTC")
_ARROW = {
    "boolean": pa.bool_(), "integer": pa.int64(), "float": pa.float64(), "text": pa.string(), "date": pa.date32(),
    "time": _TIMES,
}  # fmt: skip
"""{kind of metadata: type of its column}; "list of KIND" is a list of them."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?")

EMPTY_DOCUMENTS = "documents with neither title nor text; no query finds them by words"
EMPTY_QUERIES = "empty queries; their answers are empty, and count as 0 where they are judged"

Numbered = Iterable[tuple[str, Mapping[str, Any]]]
"""Records, each with the words that name it in messages."""
Row = dict[str, Any]
"""A document: doc_id, title, text and a key for each value of its metadata."""


# 1) Records of what is in memory.


def records_of(source: Any, name: str = "documents", *, texts: bool = True) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records of a list, an iterator, a series, a DataFrame, an Arrow table or a data set, after their names.

    A text is a record whose id is its place.

    Args:
        source: the records.
        name: of them all, for messages.
        texts: take texts for records; without, they are refused.

    Raises:
        TypeError: the source or a record is of another kind.
        ValueError: a table has a column twice, or one that cannot be read.
    """
    for place, record in enumerate(items_of(source, name)):
        if isinstance(record, str) and texts:
            record = {"_id": str(place), "text": record}
        if not isinstance(record, Mapping):
            kinds = "a dictionary or a text" if texts else "a dictionary with doc_id and text"
            raise TypeError(f"{name}[{place}] must be {kinds}, got {shown(record)}.")
        yield f"{name}[{place}]", record


def items_of(source: Any, name: str) -> Iterable[Any]:
    """Return an iterable of the records of a source."""
    if isinstance(source, datasets.DatasetDict):
        raise TypeError(f"{name} must be one data set, got a dictionary of {', '.join(source)}; pass one of them.")
    if isinstance(source, pandas.DataFrame):
        check_different(source.columns, name)
        parts = (source.iloc[start : start + _ROWS_AT_ONCE] for start in range(0, len(source), _ROWS_AT_ONCE))
        return (record for part in parts for record in part.to_dict("records"))
    if is_series(source):
        return ("" if is_missing(value) else value for value in source.to_list())
    if (tables := _arrow_tables(source)) is not None:
        return table_records(tables, name)
    if isinstance(source, str | bytes | Mapping | Set) or not isinstance(source, Iterable):
        remedy = "dsi.read_collection reads a folder"
        if isinstance(source, Mapping):
            remedy = "put one record into a list, and columns into a pandas.DataFrame"
        if isinstance(source, Set):
            remedy = "a set has no order, and texts take their places as ids: make a list of it"
        raise TypeError(
            f"{name} must be a list or an iterator of dictionaries, a DataFrame, an Arrow table or a datasets.Dataset, got "
            f"{shown(source)}; {remedy}."
        )
    return source


def is_series(source: object) -> bool:
    """True for a series of pandas or polars."""
    return hasattr(source, "to_list") and not hasattr(source, "columns")


def is_table(source: object) -> bool:
    """True for a DataFrame, an Arrow table or a data set: what has named columns."""
    return isinstance(source, pandas.DataFrame) or (not is_series(source) and _arrow_tables(source) is not None)


def _arrow_tables(source: Any) -> Iterable[Any] | None:
    """Return the parts of what gives Arrow tables, None of anything else."""
    if isinstance(source, datasets.Dataset):  # as Arrow: decoding opens what the columns of pictures and sounds name
        return source.with_format("arrow").iter(_ROWS_AT_ONCE)
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
    if hasattr(source, "__arrow_c_array__") and hasattr(source, "schema"):  # one batch
        return [source]
    return source.to_batches() if isinstance(getattr(source, "schema", None), pa.Schema) else None


def table_records(tables: Iterable[Any], name: object) -> Iterator[Row]:
    """Yield the rows of Arrow tables or batches.

    Raises:
        ValueError: a column comes twice, or holds a value that Python cannot.
    """
    try:
        for table in tables:
            check_different(table.schema.names, name)
            for start in range(0, table.num_rows, _ROWS_AT_ONCE):
                yield from table.slice(start, _ROWS_AT_ONCE).to_pylist()
    except (OverflowError, pa.ArrowException) as error:
        raise ValueError(
            f"{name} hold a value that Python cannot ({reason(error)}), such as a date after 9999; write texts."
        ) from None


def check_different(names: Iterable[Any], name: object) -> None:
    """Raise ValueError if two columns have one name."""
    if twice := [column for column, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{name}: the column {shown(twice[0])} comes twice; give each a name of its own.")


def reason(error: Exception) -> str:
    """Return the message of a library, on one line that is not long."""
    return printable(str(error).strip().rstrip("."))[:200]


# 2) Checked rows.


def checked_documents(records: Numbered, name: object, odd: Oddities | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the row of each document, checked one by one, after the words that name it.

    Args:
        records: each with an id and a text under one of `ID_KEYS` and `TEXT_KEYS`; optionally with title and metadata
            {key: value}. All other keys are metadata too. None and NaN are missing.
        name: of all of them, for messages.
        odd: counts what is odd; warned of at the end by default.

    Raises:
        ValueError: no id or text, a value of another type, metadata that cannot be columns, a doc_id that occurs twice, or no
            document with a text.
    """
    seen, own = dict[str, int](), Oddities(name) if odd is None else odd
    for number, (source, record) in enumerate(records, start=1):
        row = document_row(record, source, own)
        doc_id = row["doc_id"]
        if doc_id in seen:
            raise ValueError(
                f"{source}: duplicate doc_id {shown(doc_id)}: of all documents, number {seen[doc_id]:,} and number {number:,} "
                "have it; ids must be unique."
            )
        if not (row["title"].strip() or row["text"].strip()):
            own.count(EMPTY_DOCUMENTS, doc_id)
        seen[doc_id] = number
        yield source, row
    if seen and own.number(EMPTY_DOCUMENTS) == len(seen):
        raise ValueError(f"{name}: none of the {len(seen)} documents has a title or a text; give them texts.")
    if odd is None:
        own.warn()


def document_row(record: Mapping[str, Any], source: str, odd: Oddities) -> Row:
    """Return the row of one document; `source` names the record in messages.

    Raises:
        ValueError: as `checked_documents`.
    """
    row = {
        "doc_id": _id(record, ID_KEYS, source, "doc_id"),
        "title": _text(record.get("title"), f"{source}: key 'title'"),
        "text": _text(_given(record, TEXT_KEYS, source, "text"), f"{source}: key 'text'"),
    }
    for key, value in _metadata(record, source):
        if (read := _value(value, source, key, odd)) is not None:
            row[key] = read
    return row


def checked_queries(records: Numbered, name: object, *, whole: bool = True) -> dict[str, str]:
    """Return {query_id: text} of records with id and text; a line counts empty ones.

    Args:
        records: with the words that name each in messages.
        name: of all of them, for messages.
        whole: refuse to read none.

    Raises:
        ValueError: a malformed query, a duplicate id, or no query.
    """
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
    """Return query_id and text of a record; `source` names it in messages.

    Raises:
        ValueError: no id or text, or a value of another type.
    """
    query_id = _id(record, QUERY_ID_KEYS, source, "query_id")
    given = next(((key,) for key in QUERY_TEXT_KEYS if key in record), QUERY_TEXT_KEYS)
    return query_id, _text(_given(record, given, source, "text"), f"{source}: key 'text'")


def is_missing(value: Any) -> bool:
    """True for None, NaN, and the missing values of pandas."""
    return value is None or value is pandas.NA or value is pandas.NaT or (isinstance(value, float) and value != value)


def id_of(value: Any) -> Any:
    """Return an id with whole numbers written out."""
    value = unpack(value)
    return str(value) if type(value) is int and value.bit_length() <= _LONGEST_ID else value


def check_id(value: object, name: str) -> str:
    """Return an id: a text that is not empty, without NUL and line ends; `name` is what it is, for messages.

    Raises:
        ValueError: it is something else, or longer than `MOST_OF_ID`.
    """
    checked = _text(value, name)
    if not checked or re.search(r"[\0\r\n]", checked):
        raise ValueError(f"{name} {shown(checked)} must be a text that is not empty, without NUL and line ends.")
    if (size := len(checked.encode())) > MOST_OF_ID:
        raise ValueError(f"{name} {shown(checked)} must have at most {MOST_OF_ID:,} bytes, got {size:,}; shorten it.")
    return checked


def _id(record: Mapping[str, Any], keys: tuple[str, ...], source: str, name: str) -> str:
    return check_id(id_of(_given(record, keys, source, name, needed=True)), f"{source}: {name}")


def _text(value: Any, name: str) -> str:
    """Return a text, "" for a missing one."""
    return "" if is_missing(value) else text(value, name)


def _given(record: Mapping[str, Any], keys: tuple[str, ...], source: str, name: str, *, needed: bool = False) -> Any:
    """Return the value that a record has under one of some keys.

    Args:
        record: with the keys.
        keys: the names that the value may have.
        source: names the record in messages.
        name: of the value, for messages.
        needed: refuse a missing value.

    Raises:
        ValueError: it has none of the keys, and the message lists its keys; or several with values that differ.
    """
    given = {key: record[key] for key in keys if key in record}
    found = {key: value for key, value in given.items() if not is_missing(value)}
    if not given or (needed and not found):
        raise ValueError(
            f"{source} has no {name}: none of the keys {', '.join(keys)} has a value; its keys are {_keys(record)}."
        )
    if len(found) > 1 and len({str(id_of(value)) for value in found.values()}) > 1:
        (first, one), (second, other), *_ = found.items()
        raise ValueError(f"{source}: {first} is {shown(one)}, but {second} is {shown(other)}; give one {name}.")
    return next(iter(found.values()), None)


def _keys(record: Mapping[str, Any]) -> str:
    """Return the keys of a record and of its metadata, for a message."""
    metadata = record.get("metadata")
    names = [key for key in record if key != "metadata"] + (list(metadata) if isinstance(metadata, Mapping) else [])
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return ", ".join(map(shown, names[:10])) + more or "none"


def _metadata(record: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """Yield key and value of the keys of a record that have no meaning of their own, and of those of its metadata."""
    metadata = record.get("metadata")
    if is_missing(metadata):
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise ValueError(f"{source}: metadata must be an object, got {shown(metadata)}.")
    further = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    for key in further.keys() & metadata.keys():
        if shown(metadata[key]) != shown(further[key]):
            raise ValueError(
                f"{source}: {shown(key)} is {shown(further[key])}, but {shown(metadata[key])} in metadata; give one."
            )
    for key, value in {**further, **metadata}.items():
        name = _text(key, f"{source}: a key of metadata")
        if "\0" in name:  # where Arrow ends the names of columns
            raise ValueError(f"{source}: the key {shown(name)} of metadata must not hold NUL; give it another name.")
        if name.casefold() in COLUMNS:
            raise ValueError(f"{source}: metadata must not have the key {shown(name)}; give it another name.")
        yield name, value


def _value(value: Any, source: str, key: str, odd: Oddities) -> Any:
    """Return a value that a column can hold; None if it is missing, or an object, which is counted.

    A list, tuple, set or array is a list; a time is one of UTC; UUIDs, paths, enumerations and decimal numbers are texts.
    """
    if type(value) is str and value.isascii():  # most are
        return value
    value = unpack(value)
    if isinstance(value, np.ndarray | list | tuple | Set):
        values = sorted(value, key=str) if isinstance(value, Set) else list(value)
        if any(isinstance(own, Mapping | np.ndarray | list | tuple | Set) for own in values):
            return odd.count(f"lists of lists or objects as metadata {shown(key)}; they are left out", source)
        return [read for own in values if (read := _value(own, source, key, odd)) is not None]
    if isinstance(value, Mapping):
        return odd.count(f"objects as metadata {shown(key)}; they are left out", source)
    return None if is_missing(value) else _scalar(value, f"{source}: metadata {key!r:.99}")


def _scalar(value: Any, name: str) -> bool | int | float | str | date:
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _text(value, name)
    if isinstance(value, datetime):
        plain = value.to_pydatetime(warn=False) if isinstance(value, pandas.Timestamp) else value
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


# 3) Arrow.


def column_kinds(rows: Numbered, odd: Oddities) -> dict[str, str]:
    """Return {column: kind} of the metadata of rows: a key of `_ARROW`, or "list of" one.

    Texts that are all dates or times as ISO 8601 writes them are dates or times. Texts beside other values make all of them
    texts, and single values beside lists are lists of one; a line says so.

    Raises:
        ValueError: there are too many keys, or too few values for that many.
    """
    kinds: dict[str, set[str]] = {}
    lists: dict[str, list[bool]] = {}  # {column: [single values were seen, lists were seen]}
    filled = 0
    for number, (source, row) in enumerate(rows, start=1):
        for key, value in row.items():
            if key not in COLUMNS:
                is_list = isinstance(value, list)
                kinds.setdefault(key, set()).update(map(_kind, value if is_list else [value]))
                lists.setdefault(key, [False, False])[is_list] = True
                filled += 1
        if (cells := number * len(kinds)) > _LARGE_TABLE and 50 * filled < cells:
            raise ValueError(
                f"{source}: metadata make a table of {cells:,} cells by now, of which {filled:,} hold a value; leave out "
                "keys that few documents have."
            )
        if len(kinds) + len(COLUMNS) > MOST_COLUMNS:
            raise ValueError(
                f"{source}: documents may have at most {MOST_COLUMNS - len(COLUMNS)} different keys of metadata, this makes "
                f"them {len(kinds)}; leave some out."
            )
    for key, (single, listed) in lists.items():
        if single and listed:
            odd.count("metadata of lists and single values; these become lists of one", key)
    return {key: "list of " * lists[key][1] + _common(key, found, odd) for key, found in kinds.items()}


def _kind(value: Any) -> str:
    """Return the kind of a value; "ISO date" and "ISO time" for texts that are dates or times, "large" for large integers."""
    if isinstance(value, str):
        for pattern, kind, read in (
            (_DATE, "ISO date", date.fromisoformat),
            (_TIME, "ISO time", datetime.fromisoformat),
        ):
            if pattern.fullmatch(value):
                try:
                    read(value)
                except ValueError:
                    break
                return kind
        return "text"
    if isinstance(value, int) and not isinstance(value, bool):
        return "large" if abs(value) > _EXACT else "integer"
    return {bool: "boolean", float: "float", datetime: "time", date: "date"}[type(value)]


def _common(key: str, kinds: set[str], odd: Oddities) -> str:
    """Return the kind of a column that holds values of some kinds."""
    for kind, taken in (
        ("boolean", {"boolean"}), ("integer", {"integer", "large"}), ("float", {"float", "integer"}),
        ("date", {"date", "ISO date"}), ("time", {"date", "ISO date", "time", "ISO time"}),
    ):  # fmt: skip
        if kinds and kinds <= taken:
            return kind
    if not kinds <= {"text", "ISO date", "ISO time"}:
        names = ", ".join(sorted({kind.replace("large", "integer") for kind in kinds}))
        odd.count(f"metadata of several types ({names}); all become texts", key)
    return "text"


def arrow_schema(kinds: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a document table with metadata of these kinds."""
    fields = {name: pa.string() for name in COLUMNS}
    for name, kind in kinds.items():
        arrow = _ARROW[kind.removeprefix("list of ")]
        fields[name] = pa.list_(arrow) if kind.startswith("list of ") else arrow
    return pa.schema(fields)


def kind_of(arrow: pa.DataType) -> str:
    """Return the kind of the values of a column of any table, "" for types that metadata does not have."""
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        return f"list of {kind_of(arrow.value_type)}"
    for kind, is_kind in (
        ("boolean", types.is_boolean), ("integer", types.is_integer), ("float", types.is_floating), ("date", types.is_date),
        ("time", types.is_timestamp), ("text", types.is_string), ("text", types.is_large_string),
    ):  # fmt: skip
        if is_kind(arrow):
            return kind
    return ""


def arrow_row(row: Row, kinds: Mapping[str, str]) -> Row:
    """Return a row with the values of its metadata as their columns have them, None where it has none."""
    values = {name: None if row.get(name) is None else converted(row[name], kind) for name, kind in kinds.items()}
    return {name: row[name] for name in COLUMNS} | values


def converted(value: Any, kind: str) -> Any:
    """Return a checked value as one of a kind.

    >>> converted("2024-01-15", "date"), converted(3, "list of text"), converted(True, "text")
    (datetime.date(2024, 1, 15), ['3'], 'true')

    Raises:
        ValueError: the kind has no such value.
    """
    if kind.startswith("list of "):
        return [
            converted(own, kind.removeprefix("list of ")) for own in (value if isinstance(value, list) else [value])
        ]
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


def document_table(rows: Sequence[Row], kinds: Mapping[str, str]) -> pa.Table:
    """Return an Arrow table of checked rows."""
    schema = arrow_schema(kinds)
    columns: dict[str, list[Any]] = {
        name: [] for name in schema.names
    }  # a dictionary a row would take five times as much
    for row in rows:
        for name, value in arrow_row(row, kinds).items():
            columns[name].append(value)
    return pa.table(columns, schema=schema)


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
        return [json_value(own) for own in value]
    return value.isoformat() if isinstance(value, date) else value
