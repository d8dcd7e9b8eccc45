"""Whatever holds documents or queries, as records: lists, tables, data sets, and files of lines or tables."""

import csv
import gzip
import io
import json
import logging
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsi.docids.files.checks import printable, shown, unpack

logger = logging.getLogger(__name__)

Records = Iterator[tuple[str, Mapping[str, Any]]]
"""Records, each after the words that name it in messages."""
ID_KEYS = ("_id", "doc_id", "id", "docno")
"""Keys under which a record may have its id."""
QUERY_ID_KEYS = ("_id", "query_id", "id", "qid")
"""Keys under which a query may have its id."""
TEXT_KEYS = ("text", "contents")
"""Keys under which a record may have its text."""
QUERY_TEXT_KEYS = ("text", "query")
"""Keys under which a query may have its text; the first counts."""
QUERIES = ("query", "anchor")
POSITIVES = ("positive", "positives", "doc_id", "id")
"""Keys under which a training pair may have its query, and what answers it; the first one present counts."""
MOST_COLUMNS = 1000
"""Columns of a document table, at most."""
_ROWS_AT_ONCE = 1000
_MOST_BLANK = 2**20
"""Blank lines in a row, at most: a small compressed file of them would take minutes to read."""
LONGEST_LINE = 2**24
"""Bytes of a line, at most; a file without line ends would fill the memory."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LINES, _PARQUET = (".jsonl", ".jsonl.gz"), (".parquet",)
_SEPARATED = {".csv": ",;\t|", ".tsv": "\t"}
"""{suffix: what may separate the columns}."""
_TABLES = (*_SEPARATED,)
RECORDS = (*_LINES, *_TABLES, *_PARQUET)
"""The kinds of files that hold records."""
_SEPARATOR = re.compile('sep=([^\\w\\s"]|\t)\r?\n', re.IGNORECASE)
_HEADER = 2**20
"""Bytes at the beginning of a table that hold the names of its columns."""
_KEPT = {*ID_KEYS, *QUERY_ID_KEYS, *TEXT_KEYS, *QUERY_TEXT_KEYS, "query-id", "title"}
"""Columns whose values stay texts."""
_INEXACT = "^-?(0[0-9]|[0-9]{16})"
"""What numbers cannot hold: zeros in front, as postal codes have, and more digits than a float has."""


# What is in memory.


def records_of(source: Any, name: str = "documents", *, texts: bool = True) -> Records:
    """Yield the name, for messages, and record of each item in memory; a text, where allowed, has its place as its id."""
    for place, record in enumerate(items_of(source, name)):
        if isinstance(record, str) and texts:
            record = {"_id": str(place), "text": record}
        if not isinstance(record, Mapping):
            kinds = "a dictionary or a text" if texts else "a dictionary"
            raise TypeError(f"{name}[{place}] must be {kinds}, got {shown(record)}.")
        yield f"{name}[{place}]", _python_value(record)


def items_of(source: Any, name: str) -> Iterable[Any]:
    """Return an iterable of the records of a source."""
    if _is_of(source, "pandas", "DataFrame"):
        _check_different(source.columns, name)
        parts = (source.iloc[start : start + _ROWS_AT_ONCE] for start in range(0, len(source), _ROWS_AT_ONCE))
        return (record for part in parts for record in part.to_dict("records"))
    if _is_series(source):
        return ("" if is_missing(value) else value for value in source.to_list())
    if (tables := _arrow_tables(source)) is not None:
        return _table_records(tables, name)
    if isinstance(source, str | bytes | Mapping | Set) or not isinstance(source, Iterable):
        raise TypeError(
            f"{name} must be a list or an iterator of dictionaries, a DataFrame, an Arrow table or a datasets.Dataset, got "
            f"{shown(source)}; make a list of it, or let dsi.read_collection read a folder."
        )
    return source


def _python_value(value: Any) -> Any:
    """Return a value without NumPy's types: arrays and tuples are lists, also within mappings."""
    if type(value) is str:
        return value
    if isinstance(value, Mapping):
        return {key: _python_value(item) for key, item in value.items()}
    return [_python_value(item) for item in value] if isinstance(value, list | tuple | np.ndarray) else unpack(value)


