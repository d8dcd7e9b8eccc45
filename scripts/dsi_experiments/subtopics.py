"""Subtopics of queries: judgements, labels of candidates, and measures of how well a ranking covers them.

The measures are computed by ir-measures and ndeval (extra `rerank`).
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsi.docids.data.sources import whole_number
from dsi.docids.types import Bools, Run
from dsi.eval.trec import split_fields

if TYPE_CHECKING:
    from dsi_experiments.rerankers.candidates import Candidates

Subtopics = Mapping[str, Mapping[str, Sequence[str]]]
"""{query_id: {doc_id: subtopics it covers}}."""

DIVERSITY_MEASURES = ("alpha_nDCG@5", "alpha_nDCG@10", "ERR_IA@10", "StRecall@10")


def read_subtopics(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return judgements of TREC's diversity tasks, one `query subtopic document relevance` per line."""
    subtopics: dict[str, dict[str, list[str]]] = {}
    for source, (query_id, subtopic, doc_id, relevance) in split_fields(path, 4, "query subtopic document relevance"):
        value = whole_number(relevance)
        if value is None:
            raise ValueError(f"{source}: expected an integer, got {relevance!r}.")
        if value > 0:
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

    `measures`: names of ir-measures, such as "ERR_IA@20".
    """
    try:
        ir_measures = importlib.import_module("ir_measures")
        importlib.import_module("pyndeval")
    except ImportError:
        remedy = 'pip install "dr-scl-experiments[rerank]"'
        raise ValueError(f"Measures of diversity need ir-measures and pyndeval; {remedy}.") from None
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


def subtopic_labels(candidates: "Candidates", subtopics: Mapping[str, Mapping[str, Sequence[str]]]) -> Bools:
    """[n, k, subtopics] True where a candidate is judged to be about a subtopic of its query."""
    judged = [subtopics.get(query_id, {}) for query_id in candidates.query_ids]
    names = [sorted({name for covered in own.values() for name in covered}) for own in judged]
    labels = np.zeros((*candidates.scores.shape, max(map(len, names), default=0) or 1), dtype=bool)
    for row, doc_ids in enumerate(candidates.doc_ids):
        for column, doc_id in enumerate(doc_ids):
            for name in judged[row].get(doc_id, ()):
                labels[row, column, names[row].index(name)] = True
    return labels
