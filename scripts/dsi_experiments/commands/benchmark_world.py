"""`dsi benchmark-world`: indexes of many collections without training, beside BM25, dense search and their fusions.

Each collection is indexed as `dsi.index` does it, from its documents alone: no query is seen before the test. Where there are
train queries, `dsi.train` goes on with it for one more row. A collection that is measured already is not measured again.
"""

import logging
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import output_folder

if TYPE_CHECKING:
    from dsi.docids.data.collection import Collection
    from dsi.docids.types import Run
    from dsi.measuring.runs import IndexRuns

logger = logging.getLogger(__name__)

BM25, DENSE, RRF, OLD, HYBRID, WORDS, GENERATE, EXACT, TRAINED = (
    "BM25", "dense", "RRF (k = 60)", "dense + .03 BM25", "dense + BM25", "BM25 candidates", "generate", "exact", "trained",
)  # fmt: skip
ROWS = (BM25, DENSE, RRF, OLD, HYBRID, WORDS, GENERATE, EXACT, TRAINED)
MEASURES = ("nDCG@10", "Hit@1", "Hit@10")
_OLD_WEIGHT = 0.03
_K = 10


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-world", __doc__)
    command_line.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="BEIR folders with test queries")
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="OUT", help="results, NAME.json each"
    )
    command_line.add_argument(
        "--encoder", metavar="NAME", help="a sentence-transformers model; our own choice by default"
    )
    command_line.add_argument("--device", help="of the encoder")
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each collection, print the table, and write it beside the results."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.files.reading import read_json
    from dsi.docids.files.storage import write_json, write_text

    arguments.output.mkdir(parents=True, exist_ok=True)
    for folder in arguments.collections:
        path = arguments.output / f"{folder.resolve().name}.json"
        if not path.exists():
            write_json(path, measure(folder, path.with_suffix(""), arguments.encoder, arguments.device))
    records = {path.stem: read_json(path) for path in sorted(arguments.output.glob("*.json"))}
    table = world_table(records)
    write_text(arguments.output / "world.md", table + "\n")
    print(table)


def measure(folder: Path, index: Path, encoder: str | None, device: str | None) -> dict[str, Any]:
    """Write an index of one collection, and return its results: means, intervals, weights, costs."""
    import dsi
    from dsi.config import Config
    from dsi.measuring.provenance import provenance
    from dsi.measuring.runs import IndexRuns

    # 1) the index, from documents alone
    collection = dsi.read_collection(folder)
    started = time.perf_counter()
    retriever = dsi.index(_without_queries(collection), index, encoder=encoder, device=device)
    minutes = (time.perf_counter() - started) / 60
    # 2) all rows by the same queries
    runs = IndexRuns(collection, retriever)
    found = {name: _means(run, collection) for name, run in _baselines(runs).items()}
    costs = {}
    for name, costed in _searches(runs).items():
        found[name] = _means(costed.run, collection)
        costs[name] = {"vectors read": round(costed.read), "ms per query": round(costed.milliseconds, 2)}
    weights = {"by the documents": round(retriever.search_config.lexical_weight, 3)}
    # 3) once more, trained: token vectors of queries by train queries, weights by dev queries
    if collection.qrels["train"]:
        config = Config().with_changes({"encoder.name": encoder} if encoder else {})
        trained = dsi.train(collection, index, config=config, device=device)
        weights["by dev"] = round(trained.search_config.lexical_weight, 3)
        found[TRAINED] = _means(IndexRuns(collection, trained).search("test", _K, method="generate").run, collection)
    values, own_index = {name: own.pop("values") for name, own in found.items()}, retriever.snapshot
    return {
        "documents": len(collection.documents),
        "pieces": int(own_index.tree.num_places),
        "queries": len(values[BM25]),
        "minutes": round(minutes, 2),
        "language": getattr(own_index.lexical, "language", ""),
        "weights of BM25": weights,
        "systems": found,
        "costs": costs,
        "generate beside the better of BM25 and dense": _beside(values),
        **provenance(),
    }


def _without_queries(collection: "Collection") -> "Collection":
    """Return the documents alone."""
    import dataclasses

    return dataclasses.replace(collection, queries={}, qrels={split: {} for split in collection.qrels})


