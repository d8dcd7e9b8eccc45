"""Runs in TREC's file format, which trec_eval and ir_measures read and write too; lines of fields in general."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from docids.data.lines import text_lines, whole_number
from docids.files.storage import write_text
from docids.types import Run
from eval.measures import ranking


def write_run(run: Run, path: Path, tag: str) -> None:
    """Write `query_id Q0 doc_id rank score tag` lines, best first."""
    lines = [
        f"{query_id} Q0 {doc_id} {rank} {scores[doc_id]!r} {tag}\n"
        for query_id, scores in run.items()
        for rank, doc_id in enumerate(ranking(scores), start=1)
    ]
    write_text(path, "".join(lines))


def read_run(path: Path) -> Run:
    """Return the run in a TREC file; ranks are ignored, as trec_eval does.

    Raises:
        ValueError: a line does not have six fields, its score is not a number, or a document repeats for a query.
    """
    run: Run = {}
    for source, (query_id, _, doc_id, _, score, _) in split_fields(path, 6, "query_id Q0 doc_id rank score tag"):
        scores = run.setdefault(query_id, {})
        if doc_id in scores:
            raise ValueError(f"{source}: document {doc_id!r} comes twice for query {query_id!r}.")
        scores[doc_id] = _parse_number(score, source)
    return run


def split_fields(path: Path, count: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """Yield file and line, for messages, and the fields of each line that is not empty.

    Raises:
        ValueError: a line has another number of fields; the message names it and the expected form.
    """
    for number, line in text_lines(path):
        source, fields = f"{path}, line {number}", line.split()
        if len(fields) != count:
            raise ValueError(f"{source}: expected `{form}`, got {line!r}.")
        yield source, fields


def parse_integer(text: str, source: str) -> int:
    """Return the integer in a field.

    Raises:
        ValueError: there is none; the message begins with `source`.
    """
    value = whole_number(text)
    if value is None:
        raise ValueError(f"{source}: expected an integer, got {text!r}.")
    return value


def _parse_number(text: str, source: str) -> float:
    value = math.nan
    with suppress(ValueError):
        value = float(text)
    if math.isnan(value):
        raise ValueError(f"{source}: expected a number, got {text!r}.")
    return value
