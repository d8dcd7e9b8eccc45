"""Diversity measures: how well a ranking covers a query's subtopics; computed by ir-measures and ndeval (extra `rerank`)."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsi.docids.types import Run
from dsi.eval.trec import parse_integer, split_fields

Subtopics = Mapping[str, Mapping[str, Sequence[str]]]
"""{query_id: {doc_id: subtopics it covers}}."""

DIVERSITY_MEASURES = ("alpha_nDCG@5", "alpha_nDCG@10", "ERR_IA@10", "StRecall@10")


def read_subtopics(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return judgements of TREC's diversity tasks, one `query subtopic document relevance` per line.

    Raises:
        ValueError: a line is malformed; the message names it.
    """
    subtopics: dict[str, dict[str, list[str]]] = {}
    for source, (query_id, subtopic, doc_id, relevance) in split_fields(path, 4, "query subtopic document relevance"):
        if parse_integer(relevance, source) > 0:
            subtopics.setdefault(query_id, {}).setdefault(doc_id, []).append(subtopic)
    return subtopics


def find_measure(name: str) -> Any:
    """Return a measure of ir-measures; one with parameters is parsed there, which Python 3.14 does not support."""
    ir_measures = importlib.import_module("ir_measures")
    kind, _, cut = name.partition("@")
    return getattr(ir_measures, kind) @ int(cut) if cut and kind.isidentifier() else ir_measures.parse_measure(name)


def evaluate_diversity(
    run: Run, subtopics: Subtopics, measures: Sequence[str] = DIVERSITY_MEASURES
) -> dict[str, dict[str, float]]:
    """Return {measure: {query_id: value}} for every query that has a subtopic.

    Args:
        run: scores of the documents returned.
        subtopics: those that each document covers.
        measures: names of ir-measures: "alpha_nDCG@5", "ERR_IA@20", "StRecall@10", ….
    """
    try:
        ir_measures = importlib.import_module("ir_measures")
        importlib.import_module("pyndeval")
    except ImportError:
        raise ValueError('Measures of diversity need ir-measures and pyndeval; pip install "dr-scl[rerank]".') from None
    parsed = {find_measure(name): name for name in measures}
    qrels = [
        ir_measures.Qrel(query_id, doc_id, 1, iteration=subtopic)
        for query_id, judged in subtopics.items()
        for doc_id, covered in judged.items()
        for subtopic in covered
    ]
    scored = [
        ir_measures.ScoredDoc(query_id, doc_id, score)
        for query_id, scores in run.items()
        if query_id in subtopics
        for doc_id, score in scores.items()
    ]
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(subtopics, 0.0) for name in measures}
    for metric in ir_measures.iter_calc(list(parsed), qrels, scored):
        values[parsed[metric.measure]][metric.query_id] = metric.value
    return values
