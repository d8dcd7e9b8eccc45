"""What train queries teach: the forms of `query_forms` and the linear tree, each on top of the whole score of an index.

`dsi reproduce queries`. "Today" is `dsi train` as it is, with memory. The forms stand on the same index without memory, trained
without the contest's own dev queries, of which half ask for documents without a train query. Candidates of a query are the
first of dense search with words and of the forms; weights and variants come from the library's conditional logit on dev.
Everything that is chosen is written down before a judgement of test is read.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from dsi.config import Config
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.data.dev_queries import cut_dev
from dsi.docids.files.storage import digest, write_json, write_text
from dsi.docids.query_memory import Spread, normalised
from dsi.docids.types import Bools, Floats, Ints, Qrels
from dsi.eval.measures import evaluate
from dsi.measuring.provenance import provenance
from dsi.measuring.runs import language_of
from dsi.search.queries import EncodedQueries
from dsi.search.request import LEXICAL_WEIGHT, MEMORY_WEIGHT, TOKEN_WEIGHT, SearchRequest
from dsi.search.vector_search import VectorEngine
from dsi.store.retriever import Retriever, load
from dsi_experiments.linear_tree import TreeSettings, floored, train_tree
from dsi_experiments.query_forms import FORMS, ON_FEATURES, Asked, Features, Lesson, averaged_places
from dsi_experiments.query_table import TODAY, WHOLE, contest_table
from dsi_experiments.shared_runs import SharedRun

Doubles = NDArray[np.float64]
MEASURES = ("nDCG@10", "Hit@1", "Hit@10")
POOL, OWN_POOL, CUT = 200, 50, 10
"""Candidates of a query by dense search with words, and by each form; answers that are measured."""
MOST_TEST = 2_000
"""Test queries, at most, drawn at random."""
FLOORS = (3.0, 1.5, 6.0, 12.0)
BASE = {"dense": 1.0, "words": LEXICAL_WEIGHT, "tokens": TOKEN_WEIGHT}
"""Parts of the whole score, and the weights near which tuned ones stay."""
Parts: TypeAlias = dict[str, dict[str, Floats]]
"""{part or form: {variant: [queries, n] its scores}}."""
TREE, ALONE, BY_MARGIN = "linear tree", "linear tree alone", ", by margin"
TREES = {
    "averaged, beam 3": (True, TreeSettings(beam=3)),
    "averaged, siblings": (True, TreeSettings()),
    "documents, beam 3": (False, TreeSettings(beam=3)),
    "documents, siblings": (False, TreeSettings()),
}
"""Trees that are compared: whether documents are averaged with their queries before they are clustered, and the settings."""
UNBOUND = "documents, siblings, floor 12.0"
"""The tree that is measured alone: of documents, as in PECOS and Parabel, with hardly a floor."""
COMBINED = {
    "joined and averaged": ("joined texts", "averaged vectors"),
    "joined, averaged, memory": ("joined texts", "averaged vectors", "memory"),
    "joined, averaged, nearest": ("joined texts", "averaged vectors", "nearest queries"),
    "joined, averaged, memory, nearest": ("joined texts", "averaged vectors", "memory", "nearest queries"),
    "joined, averaged, flat": ("joined texts", "averaged vectors", "flat classifier"),
    "joined, averaged, tree": ("joined texts", "averaged vectors", TREE),
    "joined, averaged, memory, nearest, tree": ("joined texts", "averaged vectors", "memory", "nearest queries", TREE),
}
"""Forms that are weighted together, in the order in which their variants are chosen."""


def contest_collection(collection: Collection, dev_queries: int, seed: int) -> Collection:
    """Return the collection with dev queries of which half ask for documents without a train query, unless it has dev queries.

    Test judgements are not read.
    """
    train, dev = collection.qrels["train"], collection.qrels["dev"]
    if not _has_dev(collection):
        known = {
            query_id: {doc_id: grade for doc_id, grade in judged.items() if doc_id in collection.rows}
            for query_id, judged in {**train, **dev}.items()
        }
        train, dev = cut_dev(known, dev_queries, 0.5, seed)
    test = collection.qrels["test"]
    drawn = set(random.Random(seed).sample(sorted(test), min(MOST_TEST, len(test))))
    return replace(
        collection,
        qrels={
            "train": train,
            "dev": dev,
            "test": {query_id: test[query_id] for query_id in test if query_id in drawn},
        },
        versions=[*collection.versions, digest(sorted(dev))],
    )


def _has_dev(collection: Collection) -> bool:
    return (Path(collection.name) / "qrels" / "dev.tsv").exists()


def lesson_of(collection: Collection, retriever: Retriever, work: Path) -> Lesson:
    """Return what the forms learn from: documents as the index has them, and the train pairs."""
    index, texts = retriever.snapshot, collection.full_texts()[:]
    tree, rows_of = index.tree, index.documents.rows
    order = tree.by_row
    costs = np.zeros(len(order), np.float32) if tree.place_costs is None else tree.place_costs[order]
    seen: dict[tuple[str, int], int] = {}
    for query_id, row in collection.pairs("train"):
        pair = collection.queries[query_id], row
        seen[pair] = seen.get(pair, 0) + 1
    queries = list(dict.fromkeys(query for query, _ in seen))
    number = {query: at for at, query in enumerate(queries)}
    doc_ids = collection.documents["doc_id"][:]
    rows = [rows_of[doc_ids[row]] for _, row in seen]
    texts = [texts[collection.rows[doc_id]] for doc_id in rows_of]
    pairs = np.array([[number[query], row] for (query, _), row in zip(seen, rows, strict=True)])
    return Lesson(
        texts, normalised(np.asarray(tree.embeddings[order], dtype=np.float32)), tree.doc_rows[order], costs, queries,
        _embed(retriever, queries, work), pairs, np.array(list(seen.values())), Spread.from_tree(tree).cosine,
        language_of(retriever),
    )  # fmt: skip


def _embed(retriever: Retriever, queries: Sequence[str], work: Path) -> Floats:
    """[queries, dim] of length 1, kept in a file of `work`."""
    encoder, path = retriever.snapshot.encoder, work / f"queries-{digest(list(queries))[:16]}.npy"
    if not path.exists():
        np.save(path, normalised(encoder.encode(encoder.query_texts(list(queries)), "query")))
    return np.asarray(np.load(path), dtype=np.float32)


class Judged(NamedTuple):
    """Queries with candidates.

    Attributes:
        query_ids: of them.
        cosines: [queries] of the nearest train query.
        rows: [queries, n] candidates by the rows of the index; -1 past the end.
        parts: {part or form: {variant: [queries, n] its scores}}.
    """

    query_ids: list[str]
    cosines: Floats
    rows: Ints
    parts: Parts

    def matrix(self, chosen: Mapping[str, str]) -> Floats:
        """[queries, n, parts] scores of the parts of the whole score, then of the chosen variants of forms."""
        own = [self.parts[name][""] for name in BASE]
        own += [self.parts[form][variant] for form, variant in chosen.items()]
        return np.stack(own, axis=2)


def candidates(
    collection: Collection, retriever: Retriever, splits: Sequence[str], work: Path, seeds: Sequence[int]
) -> tuple[dict[str, Judged], dict[str, float]]:
    """Return the candidates of splits' queries with all scores, and the seconds of forms; their judgements are not read."""
    lesson = lesson_of(collection, retriever, work)
    texts = {split: collection.query_texts(split) for split in splits}
    asked_texts = [text for own in texts.values() for text in own.values()]
    encoded, seconds = retriever.encode_queries(asked_texts), dict[str, float]()
    asked = Asked(asked_texts, normalised(encoded.embeddings))
    lexical = retriever.snapshot.lexical
    assert lexical is not None
    words, features = lexical.shares(asked_texts), Features.of(lesson, asked)
    first = _top(lesson.dense(asked.vectors) + LEXICAL_WEIGHT * words, POOL)
    found = [first, *(_top(scores, OWN_POOL) for scores in _firsts(lesson, asked, features, work))]
    rows = _union(found)
    parts, near = _whole_score(retriever, encoded, rows), (asked.vectors @ lesson.vectors.T).max(axis=1)
    for form, variant, scores in _all_forms(lesson, asked, features, work, seeds, seconds):
        parts.setdefault(form, {})[variant] = _gather(scores, rows)
    parts = with_margins(parts, rows, near)
    starts = np.cumsum([0, *(len(own) for own in texts.values())])
    judged = {}
    for split, start, stop in zip(splits, starts, starts[1:], strict=False):
        own = {name: {key: values[start:stop] for key, values in each.items()} for name, each in parts.items()}
        judged[split] = Judged(list(texts[split]), near[start:stop], rows[start:stop], own)
    return judged, seconds


