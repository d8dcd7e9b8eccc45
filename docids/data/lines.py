"""Text files of lines: read, compressed or not, with errors that name file and line, and written as BEIR has them."""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from dsi.docids.files.reading import check_file

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
LONGEST_LINE = 2**24
"""Bytes of a line; a few compressed ones can stand for a line that fills the memory."""
_SMALL, _RATIO = 2**26, 100
"""Bytes that any compressed file may hold, and how often its size a large one; texts take three to ten times."""
_MOST_BLANK = 10**6
"""Blank lines in a file, at most; a few compressed bytes can stand for millions."""


def file_of_collection(path: Path) -> Path:
    """Return the path of a file, if it is one that has an end.

    Raises:
        ValueError: it is a folder, a device or a pipe, or one of the system.
    """
    check_file(path, "put the file itself there")
    return path


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number, from 1, and text of each line of a UTF-8 file that is not blank, without its end.

    A file whose name ends in .gz is decompressed. A byte order mark is skipped; lines end in LF or CRLF.

    Raises:
        ValueError: a line is too long or not UTF-8, a million are blank, or the compressed data are damaged or truncated.
    """
    number = blank = size = 0
    most = max(_SMALL, _RATIO * path.stat().st_size) if path.suffix == ".gz" else math.inf
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number} has more than {LONGEST_LINE:,} bytes; write shorter lines."
                    )
                size += len(line)
                if size > most:
                    raise ValueError(
                        f"{path}, line {number}: more than {most:,} bytes by now, {_RATIO} times the file's; unpack it."
                    )
                text = _decode(line, f"{path}, line {number}").removeprefix("\ufeff" if number == 1 else "")
                if text.strip():
                    yield number, text.rstrip("\r\n")
                elif (blank := blank + 1) > _MOST_BLANK:
                    raise ValueError(
                        f"{path}, line {number}: {_MOST_BLANK:,} lines before it are blank; leave them out."
                    )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number} ({error}); fetch or compress it again.") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and JSON object of each line that is not blank.

    Raises:
        ValueError: as `text_lines` does, or a line is not a JSON object.
    """
    for number, line in text_lines(path):
        source = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{source}: not valid JSON ({error.msg}); got {line[:60]!r}; write one object a line."
            ) from None
        except ValueError:  # of int()
            raise ValueError(f"{source}: an integer of thousands of digits; write it as a text.") from None
        except RecursionError:
            raise ValueError(f"{source}: JSON nested too deeply; got {line[:60]!r}.") from None
        if not isinstance(record, dict):
            raise ValueError(f"{source}: expected a JSON object a line, got {line[:60]!r}.")
        yield number, record


def read_text(path: Path) -> str:
    """Return a UTF-8 file without a byte order mark.

    Raises:
        ValueError: it is not UTF-8; the message names the line.
    """
    content = path.read_bytes()
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = content[before.rfind(b"\n") + 1 :].partition(b"\n")[0]
        return _decode(line, f"{path}, line {before.count(10) + 1}")


def whole_number(text: str) -> int | None:
    """Return the integer in a text of at most 18 decimal digits; None if it is none.

    >>> whole_number("-1"), whole_number("--1"), whole_number("²")
    (-1, None, None)
    """
    return int(text) if _INTEGER.fullmatch(text) else None


def write_json_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Write a record as a line of JSON."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_judgements(judgements: Iterable[tuple[str, str, float]], path: Path) -> None:
    """Write (query_id, doc_id, relevance) as a table of judgements.

    Raises:
        ValueError: an id holds a tab, which separates the columns.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query_id, doc_id, relevance in judgements:
            if "\t" in f"{query_id}{doc_id}":
                raise ValueError(f"{path}: the ids {query_id!r} and {doc_id!r} must not hold a tab; rename them.")
            file.write(f"{query_id}\t{doc_id}\t{relevance}\n")


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _decode(line: bytes, source: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source}: not text in UTF-8 (byte 0x{line[error.start]:02x} at place {error.start + 1}); save the file in UTF-8."
        ) from None
