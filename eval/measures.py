"""Retrieval measures per query and their means, as ir_measures and trec_eval have them.

There are AP (its mean is MAP), RR and nDCG, of all answers or at k; Hit, Recall, P and F at k. Other spellings are read: map,
ndcg_cut_10, recall_100, mrr, P_5.

Documents are ranked by score, equal scores by doc_id (ascending). A document is relevant if its judgement is above 0. Every
judged query counts: one without results scores 0. Knows nothing of how runs are made.

Computed here, not by ir_measures, because tuning calls them thousands of times on single queries; tests compare the two.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsi.docids.data.judgements import by_query
from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import nearest
from dsi.docids.types import Qrels, Run

STANDARD_MEASURES = ("Hit@1", "Hit@5", "Hit@10", "RR@10", "nDCG@10", "Recall@100")
"""Measures of every run, as deep as its answers go."""
_ONE_RELEVANT = ("Hit@1", "Hit@5", "Hit@10")
_SEVERAL_RELEVANT = ("nDCG@10", "RR@10", "Recall@100")
UNCUT = 1000
"""How many answers are searched for a measure of all of them, the depth of TREC's runs."""
_OF_ALL = ("AP", "nDCG", "RR")
_SPELLINGS = {
    "ap": "AP", "map": "AP", "average_precision": "AP", "ndcg": "nDCG", "rr": "RR", "mrr": "RR", "recip_rank": "RR",
    "reciprocal_rank": "RR", "hit": "Hit", "hits": "Hit", "hit_rate": "Hit", "success": "Hit", "accuracy": "Hit", "acc": "Hit",
    "r": "Recall", "recall": "Recall", "p": "P", "precision": "P", "prec": "P", "f": "F", "f1": "F",
}  # fmt: skip
"""{a spelling of a measure, in lower case: ours}."""
_NAME = re.compile(r"([a-z_]*[a-z]1?)(?:[@._]([1-9][0-9]{0,8}))?")


def measures_for(qrels: Qrels) -> tuple[str, ...]:
    """Return the measures that judgements ask for: Hit at 1, 5 and 10 if a query has one relevant document, and no grades.

    >>> measures_for({"q": {"a": 1, "b": 0}})
    ('Hit@1', 'Hit@5', 'Hit@10')
    >>> measures_for({"q": {"a": 1}, "r": {"b": 2}})
    ('nDCG@10', 'RR@10', 'Recall@100')
    """
    relevant = [[relevance for relevance in judged.values() if relevance > 0] for judged in qrels.values()]
    grades = {relevance for values in relevant for relevance in values}
    several = len(grades) > 1 or any(len(values) > 1 for values in relevant)
    return _SEVERAL_RELEVANT if several else _ONE_RELEVANT


def cutoff(measure: str) -> int:
    """Return the rank down to which a measure reads; `UNCUT` for one of all answers.

    >>> cutoff("Recall@100"), cutoff("map")
    (100, 1000)
    """
    return int(measure_name(measure).partition("@")[2] or UNCUT)


def measure_name(name: str) -> str:
    """Return a measure as ir_measures writes it (but Hit@k, there Success@k), from this or another program's spelling.

    >>> measure_name("ndcg_cut_10"), measure_name("MAP"), measure_name("R@100"), measure_name("recip_rank")
    ('nDCG@10', 'AP', 'Recall@100', 'RR')
    """
    match = _NAME.fullmatch(str(name).lower())
    measure = _SPELLINGS.get(match[1].removesuffix("_cut")) if match else None
    if match and measure and (match[2] or measure in _OF_ALL):
        return f"{measure}@{match[2]}" if match[2] else measure
    near = nearest(match[1], _SPELLINGS) if match and not measure else None
    meant = f"; did you mean {match[0].replace(match[1], _SPELLINGS[near])}?" if match and near else "."
    raise ValueError(
        f"Unknown measure {name!r}{meant} There are AP, nDCG and RR, of all answers or @k, and Hit@k, Recall@k, P@k and F@k, "
        "with k from 1."
    )


def checked_values(values: Mapping[Any, Mapping[Any, Any]], what: str = "score", *, finite: bool = False) -> Run:
    """Return the scores of a run, or the grades of judgements, with texts as ids; `finite`: refuse infinite ones too.

    >>> checked_values({7: {10: 1.0}})
    {'7': {'10': 1.0}}
    """
    kind = "a finite number" if finite else "a number"
    values = by_query(values, f"{what}s")
    checked = {str(query_id): {str(doc_id): value for doc_id, value in row.items()} for query_id, row in values.items()}
    for query_id, scores in checked.items():
        for doc_id, value in scores.items():
            if not _is_number(value, finite):
                raise ValueError(
                    f"The {what} of document {shown(doc_id)} for query {shown(query_id)} must be {kind}, got {shown(value)}; "
                    f"leave the document out or mend the {what}."
                )
    return checked


def _is_number(value: Any, finite: bool) -> bool:
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(number) if finite else number == number


