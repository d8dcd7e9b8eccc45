"""Does an index know that it does not hold the answer? `dsi reproduce coverage --data DIR`.

DIR holds collections in BEIR layout. Each is indexed from its documents alone (OUTPUT/indexes/NAME). A sentence is taken out of
a document, and searched for with the rest of that document in the index and without it; on these questions, which need no
labels, a model of a few signals is fitted for each index, and so are its rivals, each one signal. Then real queries are
searched, with their relevant documents in the index and without them, and queries of the next collection. Nothing is chosen on
these.
"""

import dataclasses
import logging
import random
import re
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

import dsi
from dsi.config import Config
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.data.identical import most_identical, without_identical
from dsi.docids.data.judgements import relevant_rows
from dsi.docids.files.reading import read_json
from dsi.docids.files.storage import write_json, write_text
from dsi.docids.tree import document_scores
from dsi.eval.measures import evaluate
from dsi.eval.tables import markdown_table
from dsi.measuring.cloze import Hole, find_holes
from dsi.measuring.provenance import provenance
from dsi.search.engine import restricted
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest
from dsi.store.retriever import Retriever
from dsi.store.snapshot import Snapshot

logger = logging.getLogger(__name__)

SIGNALS = (
    "score", "margin", "cosine", "BM25", "share of BM25", "IDF coverage",
    "tokens, mean", "tokens, least", "tokens, rarest", "agreement",
)  # fmt: skip
CHOSEN = ("margin", "tokens, rarest", "cosine", "share of BM25", "agreement")
"""Signals of the model, chosen on cloze questions alone (docs/experiments/nothing-here.md)."""
MODEL, RIVALS = "model", ("cosine", "margin", "BM25", "IDF coverage", "score")
"""The model, and signals that stand alone; by the order of its scores, "score" is the percentile."""
GAIN, PROMISED, KEPT, ANSWERED = 0.05, 0.8, 0.05, 0.5
"""How far above its rivals' the model's AUROC must be; the precision that a threshold promises, how far below it real queries
may be, and the share of answerable queries that must be answered."""
_ANSWERS, _MOST_QUERIES, _STRANGERS, _RIDGE = 10, 200, 100, 1.0
_MOST_BYTES, _JUDGED = 800_000, 2 / 3
"""Bytes (UTF-8) of the texts of the documents that are indexed, at most; share of them that relevant documents may take."""
_WORD = re.compile(r"\w+")


class Asked(NamedTuple):
    """Signals [2, questions, signals] of questions with their source in the index and without it, and nDCG@10 with it."""

    both: np.ndarray
    values: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """[2 questions] 1 with the source, 0 without."""
        return np.repeat([1.0, 0.0], len(self.values))


def reproduce(data: Path, output: Path, seeds: Sequence[int], config: Config | None = None) -> str:
    """Measure each collection of a folder, write the table; return it. What is measured already is not measured again."""
    folders = sorted(path for path in data.iterdir() if path.is_dir())
    for number, folder in enumerate(folders):
        path = output / "coverage" / f"{folder.name}.json"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measure(folder, folders[(number + 1) % len(folders)], output / "indexes", seeds[0], config))
    records = {path.stem: read_json(path) for path in sorted((output / "coverage").glob("*.json"))}
    text = f"{table(records)}\n\n{verdict(records)}"
    write_json(output / "coverage.json", {"collections": records, "verdict": verdict(records), **provenance()})
    write_text(output / "coverage.md", text + "\n")
    return text


def measure(folder: Path, other: Path, indexes: Path, seed: int, config: Config | None = None) -> dict[str, Any]:
    """Return what is measured on one collection; `other` gives queries that are off its subject."""
    collection = read_collection(folder)
    retriever = load_or_index(collection, indexes / folder.name, seed, config)
    cloze = ask_sentences(retriever, seed)
    asked = ask_queries(retriever, collection, seed)
    strange = ask_strangers(retriever, read_collection(other), seed)
    systems = {MODEL: CHOSEN, **{name: (name,) for name in RIVALS}} if len(cloze.values) else {}
    found = {name: judge(names, cloze, asked, strange) for name, names in systems.items()}
    counts = {"cloze questions": len(cloze.values), "queries": len(asked.values), "strangers": len(strange)}
    return {**counts, "documents": len(retriever), "systems": found}


def load_or_index(collection: Collection, folder: Path, seed: int, config: Config | None) -> Retriever:
    """Return the index in a folder, made of the documents alone if it is not there."""
    if (folder / "manifest.json").exists():
        return dsi.load(folder, device="cpu")
    return dsi.index(sample(collection, seed), folder, config=config, device="cpu")


