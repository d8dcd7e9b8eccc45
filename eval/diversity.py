"""Diversity measures: how well a ranking covers a query's subtopics, by ir-measures and ndeval (extra `rerank`)."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.measures import Run
from eval.trec import fields_of, integer

Subtopics = Mapping[str, Mapping[str, Sequence[str]]]
"""{query_id: {doc_id: the subtopics it covers}}."""

DIVERSITY_MEASURES = ("alpha_nDCG@5", "alpha_nDCG@10", "ERR_IA@10", "StRecall@10")


def read_subtopics(path: Path) -> dict[str, dict[str, list[str]]]:
    """Judgements of TREC's diversity tasks, one `query subtopic document relevance` per line.

    Raises:
        ValueError: a malformed line; the message says where.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for source, (query_id, subtopic, doc_id, relevance) in fields_of(path, 4, "query subtopic document relevance"):
        if integer(relevance, source) > 0:
            found.setdefault(query_id, {}).setdefault(doc_id, []).append(subtopic)
    return found


def evaluate_diversity(
    run: Run, subtopics: Subtopics, measures: Sequence[str] = DIVERSITY_MEASURES
) -> dict[str, dict[str, float]]:
    """{measure: {query_id: value}} for every query that has a subtopic.

    Args:
        run: scores of the documents returned.
        subtopics: which ones each document covers.
        measures: names of ir-measures: "alpha_nDCG@5", "ERR_IA@20", "StRecall@10", ….
    """
    try:
        ir_measures = importlib.import_module("ir_measures")
        importlib.import_module("pyndeval")
    except ImportError:
        raise ValueError('Measures of diversity need ir-measures and pyndeval; pip install "dr-scl[rerank]".') from None
    parsed = {ir_measures.parse_measure(name): name for name in measures}
    qrels = [
        ir_measures.Qrel(query_id, doc_id, 1, iteration=subtopic)
        for query_id, judged in subtopics.items()
        for doc_id, own in judged.items()
        for subtopic in own
    ]
    scored = [
        ir_measures.ScoredDoc(query_id, doc_id, score)
        for query_id, own in run.items()
        if query_id in subtopics
        for doc_id, score in own.items()
    ]
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(subtopics, 0.0) for name in measures}
    for found in ir_measures.iter_calc(list(parsed), qrels, scored):
        values[parsed[found.measure]][found.query_id] = found.value
    return values
