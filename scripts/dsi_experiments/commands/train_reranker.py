"""`dsi train-reranker`: train a reranker on judged queries and the documents that an index finds for them, and save it.

It learns from the dev queries: encoder and decoder were trained on the train queries, so their scores are better there than
on any new query. Before it is saved, its quality is measured by five-fold cross-validation over the same queries. From
Python: `dsi_experiments.rerankers.training.train_reranker`.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import add_collection, add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, number, output_file
from dsi_experiments.rerankers.kinds import TRAINABLE, WITH_IMPORTANCE


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print the quality by cross-validation, save."""
    arguments = _parse(argv)
    load_libraries(training=True)
    from dsi.config import read_dev_cut
    from dsi.docids.data.collection import read_collection
    from dsi.rerankers import reranker_folder
    from dsi.store.retriever import load
    from dsi_experiments.figures import shares_figure
    from dsi_experiments.rerankers.boosting import BoostedTrees
    from dsi_experiments.rerankers.training import train_reranker

    reranker_folder(arguments.run, arguments.name or arguments.kind)  # raises on a bad name before the work
    retriever = load(arguments.run, device=arguments.device)
    collection = read_collection(arguments.data, **read_dev_cut(arguments.run))
    trained = train_reranker(
        retriever,
        collection,
        arguments.kind,
        split=arguments.split,
        k=arguments.k,
        seed=arguments.seed,
    )
    print(trained.quality)
    folder = trained.save(arguments.run, arguments.name)
    if arguments.figure:
        assert isinstance(trained.reranker, BoostedTrees)
        title = f"Feature importance of {arguments.kind}"
        shares_figure(trained.reranker.importance, "share of the gain of all splits", title, arguments.figure)
    print(f"{folder}: trained on {trained.queries} {arguments.split} queries with {arguments.k} candidates each")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("train-reranker", f"{__doc__}\n{_kinds()}")
    add_index(command_line)
    add_collection(command_line, "the collection it was trained on")
    command_line.add_argument("--kind", choices=TRAINABLE, metavar="KIND", default="lambdasmart", help="see above")
    command_line.add_argument("--name", help="of the reranker: INDEX/rerank/NAME; its kind by default")
    command_line.add_argument(
        "--figure",
        type=output_file,
        metavar="PATH",
        help=f"write PATH.svg: how much each feature contributes ({', '.join(WITH_IMPORTANCE)})",
    )
    command_line.add_argument("--split", default="dev", choices=("train", "dev"), help="judged queries to learn from")
    command_line.add_argument("--k", type=count, default=50, help="candidates per query")
    command_line.add_argument("--seed", type=number(int, 0), default=0, help="of the training and the folds")
    add_device(command_line)
    return command_line


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    if arguments.figure and arguments.kind not in WITH_IMPORTANCE:
        raise ValueError(
            f"--figure shows how much each feature contributes to boosted trees; --kind {arguments.kind} has no such "
            f"figure, only {', '.join(WITH_IMPORTANCE)} have; leave --figure out."
        )
    return arguments


def _kinds() -> str:
    width = max(map(len, TRAINABLE))
    return "\n".join(["kinds:", *(f"  {kind:{width}}  {text}" for kind, text in TRAINABLE.items())])