def sample(collection: Collection, seed: int) -> Collection:
    """Return the documents alone; of long collections the relevant ones of some test queries, and others at random."""
    lengths, rng = [len(text.encode()) for text in collection.documents["text"]], random.Random(seed)
    judged, chosen = list(collection.qrels["test"].values()), dict[int, None]()
    if sum(lengths) > _MOST_BYTES:
        for own in rng.sample(judged, min(len(judged), _MOST_QUERIES)):
            if sum(lengths[row] for row in chosen) < _MOST_BYTES * _JUDGED:
                chosen |= dict.fromkeys(row for row in relevant_rows(own, collection.rows))
    for row in rng.sample(range(len(lengths)), len(lengths)):
        if sum(lengths) <= _MOST_BYTES or sum(lengths[row] for row in chosen) < _MOST_BYTES:
            chosen[row] = None
    return Collection.from_records(collection.documents.select(sorted(chosen)))


# Questions


def ask_sentences(retriever: Retriever, seed: int) -> Asked:
    """Return the signals of sentences, and of thirds of them: the document without the sentence in the index, or not at all."""
    before, changed, count = retriever.snapshot, copy(retriever), len(retriever)
    assert before.lexical is not None
    documents: Any = before.documents.records(range(count))
    holes = list(find_holes(before.encoder, documents, before.lexical.analyzer, seed))
    changed.add([{"doc_id": f"hole {n}", "title": hole.title, "text": hole.text} for n, hole in enumerate(holes)])
    rng, own = random.Random(seed), {*range(count, count + len(holes))}
    texts = [hole.sentence for hole in holes] + [a_third(hole, rng) for hole in holes]
    pairs = [
        signals_of(changed.snapshot, one, {row}, {holes[row - count].row} | own - {row})
        for one, row in zip(changed.encode_queries(texts).each(), [*sorted(own), *sorted(own)], strict=True)
    ]
    return Asked(np.array(pairs).reshape(-1, 2, len(SIGNALS)).swapaxes(0, 1), np.ones(len(pairs)))