def with_margins(parts: Parts, rows: Ints, near: Floats) -> Parts:
    """Return the parts with every variant of a form also times how much nearer a train query is than the nearest document.

    BM25 over joined texts becomes what they add to BM25.
    """
    dense = np.where(rows >= 0, parts["dense"][""], -np.inf).max(axis=1)
    margin = np.maximum(near - dense, 0)[:, None]
    found: Parts = {name: own for name, own in parts.items() if name in BASE}
    for form in parts.keys() - BASE.keys():
        own = {
            variant: scores - parts["words"][""] if variant.startswith("joined") else scores
            for variant, scores in parts[form].items()
        }
        found[form] = own | {f"{variant}{BY_MARGIN}": scores * margin for variant, scores in own.items()}
    return found


def _firsts(lesson: Lesson, asked: Asked, features: Features, work: Path) -> Iterator[Floats]:
    """Yield the first variant of each form that brings candidates in."""
    for form in FORMS.values():
        yield next(iter(form(lesson, asked)))[1]
    yield next(iter(ON_FEATURES["nearest queries"](lesson, features)))[1]
    yield tree_scores(lesson, asked, features, "averaged, beam 3", 0, work)


def _all_forms(
    lesson: Lesson, asked: Asked, features: Features, work: Path, seeds: Sequence[int], seconds: dict[str, float]
) -> Iterator[tuple[str, str, Floats]]:
    forms = {name: form(lesson, asked) for name, form in FORMS.items()}
    forms |= {name: form(lesson, features) for name, form in ON_FEATURES.items()}
    for name, variants in forms.items():
        started = time.perf_counter()
        for variant, scores in variants:
            yield name, variant, scores
        seconds[name] = round(time.perf_counter() - started, 1)
    for name in TREES:
        for seed in seeds:
            scores = tree_scores(lesson, asked, features, name, seed, work)
            for floor in FLOORS:
                yield f"{TREE}, seed {seed}", f"{name}, floor {floor}", floored(scores, floor)


