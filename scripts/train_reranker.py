"""`dsi train-reranker`: train a reranker on judged queries and the documents that an index finds for them, and save it.

It learns from the dev queries: encoder and decoder were trained on the train queries, so their scores are better there than
on any new query. Before it is saved, its quality is measured by five-fold cross-validation over the same queries. From
Python: `dsi.reranker_training.train_reranker`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dsi.rerankers.kinds import TRAINABLE, WITH_IMPORTANCE
from scripts.arguments import add_device, parser, quiet_libraries
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print the quality by cross-validation, save."""
    arguments = _parse(argv)
    if arguments.figure and arguments.kind not in WITH_IMPORTANCE:
        raise ValueError(
            f"--figure shows how much each feature contributes to boosted trees; --kind {arguments.kind} has no such "
            f"figure, only {', '.join(WITH_IMPORTANCE)} have; leave --figure out."
        )
    quiet_libraries()
    from docids.collection import read_collection
    from dsi.config import read_config
    from dsi.reranker_training import train_reranker
    from dsi.reranking import load_rerankers, reranker_folder
    from dsi.retriever import GenerativeRetriever
    from eval.figures import shares_figure

    reranker_folder(arguments.run, arguments.name or arguments.kind)  # raises on a bad name before the work
    after = load_rerankers(arguments.run, arguments.after)
    retriever = GenerativeRetriever.from_pretrained(arguments.run, device=arguments.device)
    config = read_config(arguments.run / "config.toml")
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    trained = train_reranker(
        retriever,
        collection,
        arguments.kind,
        split=arguments.split,
        k=arguments.k,
        after=after,
        seed=arguments.seed,
        show_progress=True,
    )
    print(trained.quality)
    folder = trained.save(arguments.run, arguments.name)
    if arguments.figure:
        title = f"Feature importance of {arguments.kind}"
        shares_figure(trained.importance, "share of the gain of all splits", title, arguments.figure)
    print(f"{folder}: trained on {trained.queries} {arguments.split} queries with {arguments.k} candidates each")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = parser("train-reranker", f"{__doc__}\n{_kinds()}")
    arguments.add_argument("run", type=Path, metavar="RUN", help="an index")
    arguments.add_argument("--data", type=Path, required=True, help="the collection it was trained on")
    arguments.add_argument("--kind", choices=TRAINABLE, metavar="KIND", default="lambdasmart", help="see above")
    arguments.add_argument("--name", help="of the reranker: RUN/rerank/NAME; its kind by default")
    arguments.add_argument(
        "--after", nargs="+", default=[], metavar="NAME", help="rerankers to apply before it, in this order"
    )
    arguments.add_argument(
        "--figure",
        type=Path,
        metavar="PATH",
        help=f"write PATH.png and PATH.svg: how much each feature contributes ({', '.join(WITH_IMPORTANCE)})",
    )
    arguments.add_argument("--split", default="dev", choices=("train", "dev"), help="judged queries to learn from")
    arguments.add_argument("--k", type=int, default=50, help="candidates per query")
    arguments.add_argument("--seed", type=int, default=0, help="of the training and the folds")
    add_device(arguments)
    return arguments.parse_args(argv)


def _kinds() -> str:
    width = max(map(len, TRAINABLE))
    return "\n".join(["kinds:", *(f"  {kind:{width}}  {text}" for kind, text in TRAINABLE.items())])


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
