"""Choose the fusion weights of an index on the dev queries, and remember how they were chosen."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from docids.collection import Collection
from docids.storage import write_json
from dsi.index import content_fingerprint, read_manifest, write_settings
from dsi.rerank.lists import Floats, JudgedLists
from dsi.retriever import GenerativeRetriever
from dsi.search.queries import EncodedQueries
from eval.fusion import best_weight, best_weights
from eval.measures import Judgements
from eval.protocol import best_setting

logger = logging.getLogger(__name__)

Runs = dict[str, dict[str, float]]
DEPTH = 100
PROBES = (0.02, 0.1, 0.5)
"""Alphas whose answers are the candidates on which all weights are compared."""
PAPER_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
PAPER_BETAS = (1, 2, float("inf"))
PAPER_TEMPERATURES = (0.02, 0.05, 0.1, 1.0)


def tune(
    retriever: GenerativeRetriever,
    collection: Collection,
    encoded: EncodedQueries,
    fusion: str,
    *,
    lexical: bool,
    decoder: bool = True,
) -> tuple[dict[str, Any], list[Any]]:
    """The setting with the best dev RR@10, and all settings searched with and theirs.

    With "bound" the weights come from exact searches over candidate lists (the temperature only rescales alpha); with "paper",
    whose scores are sums over levels, alpha, beta and temperature are tried on a grid.

    Args:
        retriever: the index.
        collection: its collection.
        encoded: the dev queries.
        fusion: "bound" or "paper".
        lexical: let BM25 join.
        decoder: let the decoder take part; without it alpha is 0 ("bound").
    """
    qrels, query_ids = collection.qrels["dev"], list(collection.query_texts("dev"))
    if fusion == "bound":
        found = [_flat_weights(retriever, encoded, query_ids, qrels, lexical)]
        if decoder:
            found.append(_fused_weights(retriever, encoded, query_ids, qrels, found[0]["lexical_weight"], lexical))
        grid = [{"fusion": fusion, **weights} for weights in found]
    else:
        every = product(PAPER_ALPHAS, PAPER_BETAS, PAPER_TEMPERATURES)
        grid = [{"fusion": fusion, "alpha": a, "beta": b, "ann_temperature": t} for a, b, t in every]

    def search(settings: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return retriever.run_encoded(query_ids, encoded, 10, **settings)

    return best_setting(search, grid, qrels)


def _flat_weights(
    retriever: GenerativeRetriever, encoded: EncodedQueries, query_ids: Sequence[str], qrels: Judgements, lexical: bool
) -> dict[str, float]:
    """The best weight of BM25 beside the dense scores, without the decoder; 0 where BM25 does not join."""
    if not lexical or retriever.lexical is None:
        return {"alpha": 0.0, "lexical_weight": 0.0}
    dense, bm25 = _flat_candidates(retriever, encoded, query_ids)
    return {"alpha": 0.0, "lexical_weight": best_weights(dense, [bm25], qrels)[0]}


def _fused_weights(
    retriever: GenerativeRetriever,
    encoded: EncodedQueries,
    query_ids: Sequence[str],
    qrels: Judgements,
    lexical_weight: float,
    lexical: bool,
) -> dict[str, float]:
    """The best weights of decoder and BM25 beside the dense scores, on what searches with `PROBES` for alpha find.

    A document's score is proportional to z.e_d + lexical_weight * BM25 + w * log P, with w = alpha / (1 - alpha) times the
    temperature.
    """
    generative: Runs = {query_id: {} for query_id in query_ids}
    for alpha in PROBES:
        result = retriever.search_encoded(
            encoded, DEPTH, fusion="bound", alpha=alpha, lexical_weight=lexical_weight, beam_width=DEPTH
        )
        log_p = dataclasses.replace(result, scores=result.generative / alpha)
        for query_id, found in retriever.as_run(query_ids, log_p).items():
            generative[query_id].update(found)
    dense, bm25 = _flat_candidates(retriever, encoded, query_ids, generative)
    others = [bm25, generative] if lexical and bm25 else [generative]
    *weights, w = best_weights(dense, others, qrels)
    return {"alpha": w / (w + retriever.settings.ann_temperature), "lexical_weight": weights[0] if weights else 0.0}


def _flat_candidates(
    retriever: GenerativeRetriever, encoded: EncodedQueries, query_ids: Sequence[str], candidates: Runs | None = None
) -> tuple[Runs, Runs]:
    """Dense and BM25 scores of each query's candidates (by default the best hundred of either); no BM25 without its part."""
    lexical, rows = retriever.lexical, retriever.table.rows
    doc_ids = list(rows)
    dense_run: Runs = {}
    bm25_run: Runs = {}
    for batch in encoded.batches:
        dense = retriever.searcher.dense.document_scores(batch.embeddings).numpy(force=True)
        dense = dense[:, retriever.tree.positions]
        bm25 = lexical.scores(batch.texts) if lexical else np.zeros_like(dense)
        for row, of_dense, of_bm25 in zip(batch.rows.tolist(), dense, bm25, strict=True):
            if candidates is None:
                best = np.union1d(*(np.argsort(-scores, kind="stable")[:DEPTH] for scores in (of_dense, of_bm25)))
            else:
                best = np.array([rows[doc_id] for doc_id in candidates[query_ids[row]]])
            names = [doc_ids[n] for n in best]
            dense_run[query_ids[row]] = dict(zip(names, of_dense[best].tolist(), strict=True))
            bm25_run[query_ids[row]] = dict(zip(names, of_bm25[best].tolist(), strict=True))
    return dense_run, bm25_run if lexical else {}


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> None:
    """Tune the index in `folder` unless that has been done; the choice goes into its manifest, the record beside it."""
    retriever = GenerativeRetriever.from_pretrained(folder, device=device)
    record = folder / "tuning.json"
    bound_to = content_fingerprint(read_manifest(folder))
    if not collection.qrels["dev"]:
        logger.warning("The collection has no dev queries; alpha stays at %g.", retriever.settings.alpha)
    elif not record.exists() or json.loads(record.read_text()).get("index") != bound_to:
        fusion = retriever.settings.fusion
        dev = retriever.encode_queries(list(collection.query_texts("dev").values()))
        best, tried = tune(retriever, collection, dev, fusion, lexical=fusion == "bound")
        retriever.settings = dataclasses.replace(retriever.settings, **best)
        write_settings(folder, retriever.settings)
        write_json(record, {"index": bound_to, "best": best, "dev RR@10": tried})
        logger.info("tuned on %d dev queries: %s", len(collection.qrels["dev"]), best)


def exact_weight(lists: JudgedLists, scores: Floats, step: Floats) -> float:
    """The weight of what is added to scores that makes nDCG@10 highest, by the crossings of scores (never a grid)."""
    before: Runs = {}
    added: Runs = {}
    gains: dict[str, dict[str, int]] = {}
    for number, own in enumerate(lists.slices()):
        names = [str(n) for n in range(lists.lengths[number])]
        for run, values in ((before, scores), (added, step)):
            run[str(number)] = dict(zip(names, values[own].tolist(), strict=True))
        labelled = zip(names, (2 ** lists.labels[own] - 1).astype(int).tolist(), strict=True)
        gains[str(number)] = {name: gain for name, gain in labelled if gain}
    share = min(best_weight(before, added, {name: own for name, own in gains.items() if own}, "nDCG@10")[0], 0.999)
    return share / (1 - share)