def tree_scores(lesson: Lesson, asked: Asked, features: Features, name: str, seed: int, work: Path) -> Floats:
    """[queries, documents] log P of a tree, kept in a file of `work`, with what it took."""
    path = work / f"{digest([name, seed, asked.texts, lesson.queries])[:16]}.npy"
    if path.exists():
        return np.asarray(np.load(path), dtype=np.float32)
    started, (is_averaged, settings) = time.perf_counter(), TREES[name]
    places = averaged_places(lesson, 1.0, 2.0, centred=False) if is_averaged else lesson.places
    starts = np.flatnonzero(np.diff(lesson.rows, prepend=-1))
    points = normalised(np.add.reduceat(places, starts, axis=0))
    examples, queries = features.joined()
    tree = train_tree(examples, lesson.labels, queries, points, len(lesson.queries), replace(settings, seed=seed))
    np.save(path, tree.log_probs.astype(np.float16))
    took = {"tree": name, "seed": seed, "seconds": round(time.perf_counter() - started, 1)}
    write_json(path.with_suffix(".json"), {**took, "weights": tree.weights, "nodes": tree.nodes})
    return tree.log_probs


def _top(scores: Floats, count: int) -> Ints:
    """[queries, count] the documents with the highest scores."""
    return np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]


def _union(found: Sequence[Ints]) -> Ints:
    """[queries, n] all documents of a query, each once; -1 past the end."""
    own = [np.unique(rows) for rows in np.concatenate(found, axis=1)]
    rows = np.full((len(own), max(map(len, own))), -1)
    for line, documents in zip(rows, own, strict=True):
        line[: len(documents)] = documents
    return rows


