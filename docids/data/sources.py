"""Documents from whatever holds texts: records in memory, tables, folders of files. Knows nothing of collections."""

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from dsi.docids.data.lines import LONGEST_LINE, file_of_collection, named_records, read_text
from dsi.docids.data.records import ID_KEYS, MOST_COLUMNS, TEXT_KEYS
from dsi.docids.files.checks import printable, shown, unpack
from dsi.docids.files.untrusted import walked

logger = logging.getLogger(__name__)

_TEXTS, _LINES, _ROWS = (".txt", ".md"), (".jsonl", ".jsonl.gz"), (".csv",)
_READ = (*_TEXTS, *_LINES, *_ROWS)
_ROWS_AT_ONCE = 1000
_LONGEST_ID = 1000
"""Bits of a whole number that is written out as an id."""
_HEADER = 2**20
"""Bytes of a table in which the names of its columns stand."""
_WHOLE, _EXPONENT = "(0|[1-9][0-9]{0,199})", "[eE][-+]?[0-9]{1,2}"
_KINDS = (
    (pa.int64(), "^-?(0|[1-9][0-9]{0,17})$"),
    # All finite. A whole number that a float cannot hold, or one with zeros in front, as postal codes have, stays a text.
    (
        pa.float64(),
        rf"^-?((0|[1-9][0-9]{{0,14}})|({_WHOLE}\.|{_WHOLE}?\.[0-9]+)({_EXPONENT})?|{_WHOLE}{_EXPONENT})$",
    ),
    (pa.bool_(), "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$"),
)
"""Types of a column of a table, and what all its values look like."""


