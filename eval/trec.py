"""Runs in TREC's file format, which trec_eval and ir_measures read and write too; lines of fields in general."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dsi.docids.data.sources import text_lines
from dsi.docids.files.checks import user_path
from dsi.docids.files.storage import write_text
from dsi.docids.types import Qrels, Run
from dsi.eval.measures import checked_values, ranking


def check_fields(path: Path, fields: Iterable[str]) -> None:
    """Raise ValueError if an id or a tag is empty or holds white space, which would be another field or line of a TREC file."""
    for field in fields:
        if field.split() != [field]:
            raise ValueError(
                f"{path}: {field!r} must not be empty or hold white space, which separates the fields of a TREC file; "
                "rename it."
            )


def write_run(run: Run, path: str | Path, tag: str) -> None:
    """Write `query_id Q0 doc_id rank score tag` lines, best first, with the scores of `run_without_ties`.

    Args:
        run: {query_id: {doc_id: score}}.
        path: of the file.
        tag: the last field of each line.

    Raises:
        ValueError: an id or the tag is empty or holds white space, which would be another field or line; or a score is not a
            number.
    """
    run, path = run_without_ties(run), user_path(path)
    check_fields(path, (tag, *run, *(doc_id for scores in run.values() for doc_id in scores)))
    lines = [
        f"{query_id} Q0 {doc_id} {rank} {score!r} {tag}\n"
        for query_id, scores in run.items()
        for rank, (doc_id, score) in enumerate(scores.items(), start=1)
    ]
    write_text(path, "".join(lines))


def write_qrels(qrels: Qrels, path: str | Path) -> None:
    """Write judgements as `query_id 0 doc_id relevance` lines."""
    qrels, path = checked_values(qrels, "grade", finite=True), user_path(path)
    check_fields(path, (*qrels, *(doc_id for judged in qrels.values() for doc_id in judged)))
    lines = [
        f"{query_id} 0 {doc_id} {grade}\n" for query_id, judged in qrels.items() for doc_id, grade in judged.items()
    ]
    write_text(path, "".join(lines))


def run_without_ties(run: Run) -> Run:
    """Return a run, best first, that every evaluator ranks as ours does: by scores `without_ties`."""
    untied: Run = {}
    for query_id, scores in checked_values(run).items():
        doc_ids = ranking(scores)
        untied[query_id] = dict(zip(doc_ids, without_ties([scores[doc_id] for doc_id in doc_ids]), strict=True))
    return untied


def without_ties(scores: Sequence[float]) -> list[float]:
    """Return scores that stay strictly descending as float32, so that every program ranks them alike.

    trec_eval and its bindings read float32, and rank equal scores by doc_id from z to a. A score that is not below the one
    before it becomes the next lower float32; the others stay as they are.

    >>> without_ties([0.5, 0.5, 0.25])
    [0.5, 0.4999999701976776, 0.25]
    """
    below: list[float] = []
    last = np.float32(np.inf)
    for score in scores:
        rounded = np.float32(score)
        last = rounded if rounded < last else np.nextafter(last, np.float32(-np.inf))
        below.append(float(score) if last == rounded else float(last))
    return below


def read_run(path: str | Path) -> Run:
    """Return the run in a TREC file, best first, ranked as trec_eval ranks it.

    That is by the scores as float32, equal ones by doc_id from z to a, whatever the ranks in the file. A score that is equal to
    the one before becomes the next lower float32 (`without_ties`), so that all measures here rank so too.

    Raises:
        ValueError: a line does not have six fields, its score is not a number, or a document repeats for a query.
    """
    run: Run = {}
    for source, (query_id, _, doc_id, _, score, _) in split_fields(
        user_path(path), 6, "query_id Q0 doc_id rank score tag"
    ):
        scores = run.setdefault(query_id, {})
        if doc_id in scores:
            raise ValueError(f"{source}: document {doc_id!r} comes twice for query {query_id!r}.")
        scores[doc_id] = _parse_number(score, source)
    return {query_id: _as_trec_eval_ranks(scores) for query_id, scores in checked_values(run).items()}


def _as_trec_eval_ranks(scores: Mapping[str, float]) -> dict[str, float]:
    with np.errstate(over="ignore"):  # beyond float32 all are equal there
        ranked = sorted(scores, key=lambda doc_id: (np.float32(scores[doc_id]), doc_id.encode()), reverse=True)
    return dict(zip(ranked, without_ties([scores[doc_id] for doc_id in ranked]), strict=True))


def split_fields(path: Path, count: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """Yield file and line, for messages, and the fields of each line that is not empty; `form`: how a line should be."""
    for number, line in text_lines(path):
        source, fields = f"{path}, line {number}", line.split()
        if len(fields) != count:
            raise ValueError(f"{source}: expected `{form}`, got {line!r}.")
        yield source, fields


def _parse_number(text: str, source: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{source}: expected a number, got {text!r}.") from None
