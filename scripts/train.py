"""`dsi train`: all stages over a collection, from texts to a searchable, tuned index in RUN.

A stage whose output is there and up to date is not run again; a killed run goes on where it was. Each stage is also a command
of its own: generate-queries, train-encoder, build-docids, train-generator.
"""

import sys
from collections.abc import Sequence

from scripts.arguments import training_parser, training_run
from scripts.main import run_command
from scripts.tuning import tune_index


def main(argv: Sequence[str] | None = None) -> None:
    """Train, tune on dev, say how long it took."""
    arguments = training_parser("train", __doc__).parse_args(argv)
    run = training_run(arguments)
    run.all_stages()
    if not run.processes.is_main:
        return
    if run.config.tune:
        tune_index(run.folder, run.collection, arguments.device)
    print(f"train: {', '.join(f'{name} {s:.0f} s' for name, s in run.seconds.items()) or 'up to date'} -> {run.folder}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