def _gather(scores: Floats, rows: Ints) -> Floats:
    return np.take_along_axis(scores, np.maximum(rows, 0), axis=1)


def _whole_score(retriever: Retriever, encoded: EncodedQueries, rows: Ints) -> Parts:
    """Return the parts of the index's score without memory, of candidates [queries, n]."""
    engine = retriever.snapshot.engine
    assert isinstance(engine, VectorEngine)
    config = replace(retriever.search_config, lexical_weight=1.0, token_weight=1.0, memory_weight=0.0)
    parts = {name: np.zeros(rows.shape, np.float32) for name in BASE}
    for batch in encoded.batches:
        scores = engine.document_scores(batch, SearchRequest(CUT, config))
        whole = engine.tree.num_places < 8 * rows.shape[1]
        of_all = scores.late_interaction_of_all(slice(None)) if whole else None
        for own, line in enumerate(batch.numbers.tolist()):
            known = rows[line][rows[line] >= 0]
            places, dense = scores.dense(own, known)
            late = scores.late_interaction(own, places) if of_all is None else of_all[own, places]
            for name, values in zip(BASE, (dense, scores.lexical_scores(own, known), late), strict=True):
                parts[name][line, : len(known)] = values
    return {name: {"": values} for name, values in parts.items()}


# Weights and measures.


class Problem(NamedTuple):
    """Candidates whose relevant ones are known: the conditional logit of `dsi.eval.fusion`, over arrays.

    Attributes:
        scores: [queries, n, parts].
        others: [queries, n] True at candidates that are not relevant.
        shares: [queries, n] of the relevant ones, which sum to 1.
    """

    scores: Floats
    others: Bools
    shares: Doubles

    @classmethod
    def of(cls, scores: Floats, rows: Ints, grades: Doubles) -> "Problem":
        """Return the problem of the queries that have relevant candidates and others."""
        relevant, others = (grades > 0) & (rows >= 0), (grades <= 0) & (rows >= 0)
        says = relevant.any(axis=1) & others.any(axis=1)
        shares = np.where(relevant, grades, 0) / np.maximum(1, np.where(relevant, grades, 0).sum(axis=1))[:, None]
        return cls(scores[says], others[says], shares[says])

    def select(self, which: Bools | Ints) -> "Problem":
        """Return some of the queries."""
        return Problem(self.scores[which], self.others[which], self.shares[which])

    def loss(self, weights: Doubles) -> tuple[float, Doubles]:
        """Return the negative log-likelihood of the relevant candidates, and its slope."""
        values = self.scores @ weights.astype(np.float32)
        chances = np.where(self.others, values, -np.inf)
        highest = chances.max(axis=1, keepdims=True)
        chances = np.exp(chances - highest)
        sums = chances.sum(axis=1, keepdims=True)
        relevant = np.nonzero(self.shares)
        behind = (highest + np.log(sums))[relevant[0], 0].astype(np.float64) - values[relevant]
        missing = self.shares[relevant] * expit(behind)
        pull = np.bincount(relevant[0], missing, len(values))[:, None] / sums * chances
        pull[relevant] -= missing
        slope = pull.ravel() @ self.scores.reshape(-1, len(weights))
        return float(self.shares[relevant] @ np.logaddexp(0, behind)), slope.astype(np.float64)


_ENOUGH = {"ftol": 1e-6}
"""What ends a fit: a smaller gain of the likelihood."""


