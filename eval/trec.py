"""Runs and judgements in TREC's file formats, which trec_eval and ir_measures read and write too."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from docids.data.lines import text_lines, whole_number
from docids.files.storage import write_text
from eval.measures import Judgements, Run, ranking

Number = TypeVar("Number", int, float)


def write_run(run: Run, path: Path, tag: str) -> None:
    """Write `query_id Q0 doc_id rank score tag` lines, best first."""
    lines = [
        f"{query_id} Q0 {doc_id} {rank} {scores[doc_id]!r} {tag}\n"
        for query_id, scores in run.items()
        for rank, doc_id in enumerate(ranking(scores), start=1)
    ]
    write_text(path, "".join(lines))


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run; ranks are ignored, as trec_eval does.

    Raises:
        ValueError: a line does not have six fields, its score is not a number, or a document comes twice for a query.
    """
    run: dict[str, dict[str, float]] = {}
    for source, (query_id, _, doc_id, _, score, _) in fields_of(path, 6, "query_id Q0 doc_id rank score tag"):
        _add(run, query_id, doc_id, _number(score, source), source)
    return run


def write_qrels(qrels: Judgements, path: Path) -> None:
    """Write `query_id 0 doc_id relevance` lines."""
    lines = [f"{query} 0 {doc} {relevance}\n" for query, judged in qrels.items() for doc, relevance in judged.items()]
    write_text(path, "".join(lines))


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read TREC judgements.

    Raises:
        ValueError: a line does not have four fields, a relevance is not an integer, or a document comes twice for a query.
    """
    qrels: dict[str, dict[str, int]] = {}
    for source, (query_id, _, doc_id, relevance) in fields_of(path, 4, "query_id 0 doc_id relevance"):
        _add(qrels, query_id, doc_id, integer(relevance, source), source)
    return qrels


def fields_of(path: Path, count: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """File and line, for messages, and the fields of each line that is not empty.

    Raises:
        ValueError: a line with another number of fields; the message names it and the expected form.
    """
    for number, line in text_lines(path):
        source, fields = f"{path}, line {number}", line.split()
        if len(fields) != count:
            raise ValueError(f"{source}: expected `{form}`, got {line!r}.")
        yield source, fields


def integer(text: str, source: str) -> int:
    """The integer that a field writes.

    Raises:
        ValueError: it writes none; the message begins with `source`.
    """
    value = whole_number(text)
    if value is None:
        raise ValueError(f"{source}: expected an integer, got {text!r}.")
    return value


def _number(text: str, source: str) -> float:
    value = math.nan
    with suppress(ValueError):
        value = float(text)
    if math.isnan(value):
        raise ValueError(f"{source}: expected a number, got {text!r}.")
    return value


def _add(table: dict[str, dict[str, Number]], query_id: str, doc_id: str, value: Number, source: str) -> None:
    row = table.setdefault(query_id, {})
    if doc_id in row:
        raise ValueError(f"{source}: document {doc_id!r} comes twice for query {query_id!r}.")
    row[doc_id] = value