def _baselines(runs: "IndexRuns") -> "dict[str, Run]":
    from dsi.eval.fusion import reciprocal_rank_fusion
    from dsi.measuring.runs import BM25Runs

    words = BM25Runs(runs.collection, tuned=False).run("test")
    dense = runs.run_dense("test")
    return {BM25: words, DENSE: dense, RRF: reciprocal_rank_fusion([words, dense]), OLD: _old_hybrid(runs)}


def _old_hybrid(runs: "IndexRuns") -> "Run":
    """Return the ten best documents of each query by z.e + .03 BM25."""
    import numpy as np

    from dsi.docids.tree import document_scores

    index, queries = runs.retriever.snapshot, runs.collection.query_texts("test")
    assert index.lexical is not None
    vectors = runs.encode("test", queries).embeddings
    doc_ids = list(index.documents.rows)
    run: Run = {}
    for (query_id, text), vector in zip(queries.items(), vectors, strict=True):
        scores = document_scores(vector[None], index.tree)[0] + _OLD_WEIGHT * index.lexical.scores([text])[0]
        best = np.argsort(-scores, kind="stable")[:_K].tolist()
        run[query_id] = {doc_ids[row]: float(scores[row]) for row in best}
    return run


def _searches(runs: "IndexRuns") -> dict[str, Any]:
    from dsi.search.vector_search import DenseAndWords
    from dsi_experiments.controls import WordsOnly

    hybrid = runs.tune_hybrid(on_dev=False)
    return {
        HYBRID: runs.search("test", _K, DenseAndWords, **hybrid),
        WORDS: runs.search("test", _K, WordsOnly, method="generate"),
        GENERATE: runs.search("test", _K, method="generate"),
        EXACT: runs.search("test", _K, method="exact"),
    }


def _means(run: "Run", collection: "Collection") -> dict[str, Any]:
    """Return the means of the measures in percent, half of the 95 % interval of the first, and its values."""
    import numpy as np

    from dsi.eval.measures import evaluate, mean

    values = evaluate(run, collection.qrels["test"], MEASURES)
    first = np.array(list(values[MEASURES[0]].values()))
    half = 196 * first.std() / max(1, len(first)) ** 0.5
    means = {name: round(100 * mean(values[name]), 2) for name in MEASURES}
    return {**means, "interval": round(float(half), 2), "values": values[MEASURES[0]]}


def _beside(values: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the difference of generate to the better of BM25 and dense, nDCG@10 in points, and half of its 95 % interval."""
    import numpy as np

    from dsi.eval.measures import mean

    better = max((BM25, DENSE), key=lambda name: mean(values[name]))
    differences = 100 * np.array([values[GENERATE][query_id] - other for query_id, other in values[better].items()])
    half = 1.96 * differences.std() / len(differences) ** 0.5
    return {"better": better, "points": round(float(differences.mean()), 2), "interval": round(float(half), 2)}


def world_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return nDCG@10 / Hit@1 / Hit@10 of all collections and systems, and their means, as Markdown."""
    from dsi.eval.tables import markdown_table

    head = [
        "collection",
        "documents, pieces, queries",
        *ROWS,
        "beside the better of BM25, dense",
        "BM25's weight",
        "read",
        "min",
    ]
    rows = [_row(name, record) for name, record in records.items()]
    common = [row for row in ROWS if all(row in own["systems"] for own in records.values())]
    means = {
        row: [sum(own["systems"][row][name] for own in records.values()) / len(records) for name in MEASURES]
        for row in common
    }
    cells = [" / ".join(f"{value:.1f}" for value in means[row]) if row in means else "" for row in ROWS]
    return markdown_table(head, [*rows, ["mean", "", *cells, "", "", "", ""]])


def _row(name: str, record: Mapping[str, Any]) -> list[str]:
    systems, beside = record["systems"], record["generate beside the better of BM25 and dense"]
    cells = [
        f"{' / '.join(f'{systems[row][measure]:.1f}' for measure in MEASURES)} ± {systems[row]['interval']:.1f}"
        if row in systems
        else ""
        for row in ROWS
    ]
    return [
        name,
        f"{record['documents']:,}, {record['pieces']:,}, {record['queries']:,}",
        *cells,
        f"{beside['points']:+.1f} ± {beside['interval']:.1f}",
        ", ".join(f"{weight} ({who})" for who, weight in record["weights of BM25"].items()),
        f"{record['costs'][GENERATE]['vectors read']:,}",
        f"{record['minutes']:.1f}",
    ]


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
