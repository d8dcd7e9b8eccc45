"""Choose the fusion weights of an index on the dev queries, and remember how they were chosen."""

import json
import logging
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from docids.collection import Collection
from docids.storage import write_json
from dsi.index import write_settings
from dsi.retriever import GenerativeRetriever
from eval.protocol import best_setting

logger = logging.getLogger(__name__)

ALPHAS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PAPER_BETAS = (1, 2, float("inf"))
PAPER_TEMPERATURES = (0.02, 0.05, 0.1, 1.0)


def tuning_grid(fusion: str) -> list[dict[str, Any]]:
    """Settings worth trying; with "bound" alpha alone decides the order (the temperature only rescales it)."""
    if fusion == "bound":
        return [{"fusion": fusion, "alpha": alpha} for alpha in ALPHAS]
    grid = product(ALPHAS, PAPER_BETAS, PAPER_TEMPERATURES)
    return [{"fusion": fusion, "alpha": a, "beta": b, "ann_temperature": t} for a, b, t in grid]


def tune(retriever: GenerativeRetriever, collection: Collection, fusion: str) -> tuple[dict[str, Any], list[Any]]:
    """The setting with the best dev RR@10, and all settings tried with theirs."""
    queries = collection.query_texts("dev")
    encoded = retriever.encode_queries(list(queries.values()))

    def search(settings: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        return retriever.run_encoded(list(queries), encoded, 10, **settings)

    return best_setting(search, tuning_grid(fusion), collection.qrels["dev"])


def tune_index(folder: Path, collection: Collection, device: str | None = None) -> None:
    """Tune the index in `folder` unless that has been done; the choice goes into its manifest, the record beside it."""
    retriever = GenerativeRetriever.from_pretrained(folder, device=device)
    record = folder / "tuning.json"
    bound_to = retriever.generator_fingerprint
    if not collection.qrels["dev"]:
        logger.warning("The collection has no dev queries; alpha stays at %g.", retriever.settings.alpha)
    elif not record.exists() or json.loads(record.read_text())["generator"] != bound_to:
        best, tried = tune(retriever, collection, retriever.settings.fusion)
        retriever.change_settings(**best)
        write_settings(folder, retriever.settings)
        write_json(record, {"generator": bound_to, "best": best, "dev RR@10": tried})
        logger.info("tuned on %d dev queries: %s", len(collection.qrels["dev"]), best)
