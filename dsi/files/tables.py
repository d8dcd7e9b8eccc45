"""Tables of anything as documents: a row needs neither an id nor a text."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsi.docids.data.records import Oddities
from dsi.docids.data.sources import (
    ID_KEYS,
    POSITIVES,
    QUERIES,
    RECORDS,
    TEXT_KEYS,
    column_names,
    file_records,
    has_header,
    is_missing,
)
from dsi.docids.files.checks import printable
from dsi.files.texts import UnreadableError, encoding_of

_SNIFFED = 2**20
"""Bytes of a table that tell its encoding."""


def is_table(path: Path) -> bool:
    """True for a file of records: lines of JSON, or rows."""
    return path.name.lower().endswith(RECORDS)


def table_documents(
    path: Path, base: str, odd: Oddities, *, is_named: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the words that name each row in messages, its place in the table, and the row; new ids begin with `base`."""
    columns, without_id, without_text, is_whole = dict[str, None](), 0, 0, True
    for number, (source, record) in enumerate(file_records(path, _encoding(path, odd, is_named))):
        place, row = f"row={source.rpartition(' ')[2]}", _with_plain_names(record)
        is_whole = _needs_nothing(row, path) if not number else is_whole
        if not is_whole and row.keys().isdisjoint(ID_KEYS):
            row["doc_id"] = f"{base}#{place}"
            without_id += 1
        if not is_whole and row.keys().isdisjoint(TEXT_KEYS):
            texts = _texts(row)
            columns |= dict.fromkeys(texts)
            row = {"title": next(iter(texts.values()), ""), **row, "text": "\n".join(map(": ".join, texts.items()))}
            without_text += 1
        yield source, place, row
    if without_id:
        odd.count("rows of tables without a column id; file and row are their ids", path.name, without_id)
    if without_text:
        names = ", ".join(map(printable, [*columns][:10]))
        kind = f"rows of tables without a column text; these columns are their texts: {names}"
        odd.count(kind, path.name, without_text)


def _encoding(path: Path, odd: Oddities, is_named: bool) -> str:
    """Return the encoding of a table."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv"):
        return "utf-8-sig"
    with path.open("rb") as file:
        encoding, kind = encoding_of(file.read(_SNIFFED))
    if kind:
        odd.count(kind, path.name)
    names, *_ = column_names(path, encoding)
    if suffix == ".csv" and names and re.fullmatch(r"[\d.,]+", names[0]):
        raise UnreadableError("without a first line that names columns")
    if suffix == ".tsv" and not (is_named or has_header(path, encoding) or len(names) == 2):
        raise UnreadableError("tables without an id and a text" if names else "empty")
    return encoding


def _with_plain_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a sheet whose columns ID, Title and Text, however they are written, are id, title and text."""
    plain = (*ID_KEYS, *TEXT_KEYS, "title")
    return {low if (low := key.lower()) in plain and low not in record else key: value for key, value in record.items()}


def _needs_nothing(record: Mapping[str, Any], path: Path) -> bool:
    """True if the first row of a table has an id and a text, or is of queries or pairs, which are no documents."""
    if not record.keys().isdisjoint({*QUERIES, *POSITIVES[:2]}) and path.suffix.lower() not in (".csv", ".parquet"):
        return True
    if not record.keys().isdisjoint(TEXT_KEYS):
        return not record.keys().isdisjoint(ID_KEYS)
    return record.keys() <= {*ID_KEYS, "title", "metadata"}


def _texts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that are the text of a row: those that are texts, all if none is one."""
    columns = {key: value for key, value in record.items() if key not in (*ID_KEYS, *TEXT_KEYS, "title", "metadata")}
    texts = {key: value for key, value in columns.items() if isinstance(value, str)}
    return texts or {key: str(value) for key, value in columns.items() if not is_missing(value)}
