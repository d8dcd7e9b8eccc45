"""Docids read from a file: a line a docid, or a piece in order, with a doc_id, a tab, and numbers between spaces."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import numpy as np

from dsi.docids.data.sources import text_lines, whole_number
from dsi.docids.files.checks import and_more, shown
from dsi.docids.files.storage import write_text
from dsi.docids.schemes import Docids, SchemeInput, pad_paths
from dsi.docids.tree import MOST_PLACES
from dsi.docids.types import Ints

_LARGEST = 2**31 - 1
_Lines = dict[str, list[tuple[int, tuple[int, ...]]]]
"""{doc_id: line number and path of each of its docids}."""


def make(documents: SchemeInput) -> Docids:
    """Return the docids in the file `config.method`; raises as `read_docids`."""
    return read_docids(Path(documents.config.method), documents.doc_ids, in_pieces=documents.rows is not None)


def read_docids(path: Path, doc_ids: Sequence[str], *, in_pieces: bool = False) -> Docids:
    """Return the docids of documents in a file; `in_pieces`: `doc_ids` are those of all pieces, and so repeat."""
    if not path.is_file():
        raise FileNotFoundError(f"docids.method names {path}, which does not exist; name a file of docids.")
    pieces = Counter(doc_ids)
    lines = _read(path, pieces.keys())
    missing = [doc_id for doc_id in pieces if doc_id not in lines]
    if missing:
        raise ValueError(
            f"{path} has no line for the document {missing[0]!r}{and_more(len(missing) - 1)}; give every document of "
            "the collection one."
        )
    if in_pieces:
        _check_pieces(path, lines, pieces)
    ordered = [line for doc_id in pieces for line in lines[doc_id]]
    counts = [len(lines[doc_id]) for doc_id in pieces]
    rows = np.repeat(np.arange(len(counts)), counts) if max(counts) > 1 else None
    return Docids(pad_paths([digits for _, digits in ordered]), rows)


def write_docids(path: Path, doc_ids: Sequence[str], paths: Ints) -> None:
    """Write docids [N, longest] of documents [N], which may repeat, as `read_docids` reads them."""
    numbers = (" ".join(str(number) for number in row[row >= 0]) for row in paths)
    write_text(path, "".join(f"{doc_id}\t{digits}\n" for doc_id, digits in zip(doc_ids, numbers, strict=True)))


def _read(path: Path, known: Container[str]) -> _Lines:
    lines: _Lines = {}
    for number, line in text_lines(path):
        source = f"{path}, line {number}"
        doc_id, tab, text = line.partition("\t")
        if not tab:
            raise ValueError(f"{source}: expected a doc_id, a tab, and digits between spaces, got {shown(line)}.")
        if doc_id not in known:
            raise ValueError(f"{source}: the document {shown(doc_id)} is not in the collection; remove the line.")
        digits = tuple(_number(digit, source) for digit in text.split())
        if not digits:
            raise ValueError(f"{source}: the document {doc_id!r} has no digits; give it at least one.")
        lines.setdefault(doc_id, []).append((number, digits))
        if len(lines[doc_id]) > MOST_PLACES:
            raise ValueError(f"{source}: the document {doc_id!r} has more than {MOST_PLACES:,} docids; remove some.")
    return lines


def _number(digit: str, source: str) -> int:
    number = whole_number(digit)
    if number is None or not 0 <= number <= _LARGEST:
        raise ValueError(f"{source}: a digit must be an integer from 0 to {_LARGEST}, got {shown(digit)}.")
    return number


def _check_pieces(path: Path, lines: _Lines, pieces: Mapping[str, int]) -> None:
    """Raise ValueError unless every document has a line for each of its pieces."""
    for doc_id, count in pieces.items():
        if len(docids := lines[doc_id]) != count:
            raise ValueError(
                f"{path}, line {docids[-1][0]}: the document {doc_id!r} has {len(docids)} docids for {count} pieces; give "
                "each piece one, or set docids.pieces to 1."
            )
