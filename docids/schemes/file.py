"""Docids that others made: a file with a line a document, its doc_id, a tab, and numbers with spaces between them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from docids.checks import shown
from docids.lines import text_lines, whole_number
from docids.schemes import Docids, SchemeInput
from docids.storage import write_text
from docids.tree import Ints

_LARGEST = 2**31 - 1
_Lines = dict[str, tuple[int, tuple[int, ...]]]
"""{doc_id: number of its line, path}."""


def make(documents: SchemeInput) -> Docids:
    """The docids in `config.file`; raises what `read_docids` does."""
    return read_docids(Path(documents.config.file), documents.doc_ids)


def read_docids(path: Path, doc_ids: Sequence[str]) -> Docids:
    """The docids of documents in a file.

    Args:
        path: of the file.
        doc_ids: of all documents, in collection order.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line that is wrong, a document that is unknown, missing or doubled, or a path that is equal to another
            or the beginning of another; the message names the line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"docids.file names {path}, which does not exist; give the place of a file of docids.")
    lines = _read(path, frozenset(doc_ids))
    missing = [doc_id for doc_id in doc_ids if doc_id not in lines]
    if missing:
        raise ValueError(
            f"{path} has no line for the document {missing[0]!r} (and {len(missing) - 1} more); give every document of "
            "the collection one."
        )
    _check_apart(path, sorted(lines.values(), key=lambda line: line[1]))
    return Docids.of([lines[doc_id][1] for doc_id in doc_ids])


def write_docids(path: Path, doc_ids: Sequence[str], paths: Ints) -> None:
    """Write docids [N, longest] as `read_docids` reads them."""
    numbers = (" ".join(str(number) for number in row[row >= 0]) for row in paths)
    write_text(path, "".join(f"{doc_id}\t{own}\n" for doc_id, own in zip(doc_ids, numbers, strict=True)))


def _read(path: Path, known: frozenset[str]) -> _Lines:
    lines: _Lines = {}
    for number, line in text_lines(path):
        source = f"{path}, line {number}"
        doc_id, tab, text = line.partition("\t")
        if not tab:
            raise ValueError(
                f"{source}: expected a doc_id, a tab, and digits with spaces between them, got {shown(line)}."
            )
        if doc_id not in known:
            raise ValueError(f"{source}: the document {shown(doc_id)} is not in the collection; remove the line.")
        if doc_id in lines:
            raise ValueError(f"{source}: the document {doc_id!r} has line {lines[doc_id][0]} already; remove one.")
        lines[doc_id] = number, tuple(_number(digit, source) for digit in text.split())
        if not lines[doc_id][1]:
            raise ValueError(f"{source}: the document {doc_id!r} has no digits; give it at least one.")
    return lines


def _number(digit: str, source: str) -> int:
    number = whole_number(digit)
    if number is None or not 0 <= number <= _LARGEST:
        raise ValueError(f"{source}: a digit must be an integer from 0 to {_LARGEST}, got {shown(digit)}.")
    return number


def _check_apart(path: Path, lines: Sequence[tuple[int, tuple[int, ...]]]) -> None:
    """Raise ValueError if a path is equal to another or its beginning: sorted, they are neighbours."""
    for (number, own), (other_number, other) in pairwise(lines):
        if other[: len(own)] == own:
            how = "equal to" if own == other else "the beginning of"
            raise ValueError(
                f"{path}, line {number}: the docid {' '.join(map(str, own))} is {how} that of line {other_number}; give each "
                "document its own."
            )