def a_third(hole: Hole, rng: random.Random) -> str:
    """Return a run of a third of a sentence's words, three at least; of its letters where it has few spaces."""
    units, joint = hole.sentence.split(), " "
    if len(units) < 6:
        units, joint = list(hole.sentence), ""
    size = max(3, len(units) // 3)
    start = rng.randrange(max(1, len(units) - size + 1))
    return joint.join(units[start : start + size])


def ask_queries(retriever: Retriever, collection: Collection, seed: int) -> Asked:
    """Return the signals of test queries with their relevant documents in the index, and without them."""
    rows, qrels = retriever.snapshot.documents.rows, collection.qrels["test"]
    relevant = {q: {rows[d] for d, grade in judged.items() if grade > 0 and d in rows} for q, judged in qrels.items()}
    usable = [q for q, own in relevant.items() if own and collection.queries[q].strip()]
    chosen = random.Random(seed).sample(usable, min(len(usable), _MOST_QUERIES))
    encoded = retriever.encode_queries({q: collection.queries[q] for q in chosen})
    same = {q: {rows[d] for d in collection.identical.get(q, ()) if d in rows} for q in chosen}
    asked = zip(chosen, encoded.each(), strict=True)
    pairs = [signals_of(retriever.snapshot, one, relevant[q] - same[q], same[q]) for q, one in asked]
    run = retriever.run(encoded, _ANSWERS + most_identical(collection.identical))
    judged = {q: {d: grade for d, grade in qrels[q].items() if d in rows} for q in chosen}
    values = evaluate(without_identical(run, collection.identical, _ANSWERS), judged, ["nDCG@10"])["nDCG@10"]
    return Asked(np.array(pairs).swapaxes(0, 1), np.array([values[q] for q in chosen]))


def ask_strangers(retriever: Retriever, other: Collection, seed: int) -> np.ndarray:
    """Return the signals of another collection's test queries."""
    texts = [text for text in other.query_texts("test").values() if text.strip()]
    chosen = random.Random(seed).sample(texts, min(len(texts), _STRANGERS))
    return np.array(
        [signals_of(retriever.snapshot, one, set(), set())[0] for one in retriever.encode_queries(chosen).each()]
    )


# Signals


def signals_of(index: Snapshot, one: EncodedQueries, source: set[int], denied: set[int]) -> list[np.ndarray]:
    """Return the signals [signals] of one query with its source's rows in the index, and without them.

    Scores of documents depend on no other document of the answer, so the second answer is the first, longer, without them.
    """
    engine, lexical, text = index.engine, index.lexical, one.texts[0]
    assert lexical is not None
    may = np.ones(len(index.documents), dtype=bool)
    may[list(denied)] = False
    result = engine.search(
        one, restricted(SearchRequest(_ANSWERS + len(source), index.search_config), engine.tree, may)
    )
    rows = engine.tree.doc_rows[result.positions[0, : int(result.counts[0])]]
    dense, words = document_scores(one.embeddings, engine.tree)[0], lexical.shares([text])[0]
    found, best = [], float(lexical.query_terms([text])[0].best)
    for gone in (set[int](), source):
        may[list(gone)] = False
        kept = np.flatnonzero(may[rows])[:_ANSWERS]
        scores, share = result.scores[0, kept], float(words[may].max(initial=0))
        if len(kept) < 2:
            found.append(np.zeros(len(SIGNALS)))
            continue
        of_all = [scores[0], scores[0] - scores[1:].mean(), dense[may].max(), share * best, share]
        by_word = by_tokens(index, one, int(result.positions[0, kept[0]]))
        found.append(
            np.array([*of_all, idf_coverage(index, text, rows[kept]), *by_word, agreement(index, one, rows[kept])])
        )
    return found


def idf_coverage(index: Snapshot, text: str, rows: np.ndarray) -> float:
    """Return the largest share of a query's terms, weighted by their rarity, that one of some documents has."""
    assert index.lexical is not None
    _, terms = index.lexical.all_terms(text)
    known = terms.numbers >= 0
    own = terms._replace(numbers=terms.numbers[known], factors=terms.factors[known])
    has = index.lexical.scorer.contributions(own, rows) > 0
    return float((own.factors @ has).max() / max(float(terms.factors.sum()), 1e-9)) if known.any() else 0.0


def by_tokens(index: Snapshot, one: EncodedQueries, place: int) -> list[float]:
    """Return how well late interaction finds a query's words in a document: mean by rarity, least, and of the rarest."""
    text, lexical, encoder = one.texts[0], index.lexical, index.encoder
    assert lexical is not None
    config = dataclasses.replace(index.search_config, token_weight=1.0, lexical_weight=0.0)
    shares = index.engine.token_shares(one.batches[0], SearchRequest(1, config), [place])
    spans = [span for span in encoder.spans(text, "query") if not span.is_special]
    if not shares or not spans:
        return [0.0, 0.0, 0.0]
    names, terms = lexical.all_terms(text)
    rarity = dict(zip(names, terms.factors.tolist(), strict=True))
    products = shares[0][1] * len(spans)
    found, weights = list[float](), list[float]()
    for word in _WORD.finditer(text):
        own = [n for n, span in enumerate(spans) if span.start < word.end() and word.start() < span.end]
        weight = sum(rarity.get(term, 0.0) for term in lexical.analyzer.terms(word.group()))
        if own and weight:
            found.append(float(products[own].mean()))
            weights.append(weight)
    if not found:
        return [0.0, 0.0, 0.0]
    return [float(np.average(found, weights=weights)), min(found), found[int(np.argmax(weights))]]


def agreement(index: Snapshot, one: EncodedQueries, rows: np.ndarray) -> float:
    """Return the share of the parts of the score (vectors, words, late interaction) that rank the first answer first."""
    config = dataclasses.replace(index.search_config, lexical_weight=1.0, token_weight=1.0)
    parts = index.engine.follow_all(one, SearchRequest(1, config), rows[None]).parts
    return float(np.mean([values[0, 0] >= values[0].max() for values in parts.values()]))


# The model


class Monotone(NamedTuple):
    """A logistic regression none of whose weights is below 0: more of a signal never makes an answer less likely."""

    mean: np.ndarray
    spread: np.ndarray
    weights: np.ndarray

    @classmethod
    def fit(cls, signals: np.ndarray, labels: np.ndarray) -> "Monotone":
        """Return the model of signals [questions, signals] and labels [questions]."""
        mean, spread = signals.mean(axis=0), np.maximum(signals.std(axis=0), 1e-6)
        inputs, signs = (signals - mean) / spread, 2 * labels - 1

        def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
            margins = signs * (inputs @ weights[1:] + weights[0])
            slopes = -signs / (1 + np.exp(margins))
            gradient = np.concatenate([[slopes.sum()], inputs.T @ slopes + _RIDGE * weights[1:]])
            return float(np.logaddexp(0, -margins).sum() + _RIDGE / 2 * weights[1:] @ weights[1:]), gradient

        bounds = [(None, None)] + [(0, None)] * signals.shape[1]
        found = minimize(loss, np.zeros(signals.shape[1] + 1), jac=True, bounds=bounds, method="L-BFGS-B")
        return cls(mean, spread, found.x)

    def probabilities(self, signals: np.ndarray) -> np.ndarray:
        """Return [questions] the probabilities that the answer is there."""
        return 1 / (1 + np.exp(-((signals - self.mean) / self.spread @ self.weights[1:] + self.weights[0])))


# Judging


def judge(names: Sequence[str], cloze: Asked, asked: Asked, strange: np.ndarray) -> dict[str, float]:
    """Return the measures of a model of some signals, fitted on cloze questions, on real queries."""
    columns = [SIGNALS.index(name) for name in names]
    inputs = [own.reshape(-1, len(SIGNALS))[:, columns] for own in (cloze.both, asked.both, strange)]
    model = Monotone.fit(inputs[0], cloze.labels)
    own, real, off = map(model.probabilities, inputs)
    there, labels = real[: len(asked.values)], asked.labels
    answered, half = real >= (least := threshold(own, cloze.labels)), real >= np.median(there)
    return {
        "cloze AUROC": roc_auc_score(cloze.labels, own), "AUROC": roc_auc_score(labels, real),
        "AUROC, strangers": roc_auc_score(np.repeat([1, 0], [len(there), len(off)]), np.concatenate([there, off])),
        "precision": float(labels[answered].mean()) if answered.any() else 1.0, "answered": float((there >= least).mean()),
        "risk at half": float(1 - labels[half].mean()), "ECE": calibration_error(real, labels),
        "nAUC": abstention(real, np.concatenate([asked.values, 0 * asked.values])),
    }  # fmt: skip


def threshold(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the lowest probability from which on as many cloze questions have their answer as is promised."""
    order = np.argsort(-probabilities, kind="stable")
    precision = np.cumsum(labels[order]) / np.arange(1, len(order) + 1)
    kept = np.flatnonzero(precision >= PROMISED)
    return float(probabilities[order[kept[-1]]]) if len(kept) else np.inf


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the expected calibration error over ten bins of equal width."""
    bins = np.minimum((10 * probabilities).astype(int), 9)
    return float(sum(abs((probabilities - labels)[bins == own].sum()) for own in range(10)) / len(labels))


def abstention(confidence: np.ndarray, values: np.ndarray) -> float:
    """Return MTEB's nAUC: what abstaining at 0 to 90 % of the queries gains, as a share of what an oracle gains."""

    def area(order: np.ndarray) -> float:
        return float(np.trapezoid([values[order[int(share * len(order)) :]].mean() for share in np.arange(10) / 10]))

    flat, oracle = 9 * values.mean(), area(np.argsort(values, kind="stable"))
    return float((area(np.argsort(confidence, kind="stable")) - flat) / (oracle - flat)) if oracle > flat else 0.0


def verdict(records: Mapping[str, Any]) -> str:
    """Return whether the model passes, as the issue fixes it; a collection without cloze questions is none that it passes."""
    found = [own["systems"] for own in records.values() if own["systems"]]
    ahead = sum(own[MODEL]["AUROC"] - max(own[name]["AUROC"] for name in RIVALS) >= GAIN for own in found)
    keeps = {name: sum(_keeps(own[name]) for own in found) for name in (MODEL, *RIVALS)}
    passes = ahead >= 10 or (keeps[MODEL] >= 12 and max(keeps[name] for name in RIVALS) < 12)
    kept = ", ".join(f"{name} {count}" for name, count in keeps.items())
    return (
        f"AUROC at least {GAIN} above the best rival on {ahead} of {len(records)} (needed: 10). A precision of {PROMISED:.0%} "
        f"kept within {KEPT:.0%}, half of the answerable queries answered (needed: 12): {kept}. "
        f"{'Passed' if passes else 'Not passed'}."
    )


def _keeps(system: Mapping[str, float]) -> bool:
    return system["precision"] >= PROMISED - KEPT and system["answered"] >= ANSWERED


def table(records: Mapping[str, Any]) -> str:
    """Return AUROC (source taken out / strangers); precision / answered in percent; ECE; nAUC of each system, as Markdown."""
    systems = (MODEL, *RIVALS)
    rows = [
        [name, str(own["queries"]), *(_cell(own["systems"][system]) if own["systems"] else "" for system in systems)]
        for name, own in records.items()
    ]
    return markdown_table(["collection", "queries", *systems], rows)


def _cell(own: Mapping[str, float]) -> str:
    return (
        f"{own['AUROC']:.2f} / {own['AUROC, strangers']:.2f}; {100 * own['precision']:.0f} / {100 * own['answered']:.0f}; "
        f"{100 * own['ECE']:.0f}; {own['nAUC']:.2f}"
    )
