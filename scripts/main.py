"""`dsi COMMAND …`: names the commands and calls the one asked for; imports nothing heavy before that."""

import importlib
import sys
from collections.abc import Sequence

_COMMANDS = {
    "example": ("example", "the whole line on the collection that ships: train, measure, search"),
    "train": ("train", "all stages over a collection, resumable"),
    "train-query-generator": ("train_query_generator", "a seq2seq model of one's own for generate-queries"),
    "generate-queries": ("generate_queries", "stage: pseudo-queries"),
    "train-encoder": ("train_encoder", "stage: contrastive pre-training of the encoder"),
    "build-docids": ("build_docids", "stage: embeddings to docid tree"),
    "train-generator": ("train_generator", "stage: the decoder; finishes the index"),
    "train-reranker": ("train_reranker", "a stage after the beam: learning to rank, diversification"),
    "evaluate": ("evaluate_index", "measure an index against BM25 and dense search"),
    "update": ("update_index", "add documents to an index and remove others, without training"),
    "search": ("search_index", "ask an index"),
    "reproduce": ("reproduce", "the tables and the figure of DR-SCL, with further baselines"),
    "prepare-nq": ("prepare_nq", "Natural Questions, raw or from the Hub, as a collection"),
    "prepare-irds": ("prepare_irds", "any collection of ir_datasets"),
    "benchmark-decoding": ("benchmark_decoding", "our search against transformers' generate"),
    "benchmark-training": ("benchmark_training", "a step of decoder training against transformers"),
    "benchmark-search": ("benchmark_search", "an index against encoding the query and flat search"),
    "benchmark-multilabel": ("multilabel", "the tree model without text, beside napkinXC and PECOS"),
    "benchmark-scale": ("benchmark_scale", "time, memory and bytes as a collection grows"),
    "benchmark-docids": ("benchmark_docids", "time and memory of building a large docid tree"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name, *rest = arguments
    if name not in _COMMANDS:
        print(f"dsi: unknown command {name!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    return run_command(importlib.import_module(f"scripts.{_COMMANDS[name][0]}").main, rest)


def run_command(command: "object", arguments: Sequence[str]) -> int:
    """Call a command's main; bad input becomes one line on stderr and exit status 2."""
    try:
        command(arguments)  # type: ignore[operator]
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"dsi: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _usage() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name.ljust(width)}  {text}" for name, (_, text) in _COMMANDS.items()]
    return "\n".join(["usage: dsi COMMAND …   (dsi COMMAND --help)", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