def _is_of(source: Any, library: str, name: str) -> bool:
    """True if something is of a class of a library, which is not imported for that, or by another thread just now."""
    return isinstance(source, getattr(sys.modules.get(library), name, ()))


def _is_series(source: object) -> bool:
    """True for a series of pandas or polars."""
    return hasattr(source, "to_list") and not hasattr(source, "columns")


def is_table(source: object) -> bool:
    """True for a DataFrame, an Arrow table or a data set: what has named columns."""
    return _is_of(source, "pandas", "DataFrame") or (not _is_series(source) and _arrow_tables(source) is not None)


def _arrow_tables(source: Any) -> Iterable[Any] | None:
    """Return the parts of what gives Arrow tables, None of anything else."""
    if _is_of(source, "datasets", "Dataset"):  # as Arrow: decoding opens what the columns of pictures and sounds name
        return source.with_format("arrow").iter(_ROWS_AT_ONCE)
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
    if hasattr(source, "__arrow_c_array__") and hasattr(source, "schema"):  # one batch
        return [source]
    return source.to_batches() if isinstance(getattr(source, "schema", None), pa.Schema) else None


def _table_records(tables: Iterable[Any], name: object) -> Iterator[dict[str, Any]]:
    """Yield the rows of Arrow tables or batches."""
    try:
        for table in tables:
            _check_different(table.schema.names, name)
            for start in range(0, table.num_rows, _ROWS_AT_ONCE):
                yield from table.slice(start, _ROWS_AT_ONCE).to_pylist()
    except (OverflowError, pa.ArrowException) as error:
        raise ValueError(
            f"{name} hold a value that Python cannot ({reason(error)}), such as a date after 9999; write texts."
        ) from None