def fit(problem: Problem, start: Sequence[float]) -> Doubles:
    """Return weights, as `dsi.eval.fusion.fit_weights` fits them, not divided by the first; `start`: of all parts."""
    kept = problem.others | (problem.shares > 0)
    spread = np.mean([own[which].std(axis=0) for own, which in zip(problem.scores, kept, strict=True)], axis=0)
    scale = 1 / np.where(spread < 1e-9, 1.0, spread)
    likely = np.array(start) / scale

    def along(rate: Doubles) -> tuple[float, Doubles]:
        value, slope = problem.loss(rate * likely * scale)
        return value, np.array([slope @ (likely * scale)])

    one = 1 / likely.sum()
    centre = minimize(along, [one], jac=True, bounds=[(0.1 * one, None)], method="L-BFGS-B", options=_ENOUGH).x * likely

    def penalised(coefficients: Doubles) -> tuple[float, Doubles]:
        value, slope = problem.loss(coefficients * scale)
        away = coefficients - centre
        return value + float(away @ away), slope * scale + 2 * away

    bounds = [(0.1 * centre[0], None), *[(0.0, None)] * (len(start) - 1)]
    return np.asarray(
        minimize(penalised, centre, jac=True, bounds=bounds, method="L-BFGS-B", options=_ENOUGH).x * scale
    )


def measures(rows: Ints, scores: Doubles, grades: Doubles, ideal: Doubles) -> Doubles:
    """[3, queries] nDCG@10, Hit@1, Hit@10; of equal scores the first row counts."""
    order = np.argsort(np.where(rows >= 0, -scores, np.inf), axis=1, kind="stable")[:, :CUT]
    gains = np.take_along_axis(np.where(rows >= 0, np.maximum(grades, 0), 0), order, axis=1)
    discount = 1 / np.log2(np.arange(gains.shape[1]) + 2)
    return np.stack([gains @ discount / np.maximum(ideal, 1e-9), gains[:, 0] > 0, gains.any(axis=1)])


def judge(collection: Collection, retriever: Retriever, split: str, own: Judged) -> tuple[Doubles, Doubles]:
    """[queries, n] grades of candidates, and [queries] the discounted gain of the best order of all that are judged."""
    doc_ids = list(retriever.snapshot.documents.rows)
    grades, ideal = np.zeros(own.rows.shape), np.zeros(len(own.rows))
    for line, query_id in enumerate(own.query_ids):
        judged = collection.qrels[split][query_id]
        grades[line] = [judged.get(doc_ids[row], 0) if row >= 0 else 0 for row in own.rows[line]]
        best = np.array(sorted(judged.values(), reverse=True)[:CUT]).clip(0)
        ideal[line] = best @ (1 / np.log2(np.arange(len(best)) + 2))
    return grades, ideal


def taught_counts(qrels: Qrels, train: Qrels, query_ids: Sequence[str]) -> Ints:
    """[queries] train queries of the relevant document that has most of them."""
    counts: dict[str, int] = {}
    for judged in train.values():
        for doc_id, grade in judged.items():
            counts[doc_id] = counts.get(doc_id, 0) + (grade > 0)
    relevant = [[doc_id for doc_id, grade in qrels[query_id].items() if grade > 0] for query_id in query_ids]
    return np.array([max((counts.get(doc_id, 0) for doc_id in own), default=0) for own in relevant])


# The contest.


class Choice(NamedTuple):
    """What dev chose for a row of the table.

    Attributes:
        variants: {form: variant}.
        weights: of dense, words, tokens and the variants.
        share: of the likeliest weights of the variants that they are, so that untaught queries do not lose.
        loss: mean negative log-likelihood of dev queries.
    """

    variants: dict[str, str]
    weights: list[float]
    share: float
    loss: float


AS_IT_IS = "memory as it is"
_TODAYS = {"memory": "(g s)^2, temperature 0.2"}
_FEW = 3
"""Variants of a form, best alone first, that a combination chooses from."""
_LOSS = 0.5
"""Points of nDCG@10 that untaught dev queries may lose beside the memory as it is."""
_SHRINKING = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


