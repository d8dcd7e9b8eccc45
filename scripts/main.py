"""`dsi COMMAND …`: lists the commands and runs one; imports nothing heavy before that."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

_GROUPS = {
    "everyday": {
        "example": ("example", "train, measure and search the collection that ships, offline"),
        "train": ("train", "train and tune an index; resumable"),
        "tune": ("tune_index", "choose weights, alpha and the beam of an index on dev queries"),
        "evaluate": ("evaluate_index", "measure an index against BM25, dense search and RRF"),
        "search": ("search_index", "search an index"),
        "explain": ("explain_search", "show how a query found its documents"),
        "serve": ("serve", "serve an index over HTTP, with a page that shows the tree"),
        "update": ("update_index", "add and remove documents, without training"),
        "push": ("push_index", "upload an index to the Hugging Face Hub"),
    },
    "stages of training": {
        "generate-queries": ("generate_queries", "pseudo-queries"),
        "train-encoder": ("train_encoder", "contrastive pre-training of the encoder"),
        "build-docids": ("build_docids", "embeddings to docid tree"),
        "train-generator": ("train_generator", "the decoder; finishes the index"),
        "train-query-generator": ("train_query_generator", "a seq2seq model of your own for generate-queries"),
        "train-reranker": ("train_reranker", "learning to rank, diversification"),
    },
    "data": {
        "prepare-nq": ("prepare_nq", "Natural Questions, raw or from the Hub, as a collection"),
        "prepare-irds": ("prepare_irds", "any collection of ir_datasets"),
    },
    "experiments": {
        "reproduce": ("experiments.reproduce", "the tables and figures of the papers, and our own"),
        "compare-docids": ("compare_docids", "every docid scheme at the same encoder, generator and training"),
    },
    "benchmarks": {
        "benchmark-decoding": ("benchmarks.decoding", "our search against transformers' generate"),
        "benchmark-constraint": (
            "benchmarks.constraint",
            "the docid constraint of generate, transformers' own and ours",
        ),
        "benchmark-training": ("benchmarks.training", "a step of decoder training against transformers"),
        "benchmark-search": ("benchmarks.search", "an index against encoding the query and flat search"),
        "benchmark-serving": ("benchmarks.serving", "a server at 1, 8 and 64 clients, with and without batching"),
        "benchmark-multilabel": ("benchmarks.multilabel", "the tree model without text, beside napkinXC and PECOS"),
        "benchmark-scale": ("benchmarks.scale", "time, memory and bytes as a collection grows"),
        "benchmark-index": ("benchmarks.index", "the index beside faiss at equal milliseconds and bytes"),
        "benchmark-docids": ("benchmarks.docids", "time and memory of building a large docid tree"),
    },
}
COMMANDS = {name: entry for commands in _GROUPS.values() for name, entry in commands.items()}
"""{command: (module in scripts, what it does)}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        return run_command(lambda _: print(_usage()), [])
    name, *rest = arguments
    if name == "--version":
        print(f"dsi {version('dr-scl')}")
        return 0
    if name not in COMMANDS:
        print(f"dsi: unknown command {name!r}\n\n{_usage()}", file=sys.stderr)
        return 2
    return run_command(importlib.import_module(f"scripts.{COMMANDS[name][0]}").main, rest)


def run_command(command: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Call a command's main; bad input becomes one line on stderr and exit status 2.

    Like other programs, a command that is interrupted (Ctrl-C) or whose reader has gone (`| head`) ends without a word.
    """
    try:
        command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        return 141
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"dsi: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _one_line(text: str) -> str:
    """Return a text with line ends escaped, such as those of a file's name, and without lone surrogates."""
    lines = "\\n".join(text.splitlines())
    return lines.encode("utf-8", "backslashreplace").decode()


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: dsi COMMAND …   (dsi COMMAND --help, dsi --version)"]
    for group, commands in _GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name.ljust(width)}  {text}" for name, (_, text) in commands.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
