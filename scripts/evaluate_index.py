"""`dsi evaluate`: measure an index beside BM25 and dense search on a split of a collection."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contrastive.encoder import Encoder
from docids.collection import Collection, read_collection
from docids.storage import write_json
from dsi.config import read_config
from dsi.index import read_manifest
from dsi.retriever import GenerativeRetriever
from eval.baselines import BM25, dense_run
from eval.protocol import Splits, SystemResult, measure_system, overlap_splits, randomisation_test, table
from eval.trec import write_run
from scripts.arguments import quiet_libraries
from scripts.hardware import hardware
from scripts.main import run_command
from scripts.tuning import tune

DEPTH = 100


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write results and runs where asked."""
    arguments = _parse(argv)
    quiet_libraries()
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device)
    config = read_config(arguments.run / "config.toml")
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    untrained = Encoder.load(config.encoder, device=arguments.device) if arguments.untrained else None
    other = arguments.other_fusion and {"bound": "paper", "paper": "bound"}[retriever.settings.fusion]
    results, runs = evaluate_systems(retriever, collection, arguments.split, untrained, other or None)
    splits = overlap_splits(collection.qrels[arguments.split], collection.overlap_documents(arguments.split))
    print(table(results, splits))
    print(significance_lines(results))
    if arguments.results:
        write_json(arguments.results, _report(arguments, retriever, results, splits))
    for name, run in runs.items() if arguments.trec_runs else ():
        write_run(run, arguments.trec_runs / f"{_file_name(name)}.run", _file_name(name))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dsi evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--data", type=Path, required=True, help="the collection it was made of")
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"))
    parser.add_argument("--untrained", action="store_true", help="also dense search before contrastive training")
    parser.add_argument(
        "--other-fusion", action="store_true", help="also the fusion the index does not use, tuned on dev"
    )
    parser.add_argument("--results", type=Path, help="write settings, measures and hardware as JSON")
    parser.add_argument("--trec-runs", type=Path, metavar="DIR", help="write every system's run in TREC format")
    parser.add_argument("--device")
    return parser.parse_args(argv)


def evaluate_systems(
    retriever: GenerativeRetriever,
    collection: Collection,
    split: str,
    untrained: Encoder | None = None,
    other_fusion: str | None = None,
) -> tuple[list[SystemResult], dict[str, dict[str, dict[str, float]]]]:
    """Measure BM25, dense search, the decoder alone and the fused search on one split.

    Args:
        retriever: the index.
        collection: its collection.
        split: of the judgements.
        untrained: the encoder before contrastive training, for a row of its own.
        other_fusion: a further fusion to tune on dev and measure.

    Returns:
        A result a system, and the runs they were measured on.
    """
    queries, qrels = collection.query_texts(split), collection.qrels[split]
    runs: dict[str, dict[str, dict[str, float]]] = {}
    settings: dict[str, dict[str, Any]] = {}

    def add(name: str, run: dict[str, dict[str, float]], **used: Any) -> None:
        runs[name], settings[name] = run, used

    documents = collection.documents
    full_texts = [f"{title} {text}" for title, text in zip(documents["title"], documents["text"], strict=True)]
    bm25 = BM25(documents["doc_id"], full_texts)
    if split != "dev" and collection.qrels["dev"]:
        bm25.tune(collection.query_texts("dev"), collection.qrels["dev"])
    add("BM25", bm25.run(queries, DEPTH), k1=bm25.k1, b=bm25.b)
    if untrained is not None:
        texts = untrained.document_texts(list(documents["title"]), list(documents["text"]))
        embeddings = untrained.encode(texts, "document", progress=True)
        add("Dense, before contrastive training", _dense(untrained, queries, collection, embeddings))
    tree = retriever.tree
    add("Dense (DPR-style)", _dense(retriever.encoder, queries, collection, tree.embeddings[tree.positions]))
    encoded, query_ids = retriever.encode_queries(list(queries.values()), progress=True), list(queries)
    add("DR-SCL, decoder only (beta=0)", retriever.run_encoded(query_ids, encoded, DEPTH, alpha=1.0, beta=0.0), beta=0)
    variants = [{}, *([tune(retriever, collection, other_fusion)[0]] if other_fusion else [])]
    for variant in variants:
        config = retriever.config(DEPTH, variant)
        used = {"alpha": config.alpha, "beta": config.beta, "ann_temperature": config.ann_temperature}
        run = retriever.run_encoded(query_ids, encoded, DEPTH, **variant)
        add(f'DR-SCL, fused ("{config.fusion}")', run, beam_width=config.beam_width, **used)
    return [measure_system(name, run, qrels, **settings[name]) for name, run in runs.items()], runs


def _dense(
    encoder: Encoder, queries: dict[str, str], collection: Collection, embeddings: np.ndarray
) -> dict[str, dict[str, float]]:
    query_embeddings = encoder.encode(encoder.query_texts(list(queries.values())), "query")
    return dense_run(list(queries), query_embeddings, collection.documents["doc_id"], embeddings, DEPTH)


def significance_lines(results: Sequence[SystemResult]) -> str:
    """The fused search (the first fused row) against every other system, paired randomisation on Hit@1 and Hit@10."""
    fused = next(result for result in results if "fused" in result.name)
    lines = [f"{fused.name} against (difference in points, p of a paired randomisation test):"]
    for other in results:
        if other is not fused:
            tests = (randomisation_test(fused.values[m], other.values[m], rounds=10_000) for m in ("Hit@1", "Hit@10"))
            cells = [f"{m} {100 * d:+.2f} (p={p:.4f})" for m, (d, p) in zip(("Hit@1", "Hit@10"), tests, strict=True)]
            lines.append(f"  {other.name}: {', '.join(cells)}")
    return "\n".join(lines)


def _report(
    arguments: argparse.Namespace, retriever: GenerativeRetriever, results: Sequence[SystemResult], splits: Splits
) -> dict[str, Any]:
    return {
        "collection": arguments.data.name,
        "split": arguments.split,
        "queries": {split: len(query_ids) for split, query_ids in splits.items()},
        "documents": len(retriever.documents),
        "config": (arguments.run / "config.toml").read_text(encoding="utf-8"),
        "versions": read_manifest(arguments.run)["versions"],
        "hardware": f"{hardware()}, {torch.get_num_threads()} threads",
        "systems": {result.name: {"settings": result.settings, **result.means(splits)} for result in results},
    }


def _file_name(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
