"""Chooses the fusion weights of an index on dev queries.

With fusion "bound" the weights come from an exact line search over candidate lists (`eval.fusion`); the temperature only
rescales alpha. With fusion "paper", whose scores are sums over levels, alpha, beta and temperature come from a grid search.
Knows nothing of how nodes are scored.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from docids.collection import Collection, check_collection
from docids.progress import progress
from docids.storage import write_json
from dsi.index import content_fingerprint, read_manifest, write_search_config
from dsi.retriever import GenerativeRetriever
from dsi.search.queries import EncodedQueries
from dsi.stages import stage_line
from eval.fusion import best_weights
from eval.measures import Judgements
from eval.protocol import best_setting

logger = logging.getLogger(__name__)

Runs = dict[str, dict[str, float]]
DEPTH = 100
"""Candidates per query on which weights are compared."""
PROBES = (0.02, 0.1, 0.5)
"""Values of alpha whose top documents are the candidates of fused search."""
PROBE_DEPTH = 30
"""Candidates per query and probe: a reciprocal rank counts down to ten."""
PAPER_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
PAPER_BETAS = (1, 2, float("inf"))
PAPER_TEMPERATURES = (0.02, 0.05, 0.1, 1.0)


@dataclass(frozen=True)
class Tuning:
    """The choice made on the dev queries.

    Attributes:
        best: the search options with the highest RR@10.
        tried: the options compared by searching, with their RR@10; empty if there was only one.
    """

    best: dict[str, Any]
    tried: list[tuple[dict[str, Any], float]]


def tune(retriever: GenerativeRetriever, collection: Collection) -> Tuning:
    """Choose the fusion weights of an index on the dev queries, and search with them from now on.

    Example:
        >>> import dsi
        >>> retriever = dsi.GenerativeRetriever.from_pretrained("RUN")
        >>> tuning = dsi.tune(retriever, dsi.read_collection("DIR"))
        >>> sorted(tuning.best)
        ['alpha', 'fusion', 'lexical_weight']

    Args:
        retriever: the index; its `search_config` is replaced. To keep the choice on disk, call `retriever.save_pretrained` or
            run `dsi tune RUN`.
        collection: with dev queries.

    Raises:
        ValueError: the collection has no dev queries.
    """
    check_collection("tune", collection)
    queries = collection.query_texts("dev")
    if not queries:
        raise ValueError(f"{collection.folder} has no dev queries to tune on; add qrels/dev.tsv or train queries.")
    fusion = retriever.search_config.fusion
    tuning = choose(retriever, collection, retriever.encode_queries(queries), fusion, lexical=fusion == "bound")
    retriever.search_config = dataclasses.replace(retriever.search_config, **tuning.best)
    return tuning


def choose(
    retriever: GenerativeRetriever,
    collection: Collection,
    encoded: EncodedQueries,
    fusion: str,
    *,
    lexical: bool,
    decoder: bool = True,
) -> Tuning:
    """Return the search options with the best RR@10 on dev, without changing the index.

    Args:
        retriever: the index.
        collection: its collection.
        encoded: the dev queries, with their query_ids.
        fusion: "bound" or "paper".
        lexical: also weigh BM25.
        decoder: also weigh the decoder; otherwise alpha is 0 ("bound").
    """
    qrels = collection.qrels["dev"]
    if fusion == "bound":
        found = [_flat_weights(retriever, encoded, qrels, lexical)]
        if decoder:
            found.append(_fused_weights(retriever, encoded, qrels, found[0]["lexical_weight"], lexical))
        grid = [{"fusion": fusion, **weights} for weights in found]
    else:
        every = product(PAPER_ALPHAS, PAPER_BETAS, PAPER_TEMPERATURES)
        grid = [{"fusion": fusion, "alpha": a, "beta": b, "ann_temperature": t} for a, b, t in every]

    if len(grid) == 1:
        return Tuning(grid[0], [])

    def search(options: Mapping[str, Any]) -> Runs:
        return retriever.run(encoded, 10, **options)  # type: ignore[typeddict-item]

    return Tuning(*best_setting(search, grid, qrels))


def _flat_weights(
    retriever: GenerativeRetriever, encoded: EncodedQueries, qrels: Judgements, lexical: bool
) -> dict[str, float]:
    """Return the best weight of BM25 beside the dense scores, without the decoder; 0 if BM25 is not used."""
    if not lexical or retriever.lexical is None:
        return {"alpha": 0.0, "lexical_weight": 0.0}
    dense, bm25 = _flat_candidates(retriever, encoded)
    return {"alpha": 0.0, "lexical_weight": best_weights(dense, [bm25], qrels)[0]}


def _fused_weights(
    retriever: GenerativeRetriever, encoded: EncodedQueries, qrels: Judgements, lexical_weight: float, lexical: bool
) -> dict[str, float]:
    """Return the best weights of decoder and BM25 beside the dense scores, on the documents that searches with `PROBES` find.

    A document's score is proportional to z.e_d + lexical_weight * BM25 + w * log P, with w = alpha / (1 - alpha) times the
    temperature.
    """
    generative: Runs = {query_id: {} for query_id in encoded.query_ids}
    for alpha in progress(PROBES, "tuning", unit="search"):
        result = retriever.search_encoded(
            encoded,
            PROBE_DEPTH,
            show_progress=True,
            fusion="bound",
            alpha=alpha,
            lexical_weight=lexical_weight,
            beam_width=PROBE_DEPTH,
        )
        log_p = dataclasses.replace(result, scores=result.generative / alpha)
        for query_id, found in retriever.as_run(encoded.query_ids, log_p).items():
            generative[query_id].update(found)
    dense, bm25 = _flat_candidates(retriever, encoded, generative)
    others = [bm25, generative] if lexical and bm25 else [generative]
    *weights, w = best_weights(dense, others, qrels)
    temperature = retriever.search_config.ann_temperature
    return {"alpha": w / (w + temperature), "lexical_weight": weights[0] if weights else 0.0}


def _flat_candidates(
    retriever: GenerativeRetriever, encoded: EncodedQueries, candidates: Runs | None = None
) -> tuple[Runs, Runs]:
    """Return the dense and BM25 scores of each query's candidates, by default the top hundred of either."""
    lexical, rows = retriever.lexical, retriever.documents.rows
    doc_ids = list(rows)
    dense_run: Runs = {}
    bm25_run: Runs = {}
    for batch in encoded.batches:
        dense = retriever.searcher.dense.document_scores(batch.embeddings).numpy(force=True)
        dense = dense[:, retriever.tree.positions]  # [batch, documents] in the order of the table
        bm25 = lexical.scores(batch.texts) if lexical else np.zeros_like(dense)
        for row, of_dense, of_bm25 in zip(batch.rows.tolist(), dense, bm25, strict=True):
            query_id = encoded.query_ids[row]
            if candidates is None:
                best = np.union1d(*(np.argsort(-scores, kind="stable")[:DEPTH] for scores in (of_dense, of_bm25)))
            else:
                best = np.array([rows[doc_id] for doc_id in candidates[query_id]])
            names = [doc_ids[n] for n in best]
            dense_run[query_id] = dict(zip(names, of_dense[best].tolist(), strict=True))
            bm25_run[query_id] = dict(zip(names, of_bm25[best].tolist(), strict=True))
    return dense_run, bm25_run if lexical else {}


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> bool:
    """Tune the index in `folder` and write the choice to its manifest; False if that was done before or is not possible."""
    record = folder / "tuning.json"
    bound_to = content_fingerprint(read_manifest(folder))
    if record.exists() and json.loads(record.read_text()).get("index") == bound_to:
        return False
    retriever = GenerativeRetriever.from_pretrained(folder, device=device)
    if not collection.qrels["dev"]:
        logger.warning("The collection has no dev queries; alpha stays at %g.", retriever.search_config.alpha)
        return False
    with stage_line("tuning"):
        tuning = tune(retriever, collection)
    write_search_config(folder, retriever.search_config)
    write_json(record, {"index": bound_to, "best": tuning.best, "dev RR@10": tuning.tried})
    logger.info("tuned on %d dev queries: %s", len(collection.qrels["dev"]), _in_words(tuning.best))
    return True


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items()
    )
