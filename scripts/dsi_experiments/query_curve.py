"""When earlier queries pay: what an index gains with 1, 2, 4, … of them a document, by how many its answer has.

`dsi reproduce curve`. One index, as `dsi train` makes it with its weights; then all documents keep at most n of their train
queries, drawn at random, and the same test queries are searched again. Nothing is chosen here.
"""

import random
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

import dsi
from dsi.config import Config
from dsi.docids.data.collection import read_collection
from dsi.docids.files.storage import write_json, write_text
from dsi.docids.types import Qrels
from dsi.eval.measures import evaluate
from dsi.eval.tables import markdown_table
from dsi.measuring.provenance import provenance
from dsi.store.learning import LearnedPair
from dsi.training.pipeline import TrainingRun
from dsi_experiments.figures import lines_figure
from dsi_experiments.query_contest import BANDS, taught_counts

MEASURE, ANSWERS = "nDCG@10", 10
KEPT = (1, 2, 4, 8, 16, 32)
"""Earlier queries that a document keeps, at most."""


def reproduce(data: Path, output: Path, seeds: Sequence[int], config: Config | None = None) -> str:
    """Train OUTPUT/index, measure it with fewer and fewer earlier queries, write the table and a picture; return the table."""
    config = config or Config()
    collection = read_collection(
        data, dev_queries=config.dev_queries, dev_untaught=config.dev_untaught, seed=config.seed
    )
    TrainingRun(output / "index", collection, config).train()
    retriever = dsi.load(output / "index")
    pairs, qrels = retriever.learned(), collection.qrels["test"]
    counts = answer_counts(pairs, qrels)
    queries = retriever.encode_queries(collection.query_texts("test"))

    def values(kept: int, seed: int) -> np.ndarray:
        own = copy(retriever)
        if gone := beyond(pairs, kept, seed):
            own.forget([(pair.hash, pair.doc_id) for pair in gone])
        found = evaluate(own.run(queries, ANSWERS), qrels, [MEASURE])[MEASURE]
        return 100 * np.array([found[query_id] for query_id in qrels])

    without = values(0, 0)
    most = max(counts)
    gains = {
        min(kept, most): np.mean([values(kept, seed) for seed in seeds], axis=0) - without
        for kept in (*(kept for kept in KEPT if kept < most), most)
    }
    record = {
        "collection": Path(collection.name).name, "documents": len(collection.documents), "pairs": len(pairs),
        "memory_weight": retriever.search_config.memory_weight, "seeds": list(seeds),
        "without": round(float(without.mean()), 2),
        "gains": {str(kept): by_band(own, np.array(counts)) for kept, own in gains.items()}, **provenance(),
    }  # fmt: skip
    write_json(output / "curve.json", record)
    text = curve_table(record)
    write_text(output / "curve.md", text + "\n")
    bands = {
        band: {float(kept): own[band][0] for kept, own in record["gains"].items() if band in own} for band in BANDS
    }
    series = {f"answers with {band}": points for band, points in bands.items() if points}
    lines_figure(
        series, "earlier queries a document, at most", f"{MEASURE} gained", record["collection"], output / "curve"
    )
    return text


def answer_counts(pairs: Sequence[LearnedPair], qrels: Qrels) -> list[int]:
    """Return for each query how many pairs the relevant document has that has most of them."""
    each = {str(number): {pair.doc_id: 1.0} for number, pair in enumerate(pairs)}
    return [int(count) for count in taught_counts(qrels, each, list(qrels))]


def beyond(pairs: Sequence[LearnedPair], kept: int, seed: int) -> list[LearnedPair]:
    """Return the pairs that go if each document keeps some of its own at random; fewer kept are among more kept."""
    seen: dict[str, int] = {}
    gone = []
    for pair in random.Random(seed).sample(list(pairs), len(pairs)):
        seen[pair.doc_id] = seen.get(pair.doc_id, 0) + 1
        if seen[pair.doc_id] > kept:
            gone.append(pair)
    return gone


def by_band(gains: np.ndarray, counts: np.ndarray) -> dict[str, list[float]]:
    """Return {band: [mean gain, half of its 95 % interval, queries]} of the bands with two queries or more."""
    which = {band: gains[(counts >= low) & (counts <= high)] for band, (low, high) in BANDS.items()}
    return {
        band: [
            round(float(own.mean()), 2),
            round(float(1.96 * own.std(ddof=1) / len(own) ** 0.5), 2),
            len(own),
        ]
        for band, own in {"all": gains, **which}.items()
        if len(own) > 1
    }


def curve_table(record: Mapping[str, Any]) -> str:
    """Return the Markdown table of a record."""
    bands = list(next(iter(record["gains"].values())))
    heads = ["at most", *(f"answers with {band}" if band in BANDS else band for band in bands)]
    queries = ["queries", *(str(own[2]) for own in next(iter(record["gains"].values())).values())]
    rows = [
        [kept, *(f"{own[band][0]:+.2f} ± {own[band][1]:.2f}" for band in bands)]
        for kept, own in record["gains"].items()
    ]
    about = (
        f"{record['collection']}: {record['documents']:,} documents, {record['pairs']:,} earlier queries; {MEASURE} "
        f"{record['without']:.1f} without them, and what is gained with at most as many of them a document"
    )
    return f"{about}\n\n{markdown_table(heads, [queries, *rows])}"
