"""`dsi evaluate`: measure an index beside BM25 and dense search on a split of a collection."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from contrastive.encoder import Encoder
from docids.collection import Collection, read_collection
from docids.processes import ALONE, Processes
from docids.storage import file_name, write_json
from dsi.config import read_config
from dsi.diagnosis import diagnose, diagnosis_table, errors_by_level
from dsi.index import read_manifest
from dsi.launch import launched
from dsi.rerank.candidates import Stage
from dsi.rerank.lookahead import LookedAhead
from dsi.reranking import load_stages, reranked
from dsi.retriever import GenerativeRetriever
from dsi.search.beam import SearchResult
from eval.figures import bars_figure
from eval.fusion import reciprocal_rank_fusion
from eval.measures import evaluate, mean
from eval.protocol import Splits, SystemResult, measure_system, overlap_splits, randomisation_test, table
from eval.report import markdown_table
from eval.trec import write_run
from scripts.arguments import quiet_libraries
from scripts.hardware import provenance
from scripts.main import run_command
from scripts.systems import DECODER_ALONE, DenseSystems, IndexSystems, Run, WordSystems
from scripts.tuning import DEPTH

Runs = dict[str, Run]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write results and runs where asked."""
    arguments = _parse(argv)
    quiet_libraries()
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device, dtype=arguments.dtype)
    config = read_config(arguments.run / "config.toml")
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    untrained = Encoder.load(config.encoder, device=arguments.device) if arguments.untrained else None
    other = arguments.other_fusion and {"bound": "paper", "paper": "bound"}[retriever.settings.fusion]
    processes = launched(arguments.device)
    results, runs = evaluate_systems(retriever, collection, arguments.split, untrained, other or None, processes)
    if not processes.is_main:
        return
    if arguments.rerank:
        for result, run in reranked_systems(
            retriever, collection, arguments.split, _chains(arguments.run, arguments.rerank), arguments.candidates
        ):
            results.append(result)
            runs[result.name] = run
    splits = overlap_splits(collection.qrels[arguments.split], collection.overlap_documents(arguments.split))
    print(table(results, splits))
    print(significance_lines(results))
    if arguments.diagnose or arguments.diagnosis_figure:
        print(_diagnosis(retriever, collection, arguments.split, arguments.diagnosis_figure))
    if arguments.beam_widths:
        print(beam_table(retriever, collection, arguments.split, arguments.beam_widths))
    if arguments.look_ahead:
        print(look_ahead_table(retriever, collection, arguments.split, arguments.look_ahead))
    if arguments.results:
        write_json(arguments.results, _report(arguments, retriever, results, splits))
    for name, run in runs.items() if arguments.trec_runs else ():
        write_run(run, arguments.trec_runs / f"{file_name(name)}.run", file_name(name))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dsi evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="an index")
    parser.add_argument("--data", type=Path, required=True, help="the collection it was made of")
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"))
    parser.add_argument("--untrained", action="store_true", help="also dense search before contrastive training")
    parser.add_argument(
        "--other-fusion", action="store_true", help="also the fusion the index does not use, tuned on dev"
    )
    parser.add_argument(
        "--diagnose", action="store_true", help="search errors and model errors, by the level where the answer was lost"
    )
    parser.add_argument(
        "--diagnosis-figure", type=Path, metavar="PATH", help="the same as a picture: PATH.png and PATH.svg"
    )
    parser.add_argument(
        "--beam-widths",
        type=int,
        nargs="+",
        metavar="N",
        help="also quality, certified answers and time at these beams",
    )
    parser.add_argument(
        "--look-ahead",
        type=int,
        nargs="+",
        metavar="N",
        help="also documents by dense and BM25 scores that the decoder led to: look-ahead with N simulations, beams reranked",
    )
    parser.add_argument(
        "--rerank",
        nargs="+",
        default=[],
        metavar="NAME",
        help="also stages of RUN/rerank after the beam, each alone (A+B: one after another), over --candidates answers",
    )
    parser.add_argument("--candidates", type=int, default=50, metavar="K", help="of --rerank")
    parser.add_argument("--results", type=Path, help="write settings, measures and hardware as JSON")
    parser.add_argument("--trec-runs", type=Path, metavar="DIR", help="write every system's run in TREC format")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16, of encoder and decoder")
    return parser.parse_args(argv)