def _check_different(names: Iterable[Any], name: object) -> None:
    """Raise ValueError if two columns have one name."""
    if twice := [column for column, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{name}: the column {shown(twice[0])} comes twice; give each a name of its own.")


def reason(error: Exception) -> str:
    """Return the message of a library, on one line that is not long."""
    return printable(str(error).strip().rstrip("."))[:200]


def is_missing(value: Any) -> bool:
    """True for None, NaN, and the missing values of pandas."""
    if value is None or (isinstance(value, float) and value != value):
        return True
    pandas = sys.modules.get("pandas")
    return value is getattr(pandas, "NA", None) or value is getattr(pandas, "NaT", None)


# Files.


def file_records(path: Path, encoding: str = "utf-8-sig") -> Records:
    """Yield the documents of a table, or its queries; `encoding`: of one with columns."""
    name = path.name.lower()
    if name.endswith(_LINES):
        yield from ((f"{path}, line {number}", record) for number, record in _json_lines(path))
    elif name.endswith(_PARQUET):
        yield from _numbered(path, _parquet_rows(path), 1)
    elif name.endswith(".tsv") and not has_header(path, encoding):
        yield from bare_records(path)
    elif name.endswith(_TABLES):
        # As Arrow counts, the names of the columns included.
        yield from _numbered(path, _table_rows(path, encoding), 2)
    else:
        raise ValueError(f"{path} is not a table ({', '.join(RECORDS)}); save it as one.")


def pair_records(path: Path) -> Records:
    """Yield the training pairs of a .jsonl, .parquet, .csv or .tsv file (`dsi.docids.data.pairs`).

    A .tsv file whose first line names no such column has a query, a positive and perhaps negatives a line.
    """
    name = path.name.lower()
    if not name.endswith(_TABLES):
        yield from file_records(path)
    elif {column.strip().lower() for column in column_names(path)[0]} & {*QUERIES, *POSITIVES}:
        yield from _numbered(path, _table_rows(path), 2)
    elif name.endswith(".csv"):
        found = ", ".join(map(shown, column_names(path)[0]))
        raise ValueError(
            f"{path}, line 1 must name the columns: query, positive or doc_id, perhaps negatives and query_id; got {found}."
        )
    else:
        for number, line in text_lines(path):
            query, *documents = line.split("\t")
            if not documents:
                raise ValueError(
                    f"{path}, line {number}: expected query<TAB>document, and perhaps <TAB>negatives, with tabs between them, "
                    f"got {shown(line[:60])}."
                )
            yield f"{path}, line {number}", {"query": query, "positive": documents[0], "negatives": documents[1:]}


def _numbered(path: Path, rows: Iterator[dict[str, Any]], first: int) -> Records:
    number = first - 1
    for number, row in enumerate(rows, start=first):
        yield f"{path}, row {number}", row
    if number < first:
        logger.warning("%s names columns, and has no row below them.", path)


# Tables.


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow.parquet import ParquetFile  # which takes long, as other readers do

    try:
        with ParquetFile(path) as file:
            _check_columns(file.schema_arrow.names, f"{path}")
            yield from _table_records(file.iter_batches(1000), path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file ({reason(error)}); write it again.") from None


def has_header(path: Path, encoding: str = "utf-8-sig") -> bool:
    """True if the first line of a .tsv file names columns: id and text, or three or more, with different words of letters."""
    names, *_ = column_names(path, encoding)
    keys = {name.strip().lower() for name in names}
    if _names_columns(names):
        return True
    if len(names) < 3 or len(keys) < len(names) or not keys.isdisjoint({"query-id", *QUERY_ID_KEYS[1:2], *QUERIES}):
        return False  # or they are judgements
    return all(re.fullmatch(r"[^\W\d]{2,}(?:[ _-][^\W\d]+)?", name) for name in keys)


def _names_columns(names: Sequence[str]) -> bool:
    """True if the values of a first line name columns: an id and a text are among them."""
    keys = {_key_of(name.strip().lower()) for name in names}
    return not (keys.isdisjoint({*ID_KEYS, *QUERY_ID_KEYS}) or keys.isdisjoint({*TEXT_KEYS, *QUERY_TEXT_KEYS}))


def bare_records(path: Path) -> Records:
    """Yield the lines of a file of id, a tab and the text; a first line that names these columns is left out."""
    is_first = True
    for number, line in text_lines(path):
        if number == 1 and _names_columns(line.split("\t")):
            continue
        source = f"{path}, line {number}"
        record_id, tab, text = line.partition("\t")
        if (columns := line.count("\t") + 1) > 2 and is_first:
            raise ValueError(
                f"{source} has {columns} columns, and no line names them; write their names into a first line, such as "
                "id<TAB>text<TAB>language, or leave the others out."
            )
        is_first = False
        if not tab:
            raise ValueError(f"{source}: expected id<TAB>text, or columns named in the first line; got {line[:60]!r}.")
        yield source, {"_id": record_id, "text": text}


def _table_rows(path: Path, encoding: str = "utf-8-sig") -> Iterator[dict[str, Any]]:
    """Yield the rows of a table whose first line names the columns; numbers stay numbers in metadata."""
    from pyarrow import csv as pa_csv

    names, separator, skipped = column_names(path, encoding)
    _check_columns(names, f"{path}, line 1")
    plain, texts = encoding.removesuffix("-sig"), dict.fromkeys(names, pa.string())
    try:
        # One thread, so that errors tell the row.
        options = pa_csv.ReadOptions(use_threads=False, block_size=LONGEST_LINE, encoding=plain, skip_rows=skipped)
        table = pa_csv.read_csv(
            path,
            options,
            pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            pa_csv.ConvertOptions(column_types=texts, null_values=[""], strings_can_be_null=True),
        )
        if table.column_names != names:
            raise ValueError("the names of its columns cannot be read")
    except ValueError as error:  # of Arrow, too
        raise _no_table(path, separator, error) from None
    columns = {_key_of(name): table[name] if _key_of(name) in _KEPT else _typed(table[name]) for name in names}
    return _table_records([pa.table(columns)], path)


def _key_of(name: str) -> str:
    """Return the name of a column as keys have it: query_id for query-id."""
    return "query_id" if name == "query-id" else name


def column_names(path: Path, encoding: str = "utf-8-sig") -> tuple[list[str], str, int]:
    """Return the first line's values, what separates them (a line `sep=;` above may say), and lines to skip."""
    with path.open("rb") as file:
        head = file.read(_HEADER).decode(encoding, errors="replace")  # Arrow refuses what is not of it
    if hint := _SEPARATOR.match(head):
        return _first_line(path, head[hint.end() :], hint[1]), hint[1], 1
    lines = list[tuple[list[str], str, int]]()
    for separator in _SEPARATED[path.suffix.lower()]:
        lines.append((_first_line(path, head, separator), separator, 0))
        if len(lines[0][0]) > 1:
            break
    return max(lines, key=lambda line: len(line[0]))


def _first_line(path: Path, head: str, separator: str) -> list[str]:
    try:
        return next(filter(None, csv.reader(io.StringIO(head, newline=""), delimiter=separator)), [])
    except csv.Error as error:
        raise _no_table(path, separator, error) from None


def _no_table(path: Path, separator: str, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is not a table of values separated by {shown(separator)} in UTF-8 ({reason(error)}); save it as one, "
        "with as many values in each row as there are columns."
    )


def _check_columns(names: Sequence[str], source: str) -> None:
    """Raise ValueError unless the columns of a table are not too many, and have different names."""
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{source}: a table has at most {MOST_COLUMNS:,} columns, got {len(names):,}; leave some out.")
    _check_different(names, source)
    if hidden := [name for name in names if not name.isprintable()]:
        raise ValueError(f"{source}: the column {shown(hidden[0])} has an unprintable character; leave it out.")


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of texts as integers, floats or truth values, if Arrow reads all of them so and none changes."""
    for kind in (pa.int64(), pa.float64(), pa.bool_()) if column.null_count < len(column) else ():
        with suppress(pa.ArrowInvalid):
            typed = column.cast(kind)
            if kind == pa.int64() and not typed.cast(pa.string()).equals(column):
                return column
            if kind == pa.float64() and not _is_exact(column, typed):
                return column
            return typed
    return column


def _is_exact(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> bool:
    """True if floats are finite, and hold what texts say."""
    return bool(pc.all(pc.is_finite(numbers)).as_py() and not pc.any(pc.match_substring_regex(texts, _INEXACT)).as_py())


# Lines.


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number, from 1, and text of each line of a UTF-8 file, perhaps gzipped, that is not blank, without its end."""
    number = last = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise ValueError(f"{path}, line {number} has more than {LONGEST_LINE:,} bytes; shorten it.")
                text = _decode(line, f"{path}, line {number}").removeprefix("\ufeff" if number == 1 else "")
                if text.strip():
                    last = number
                    yield number, text.rstrip("\r\n")
                elif number - last > _MOST_BLANK:
                    raise ValueError(f"{path} has over {_MOST_BLANK:,} blank lines after line {last}; remove them.")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number} ({error}); fetch or compress it again.") from None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and JSON object of each line that is not blank."""
    for number, line in text_lines(path):
        source = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{source}: not valid JSON ({error.msg}), got {line[:60]!r}; write objects.") from None
        except (ValueError, RecursionError):  # of int(), or of lists in lists
            raise ValueError(
                f"{source}: JSON nested too deeply, or an integer of thousands of digits; write a text instead."
            ) from None
        if not isinstance(record, dict):
            raise ValueError(f"{source}: expected a JSON object a line, got {line[:60]!r}.")
        yield number, record


def whole_number(text: str) -> int | None:
    """Return the integer in a text of at most 18 decimal digits; None if it is none.

    >>> whole_number("-1"), whole_number("--1"), whole_number("²")
    (-1, None, None)
    """
    return int(text) if _INTEGER.fullmatch(text) else None


def _decode(line: bytes, source: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source}: not text in UTF-8 (byte 0x{line[error.start]:02x} at place {error.start + 1}); save the file in UTF-8."
        ) from None