def ranking(scores: Mapping[str, float]) -> list[str]:
    """Return doc_ids, best first; equal scores by doc_id.

    >>> ranking({"b": 1.0, "a": 1.0, "c": 2.0})
    ['c', 'a', 'b']
    """
    return sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = STANDARD_MEASURES) -> dict[str, dict[str, float]]:
    """Return {measure: {query_id: value}} for every judged query.

    >>> evaluate({"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 1}}, ["Hit@1", "RR@10"])
    {'Hit@1': {'q': 0.0}, 'RR@10': {'q': 0.5}}

    Args:
        run: scores of the documents returned; or a table, with the columns query_id (or qid), doc_id (or docno) and score.
        qrels: judgements, or a table of them with a relevance; other queries in the run are ignored.
        measures: names such as "Hit@1" (Success@1 in ir_measures), "nDCG" or "map", as `measure_name` reads them; MAP is the
            mean of AP, the mean reciprocal rank that of RR.

    Raises:
        ValueError: an unknown measure, no judged query, none of them in the run, a score that is not a number, or a grade that
            is not a finite one.
    """
    run, qrels = checked_values(run), checked_values(qrels, "grade", finite=True)
    if not qrels:
        raise ValueError("There are no judged queries to evaluate; give a split that has judgements.")
    if run.keys().isdisjoint(qrels):
        raise ValueError(
            f"The run and the judgements have no query in common: the first query_id is {next(iter(run), None)!r} in the run "
            f"and {next(iter(qrels))!r} in the judgements; give the judgements of the run's queries."
        )
    functions = {name: _parse(name) for name in measures}
    values: dict[str, dict[str, float]] = {name: {} for name in measures}
    for query_id, judged in qrels.items():
        ranked = ranking(run.get(query_id, {}))
        for name, (function, k) in functions.items():
            values[name][query_id] = function(ranked[:k], judged)
    return values


def mean(values: Mapping[str, float], query_ids: Iterable[str] | None = None) -> float:
    """Return the mean over some queries (all by default); NaN for none.

    >>> mean({"q1": 1.0, "q2": 0.0})
    0.5
    """
    numbers = list(values.values()) if query_ids is None else [values[query_id] for query_id in query_ids]
    return sum(numbers) / len(numbers) if numbers else math.nan


def hit(ranked: Sequence[str], judged: Mapping[str, float]) -> float:
    """Return 1 if a relevant document is among the ranked, else 0 (also called Success, or top-k accuracy)."""
    return float(any(judged.get(doc_id, 0) > 0 for doc_id in ranked))


def reciprocal_rank(ranked: Sequence[str], judged: Mapping[str, float]) -> float:
    """Return 1 / rank of the first relevant document, 0 without one."""
    return next((1.0 / rank for rank, doc_id in enumerate(ranked, start=1) if judged.get(doc_id, 0) > 0), 0.0)


def recall(ranked: Sequence[str], judged: Mapping[str, float]) -> float:
    """Return the share of the relevant documents that are among the ranked; 0 if nothing is relevant."""
    relevant = {doc_id for doc_id, relevance in judged.items() if relevance > 0}
    return len(relevant.intersection(ranked)) / len(relevant) if relevant else 0.0


def average_precision(ranked: Sequence[str], judged: Mapping[str, float]) -> float:
    """Return the mean, over all relevant documents, of the precision at the rank of each; 0 for those not ranked.

    >>> average_precision(["a", "b", "c"], {"a": 1, "c": 1})
    0.8333333333333333
    """
    ranks = [rank for rank, doc_id in enumerate(ranked, start=1) if judged.get(doc_id, 0) > 0]
    relevant = sum(relevance > 0 for relevance in judged.values())
    return sum(count / rank for count, rank in enumerate(ranks, start=1)) / relevant if relevant else 0.0


def ndcg(ranked: Sequence[str], judged: Mapping[str, float], k: int | None = None) -> float:
    """Return normalised discounted cumulative gain: gain = relevance, discount = log2(rank + 1) (Järvelin & Kekäläinen 2002).

    This is ir_measures' nDCG@k; without k, nDCG. The variant with gain = 2^relevance - 1 is nDCG(dcg='exp-log2')@k there.

    >>> ndcg(["a", "b"], {"b": 1}, 10) == 1 / math.log2(3)
    True
    """
    ideal = _dcg(sorted(judged.values(), reverse=True)[:k])
    return _dcg(judged.get(doc_id, 0) for doc_id in ranked) / ideal if ideal > 0 else 0.0


def precision(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Return the share of k results that are relevant (Zhuo et al. 2020, eq. 5); missing results count as irrelevant."""
    return sum(judged.get(doc_id, 0) > 0 for doc_id in ranked) / k


def f_measure(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Return the harmonic mean of precision and recall (Zhuo et al. 2020, eq. 7); 0 if both are 0."""
    p, r = precision(ranked, judged, k), recall(ranked, judged)
    return 2 * p * r / (p + r) if p + r > 0 else 0.0


def _dcg(gains: Iterable[float]) -> float:
    return sum(max(gain, 0) / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _parse(name: str) -> tuple[Callable[[Sequence[str], Mapping[str, float]], float], int | None]:
    """Return the function of a measure, and the rank down to which it reads; None for all."""
    measure, _, cut = measure_name(name).partition("@")
    k = int(cut) if cut else None
    by_k: dict[str, Callable[..., float]] = {"nDCG": ndcg, "P": precision, "F": f_measure}
    if measure in by_k:
        return (lambda ranked, judged: by_k[measure](ranked, judged, k)), k
    return {"Hit": hit, "RR": reciprocal_rank, "Recall": recall, "AP": average_precision}[measure], k
