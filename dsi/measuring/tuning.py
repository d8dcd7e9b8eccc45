"""Chooses how an index searches, on dev queries: the weights of documents' scores, and the beam.

In this order: the weights of the document score, by a conditional logit that stays near the defaults; then the beam, the
smallest that finds what "exact" finds, which needs no judgements. Of an index with a generator alpha and the temperature come
from a grid together, as one means nothing without the other; beta stays. Knows nothing of how nodes are scored.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.data.collection import Collection, check_collection, compare_documents
from dsi.docids.data.identical import Identical, most_identical, without_identical
from dsi.docids.files.progress import stage_line
from dsi.docids.files.reading import read_record
from dsi.docids.files.storage import write_json
from dsi.docids.types import Qrels, Run
from dsi.eval.fusion import fit_weights
from dsi.eval.protocol import FEWEST_QUERIES, best_setting, count_answered
from dsi.measuring.cloze import ask, best_scores
from dsi.measuring.learned import learned_queries
from dsi.search.engine import Engine
from dsi.search.explain.explanation import idle_memory
from dsi.search.queries import EncodedQueries
from dsi.search.request import LEXICAL_WEIGHT, MEMORY_WEIGHT, TOKEN_WEIGHT, SearchConfig, SearchRequest
from dsi.search.results import SearchResult
from dsi.search.vector_search import VectorEngine
from dsi.store.folder.loading import index_state
from dsi.store.folder.manifest import search_config
from dsi.store.folder.writing import search_entries, write_entries
from dsi.store.retriever import Retriever, keep_best_scores, load
from dsi.store.snapshot import Snapshot

logger = logging.getLogger(__name__)

DEPTH = 100
"""Candidates per query on which weights are compared."""
NO_PARTS: dict[str, Any] = {"lexical_weight": 0.0, "token_weight": 0.0, "memory_weight": 0.0}
"""Settings of `[search]` without words, tokens and memory."""
_RECORD = "tuning.json"
CHOSEN = ("alpha", "beta", "ann_temperature", "beam_width", "lexical_weight", "token_weight", "memory_weight")
"""Settings that may be chosen. Each tuning begins from those of `[search]`, so that the same queries choose the same."""
_LIKELY = {"lexical_weight": LEXICAL_WEIGHT, "token_weight": TOKEN_WEIGHT, "memory_weight": MEMORY_WEIGHT}
"""Weights near which fitted ones stay."""
_USUAL_SPREAD, _LEAST_SPREAD = 0.5, 0.05
"""Spread of an encoder's scores from which on words have their usual weight, and below which it says nothing, as the encoder
does not know the texts it is taken from."""
_MOST_QUERIES = 500
"""Queries on which walks are compared."""
FEWEST_TESTED = 100
"""Judged queries with an earlier query that speaks for a document, of which fewer choose no `memory_weight`: users will teach
others (docs/experiments/queries.md)."""
BEAMS = (5, 10, 20, 40, 80, 160, 320, 640, 1280)
_AGREE = 0.98
"""Share of the exact top ten that the beam has to find."""
PATH_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
PATH_TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Tuning:
    """The choice made.

    Attributes:
        best: the settings of `[search]` that were chosen.
        tried: what was compared by searching, with its value: {"beam_width": …} with the share of the exact top ten
            that it finds, other settings with RR@10.
    """

    best: dict[str, Any]
    tried: list[tuple[dict[str, Any], float]]


def tune(retriever: Retriever, collection: Collection) -> Tuning:
    """Choose how an index searches on the dev queries, and search so from now on.

    It begins from the settings of `[search]`, not from those chosen before, so that the same queries choose the same again.

    With fewer than 20 judged dev queries the weight of words follows how far the encoder's scores lie apart
    (`TextEncoder.spread`), and the other weights stay; with fewer than 20 dev queries the beam stays too.

    Dev queries that the index has learned choose without what it learned of them, and a line counts them. The weight of what
    was learned stays where fewer than 100 dev queries test it.

    Example:
        >>> import dsi
        >>> retriever = dsi.load("INDEX")
        >>> tuning = dsi.tune(retriever, dsi.read_collection("COLLECTION"))
        >>> sorted(tuning.best)
        ['beam_width', 'lexical_weight', 'memory_weight', 'token_weight']

    Args:
        retriever: the index; its `search_config` is replaced. `retriever.save` writes the choice.
        collection: the documents, and dev queries if there are some.

    Raises:
        ValueError: the collection has none of the index's documents.
    """
    # 1) the queries
    check_collection("tune", collection)
    index = retriever.snapshot
    compare_documents(collection, index.documents.rows)
    queries, qrels = collection.query_texts("dev"), collection.qrels["dev"]
    # 2) where to begin: the settings of [search]
    start = {name: getattr(index.configured, name) for name in CHOSEN}
    config = retriever.search_config = dataclasses.replace(retriever.search_config, **start)
    # 3) the weight of words, where too few judgements could choose it
    best = dict[str, Any]()
    if (judged := count_answered(qrels)) < FEWEST_QUERIES:
        qrels, best = {}, _by_spread(index)
        _warn_few(len(queries), judged, best)
    tuning = Tuning(best, [])
    config = dataclasses.replace(config, **best)
    # 4) all else, where there are enough queries
    if len(queries) >= FEWEST_QUERIES:
        identical = collection.identical if qrels else None
        chosen = choose(retriever, retriever.encode_queries(queries), qrels, config, identical=identical)
        tuning = Tuning({**best, **chosen.best}, chosen.tried)
    retriever.search_config = dataclasses.replace(config, **tuning.best)
    # 5) how high the best scores of such weights are
    questions = None if index.engine.has_generator else ask(retriever, collection.documents)
    scores = None if questions is None else best_scores(retriever, questions)
    keep_best_scores(retriever, scores)
    if scores is None and not index.engine.has_generator:
        logger.info("Hits have no percentile: it takes BM25, and 30 documents of two sentences whose scores differ.")
    return tuning


def _warn_few(queries: int, judged: int, best: Mapping[str, float]) -> None:
    """Say which weights are taken where too few queries could choose them."""
    level, few = logging.WARNING, f"{judged} dev queries have a relevant document, too few to choose weights on"
    if not queries:
        level, few = logging.INFO, "There are no queries to tune on"
    elif queries < FEWEST_QUERIES:
        few = f"{queries} dev queries are too few to choose anything on"
    words = best.get("lexical_weight", LEXICAL_WEIGHT)
    less = f", but lexical_weight is {words:g}, as this encoder's scores are close together"
    logger.log(level, "%s; weights are those of [search]%s.", few, less if words != LEXICAL_WEIGHT else "")


def _by_spread(index: Snapshot) -> dict[str, float]:
    """Return the usual weight of words, less for an encoder whose scores lie closer together; {} where the user has set it."""
    if index.lexical is None or index.engine.has_generator or index.configured.lexical_weight != LEXICAL_WEIGHT:
        return {}
    spread = index.encoder.spread
    share = spread / _USUAL_SPREAD if _LEAST_SPREAD <= spread < _USUAL_SPREAD else 1.0
    return {"lexical_weight": round(LEXICAL_WEIGHT * share**0.5, 3)}  # the root: half of the way to the share


def choose(
    retriever: Retriever, encoded: EncodedQueries, qrels: Qrels, config: SearchConfig | None = None, *,
    lexical: bool = True, identical: Identical | None = None,
) -> Tuning:  # fmt: skip
    """Return the best settings of search, without changing the index; what it has learned of these queries takes no part.

    Without `qrels` weights stay as they are; `config`: the settings that are not chosen; `lexical`: also weight the lexical
    part, if there is one; `identical`: documents that queries leave out, as they are these.
    """
    (encoded, _), config = encoded.cleaned(), config or retriever.search_config
    pairs = zip(encoded.query_ids, encoded.texts, strict=True)
    judged = {query_id: text for query_id, text in pairs if query_id in qrels}
    if learned := learned_queries(retriever, judged):
        logger.warning(
            "%d of %d dev queries were learned; what was learned of them takes no part in the choice of weights.",
            len(learned), len(judged),
        )  # fmt: skip
    index = retriever.snapshot
    index = index.with_memory(index.memory.without(encoded.texts, encoded.embeddings))
    if index.engine.has_generator:
        return _choose_paths(index, encoded, qrels, config, identical or {}) if qrels else Tuning({}, [])
    best: dict[str, Any] = {}
    if qrels:
        best |= choose_weights(index, encoded, qrels, config, lexical=lexical, identical=identical)
    beam_width, tried = _choose_beam(index, encoded, dataclasses.replace(config, **best))
    return Tuning({**best, "beam_width": beam_width}, tried)


# Without a generator.


def choose_weights(
    index: Snapshot, encoded: EncodedQueries, qrels: Qrels, config: SearchConfig, *, lexical: bool = True,
    tokens: bool = True, identical: Identical | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return weights of the document score, fitted to judged queries; those of `config` if there are few; 0 for missing parts.

    `index`: without a generator; `lexical`, `tokens`: also weight words, and late interaction, if it has them.
    """
    parts = _weighted_parts(index, lexical=lexical, tokens=tokens)
    weights = {weight: getattr(config, weight) if name else 0.0 for weight, name in parts.items()}
    if count_answered(qrels) < FEWEST_QUERIES:
        return weights
    present = {weight: name for weight, name in parts.items() if name}
    scores = _score_parts(index, encoded, config, present)
    dense, *others = (without_identical(run, identical or {}) for run in scores)
    runs = dict(zip(present, others, strict=True))
    if "memory_weight" in runs and (tested := _tested(runs["memory_weight"], qrels)) < FEWEST_TESTED:
        del runs["memory_weight"]
        logger.warning(
            "%d dev queries test what was learned of earlier queries, fewer than %d, so memory_weight stays %g.",
            tested, FEWEST_TESTED, config.memory_weight,
        )  # fmt: skip
    best = fit_weights(dense, list(runs.values()), [_LIKELY[weight] for weight in runs], qrels)
    return weights | dict(zip(runs, best, strict=True))