def evaluate_systems(
    retriever: GenerativeRetriever,
    collection: Collection,
    split: str,
    untrained: Encoder | None = None,
    other_fusion: str | None = None,
    processes: Processes = ALONE,
) -> tuple[list[SystemResult], Runs]:
    """Measure an index and the systems it has to beat on one split.

    BM25; dense search; both fused by reciprocal rank, and as a weighted sum; the decoder alone; decoder and dense scores fused;
    and, where the index has a lexical part, the three together. Weights are chosen on the dev queries.

    Args:
        retriever: the index.
        collection: its collection.
        split: of the judgements.
        untrained: the encoder before contrastive training, for a row of its own.
        other_fusion: a further fusion to tune on dev and measure.
        processes: that share the searching.

    Returns:
        A result a system, and the runs they were measured on; the last is the index as it is searched by default.
    """
    words = WordSystems(collection, tuned=split != "dev")
    index = IndexSystems(collection, retriever, processes)
    settings: dict[str, dict[str, Any]] = {}
    runs: Runs = {}

    def add(name: str, run: Run, **used: Any) -> None:
        runs[name], settings[name] = run, used

    def add_fused(name: str, **variant: Any) -> None:
        add(name, index.run(split, **variant), **dataclasses.asdict(retriever.config(DEPTH, variant)))

    own = retriever.settings
    add("BM25", words.run(split), **words.settings)
    if untrained is not None:
        add("Dense, before contrastive training", DenseSystems(collection, untrained).run(split))
    add("Dense (DPR-style)", index.dense.run(split))
    add("RRF of BM25 and dense", reciprocal_rank_fusion([runs["BM25"], runs["Dense (DPR-style)"]]), k=60)
    if own.lexical_weight:
        add_fused("Dense + BM25", **index.tuned(own.fusion, lexical=True, decoder=False))
    add_fused("DR-SCL, decoder only (beta=0)", **DECODER_ALONE)
    if other_fusion:
        add_fused(f'DR-SCL, fused ("{other_fusion}")', **index.tuned(other_fusion))
    if own.lexical_weight:
        add_fused(f'DR-SCL, fused ("{own.fusion}")', **index.tuned(own.fusion))
    add_fused(f'DR-SCL, fused ("{own.fusion}"){" + BM25" if own.lexical_weight else ""}')
    return [measure_system(name, run, collection.qrels[split], **settings[name]) for name, run in runs.items()], runs


def significance_lines(results: Sequence[SystemResult]) -> str:
    """The index as it is searched by default against every other row, paired randomisation on Hit@1 and Hit@10."""
    fused = next(result for result in reversed(results) if not result.name.startswith("+ "))
    lines = [f"{fused.name} against (difference in points, p of a paired randomisation test):"]
    for other in results:
        if other is not fused:
            tests = (randomisation_test(fused.values[m], other.values[m], rounds=10_000) for m in ("Hit@1", "Hit@10"))
            cells = [f"{m} {100 * d:+.2f} (p={p:.4f})" for m, (d, p) in zip(("Hit@1", "Hit@10"), tests, strict=True)]
            lines.append(f"  {other.name}: {', '.join(cells)}")
    return "\n".join(lines)


def look_ahead_table(
    retriever: GenerativeRetriever, collection: Collection, split: str, simulations: Sequence[int]
) -> str:
    """A Markdown row a search whose documents the decoder finds and dense and BM25 scores rank; by inner nodes expanded.

    Beams of the decoder alone whose answers are ranked by the document's score, and look-ahead with that score as reward.
    """
    queries, qrels = collection.query_texts(split), collection.qrels[split]
    encoded = retriever.encode_queries(list(queries.values()), progress=True)
    rows = []

    def add(name: str, search: Callable[[], tuple[SearchResult, float]]) -> None:
        started = time.perf_counter()
        result, expansions = search()
        milliseconds = 1000 * (time.perf_counter() - started) / len(queries)
        measured = evaluate(retriever.as_run(list(queries), result), qrels, ["Hit@1", "Hit@10"])
        hits = [f"{100 * mean(values):.2f}" for values in measured.values()]
        rows.append([name, f"{expansions:.1f}", *hits, f"{milliseconds:.1f}"])

    def beam(width: int) -> tuple[SearchResult, float]:
        found = retriever.search_encoded(encoded, width, beam_width=width, **DECODER_ALONE)
        doc_ids = [
            [*own, *own[:1] * (width - len(own))] for own in map(list, retriever.as_run(list(queries), found).values())
        ]
        _, dense = retriever.follow_encoded(encoded, doc_ids, alpha=0.0)
        scores = dense[:, :, -1].masked_fill(found.positions < 0, -torch.inf)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :10]
        positions = found.positions.gather(1, order)
        ranked = SearchResult(positions, scores.gather(1, order), found.exact, torch.zeros(positions.shape))
        return ranked, retriever.tree.expansions(width)

    def mcts(count: int) -> tuple[SearchResult, float]:
        found = retriever.search_encoded(encoded, 10, search="mcts", simulations=count)
        assert isinstance(found, LookedAhead)
        return found, float(found.expansions.float().mean())

    for width in (2, 5, 10, 20):
        add(f"decoder, beam {width}, then the document's score", lambda width=width: beam(width))  # type: ignore[misc]
    for count in simulations:
        add(f"look-ahead, {count} simulations", lambda count=count: mcts(count))  # type: ignore[misc]
    return markdown_table(["search", "inner nodes a query", "Hit@1", "Hit@10", "ms a query, after the encoder"], rows)


