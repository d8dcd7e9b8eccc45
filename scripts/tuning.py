"""Choose the fusion weights of an index on the dev queries, and remember how they were chosen."""

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
from dsi.queries import EncodedQueries
from dsi.retriever import GenerativeRetriever
from eval.fusion import best_weight
from eval.measures import Judgements
from eval.protocol import best_setting

logger = logging.getLogger(__name__)

ALPHAS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEPTH = 100
PAPER_BETAS = (1, 2, float("inf"))
PAPER_TEMPERATURES = (0.02, 0.05, 0.1, 1.0)


def tuning_grid(fusion: str, lexical_weight: float = 0.0) -> list[dict[str, Any]]:
    """Settings worth trying; with "bound" alpha alone decides the order (the temperature only rescales it)."""
    if fusion == "bound":
        return [{"fusion": fusion, "alpha": alpha, "lexical_weight": lexical_weight} for alpha in ALPHAS]
    grid = product(ALPHAS, PAPER_BETAS, PAPER_TEMPERATURES)
    return [{"fusion": fusion, "alpha": a, "beta": b, "ann_temperature": t} for a, b, t in grid]


def tune(
    retriever: GenerativeRetriever, collection: Collection, fusion: str, *, lexical: bool
) -> tuple[dict[str, Any], list[Any]]:
    """The setting with the best dev RR@10, and all settings tried with theirs.

    Args:
        retriever: the index.
        collection: its collection.
        fusion: "bound" or "paper".
        lexical: let BM25 join; its weight is the one that is best beside the dense scores alone.
    """
    queries = collection.query_texts("dev")
    encoded = retriever.encode_queries(list(queries.values()))
    weight = best_lexical_weight(retriever, encoded, list(queries), collection.qrels["dev"]) if lexical else 0.0

    def search(settings: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return retriever.run_encoded(list(queries), encoded, 10, **settings)

    return best_setting(search, tuning_grid(fusion, weight), collection.qrels["dev"])


def best_lexical_weight(
    retriever: GenerativeRetriever, encoded: EncodedQueries, query_ids: Sequence[str], qrels: Judgements
) -> float:
    """The `lexical_weight` with the best dev RR@10 of z.e_d + lexical_weight * BM25, exactly.

    Every weight is compared at once (`eval.fusion.best_weight`) on the best hundred documents of either score.
    """
    lexical = retriever.lexical
    if lexical is None:
        return 0.0
    dense_run: dict[str, dict[str, float]] = {}
    bm25_run: dict[str, dict[str, float]] = {}
    for batch in encoded.batches:
        dense = retriever.searcher.dense.document_scores(batch.embeddings).numpy(force=True)
        dense = dense[:, retriever.tree.positions]
        for row, of_dense, of_bm25 in zip(batch.rows.tolist(), dense, lexical.scores(batch.texts), strict=True):
            best = np.union1d(*(np.argsort(-scores, kind="stable")[:DEPTH] for scores in (of_dense, of_bm25)))
            doc_ids = [lexical.doc_ids[n] for n in best]
            dense_run[query_ids[row]] = dict(zip(doc_ids, of_dense[best].tolist(), strict=True))
            bm25_run[query_ids[row]] = dict(zip(doc_ids, of_bm25[best].tolist(), strict=True))
    weight = min(best_weight(dense_run, bm25_run, qrels)[0], 0.999)
    return weight / (1 - weight)


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> None:
    """Tune the index in `folder` unless that has been done; the choice goes into its manifest, the record beside it."""
    retriever = GenerativeRetriever.from_pretrained(folder, device=device)
    record = folder / "tuning.json"
    bound_to = content_fingerprint(read_manifest(folder))
    if not collection.qrels["dev"]:
        logger.warning("The collection has no dev queries; alpha stays at %g.", retriever.settings.alpha)
    elif not record.exists() or json.loads(record.read_text()).get("index") != bound_to:
        fusion = retriever.settings.fusion
        best, tried = tune(retriever, collection, fusion, lexical=fusion == "bound")
        retriever.change_settings(**best)
        write_settings(folder, retriever.settings)
        write_json(record, {"index": bound_to, "best": best, "dev RR@10": tried})
        logger.info("tuned on %d dev queries: %s", len(collection.qrels["dev"]), best)
