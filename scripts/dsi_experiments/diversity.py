"""`dsi reproduce diversity`: lists that cover subtopics, on a folder with `bm25.run` and `qrels/diversity.qrels`.

Candidates are BM25's first thirty; vectors are a latent semantic analysis of the collection (width 50). Five-fold
cross-validation over the queries: rerankers are trained, and the strength of MMR and MSD is chosen, on the other four folds.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from dsi.docids.data.collection import read_documents, read_queries
from dsi.docids.types import Reals
from dsi.eval.measures import mean
from dsi.eval.tables import markdown_table
from dsi.eval.trec import read_run
from dsi_experiments.report import save_report
from dsi_experiments.rerankers.candidates import Candidates, Reranker
from dsi_experiments.rerankers.lists import split_folds
from dsi_experiments.rerankers.m2div import M2Div, M2DivConfig
from dsi_experiments.rerankers.untrained import Pyversity
from dsi_experiments.subtopics import DIVERSITY_MEASURES, Subtopics, evaluate_diversity, read_subtopics, subtopic_labels

FOLDS, DEPTH, WIDTH = 5, 30, 50
RANKING_SIMULATIONS = 200
STRENGTHS = tuple(np.linspace(0.1, 0.9, 9).round(1).tolist())
TUNED_FOR = "alpha_nDCG@5"

Values = dict[str, dict[str, float]]
Make = Callable[[Candidates, Subtopics, int], Reranker]
"""Trains a reranker on candidates whose subtopics are known, with a seed."""


class Unchanged(Reranker):
    """Keeps the order of the candidates."""

    kind = "unchanged"

    def score(self, candidates: Candidates) -> Reals:
        """The candidates' own scores."""
        return candidates.scores


def _tuned(strategy: str) -> Make:
    def make(train: Candidates, subtopics: Subtopics, seed: int) -> Reranker:
        rerankers = [Pyversity(strategy, strength) for strength in STRENGTHS]
        return max(rerankers, key=lambda own: mean(measure(own, train, subtopics, [TUNED_FOR])[TUNED_FOR]))

    return make


def _m2div(**settings: Any) -> Make:
    def make(train: Candidates, subtopics: Subtopics, seed: int) -> Reranker:
        model = M2Div.create(train, M2DivConfig(seed=seed, **settings))
        model.fit(train, subtopic_labels(train, subtopics))
        return model

    return make


SYSTEMS: Mapping[str, Make] = {
    "BM25's order": lambda *_: Unchanged(),
    "MMR, tuned": _tuned("mmr"),
    "MSD, tuned": _tuned("msd"),
    "DPP": lambda *_: Pyversity("dpp"),
    "SSD": lambda *_: Pyversity("ssd"),
    "COVER": lambda *_: Pyversity("cover"),
    "the network, REINFORCE (60 epochs)": _m2div(teacher="reinforce", epochs=60),
    "M2Div, K = 200, policy alone": _m2div(simulations=200),
    "the network, oracle imitation (30 epochs)": _m2div(pretrain_epochs=30, epochs=0),
    "M2Div, K = 200, after oracle imitation": _m2div(pretrain_epochs=30, simulations=200, epochs=6),
    "M2Div, K = 1000, policy alone": _m2div(simulations=1000, exploration=1.0, epochs=8),
}
SEARCHED = {"M2Div, K = 1000, policy alone": "M2Div, K = 1000, search when ranking (K = 200)"}
"""Systems that are also measured with search when ranking: {system: name of that row}."""


