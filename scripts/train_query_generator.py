"""`dsi train-query-generator`: fine-tune a seq2seq model on a collection's train pairs, document -> query.

`dsi generate-queries --method FOLDER` then writes pseudo-queries with it. Dev queries are not trained on, only measured.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from docids.collection import Collection, read_collection
from dsi.generator.query_training import Pair, QueryTrainingConfig, train_query_generator
from scripts.arguments import parser, quiet_libraries
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Train, print the loss on dev before and after, print where the model is."""
    arguments = _parse(argv)
    quiet_libraries()
    names = ("model", "document_tokens", "query_tokens", "batch_size", "epochs", "learning_rate", "bf16", "seed")
    config = QueryTrainingConfig(**{name: getattr(arguments, name) for name in names})
    collection = read_collection(arguments.data, dev_queries=arguments.dev_queries)
    train, dev = _pairs(collection, "train"), _pairs(collection, "dev")
    before, after = train_query_generator(train, dev, config, arguments.output, device=arguments.device)
    print(
        f"train-query-generator: {len(train)} pairs; loss on {len(dev)} dev pairs {before:.3f} -> {after:.3f} nats per token"
    )
    print(f"use it: dsi generate-queries --method {arguments.output} --data {arguments.data} --output RUN")


def _pairs(collection: Collection, split: str) -> list[Pair]:
    documents = collection.documents
    return [
        (documents[row]["title"], documents[row]["text"], collection.queries[query_id])
        for query_id, row in collection.pairs(split)
    ]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = QueryTrainingConfig()
    arguments = parser("train-query-generator", __doc__)
    arguments.add_argument("--data", type=Path, required=True, help="the collection, a folder in BEIR layout")
    arguments.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder of the model")
    arguments.add_argument("--model", default=defaults.model, help="seq2seq model to start from, Hub name or folder")
    for name in ("document_tokens", "query_tokens", "batch_size", "seed"):
        arguments.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    for name in ("epochs", "learning_rate"):
        arguments.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name))
    arguments.add_argument("--bf16", action="store_true")
    arguments.add_argument(
        "--dev-queries", type=int, default=500, help="cut from train where the collection has no dev split"
    )
    arguments.add_argument("--device", help="cpu keeps the training on the CPU")
    return arguments.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
