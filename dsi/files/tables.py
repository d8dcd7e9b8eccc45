"""Tables of anything as documents: a row needs neither an id nor a text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsi.docids.data.records import Oddities
from dsi.docids.data.sources import ID_KEYS, POSITIVES, QUERIES, RECORDS, TEXT_KEYS, file_records, has_pairs
from dsi.docids.files.checks import printable
from dsi.files.texts import UnreadableError


def is_table(path: Path) -> bool:
    """True for a file of records: lines of JSON, or rows."""
    return path.name.lower().endswith(RECORDS)


def table_documents(
    path: Path, base: str, odd: Oddities, *, is_named: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the words that name each row in messages, its place in the table, and the row as a document.

    `base`: what ids of rows begin with.
    """
    if not is_named and path.suffix.lower() == ".tsv" and not has_pairs(path):
        raise UnreadableError("tables without an id and a text" if path.stat().st_size else "empty")
    columns, is_whole = list[str](), True
    for number, (source, record) in enumerate(file_records(path)):
        place, row = f"row={source.rpartition(' ')[2]}", _with_plain_names(record)
        if not number:
            columns, is_whole = _columns(row), _needs_nothing(row, path)
        yield source, place, row if is_whole else _whole(row, f"{base}#{place}", columns, odd)


def _with_plain_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a sheet whose columns ID, Title and Text, however they are written, are id, title and text."""
    plain = (*ID_KEYS, *TEXT_KEYS, "title")
    return {low if (low := key.lower()) in plain and low not in record else key: own for key, own in record.items()}


def _needs_nothing(record: Mapping[str, Any], path: Path) -> bool:
    """True if the first row of a table has an id and a text, or is of queries or pairs, which are no documents."""
    if not record.keys().isdisjoint({*QUERIES, *POSITIVES[:2]}) and path.suffix.lower() not in (".csv", ".parquet"):
        return True
    has_text = not record.keys().isdisjoint(TEXT_KEYS)
    return (has_text and not record.keys().isdisjoint(ID_KEYS)) or not (has_text or _columns(record))


def _columns(record: Mapping[str, Any]) -> list[str]:
    """Return the columns of texts of a sheet by its first row; all if there are none."""
    others = [key for key in record if key not in (*ID_KEYS, *TEXT_KEYS, "title")]
    return [key for key in others if isinstance(record[key], str)] or others


def _whole(record: dict[str, Any], doc_id: str, columns: Sequence[str], odd: Oddities) -> dict[str, Any]:
    """Return a row of a sheet as a document; what it has no column for is made of its place, and of the columns of texts."""
    whole = dict(record)
    if record.keys().isdisjoint(ID_KEYS):
        whole["doc_id"] = doc_id
        odd.count("rows of tables without a column id; file and row are their ids", doc_id)
    if record.keys().isdisjoint(TEXT_KEYS):
        found = [(key, str(record[key])) for key in columns if record.get(key) is not None]
        whole["text"] = "\n".join(f"{key}: {own}" for key, own in found)
        whole.setdefault("title", found[0][1] if found else "")
        names = ", ".join(map(printable, columns[:10]))
        odd.count(f"rows of tables without a column text; these columns are their texts: {names}", doc_id)
    return whole
