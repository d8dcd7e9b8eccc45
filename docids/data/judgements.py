"""Relevance judgements, read from files or memory; all that is odd in them is counted. Knows no documents' contents.

A judgement of a document that is not in the collection counts in recall and the ideal DCG, as in trec_eval; training skips it.
"""

import logging
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsi.docids.data import SPLITS
from dsi.docids.data.records import Oddities
from dsi.docids.data.sources import is_table, items_of
from dsi.docids.files.checks import id_of, plain, shown, text, unpack, whole
from dsi.docids.types import Qrels

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[+-]?([0-9]{1,18}|[0-9]{1,18}\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_HEADS = {"query-id", "query_id", "qid", "query", "topic", "topic_id", "id", "_id"}
"""Possible names of the first column, in a header."""
_COLUMNS = ("query_id", "qid", "query-id"), ("doc_id", "docno", "corpus-id"), ("relevance", "score", "label", "grade")
"""Names that the columns of a table of judgements, or of a run, may have: of the query, the document and the number."""
_ABSENT = (
    "judgements of documents that are not in the collection; no search finds these, recall and ideal DCG count the relevant "
    "ones as missed, and training leaves them out"
)
_UNASKED = "judgements of queries that are not in the collection; without a text they cannot be asked, and are left out"
_TWICE = "pairs of query and document with several grades; the highest counts"
_NO_RELEVANT = "judged queries without a judgement above 0 of a document in the collection; they count as 0"

Judgement = tuple[str, str, str, float]
"""Where it stands, for messages; query_id, doc_id, grade."""


def read_judgements(
    path: Path, lines: Iterable[tuple[int, str]], queries: Container[str], rows: Mapping[str, int]
) -> Qrels:
    """Return the judgements in the lines of a file: query-id, corpus-id and score, or the four columns of a TREC file."""
    return _collected(_file_judgements(path, lines), path, queries, rows)


def _file_judgements(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Judgement]:
    for number, line in lines:
        source = f"{path}, line {number}"
        parts = line.rstrip().split("\t") if "\t" in line.rstrip() else line.split()
        grade = _grade(parts[-1].strip()) if len(parts) in (3, 4) else None
        if grade is not None:
            yield source, parts[0], parts[-2], grade
        elif number > 1 or len(parts) not in (3, 4) or parts[0].strip().lower() not in _HEADS:
            raise ValueError(
                f"{source}: expected query-id<TAB>corpus-id<TAB>score, or TREC's `query_id 0 doc_id score`, got "
                f"{shown(line.strip())}."
            )


def _grade(written: str) -> float | None:
    """Return the number in a text, an integer where it is one; None if there is none.

    >>> _grade("-1"), _grade("0.6667"), _grade("1.0"), _grade("--1"), _grade("²"), _grade("nan")
    (-1, 0.6667, 1, None, None, None)
    """
    if not _NUMBER.fullmatch(written):
        return None
    return whole(float(written))


def check_qrels(qrels: Mapping[str, Any], queries: Container[str], rows: Mapping[str, int]) -> dict[str, Qrels]:
    """Return judgements {split: {query_id: {doc_id: grade}}}, checked."""
    if not isinstance(qrels, Mapping) or not set(qrels) <= set(SPLITS):
        flat = is_table(qrels) or (isinstance(qrels, Mapping) and any(id_of(unpack(key)) in queries for key in qrels))
        remedy = '; write {"test": …} around judgements that are to be measured on' if flat else ""
        raise ValueError(
            f"qrels must be {{split: {{query_id: {{doc_id: relevance}}}}}} of the splits {', '.join(SPLITS)}, got "
            f"{shown(qrels)}{remedy}."
        )
    checked = {}
    for split, values in qrels.items():
        name = f"qrels[{split!r}]"
        judged = by_query(values, name)
        checked[split] = _collected(_memory_judgements(judged, name), name, queries, rows)
        for query_id in map(id_of, map(unpack, judged)):
            if query_id in queries:
                checked[split].setdefault(query_id, {})
    return checked


def _memory_judgements(qrels: Any, name: str) -> Iterator[Judgement]:
    if not isinstance(qrels, Mapping) or not all(isinstance(judged, Mapping) for judged in qrels.values()):
        raise ValueError(f"{name} must be {{query_id: {{doc_id: relevance}}}}, got {shown(qrels)}.")
    for query_id, judged in qrels.items():
        for doc_id, grade in judged.items():
            source = f"{name}[{shown(query_id)}][{shown(doc_id)}]"
            value = plain(float, grade, source)
            if not math.isfinite(value):
                raise ValueError(f"{source} must be a finite number, got {shown(grade)}.")
            ids = text(id_of(unpack(query_id)), f"{source}: query_id"), text(id_of(unpack(doc_id)), f"{source}: doc_id")
            yield source, *ids, whole(value)


def _collected(
    judgements: Iterable[Judgement], name: object, queries: Container[str], rows: Mapping[str, int]
) -> Qrels:
    """Return judgements by query; a line counts each kind of odd ones."""
    qrels, odd, first = dict[str, dict[str, float]](), Oddities(name), ""
    for _, query_id, doc_id, grade in judgements:
        first = first or query_id
        if query_id not in queries:
            odd.count(_UNASKED, query_id)
            continue
        if doc_id not in rows:
            odd.count(_ABSENT, doc_id)
        judged = qrels.setdefault(query_id, {})
        if judged.setdefault(doc_id, grade) != grade:
            odd.count(_TWICE, f"{query_id} {doc_id}")
            judged[doc_id] = max(grade, judged[doc_id])
    if first and not qrels:
        raise ValueError(
            f"{name}: none of the judgements belongs to a query of the collection (the first is for query_id {shown(first)}). "
            "Add the judged queries."
        )
    if not first and isinstance(name, Path):
        logger.warning("%s holds no judgements, at most a header.", name)
    _count_unanswered(qrels, rows, odd)
    odd.warn()
    return qrels


def _count_unanswered(qrels: Qrels, rows: Mapping[str, int], odd: Oddities) -> None:
    """Count the queries without a relevant document in the collection, and say what a mean over all cannot exceed."""
    unanswered = [query_id for query_id, judged in qrels.items() if not relevant_rows(judged, rows)]
    share = 100 * (1 - len(unanswered) / max(len(qrels), 1))
    for query_id in unanswered:
        odd.count(f"{_NO_RELEVANT}, and no mean over all {len(qrels):,} exceeds {share:.1f} %", query_id)


def by_query(values: Any, name: str) -> Any:
    """Return a table of query, document and number as {query_id: {doc_id: number}}, the highest if several; else `values`."""
    if not is_table(values):
        return values
    judgements = dict[Any, dict[Any, float]]()
    for place, row in enumerate(items_of(values, name)):
        cells = [row[key] for keys in _COLUMNS for key in keys if key in row]
        if len(cells) != len(_COLUMNS):
            needed = ", ".join(" or ".join(keys) for keys in _COLUMNS)
            raise ValueError(f"{name}[{place}] must have the columns {needed}, got {shown(row)}; rename yours.")
        query_id, doc_id, value = cells
        judged = judgements.setdefault(query_id, {})
        judged[doc_id] = max(value, judged[doc_id]) if doc_id in judged else value
    return judgements


def relevant_rows(judged: Mapping[str, float], rows: Mapping[str, int]) -> list[int]:
    """Return the rows of the documents of the collection that are relevant."""
    return [rows[doc_id] for doc_id, grade in judged.items() if grade > 0 and doc_id in rows]


def write_judgements(judgements: Iterable[tuple[str, str, float]], path: Path) -> None:
    """Write (query_id, doc_id, relevance) as a table of judgements."""
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query_id, doc_id, relevance in judgements:
            if "\t" in f"{query_id}{doc_id}":
                raise ValueError(f"{path}: the ids {query_id!r} and {doc_id!r} must not hold a tab; rename them.")
            file.write(f"{query_id}\t{doc_id}\t{relevance}\n")
