"""Chooses the fusion weights of an index on dev queries.

With fusions "bound" and "estimate" the weights come from an exact line search over candidate lists (`eval.fusion`); the
temperature only rescales alpha. The generator gets a weight only if the gain on dev exceeds its standard error. With fusion
"paper", whose scores are sums over levels, alpha, beta and temperature come from a grid search. Knows nothing of how nodes are
scored.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from docids.collection import Collection, check_collection, compare_documents
from docids.lexical import BM25
from docids.progress import progress
from docids.storage import digest, read_record, write_json
from dsi.hybrid import HybridScores, supported_weights
from dsi.index import index_state, write_search_config
from dsi.manifest import search_config
from dsi.retriever import GenerativeRetriever
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchConfig
from dsi.stages import stage_line
from eval.measures import Judgements, evaluate, mean
from eval.protocol import best_setting, supported_setting

logger = logging.getLogger(__name__)

Runs = dict[str, dict[str, float]]
_RECORD = "tuning.json"
PROBES = (0.02, 0.1, 0.5)
"""Values of alpha whose top documents are the candidates of fused search."""
PROBE_DEPTH = 30
"""Candidates per query and probe: a reciprocal rank counts down to ten."""
ESTIMATE_ALPHAS = (0.1, 0.25, 0.5, 1.0)
"""Weights of a generator that ranks documents itself."""
PAPER_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
PAPER_BETAS = (1, 2, float("inf"))
PAPER_TEMPERATURES = (0.02, 0.05, 0.1, 1.0)


@dataclass(frozen=True)
class Tuning:
    """The choice made on the dev queries.

    Attributes:
        best: the search options that were chosen: those with the highest RR@10, or without the generator if its gain is within
            one standard error.
        tried: the options compared by searching, with their RR@10; empty if there was only one.
    """

    best: dict[str, Any]
    tried: list[tuple[dict[str, Any], float]]


def tune(retriever: GenerativeRetriever, collection: Collection) -> Tuning:
    """Choose the fusion weights of an index on the dev queries, and search with them from now on.

    If the dev queries do not tell one choice from another, the weights stay as they are, and a warning says why.

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
        ValueError: the collection has no dev queries, or none of the index's documents.
    """
    check_collection("tune", collection)
    compare_documents(collection, retriever.documents.rows)
    queries = collection.query_texts("dev")
    if not queries:
        raise ValueError(f"{collection.folder} has no dev queries to tune on; add qrels/dev.tsv or train queries.")
    config, qrels = retriever.search_config, collection.qrels["dev"]
    kept = {"fusion": config.fusion, "alpha": config.alpha, "lexical_weight": config.lexical_weight}
    if not any(relevance > 0 for judged in qrels.values() for relevance in judged.values()):
        logger.warning("No dev query has a document that is judged relevant; the fusion weights stay as they are.")
        return Tuning(kept, [])
    encoded = retriever.encode_queries(queries)
    tuning = choose(retriever, collection, encoded, config.fusion, lexical=config.fusion != "paper")
    values = {value for _, value in tuning.tried}
    alike = len(values) == 1 and not tuning.best.get("lexical_weight")
    if alike and values == {mean(evaluate(retriever.run(encoded, 10), qrels, ["RR@10"])["RR@10"])}:
        logger.warning("All fusion weights do equally well on the dev queries; they stay as they are.")
        return Tuning(kept, tuning.tried)
    retriever.search_config = dataclasses.replace(config, **tuning.best)
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

    def search(options: Mapping[str, Any]) -> Runs:
        return retriever.run(encoded, 10, **options)  # type: ignore[typeddict-item]

    if fusion == "paper":
        estimating = retriever.searcher.estimating  # such a generator has no part in these scores
        weights = [(0.0,), (float("inf"),)] if estimating else [PAPER_ALPHAS, PAPER_BETAS]
        every = product(*weights, PAPER_TEMPERATURES)
        grid = [{"fusion": fusion, "alpha": a, "beta": b, "ann_temperature": t} for a, b, t in every]
        return Tuning(*best_setting(search, grid, qrels))
    flat = _Flat(retriever, encoded, qrels, lexical=lexical)
    plain = {"alpha": 0.0, "lexical_weight": flat.best_weight(0.0)}
    found = [plain]
    if decoder and retriever.searcher.estimating:
        found += [{"alpha": alpha, "lexical_weight": flat.best_weight(alpha)} for alpha in ESTIMATE_ALPHAS]
    elif decoder:
        found.append(flat.weights_of_paths(plain["lexical_weight"]))
    grid = [{"fusion": fusion, **weights} for weights in found]
    return Tuning(*supported_setting(search, grid, qrels)) if decoder else Tuning(grid[0], [])


class _Flat:
    """Line searches for the weights of documents' scores.

    Args:
        retriever: the index.
        encoded: the dev queries.
        qrels: their judgements.
        lexical: also weigh the lexical scores.
    """

    def __init__(
        self, retriever: GenerativeRetriever, encoded: EncodedQueries, qrels: Judgements, *, lexical: bool
    ) -> None:
        self.retriever, self.encoded, self.qrels = retriever, encoded, qrels
        tree, doc_ids = retriever.tree, list(retriever.documents.rows)
        self.scores = HybridScores(doc_ids, tree.embeddings[tree.places], retriever.lexical if lexical else None)

    def best_weight(self, alpha: float) -> float:
        """Return the best weight of the lexical scores; a generator with weight alpha changes them and the dense ones."""
        index, batches = self.retriever.snapshot, self.encoded.batches
        config = SearchConfig(alpha=alpha, lexical_weight=float(self.scores.lexical is not None))
        order = torch.cat([batch.rows for batch in batches]).argsort()
        queries = torch.cat([index.searcher.document_queries(batch, config).cpu() for batch in batches])[order]
        of_words, lexical, factors = index.word_factors(alpha), self.scores.lexical, None
        if of_words is not None and isinstance(lexical, BM25):
            found = [each for batch in batches for each in of_words(batch, lexical)]
            factors = [found[row] for row in order]
        of_query = queries.float().numpy()
        dense, others = self.scores.runs(self.encoded.query_ids, of_query, self.encoded.texts, factors=factors)
        return supported_weights(dense, [others], self.qrels)[0] if others else 0.0

    def weights_of_paths(self, lexical_weight: float) -> dict[str, float]:
        """Return the best weights of log-probabilities and lexical scores, on the documents that searches with `PROBES` find.

        A document's score is proportional to z.e_d + lexical_weight * BM25 + w * log P, with w = alpha / (1 - alpha) times the
        temperature.
        """
        retriever, encoded = self.retriever, self.encoded
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
        rows = retriever.documents.rows
        candidates = {query_id: [rows[doc_id] for doc_id in found] for query_id, found in generative.items()}
        embeddings = encoded.embeddings.float().numpy()
        dense, others = self.scores.runs(encoded.query_ids, embeddings, encoded.texts, candidates)
        *weights, w = supported_weights(dense, [others, generative] if others else [generative], self.qrels)
        temperature = retriever.search_config.ann_temperature
        return {"alpha": w / (w + temperature), "lexical_weight": weights[0] if weights else 0.0}


def is_tuned(folder: Path) -> bool:
    """True if the index in `folder` was tuned, and neither trained nor updated since."""
    return _record(folder).get("index", "") == index_state(folder) != ""


def is_as_configured(folder: Path, config: SearchConfig) -> bool:
    """True if the index in `folder` searches as `[search]` says, or with weights that were tuned from there."""
    if is_tuned(folder):
        return _record(folder).get("search") == _digest(config)
    return search_config(read_record(folder / "manifest.json")) == config


def configure(folder: Path, config: SearchConfig) -> None:
    """Make the index in `folder` search as `[search]` says, and tune it anew when it is tuned next."""
    (folder / _RECORD).unlink(missing_ok=True)
    write_search_config(folder, config)


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> bool:
    """Tune the index in `folder` and write the choice to its manifest; False if that was done before or is not possible."""
    if is_tuned(folder):
        return False
    bound_to = index_state(folder)
    retriever = GenerativeRetriever.from_pretrained(folder, device=device)
    before = retriever.search_config
    if not collection.qrels["dev"]:
        logger.warning("The collection has no dev queries; alpha stays at %g.", before.alpha)
        return False
    with stage_line("tuning"):
        tuning = tune(retriever, collection)
    write_search_config(folder, retriever.search_config)
    choice = {"best": tuning.best, "dev RR@10": tuning.tried}
    write_json(folder / _RECORD, {"index": bound_to, "search": _digest(before), **choice})
    if retriever.search_config != before:
        logger.info("tuned on %d dev queries: %s", len(collection.qrels["dev"]), _in_words(tuning.best))
    return True


def _record(folder: Path) -> dict[str, Any]:
    return read_record(folder / _RECORD)


def _digest(config: SearchConfig) -> str:
    return digest(dataclasses.asdict(config))


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items()
    )