class Chooser:
    """Chooses variants and weights on dev queries.

    Args:
        own: the dev queries.
        grades: [queries, n] of their candidates.
        ideal: [queries] discounted gain of the best order.
        untaught: [queries] True where no answer has a train query.
    """

    def __init__(self, own: Judged, grades: Doubles, ideal: Doubles, untaught: Bools) -> None:
        self._own, self._grades, self._ideal, self._untaught = own, grades, ideal, untaught
        self._least = -np.inf
        self._least = self._of_untaught(_TODAYS, self.weights(_TODAYS)[0]) - _LOSS

    def weights(self, variants: Mapping[str, str]) -> tuple[Doubles, float]:
        """Return the weights of the whole score's parts and of variants, and the negative log-likelihood under them."""
        posed = self._problem(variants)
        weights = fit(posed, [*BASE.values(), *[MEMORY_WEIGHT if variants == _TODAYS else 0.0] * len(variants)])
        return weights, posed.loss(weights)[0]

    def _problem(self, variants: Mapping[str, str]) -> Problem:
        return Problem.of(self._own.matrix(variants), self._own.rows, self._grades)

    def _of_untaught(self, variants: Mapping[str, str], weights: Doubles) -> float:
        """Return nDCG@10 of untaught queries; 100 without any."""
        values = measures(self._own.rows, self._own.matrix(variants) @ weights, self._grades, self._ideal)[0]
        return 100 * float(values[self._untaught].mean()) if self._untaught.any() else 100.0

    def choose(self, variants: Mapping[str, str]) -> Choice:
        """Return the weights; all that was learned counts less, in steps, until untaught queries lose no more than they may."""
        weights, _ = self.weights(variants)
        for share in _SHRINKING:
            cautious = weights * np.where(np.arange(len(weights)) < len(BASE), 1, share)
            if self._of_untaught(variants, cautious) >= self._least:
                break
        loss = self._problem(variants).loss(cautious)[0] / len(self._grades)
        return Choice(dict(variants), (cautious / cautious[0]).tolist(), share, loss)

    def table(self, seed: int = 0) -> dict[str, Choice]:
        """Return what is chosen for each row of the table."""
        tree, best = f"{TREE}, seed {seed}", dict[str, list[str]]()
        found = {WHOLE: self.choose({}), AS_IT_IS: self.choose(_TODAYS)}
        for form in [*FORMS, *ON_FEATURES, tree]:
            order = {variant: self.weights({form: variant})[1] for variant in self._own.parts[form]}
            best[form] = sorted(order, key=lambda variant: order[variant])[:_FEW]
            found[form.replace(tree, TREE)] = self.choose({form: best[form][0]})
        for name, forms in COMBINED.items():
            variants: dict[str, str] = {}
            for form in (tree if form == TREE else form for form in forms):
                longer = [{**variants, form: variant} for variant in best[form]]
                variants = min(longer, key=lambda own: self.weights(own)[1])
            found[name] = self.choose(variants)
        return found


BANDS = {"0": (0, 0), "1": (1, 1), "2-3": (2, 3), "4-9": (4, 9), "10-19": (10, 19), "20+": (20, 10**9)}
"""Train queries of an answer, as the curve has them."""
NEAR = {"below .6": (-1.0, 0.6), ".6 to .8": (0.6, 0.8), "above .8": (0.8, 1.01)}
"""Cosine of the nearest train query."""


def reproduce(data: Path, output: Path, seeds: Sequence[int], config: Config | None = None) -> str:
    """Train today's index and the forms' in OUTPUT, tune, write what was chosen, then measure on test; return the table."""
    config = config or Config()
    collection = read_collection(data, dev_queries=config.dev_queries, seed=config.seed)
    (output / "work").mkdir(parents=True, exist_ok=True)
    own = contest_collection(collection, config.dev_queries, config.seed)
    without = config.with_changes({"dev_queries": 0, "memory": {"train_queries": False}})
    today, base = _train(output, TODAY, collection, config), _train(output, "base", own, without)
    judged, seconds = candidates(own, base, ["dev", "test"], output / "work", seeds)
    untaught = taught_counts(own.qrels["dev"], own.qrels["train"], judged["dev"].query_ids) == 0
    chooser = Chooser(judged["dev"], *judge(own, base, "dev", judged["dev"]), untaught)
    choices = {seed: chooser.table(seed) for seed in seeds}
    cheaper = min((name for name in choices[seeds[0]] if "tree" not in name), key=lambda n: choices[seeds[0]][n].loss)
    settings = {str(seed): {name: choice._asdict() for name, choice in own.items()} for seed, own in choices.items()}
    chosen = {"today": vars(today.search_config), "best cheaper form": cheaper, "by seed": settings}
    write_json(output / "settings.json", chosen)
    record = _measure(own, base, judged["test"], choices, _today(today, own))
    record |= {"cheaper": cheaper, "settings": chosen, "seconds": seconds, **provenance()}
    write_json(output / "queries.json", record)
    table = contest_table(record)
    write_text(output / "queries.md", table + "\n")
    return table


