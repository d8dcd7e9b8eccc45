"""Runs and judgements in TREC's file formats, which trec_eval and ir_measures read and write too."""

from collections.abc import Mapping
from pathlib import Path

from docids.storage import write_text
from eval.measures import Judgements, Run, ranking


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
    for number, fields in fields_of(path, 6, "query_id Q0 doc_id rank score tag"):
        query_id, _, doc_id, _, score, _ = fields
        _add(run, query_id, doc_id, score, float, path, number)
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
    for number, fields in fields_of(path, 4, "query_id 0 doc_id relevance"):
        query_id, _, doc_id, relevance = fields
        _add(qrels, query_id, doc_id, relevance, int, path, number)
    return qrels


def fields_of(path: Path, count: int, form: str) -> list[tuple[int, list[str]]]:
    """(line number, fields) of each line that is not empty.

    Raises:
        ValueError: a line with another number of fields; the message names it and the expected form.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if fields and len(fields) != count:
            raise ValueError(f"{path}, line {number}: expected `{form}`, got {line!r}.")
        if fields:
            rows.append((number, fields))
    return rows


def _add(table: dict, query_id: str, doc_id: str, value: str, number_type: type, path: Path, line: int) -> None:  # type: ignore[type-arg]
    row: Mapping[str, float] = table.setdefault(query_id, {})
    if doc_id in row:
        raise ValueError(f"{path}, line {line}: document {doc_id!r} comes twice for query {query_id!r}.")
    try:
        table[query_id][doc_id] = number_type(value)
    except ValueError:
        raise ValueError(f"{path}, line {line}: expected a number ({number_type.__name__}), got {value!r}.") from None