def read_candidates(folder: Path) -> tuple[Candidates, dict[str, dict[str, list[str]]]]:
    """The first candidates of every query, and {query_id: {doc_id: subtopics}}."""
    documents = {record["doc_id"]: record for record in read_documents(folder)}
    run = read_run(folder / "bm25.run")
    texts = read_queries(folder)
    ranked = {q: sorted(run[q], key=lambda doc_id: -run[q][doc_id])[:DEPTH] for q in run}
    words = TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=2)
    counts = words.fit_transform(f"{record['title']} {record['text']}" for record in documents.values())
    analysis = TruncatedSVD(WIDTH, random_state=0).fit(counts)
    vectors = dict(zip(documents, normalize(analysis.transform(counts)), strict=True))
    queries = normalize(analysis.transform(words.transform([texts[q] for q in run])))
    shape = (len(run), DEPTH)
    scores, embeddings = np.full(shape, -np.inf), np.zeros((*shape, WIDTH))
    for row, (q, own) in enumerate(ranked.items()):
        scores[row, : len(own)] = [run[q][doc_id] for doc_id in own]
        embeddings[row, : len(own)] = [vectors[doc_id] for doc_id in own]
    titles = [[documents[doc_id]["title"] for doc_id in own] for own in ranked.values()]
    candidates = Candidates(
        queries=[texts[q] for q in run],
        doc_ids=list(ranked.values()),
        titles=titles,
        scores=scores,
        query_embeddings=queries,
        embeddings=embeddings,
        features=np.zeros((*shape, 0)),
        query_ids=list(run),
    )
    judged = read_subtopics(folder / "qrels" / "diversity.qrels")
    return candidates, {q: {d: s for d, s in judged[q].items() if d in set(ranked[q])} for q in run}


def measure(reranker: Reranker, candidates: Candidates, subtopics: Subtopics, measures: Sequence[str]) -> Values:
    """{measure: {query_id: value}} of the reranked candidates."""
    run = reranker.rerank(candidates).as_run()
    placed = {q: {d: -float(n) for n, d in enumerate(own)} for q, own in run.items()}  # ties keep their order
    return evaluate_diversity(placed, {q: subtopics[q] for q in run}, measures)


def cross_validate(candidates: Candidates, subtopics: Subtopics, make: Make, seed: int) -> tuple[Values, Values]:
    """Values of all queries, each by a reranker trained on the other folds; and the same with search when ranking."""
    plain: Values = {name: {} for name in DIVERSITY_MEASURES}
    searched: Values = {name: {} for name in DIVERSITY_MEASURES}
    for rest, fold in split_folds(len(candidates.queries), FOLDS, seed):
        train, test = candidates.select(rest), candidates.select(fold)
        reranker = make(train, subtopics, seed)
        variants = [(plain, reranker)]
        if isinstance(reranker, M2Div) and reranker.config.exploration == 1.0:
            variants.append((searched, reranker.with_search(RANKING_SIMULATIONS)))
        for found, own in variants:
            for name, values in measure(own, test, subtopics, list(found)).items():
                found[name] |= values
    return plain, searched


def diversity(folder: Path, output: Path, seeds: list[int]) -> str:
    """Measure all systems; writes diversity.json and diversity.md."""
    candidates, subtopics = read_candidates(folder)
    found: dict[str, list[dict[str, float]]] = {}
    for name, make in SYSTEMS.items():
        trained = name.startswith(("M2Div", "the network"))
        for seed in seeds if trained else seeds[:1]:
            plain, searched = cross_validate(candidates, subtopics, make, seed)
            for row, values in ((name, plain), (SEARCHED.get(name, ""), searched)):
                if row:
                    found.setdefault(row, []).append({m: mean(own) for m, own in values.items()})
            print(f"diversity, seed {seed}: {name} {found[name][-1][TUNED_FOR]:.4f}", flush=True)
        text = diversity_table(found, len(candidates.queries))
        save_report(output, "diversity", text, {"seeds": seeds, "measures": found})
    return text


def diversity_table(found: Mapping[str, Sequence[Mapping[str, float]]], queries: int) -> str:
    """A Markdown row a system: mean ± standard deviation over seeds."""
    rows = []
    for name, seeds in found.items():
        cells = []
        for m in DIVERSITY_MEASURES:
            own = [values[m] for values in seeds]
            cells.append(f"{np.mean(own):.3f}" + (f" ± {np.std(own, ddof=1):.3f}" if len(own) > 1 else ""))
        rows.append([name, *cells])
    return markdown_table([f"{queries} queries, {FOLDS} folds", *DIVERSITY_MEASURES], rows)
