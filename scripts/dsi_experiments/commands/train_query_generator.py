"""`dsi train-query-generator`: fine-tune a seq2seq or causal model on a collection's train pairs, document -> query.

`dsi train --config digits --set pseudo_queries.method=FOLDER` then writes pseudo-queries with it. Dev queries are not
trained on, only measured.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import add_collection, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, number, output_folder

if TYPE_CHECKING:
    from dsi.docids.data.collection import Collection
    from dsi_experiments.query_training import Pair

_SETTINGS: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "model": (str, "google-t5/t5-base", "seq2seq or causal model to start from, Hub name or folder"),
    "layers": (number(int, 0), 0, "upper layers of a causal model that are trained; 0 trains all weights"),
    "document_tokens": (count, 512, "tokens read of a document"),
    "query_tokens": (count, 32, "tokens of a query"),
    "batch_size": (count, 16, "pairs per process and step"),
    "epochs": (number(float, 0), 4.0, "passes over the pairs"),
    "learning_rate": (number(float, 0), 1e-4, "its peak"),
    "seed": (number(int, 0), 0, "of shuffling"),
}
"""{setting of `QueryTrainingConfig`: (type, default, what it is)}, without importing it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print the loss on dev before and after, print where the model is."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.data.collection import read_collection
    from dsi_experiments.query_training import QueryTrainingConfig, train_query_generator

    config = QueryTrainingConfig(**{name: getattr(arguments, name) for name in ("bf16", *_SETTINGS)})
    collection = read_collection(arguments.data, dev_queries=arguments.dev_queries)
    train, dev = _pairs(collection, "train"), _pairs(collection, "dev")
    before, after = train_query_generator(train, dev, config, arguments.output, device=arguments.device)
    print(
        f"train-query-generator: {len(train)} pairs; loss on {len(dev)} dev pairs {before:.3f} -> {after:.3f} nats per token"
    )
    print(f"use it: dsi train --config digits --set pseudo_queries.method={arguments.output} …")


def _pairs(collection: "Collection", split: str) -> "list[Pair]":
    documents = collection.documents
    return [
        (documents[row]["title"], documents[row]["text"], collection.queries[query_id])
        for query_id, row in collection.pairs(split)
    ]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("train-query-generator", __doc__)
    add_collection(command_line)
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="FOLDER", help="folder of the model"
    )
    for name, (kind, default, text) in _SETTINGS.items():
        command_line.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=default, metavar=name.upper(), help=text
        )
    command_line.add_argument(
        "--bf16", action="store_true", help="compute in bfloat16 if the device has instructions for it"
    )
    command_line.add_argument(
        "--dev-queries", type=number(int, 0), default=500, help="cut from train where the collection has no dev split"
    )
    command_line.add_argument("--device", help="cpu keeps the training on the CPU")
    return command_line