def _chains(index: Path, names: Sequence[str]) -> dict[str, list[Stage]]:
    """{name: stages} of names such as "A" and "A+B"; every stage is loaded once."""
    chains = {name: name.split("+") for name in names}
    needed = list(dict.fromkeys(part for parts in chains.values() for part in parts))
    loaded = dict(zip(needed, load_stages(index, needed), strict=True))
    return {name: [loaded[part] for part in parts] for name, parts in chains.items()}


def reranked_systems(
    retriever: GenerativeRetriever, collection: Collection, split: str, chains: Mapping[str, Sequence[Stage]], k: int
) -> Iterator[tuple[SystemResult, Run]]:
    """The index as it is searched by default, once; its first k answers by each chain of stages, with their milliseconds."""
    queries = collection.query_texts(split)
    encoded = retriever.encode_queries(list(queries.values()), progress=True)
    found = retriever.search_encoded(encoded, k)
    for name, stages in chains.items():
        started = time.perf_counter()
        run = retriever.as_run(list(queries), reranked(retriever, encoded, found, stages))
        milliseconds = round(1000 * (time.perf_counter() - started) / len(queries), 2)
        settings = {"candidates": k, "milliseconds a query": milliseconds}
        yield measure_system(f"+ {name}", run, collection.qrels[split], **settings), run


def beam_table(retriever: GenerativeRetriever, collection: Collection, split: str, beam_widths: Sequence[int]) -> str:
    """A Markdown row a beam width: quality of its first ten answers, how many are certified exact, time."""
    queries, qrels = collection.query_texts(split), collection.qrels[split]
    encoded = retriever.encode_queries(list(queries.values()), progress=True)
    rows = []
    for width in beam_widths:
        started = time.perf_counter()
        result = retriever.search_encoded(encoded, min(10, width), beam_width=width)
        milliseconds = 1000 * (time.perf_counter() - started) / len(queries)
        measured = evaluate(retriever.as_run(list(queries), result), qrels, ["Hit@1", "Hit@10"])
        hits = [f"{100 * mean(values):.2f}" for values in measured.values()]
        rows.append([str(width), *hits, f"{100 * result.exact.float().mean():.1f} %", f"{milliseconds:.1f}"])
    heads = ["beam width", "Hit@1", "Hit@10", "certified exact", "ms a query, after the encoder"]
    return markdown_table(heads, rows)


def _diagnosis(retriever: GenerativeRetriever, collection: Collection, split: str, figure: Path | None) -> str:
    answers = {query_id: collection.documents[row]["doc_id"] for query_id, row in reversed(collection.pairs(split))}
    queries = {query_id: collection.queries[query_id] for query_id in answers}
    misses = diagnose(retriever, queries, answers, k=10)
    if figure:
        title = "Where the right document's node left the beam"
        bars_figure(errors_by_level(misses), "level of the docid", "queries without their document", title, figure)
    return diagnosis_table(misses, len(queries), k=10)


def _report(
    arguments: argparse.Namespace, retriever: GenerativeRetriever, results: Sequence[SystemResult], splits: Splits
) -> dict[str, Any]:
    return {
        "collection": arguments.data.name,
        "split": arguments.split,
        "dtype": arguments.dtype,
        "queries": {split: len(query_ids) for split, query_ids in splits.items()},
        "documents": len(retriever.documents),
        "config": (arguments.run / "config.toml").read_text(encoding="utf-8"),
        **provenance(),
        "index_versions": read_manifest(arguments.run)["versions"],
        "systems": {result.name: {"settings": result.settings, **result.means(splits)} for result in results},
    }


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