def _tested(run: Run, qrels: Qrels) -> int:
    """Return how many judged queries have a candidate that a part of the score speaks for."""
    query_ids = (query_id for query_id, judged in qrels.items() if max(judged.values(), default=0) > 0)
    return sum(any(score > 0 for score in run.get(query_id, {}).values()) for query_id in query_ids)


def _weighted_parts(index: Snapshot, *, lexical: bool, tokens: bool) -> dict[str, str]:
    """Return {weight: name of its part of the document score}, "" for a part that the index lacks or that is left out."""
    engine, words = index.engine, index.lexical if lexical else None
    assert isinstance(engine, VectorEngine)
    return {
        "lexical_weight": words.name if words else "",
        "token_weight": "tokens" if tokens and engine.tree.tokens is not None else "",
        **({"memory_weight": "memory"} if tokens and len(engine.memory) else {}),
    }


def _score_parts(index: Snapshot, encoded: EncodedQueries, config: SearchConfig, parts: Mapping[str, str]) -> list[Run]:
    """Return the dense scores of each query's candidates, the first documents of dense search with BM25, and other parts."""
    words = {"lexical_weight": config.lexical_weight or LEXICAL_WEIGHT} if "lexical_weight" in parts else {}
    words |= {"memory_weight": config.memory_weight or MEMORY_WEIGHT} if "memory_weight" in parts else {}
    pool = dataclasses.replace(config, method="exact", **{**NO_PARTS, **words})
    result = index.engine.search(encoded, SearchRequest(DEPTH, pool))
    unweighted = dataclasses.replace(pool, **{**NO_PARTS, **dict.fromkeys(parts, 1.0)})
    followed = index.engine.follow_result(encoded, SearchRequest(DEPTH, unweighted), result)
    doc_ids = index.as_run(encoded.query_ids, result)

    def run(name: str) -> Run:
        rows = zip(encoded.query_ids, followed.parts[name].tolist(), strict=True)
        return {query_id: dict(zip(doc_ids[query_id], scores, strict=False)) for query_id, scores in rows}

    return [run(name) for name in ("dense", *parts.values())]