def memory_records(
    source: Iterable[Any], name: str = "documents", id_keys: Sequence[str] = ID_KEYS, *, texts: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of a list, an iterator, a DataFrame, an Arrow table or a `datasets.Dataset`, after their names.

    A text is a record whose id is its place. Whole numbers are taken for ids.

    Args:
        source: the records.
        name: of them all, for messages.
        id_keys: under which a record may have its id.
        texts: take texts for records; without, they are refused.

    Raises:
        TypeError: the source or a record is of another kind.
    """
    for place, record in enumerate(_rows(source, name)):
        if isinstance(record, str) and texts:
            record = {"_id": str(place), "text": record}
        if not isinstance(record, Mapping):
            kinds = "a dictionary or a text" if texts else "a dictionary with doc_id and text"
            raise TypeError(f"{name}[{place}] must be {kinds}, got {shown(record)}.")
        yield f"{name}[{place}]", _regular(record, id_keys)


def _rows(source: Any, name: str) -> Iterable[Any]:
    """Return an iterable of the rows of a source."""
    if hasattr(source, "to_list") and not hasattr(source, "columns"):  # a series
        source = source.to_list()
    if isinstance(source, datasets.DatasetDict):
        raise TypeError(f"{name} must be one data set, got a dictionary of {', '.join(source)}; pass one of them.")
    if isinstance(source, datasets.Dataset):  # as Arrow: decoding opens what the columns of pictures and sounds name
        return _arrow_rows(source.with_format("arrow").iter(_ROWS_AT_ONCE), name)
    if isinstance(source, pandas.DataFrame) or hasattr(source, "__arrow_c_stream__"):
        return _arrow_rows([_arrow_table(source, name)], name)
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


def _arrow_table(source: Any, name: str) -> pa.Table:
    """Return an Arrow table of a DataFrame, or of what gives one."""
    try:
        if isinstance(source, pandas.DataFrame):
            return pa.Table.from_pandas(source, preserve_index=False)
        return pa.table(source)
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:
        raise ValueError(
            f"{name} have a column that is none of Arrow's ({_reason(error)}); write its values as texts."
        ) from None


def _arrow_rows(tables: Iterable[pa.Table], name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of Arrow tables, without the columns that hold nothing."""
    for table in tables:
        _check_different(table.column_names, name)
        filled = table.select([column for column in table.column_names if table[column].null_count < len(table)])
        try:
            for batch in filled.to_batches(_ROWS_AT_ONCE):
                yield from batch.to_pylist()
        except (OverflowError, ValueError, pa.ArrowException) as error:
            raise ValueError(
                f"{name} hold a value that Python cannot ({_reason(error)}), such as a date after 9999; write texts."
            ) from None


def _reason(error: Exception) -> str:
    """Return what a library said, on one line that is not long."""
    return printable(str(error).strip().rstrip("."))[:200]


def _regular(record: Mapping[Any, Any], id_keys: Sequence[str] = ID_KEYS) -> dict[str, Any]:
    """Return a record without missing values, with whole numbers as ids written out."""
    found = {key: unpack(value) for key, value in record.items()}
    found = {key: value for key, value in found.items() if not _is_missing(value)}
    return found | {key: written_id(found[key]) for key in id_keys if key in found}


def written_id(key: Any) -> Any:
    """Return an id with whole numbers written out."""
    value = unpack(key)
    return str(value) if type(value) is int and value.bit_length() <= _LONGEST_ID else value


def _is_missing(value: Any) -> bool:
    return value is None or value is pandas.NA or value is pandas.NaT or (isinstance(value, float) and value != value)


def line_records(path: Path, id_keys: Sequence[str] = ID_KEYS) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of a .jsonl[.gz] file after the words that name them, as `memory_records` yields those in memory."""
    for source, record in named_records(path):
        yield source, _regular(record, id_keys)


def folder_records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of the files in a folder, by path, after the words that name them in messages.

    Raises:
        FileNotFoundError: no file of a kind that is read.
        ValueError: a file is not UTF-8, or not of its kind.
    """
    paths = sorted(_files(folder))
    read = [path for path in paths if _is_read(path)]
    left_out = Counter(path.suffix.lower() or path.name for path in paths if not _is_read(path))
    if not read:
        found = f"it holds {_counted(left_out)}" if left_out else "it is empty"
        raise FileNotFoundError(
            f"{folder} has no {', '.join(_READ)} file, and no corpus.jsonl of the BEIR layout; {found}."
        )
    if left_out:
        logger.warning("%s: files that are not read: %s.", folder, _counted(left_out))
    for path in read:
        yield from _file_records(file_of_collection(path), path.relative_to(folder))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in its folders, except hidden ones."""
    for parent, folders, names in walked(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (parent / name for name in names if not name.startswith(".")):
            if not path.name.isprintable():
                raise ValueError(f"{shown(str(path))} has a name that cannot be printed; give it another.")
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{path} is a link to what lies outside the folder; put the file itself there.")
            if path.is_file():
                yield path


def _is_read(path: Path) -> bool:
    return path.name.lower().endswith(_READ)


def _counted(suffixes: Counter[str]) -> str:
    return ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(5))


def _file_records(path: Path, name: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of a file; `name` is its path in the folder."""
    if path.name.lower().endswith(_TEXTS):
        text = read_text(path)
        if not text.strip():
            logger.warning("%s is blank, so it is found by its name only.", path)
        heading = _heading(text) if path.suffix.lower() == ".md" else ""
        title = heading or re.sub(r"[-_]+", " ", path.stem)
        yield str(path), {"_id": "%20".join(name.as_posix().split()), "title": title, "text": text}
    elif path.name.lower().endswith(_LINES):
        yield from line_records(path)
    else:
        yield from _table_records(path)


def _heading(text: str) -> str:
    r"""Return the first heading of a text in Markdown, "" if it has none.

    >>> _heading("words"), _heading("#hash\n## C# in short ##\n# Next")
    ('', 'C# in short')
    """
    for line in io.StringIO(text):
        rest = line.lstrip("#")
        if rest != line and rest[:1].isspace() and (words := rest.split()):
            closed = len(words) > 1 and not words[-1].strip("#")
            return " ".join(words[:-1] if closed else words)
    return ""


def _table_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a .csv file whose first line names the columns; numbers stay numbers in metadata."""
    try:
        names = _column_names(path)
    except csv.Error as error:
        raise _no_table(path, error) from None
    _check_columns(names, f"{path}, line 1")
    texts = dict.fromkeys(names, pa.string())
    try:
        table = pa_csv.read_csv(
            path,
            pa_csv.ReadOptions(use_threads=False, block_size=LONGEST_LINE),  # so that errors tell the row
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(column_types=texts, null_values=[""], strings_can_be_null=True),
        )
        if table.column_names != names:
            raise ValueError("the names of its columns cannot be read")
    except ValueError as error:  # of Arrow, too
        raise _no_table(path, error) from None
    kept = {*ID_KEYS, *TEXT_KEYS, "title"}
    columns = {name: table[name] if name in kept else _typed(table[name]) for name in names}
    for number, (_, record) in enumerate(memory_records(pa.table(columns)), start=2):
        yield f"{path}, row {number}", record  # as Arrow counts, the names of the columns included


def _no_table(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is not a table of comma-separated values in UTF-8 ({_reason(error)}); save it as one, "
        "with as many values in each row as there are columns."
    )


def _column_names(path: Path) -> list[str]:
    """Return the values of the first line that is not blank; it has at most a million bytes."""
    with path.open("rb") as file:
        head = file.read(_HEADER).decode("utf-8-sig", errors="replace")  # Arrow refuses what is no UTF-8
    return next(filter(None, csv.reader(io.StringIO(head, newline=""))), [])


def _check_columns(names: Sequence[str], source: str) -> None:
    """Raise ValueError unless the columns of a table are several, not too many, and have names of their own."""
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{source}: a table has at most {MOST_COLUMNS:,} columns, got {len(names):,}; leave some out.")
    _check_different(names, source)
    if hidden := [name for name in names if not name.isprintable()]:
        raise ValueError(
            f"{source}: the column {shown(hidden[0])} has a character that cannot be printed; leave it out."
        )
    if len(names) == 1:
        raise ValueError(f"{source}: there is one column, {shown(names[0])}; separate columns by commas.")


def _check_different(names: Sequence[str], source: str) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{source}: the column {shown(twice[0])} comes twice; give each a name of its own.")


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of texts as numbers or truth values, if all of them are."""
    for kind, pattern in _KINDS:
        if pc.all(pc.match_substring_regex(column, pattern)).as_py() and column.null_count < len(column):
            return column.cast(kind)
    return column
