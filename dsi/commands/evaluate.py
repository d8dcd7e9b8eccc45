"""`dsi evaluate`: measure an index beside BM25 and dense search on a split of a collection.

The index is measured as it searches by default, or with the search options given. Where one document is relevant to a query,
the table has Hit@1, Hit@5 and Hit@10; where several are, or judgements are graded, nDCG@10, RR@10 and Recall@100. From Python:
`dsi.evaluate`.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import add_device, add_index, add_judgements, add_rerank, add_search_options, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, output_file, output_folder

if TYPE_CHECKING:
    from dsi.store.retriever import Retriever


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table; write results and runs if asked."""
    # 1) Load the index and its collection.
    arguments = build_parser().parse_args(argv)
    load_libraries()
    from dsi.commands.arguments import open_retriever, read_judged, search_options
    from dsi.config import read_dev_cut
    from dsi.docids.files.storage import file_name
    from dsi.eval.trec import check_fields, write_qrels, write_run
    from dsi.measuring.evaluation import evaluate, missed_table
    from dsi.measuring.learned import with_only
    from dsi.measuring.tuning import is_untuned
    from dsi.store.folder.manifest import read_entries
    from dsi.training.stages import launch

    retriever = open_retriever(arguments)
    collection = read_judged(arguments, **read_dev_cut(arguments.run))
    qrels = collection.qrels[arguments.split]
    if arguments.trec_runs:  # before anything is searched
        ids = *retriever.snapshot.documents.rows, *qrels, *(doc_id for judged in qrels.values() for doc_id in judged)
        check_fields(arguments.trec_runs, ids)
    # 2) Measure.
    processes = launch(arguments.device)
    evaluation = evaluate(
        retriever, collection, arguments.split, depth=arguments.depth, measures=arguments.measures,
        rerankers=_chains(retriever, arguments), rerank_depth=arguments.rerank_depth, processes=processes,
        **search_options(arguments),
    )  # fmt: skip
    if not processes.is_main:
        return
    collection = with_only(collection, arguments.split, evaluation.splits["Total"])  # without those that were learned
    qrels = collection.qrels[arguments.split]
    # 3) Write and print.
    if arguments.results:  # before the table: its reader may go, as `| head` does
        file = arguments.run / "config.toml"  # an index that was saved elsewhere has none
        config = {"config": file.read_text(encoding="utf-8")} if file.exists() else {}
        versions = read_entries(arguments.run / "manifest.json")["versions"]
        evaluation.save(arguments.results, **config, index_versions=versions)
    if arguments.trec_runs:
        for name, run in evaluation.runs.items():
            path = arguments.trec_runs / f"{file_name(name)}.run"
            write_run(run, path, file_name(name))
        write_qrels(qrels, arguments.trec_runs / f"{arguments.split}.qrels")
    print(evaluation)
    if is_untuned(arguments.run, collection.qrels["dev"]):
        print("\nThe weights of the index were not tuned on the dev queries; `dsi tune` does that.")
    if arguments.show:
        run = evaluation.runs[evaluation.index]
        print(f"\n{missed_table(run, collection, arguments.split, retriever.snapshot.documents, arguments.show)}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("evaluate", __doc__)
    add_index(command_line)
    add_judgements(command_line, "the collection, with judged queries in queries.jsonl and qrels")
    add = command_line.add_argument
    depth = (
        "documents per query, 10 or more; by default 100 where several are relevant or judgements are graded, else 10"
    )
    add("--depth", type=count, metavar="K", help=depth)
    missed = "also print N queries whose first answer is not relevant, the worst first"
    add("--show", type=count, metavar="N", help=missed)
    add_rerank(command_line, nargs="+", default=[])
    add("--results", type=output_file, help="write search configs, measures and hardware as JSON")
    runs = "write every system's run and the judgements in TREC format"
    add("--trec-runs", type=output_folder, metavar="DIR", help=runs)
    add_search_options(command_line, without=("allow", "deny", "where", "min_score", "passages"))
    add_device(command_line, searches=True)
    return command_line


def _chains(retriever: "Retriever", arguments: argparse.Namespace) -> dict[str, list[Any]]:
    """Return {name: models} for names such as "A" and "A+B"; each model is loaded once."""
    if not arguments.rerank:
        return {}
    from dsi.rerankers import load_reranker

    load = cache(lambda name: load_reranker(retriever, arguments.run, name, device=arguments.device))
    return {name: [load(part) for part in name.split("+")] for name in arguments.rerank}