def _choose_beam(
    index: Snapshot, encoded: EncodedQueries, config: SearchConfig
) -> tuple[int, list[tuple[dict[str, Any], float]]]:
    """Return the smallest beam that finds what "exact" finds, and all that were tried.

    The walk chooses candidates, which late interaction then orders: it is compared on what it has to find.
    """
    few = [batch.select(np.flatnonzero(batch.numbers < _MOST_QUERIES)) for batch in encoded.batches]
    queries = EncodedQueries(encoded.query_ids[:_MOST_QUERIES], [batch for batch in few if len(batch.texts)])
    config = dataclasses.replace(config, token_weight=0.0)

    def search(**changes: Any) -> SearchResult:
        return index.engine.search(queries, SearchRequest(10, dataclasses.replace(config, **changes)))

    exact, tried = search(method="exact"), list[tuple[dict[str, Any], float]]()
    for beam_width in BEAMS:
        result = search(method="generate", beam_width=beam_width)
        tried.append(({"beam_width": beam_width}, agreement(result, exact)))
        if tried[-1][1] >= _AGREE:
            break
    return beam_width, tried


def agreement(result: SearchResult, exact: SearchResult) -> float:
    """Return the share of the documents of one result that another one has, averaged over queries."""
    valid = exact.positions >= 0
    pairs = zip(exact.positions, result.positions, strict=True)
    both = np.stack([np.isin(expected, found) for expected, found in pairs]) & valid  # [queries, k]
    return float((both.sum(axis=1) / np.maximum(valid.sum(axis=1), 1)).mean())


