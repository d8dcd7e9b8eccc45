"""`dsi train`: run all stages, from a collection to a searchable, tuned index in RUN.

Stages that are up to date are skipped, and a killed run resumes where it stopped. Each stage is also a command:
generate-queries, train-encoder, build-docids, train-generator. From Python: `dsi.train`.
"""

import sys
from collections.abc import Sequence

from scripts.arguments import add_discard_updates, in_words, training_parser, training_run
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Train, tune on dev, print how long it took."""
    arguments = training_parser("train", __doc__)
    add_discard_updates(arguments)
    given = arguments.parse_args(argv)
    run = training_run(given)
    run.train()
    if run.processes.is_main:
        print(f"train: {in_words(run.seconds)} -> {run.folder}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
