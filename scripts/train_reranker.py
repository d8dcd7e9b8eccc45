"""`dsi train-reranker`: a stage after the beam, trained on an index's own answers to queries with judgements.

It learns from the dev queries, because encoder and decoder have seen the train queries: on those their scores are better than
they will ever be again. What it will be worth is measured before it is saved: five folds over the same queries, each ranked by
a stage that was trained on the other four.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from docids.collection import Collection, read_collection
from dsi.config import read_config
from dsi.index import read_manifest
from dsi.rerank.boosting import BoostedTrees, BoostingConfig
from dsi.rerank.candidates import Candidates, Stage
from dsi.rerank.diversity import STRATEGIES, Bools, Pyversity, prefix_labels, subtopic_labels
from dsi.rerank.learned import FeatureStage, LinearStage, RankNet, RankNetConfig
from dsi.rerank.lists import Floats, JudgedLists, lambdas
from dsi.rerank.m2div import M2Div, M2DivConfig
from dsi.reranking import binding, load_stages, stage_folder
from dsi.retriever import GenerativeRetriever
from eval.diversity import read_subtopics
from eval.figures import shares_figure
from eval.measures import evaluate, mean
from eval.report import markdown_table
from scripts.arguments import quiet_libraries
from scripts.main import run_command
from scripts.tuning import exact_weight

FOLDS = 5
MEASURES = ("Hit@1", "Hit@10", "RR@10", "nDCG@10")
SMALL = {"trees": 20, "leaves": 4, "min_leaf": 50, "learning_rate": 0.05}
"""Of boosted trees: a few hundred queries with one relevant document each are little to learn from."""


def main(argv: Sequence[str] | None = None) -> None:
    """Collect candidates, cross-validate, train on all, save."""
    arguments = _parse(argv)
    quiet_libraries()
    stage_folder(arguments.run, arguments.name or arguments.kind)  # a bad name is said before the work
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device)
    config = read_config(arguments.run / "config.toml")
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    queries = collection.query_texts(arguments.split)
    if not queries:
        raise ValueError(f"{arguments.data} has no judged queries of the split {arguments.split!r} to learn from.")
    if arguments.kind == "m2div" and not _diversity_file(collection).exists():
        print("No qrels/diversity.qrels: the first digits of docids stand for subtopics, which is a proxy.")
    candidates = retriever.candidates(list(queries.values()), k=arguments.k)
    for before in load_stages(arguments.run, arguments.after):
        candidates = before.run(candidates)
    print(cross_validation(arguments.kind, candidates, collection, arguments.split, arguments.seed))
    stage = train(arguments.kind, candidates, collection, list(queries), arguments.split, arguments.seed)
    folder = stage_folder(arguments.run, arguments.name or arguments.kind)
    stage.save(folder, binding(read_manifest(arguments.run)))
    if arguments.figure:
        if not isinstance(stage, BoostedTrees):
            raise ValueError(f"--figure shows what trees look at; the kind {arguments.kind!r} has none.")
        title = f"What {arguments.kind} looks at"
        shares_figure(stage.importance, "share of the gain of all splits", title, arguments.figure)
    print(f"{folder}: trained on {len(queries)} queries with {arguments.k} candidates each")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi train-reranker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--data", type=Path, required=True, help="the collection it was made of")
    parser.add_argument("--kind", choices=[*KINDS, "parser", "m2div", *STRATEGIES], default="lambdasmart")
    parser.add_argument(
        "--after",
        nargs="+",
        default=[],
        metavar="NAME",
        help="stages that come before it; their features are there too",
    )
    parser.add_argument(
        "--figure", type=Path, metavar="PATH", help="of trees: what they look at, as PATH.png and PATH.svg"
    )
    parser.add_argument("--name", help="of the stage: RUN/rerank/NAME; its kind by default")
    parser.add_argument("--split", default="dev", choices=("train", "dev"))
    parser.add_argument("--k", type=int, default=50, help="candidates a query")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    return parser.parse_args(argv)


def train(
    kind: str, candidates: Candidates, collection: Collection, query_ids: Sequence[str], split: str, seed: int
) -> Stage:
    """A stage of some kind.

    Args:
        kind: what it is.
        candidates: of the queries.
        collection: whose judgements it learns from.
        query_ids: of the candidates' queries.
        split: of the judgements.
        seed: of the training.
    """
    if kind in STRATEGIES:
        return Pyversity(kind)
    if kind == "m2div":
        model = M2Div.create(candidates, M2DivConfig(pretrain_epochs=30, epochs=0, seed=seed))
        model.fit(candidates, _subtopics(candidates, collection, query_ids))
        return model
    judgements = [collection.qrels[split][query_id] for query_id in query_ids]
    if kind == "parser":
        return _parser(candidates, judgements, seed)
    return KINDS[kind](judged_lists(candidates, judgements), seed)


def judged_lists(candidates: Candidates, judgements: Sequence[dict[str, int]]) -> JudgedLists:
    """The candidates of the queries that have a relevant one, with their labels.

    Raises:
        ValueError: no query has its document among its candidates.
    """
    labels = relevance(candidates, judgements)
    rows = np.flatnonzero(labels.any(axis=1))
    if not len(rows):
        raise ValueError("No query has a relevant document among its candidates; take more of them (--k).")
    there = candidates.there[rows]
    features = candidates.features[rows][there].astype(np.float64)
    return JudgedLists(features, labels[rows][there], there.sum(axis=1).tolist(), candidates.names)


def relevance(candidates: Candidates, judgements: Sequence[dict[str, int]]) -> Floats:
    """[n, k] labels of the candidates; 0 where nobody judged, and past the end of a list."""
    labels = np.zeros(candidates.scores.shape)
    for row, (doc_ids, judged) in enumerate(zip(candidates.doc_ids, judgements, strict=True)):
        labels[row, : len(doc_ids)] = [max(judged.get(doc_id, 0), 0) for doc_id in doc_ids]
    return labels


def fused_score(lists: JudgedLists) -> LinearStage:
    """The first stage's score times the factor under which pairs are most probable (RankNet's cost): a base for boosting."""
    scores = lists.features[:, lists.names.index("score")]
    found = minimize_scalar(lambda factor: lambdas(lists, factor * scores, weigh_by_ndcg=False)[2], bounds=(0.0, 100.0))
    return LinearStage({"score": float(found.x)})


def _ranknet(lists: JudgedLists, seed: int, *, weigh_by_ndcg: bool) -> RankNet:
    model = RankNet(lists.names, RankNetConfig(weigh_by_ndcg=weigh_by_ndcg, seed=seed))
    model.fit(lists)
    return model


def _trees(lists: JudgedLists, seed: int, objective: str, *, on_base: bool = False) -> BoostedTrees:
    config = BoostingConfig(objective=objective, seed=seed, **SMALL)  # type: ignore[arg-type]
    return BoostedTrees(lists.names, config, fused_score(lists) if on_base else None).fit(lists)


def _parser(candidates: Candidates, judgements: Sequence[dict[str, int]], seed: int) -> Stage:
    """Trained on the lists that have a relevant candidate; a fifth of them chooses the round."""
    from dsi.rerank.parse_ranker import ParseRanker, ParserConfig

    labels = relevance(candidates, judgements)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(labels.any(axis=1)))
    ranker = ParseRanker.create(candidates, ParserConfig())
    held_out, own = np.split(rows, [len(rows) // 5])
    guard = (candidates.select(held_out), labels[held_out]) if len(held_out) else None
    ranker.fit(candidates.select(own), labels[own], guard, exact_weight)
    return ranker


KINDS: dict[str, Callable[[JudgedLists, int], FeatureStage]] = {
    "ranknet": lambda lists, seed: _ranknet(lists, seed, weigh_by_ndcg=False),
    "lambdarank": lambda lists, seed: _ranknet(lists, seed, weigh_by_ndcg=True),
    "mart": lambda lists, seed: _trees(lists, seed, "mart"),
    "lambdamart": lambda lists, seed: _trees(lists, seed, "lambdamart"),
    "lambdasmart": lambda lists, seed: _trees(lists, seed, "lambdamart", on_base=True),
}


def _subtopics(candidates: Candidates, collection: Collection, query_ids: Sequence[str]) -> Bools:
    """From the collection's qrels/diversity.qrels, or from the first digit of docids where nobody judged."""
    path = _diversity_file(collection)
    if not path.exists():
        return prefix_labels(candidates)
    judged = read_subtopics(path)
    return subtopic_labels(
        candidates, {text: judged.get(q, {}) for text, q in zip(candidates.queries, query_ids, strict=True)}
    )


def _diversity_file(collection: Collection) -> Path:
    return collection.folder / "qrels" / "diversity.qrels"


def cross_validation(kind: str, candidates: Candidates, collection: Collection, split: str, seed: int) -> str:
    """Measures of queries before and after a stage that was trained on the others, as Markdown."""
    qrels = collection.qrels[split]
    query_ids = list(qrels)
    before, after = candidates.as_run(query_ids), dict[str, dict[str, float]]()
    for fold in np.array_split(np.random.default_rng(seed).permutation(len(query_ids)), FOLDS):
        rest = np.setdiff1d(np.arange(len(query_ids)), fold)
        ids = [query_ids[row] for row in rest]
        stage = train(kind, candidates.select(rest), collection, ids, split, seed)
        own = candidates.select(fold)
        after |= own.reordered(stage.rerank(own)).as_run([query_ids[row] for row in fold])
    rows = []
    for name, run in (("before", before), (f"after {kind}", after)):
        values = evaluate(run, qrels, MEASURES)
        rows.append([name, *(f"{100 * mean(values[m]):.2f}" for m in MEASURES)])
    return markdown_table([f"{len(query_ids)} {split} queries, {FOLDS} folds", *MEASURES], rows)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