# With a generator.


def _choose_paths(
    index: Snapshot, encoded: EncodedQueries, qrels: Qrels, config: SearchConfig, identical: Identical
) -> Tuning:
    """Return the best alpha and temperature of path scores, by a grid; of equals the first stays."""

    def search(settings: Mapping[str, Any]) -> Run:
        request = SearchRequest(10 + most_identical(identical), dataclasses.replace(config, **settings))
        run = index.as_run(encoded.query_ids, index.engine.search(encoded, request))
        return without_identical(run, identical, 10)

    pairs = [(config.alpha, config.ann_temperature), *product(PATH_ALPHAS[:-1], PATH_TEMPERATURES)]
    pairs.append((1.0, config.ann_temperature))  # the temperature has no effect there
    grid = [{"alpha": alpha, "ann_temperature": temperature} for alpha, temperature in dict.fromkeys(pairs)]
    return Tuning(*best_setting(search, grid, qrels))


def is_tuned(folder: Path) -> bool:
    """True if the index in `folder` was tuned, and neither trained nor updated since."""
    return read_record(folder / _RECORD).get("index", "") == index_state(folder) != ""


def is_untuned(folder: Path, qrels: Qrels) -> bool:
    """True if dev queries are judged that could choose how the index in `folder` searches, and none did."""
    record, manifest = read_record(folder / _RECORD), read_record(folder / "manifest.json")
    is_plain = record != {} or search_config(manifest, "configured") == search_config(manifest)
    return is_plain and not record.get("tried") and count_answered(qrels) >= FEWEST_QUERIES


def is_as_configured(folder: Path, config: SearchConfig) -> bool:
    """True if the index in `folder` searches as `[search]` says, or with weights that were tuned from there."""
    manifest = read_record(folder / "manifest.json")
    return search_config(manifest, "configured") == config and (is_tuned(folder) or search_config(manifest) == config)


def configure(folder: Path, config: SearchConfig) -> None:
    """Make the index in `folder` search as `[search]` says, and forget how it was tuned."""
    (folder / _RECORD).unlink(missing_ok=True)
    write_entries(folder, search_entries(config))


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> bool:
    """Tune the index in `folder` and write the choice to its manifest; False if too few queries choose nothing."""
    bound_to = index_state(folder)
    retriever = load(folder, device=device)
    before = retriever.search_config
    if (queries := count_answered(collection.qrels["dev"])) >= FEWEST_QUERIES:
        logger.info("%d dev queries choose the weights", queries)
    with stage_line("weights and percentiles"):
        tuning = tune(retriever, collection)
    retriever.save()
    if not tuning.best:
        return False
    write_json(folder / _RECORD, {"index": bound_to, "best": tuning.best, "tried": tuning.tried})
    if tuning.tried and retriever.search_config != before:
        chosen = {name: value for name, value in tuning.best.items() if value != getattr(before, name)}
        logger.info("tuned: %s", in_words(chosen))
    index, config = retriever.snapshot, retriever.search_config
    for line in filter(None, (idle_memory(index.memory, config), idle_generator(index.engine, config))):
        logger.warning("%s", line)
    return True


def idle_generator(engine: Engine, config: SearchConfig) -> str:
    """Return a line if an index has a generator that takes no part in its answers, else ""."""
    is_idle = engine.has_generator and not engine.reads_generator(config)
    return "The generator has no part in the answers: alpha is 0." if is_idle else ""


def in_words(options: Mapping[str, Any]) -> str:
    """Return settings of search as one line of text."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items()
    )
