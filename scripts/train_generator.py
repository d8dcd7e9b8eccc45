"""`dsi train-generator`: train the decoder on docids (DR-SCL section 3.3) into RUN/generator, and finish the index.

It does not choose the fusion weights; `dsi tune` does.
"""

import sys
from collections.abc import Sequence

from scripts.arguments import run_stage
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage, unless it is up to date; say if the index is not tuned yet."""
    run = run_stage("train-generator", __doc__, "train_generator", argv)
    from dsi.tuning import is_tuned

    if run.config.tune and run.processes.is_main and not is_tuned(run.folder):
        print(f"The index is not tuned yet: dsi tune {run.folder} --data {run.collection.folder}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
