"""Training of rerankers: judged candidates from an index, a reranker of some kind, and its quality by cross-validation.

A reranker learns from the dev queries. Encoder and decoder were trained on the train queries, so on those the scores are better
than they will be on any new query. Knows nothing of how rerankers are applied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from dsi.docids.data.collection import Collection
from dsi.docids.files.progress import progress
from dsi.docids.types import Bools, Ints, Qrels, Reals
from dsi.eval.measures import evaluate, mean
from dsi.eval.tables import markdown_table
from dsi.store.retriever import Retriever
from dsi_experiments.rerankers.boosting import BoostedTrees, BoostingConfig
from dsi_experiments.rerankers.candidates import Candidates, Reranker, save_reranker
from dsi_experiments.rerankers.features import compute_features
from dsi_experiments.rerankers.learned import LinearReranker, RankNet, RankNetConfig
from dsi_experiments.rerankers.lists import JudgedLists, exact_weight, lambdas, split_folds
from dsi_experiments.rerankers.m2div import M2Div, M2DivConfig
from dsi_experiments.rerankers.untrained import STRATEGIES, Pyversity
from dsi_experiments.subtopics import Subtopics, read_subtopics, subtopic_labels

MEASURES = ("Hit@1", "Hit@10", "RR@10", "nDCG@10")
SMALL_TREES = {"trees": 20, "leaves": 4, "min_leaf": 50, "learning_rate": 0.05}
"""Of boosting: a few hundred queries with one relevant document each teach little."""


@dataclass(frozen=True, eq=False)
class JudgedCandidates:
    """The candidates of judged queries: what rerankers learn from."""

    candidates: Candidates
    qrels: Qrels  # {query_id: {doc_id: relevance}} of the same queries
    # {query_id: {doc_id: subtopics}}; empty where nobody judged them
    subtopics: Subtopics = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.candidates)

    def select(self, rows: Ints) -> "JudgedCandidates":
        """The candidates and judgements of some of the queries."""
        candidates = self.candidates.select(rows)
        return replace(self, candidates=candidates, qrels={q: self.qrels[q] for q in candidates.query_ids})

    @property
    def labels(self) -> Reals:
        """[n, k] relevance of the candidates; 0 where nobody judged, and at padding."""
        labels = np.zeros(self.candidates.scores.shape)
        for row, (query_id, doc_ids) in enumerate(zip(self.candidates.query_ids, self.candidates.doc_ids, strict=True)):
            labels[row, : len(doc_ids)] = [max(self.qrels[query_id].get(doc_id, 0), 0) for doc_id in doc_ids]
        return labels

    def lists(self) -> JudgedLists:
        """Features and labels of the queries with a relevant document among their candidates."""
        labels = self.labels
        rows = np.flatnonzero(labels.any(axis=1))
        if not len(rows):
            raise ValueError("No query has a relevant document among its candidates; use more candidates (k, --k).")
        valid = self.candidates.valid[rows]
        features = self.candidates.features[rows][valid].astype(np.float64)  # [documents, features]
        return JudgedLists(features, labels[rows][valid], valid.sum(axis=1).tolist(), self.candidates.names)

    def subtopic_labels(self) -> Bools:
        """[n, k, subtopics] of the candidates, as judged."""
        return subtopic_labels(self.candidates, self.subtopics)


@dataclass(frozen=True)
class FoldQuality:
    """Mean measures of queries before and after a reranker that was trained on the other folds; prints as Markdown."""

    kind: str
    queries: int  # how many were measured
    folds: int  # into which they were split
    before: Mapping[str, float]  # {measure: mean over queries} in the order that the candidates came in
    after: Mapping[str, float]  # the same, reranked

    def __str__(self) -> str:
        rows = [
            [name, *(f"{100 * value:.2f}" for value in values.values())]
            for name, values in (("before", self.before), (f"after {self.kind}", self.after))
        ]
        return markdown_table([f"{self.queries} queries, {self.folds} folds", *self.before], rows)


@dataclass(frozen=True, eq=False)
class TrainedReranker:
    """A reranker and what is known of its training."""

    kind: str
    reranker: Reranker  # trained on all queries
    queries: int
    quality: FoldQuality | None = None  # by cross-validation, if that was asked for

    def save(self, index: str | Path, name: str | None = None) -> Path:
        """Write the reranker beside the index that it was trained on; returns INDEX/rerank/NAME (by default its kind)."""
        return save_reranker(self.reranker, index, name or self.kind)


def train_reranker(
    retriever: Retriever,
    collection: Collection,
    kind: str = "lambdasmart",
    *,
    split: str = "dev",
    k: int = 50,
    folds: int = 5,
    seed: int = 0,
) -> TrainedReranker:
    """A reranker trained on an index's own answers to judged queries.

    On "train" the scores of the index are too good to learn from. `folds`: of the cross-validation that measures its
    quality; 0 leaves it out.
    """
    _trainer(kind)  # an unknown kind is refused before the work
    if kind == "m2div" and not collection.query_texts(split).keys() & judged_subtopics(collection).keys():
        raise ValueError(
            f"A reranker m2div learns which subtopics documents cover, and {collection.name} has no judgements of subtopics of "
            f"its {split} queries; add them as qrels/diversity.qrels (TREC's, `query subtopic document relevance` a line), or "
            "train another kind, such as mmr, which needs none."
        )
    judged = judge_candidates(retriever, collection, split, k)
    quality = cross_validate(judged, kind, folds, seed) if folds else None
    return TrainedReranker(kind, fit_reranker(judged, kind, seed), len(judged), quality)


def judge_candidates(retriever: Retriever, collection: Collection, split: str = "dev", k: int = 50) -> JudgedCandidates:
    """The index's k best documents for every judged query of a split, with the judgements."""
    queries = collection.query_texts(split)
    if not queries:
        raise ValueError(f"{collection.name} has no judged queries of the split {split!r} to learn from.")
    encoded = retriever.encode_queries(queries, show_progress=True)
    candidates = Candidates.from_search(retriever, encoded, k, compute_features)
    own = {query_id: collection.qrels[split][query_id] for query_id in queries}
    return JudgedCandidates(candidates, own, judged_subtopics(collection))