def _train(output: Path, name: str, collection: Collection, config: Config) -> Retriever:
    """Train an index as `dsi train` does; documents are encoded once for all."""
    SharedRun(output / name, collection, config, store=output / "store").train()
    return load(output / name)


def _today(retriever: Retriever, collection: Collection) -> Doubles:
    """[3, test queries] nDCG@10, Hit@1, Hit@10 of today's index, as it searches by default."""
    queries, qrels = collection.query_texts("test"), collection.qrels["test"]
    encoded, index = retriever.encode_queries(queries), retriever.snapshot
    run = index.as_run(encoded.query_ids, index.engine.search(encoded, SearchRequest(CUT, index.search_config)))
    values = evaluate(run, {query_id: qrels[query_id] for query_id in queries}, MEASURES)
    return np.array([[own[query_id] for query_id in queries] for own in values.values()])


def _measure(
    collection: Collection,
    retriever: Retriever,
    test: Judged,
    choices: Mapping[int, Mapping[str, Choice]],
    today: Doubles,
) -> dict[str, Any]:
    """Return what each row has on test, in all and by kinds of queries; of several seeds the mean."""
    grades, ideal = judge(collection, retriever, "test", test)
    values = {TODAY: today}
    for name in next(iter(choices.values())):
        found = []
        for own in choices.values():
            scores = test.matrix(own[name].variants) @ np.array(own[name].weights)
            found.append(measures(test.rows, scores, grades, ideal))
        values[name] = np.mean(found, axis=0)
    alone = [
        measures(test.rows, np.asarray(test.parts[f"{TREE}, seed {seed}"][UNBOUND], np.float64), grades, ideal)
        for seed in choices
    ]
    values[ALONE] = np.mean(alone, axis=0)
    counts = taught_counts(collection.qrels["test"], collection.qrels["train"], test.query_ids)
    kinds = {"all": counts >= 0, "taught": counts > 0, "untaught": counts == 0}
    kinds |= {f"nearest {name}": (test.cosines >= low) & (test.cosines < high) for name, (low, high) in NEAR.items()}
    kinds |= {f"answers with {name}": (counts >= low) & (counts <= high) for name, (low, high) in BANDS.items()}
    cheaper = min(
        (own for own in choices[min(choices)] if "tree" not in own), key=lambda n: choices[min(choices)][n].loss
    )
    references = {TODAY: today, WHOLE: values[WHOLE], "cheaper": values[cheaper]}
    rows = {
        name: {kind: _summary(own[:, which], {n: r[:, which] for n, r in references.items()})
               for kind, which in kinds.items() if which.any()}
        for name, own in values.items()
    }  # fmt: skip
    return {"collection": Path(collection.name).name, "documents": len(collection.documents), "rows": rows}


def _summary(own: Doubles, references: Mapping[str, Doubles]) -> dict[str, Any]:
    """Return the means of a row over some queries, and its paired differences with 95 % intervals, in points."""
    summary: dict[str, Any] = {
        "queries": own.shape[1],
        **dict(zip(MEASURES, (100 * own.mean(axis=1)).round(2).tolist(), strict=True)),
    }
    for name, other in references.items():
        for measure, difference in zip(MEASURES, 100 * (own - other), strict=True):
            half = 1.96 * difference.std(ddof=1) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
            summary[f"{measure} over {name}"] = [round(float(difference.mean()), 2), round(float(half), 2)]
    return summary