def judged_subtopics(collection: Collection) -> Subtopics:
    """The judgements of subtopics beside those of a collection, qrels/diversity.qrels; empty where there are none."""
    path = Path(collection.name) / "qrels" / "diversity.qrels"
    return read_subtopics(path) if path.exists() else {}


def fit_reranker(judged: JudgedCandidates, kind: str, seed: int = 0) -> Reranker:
    """A reranker of some kind, trained on judged candidates."""
    return _trainer(kind)(judged, seed)


def cross_validate(judged: JudgedCandidates, kind: str, folds: int = 5, seed: int = 0) -> FoldQuality:
    """The quality of a kind of reranker: every query is ranked by one that was trained on the other folds."""
    n, candidates = len(judged), judged.candidates
    if not 2 <= folds <= n:
        raise ValueError(f"folds must be between 2 and {n} (the judged queries), got {folds}.")
    run: dict[str, dict[str, float]] = {}
    parts = list(split_folds(n, folds, seed))
    for rest, fold in progress(parts, f"folds of {kind}", unit="fold"):
        reranker = fit_reranker(judged.select(rest), kind, seed)
        run |= reranker.rerank(candidates.select(fold)).as_run()
    before, after = (
        {measure: mean(values) for measure, values in evaluate(found, judged.qrels, MEASURES).items()}
        for found in (candidates.as_run(), run)
    )
    return FoldQuality(kind, n, folds, before, after)


def _trainer(kind: str) -> "Trainer":
    if kind not in TRAINERS:
        raise ValueError(f"No reranker {kind!r} can be trained; the kinds are {', '.join(TRAINERS)}.")
    return TRAINERS[kind]


def _ranknet(judged: JudgedCandidates, seed: int, *, weigh_by_ndcg: bool) -> Reranker:
    lists = judged.lists()
    model = RankNet(lists.names, RankNetConfig(weigh_by_ndcg=weigh_by_ndcg, seed=seed))
    model.fit(lists)
    return model


def _trees(judged: JudgedCandidates, seed: int, objective: str, *, on_score: bool = False) -> Reranker:
    lists = judged.lists()
    config = BoostingConfig(objective=objective, seed=seed, **SMALL_TREES)  # type: ignore[arg-type]
    return BoostedTrees(lists.names, config, scaled_score(lists) if on_score else None).fit(lists)


def scaled_score(lists: JudgedLists) -> LinearReranker:
    """The search's score, scaled so that the pairwise cost (RankNet's) is lowest: a base for boosting."""
    scores = lists.features[:, lists.names.index("score")]
    found = minimize_scalar(lambda factor: lambdas(lists, factor * scores, weigh_by_ndcg=False)[2], bounds=(0.0, 100.0))
    return LinearReranker({"score": float(found.x)})


def _parser(judged: JudgedCandidates, seed: int) -> Reranker:
    """Trained on the queries with a relevant candidate; a fifth of them chooses the round."""
    from dsi_experiments.rerankers.parse_ranker import ParseRanker, ParserConfig

    candidates, labels = judged.candidates, judged.labels
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(labels.any(axis=1)))
    ranker = ParseRanker.create(candidates, ParserConfig())
    held_out, own = np.split(rows, [len(rows) // 5])
    guard = (candidates.select(held_out), labels[held_out]) if len(held_out) else None
    ranker.fit(candidates.select(own), labels[own], guard, exact_weight)
    return ranker


def _m2div(judged: JudgedCandidates, seed: int) -> Reranker:
    model = M2Div.create(judged.candidates, M2DivConfig(pretrain_epochs=30, epochs=0, seed=seed))
    model.fit(judged.candidates, judged.subtopic_labels())
    return model


def _untrained(strategy: str) -> "Trainer":
    return lambda judged, seed: Pyversity(strategy)


Trainer = Callable[[JudgedCandidates, int], Reranker]
"""Trains a reranker on judged candidates, with a seed."""

TRAINERS: dict[str, Trainer] = {
    "lambdasmart": lambda judged, seed: _trees(judged, seed, "lambdamart", on_score=True),
    "lambdamart": lambda judged, seed: _trees(judged, seed, "lambdamart"),
    "mart": lambda judged, seed: _trees(judged, seed, "mart"),
    "ranknet": lambda judged, seed: _ranknet(judged, seed, weigh_by_ndcg=False),
    "lambdarank": lambda judged, seed: _ranknet(judged, seed, weigh_by_ndcg=True),
    "parser": _parser,
    "m2div": _m2div,
    **{strategy: _untrained(strategy) for strategy in STRATEGIES},
}
"""{kind: how it is trained}, the kinds of `dsi_experiments.rerankers.kinds.TRAINABLE`."""
