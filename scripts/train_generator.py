"""`dsi train-generator`: train the decoder on docids (DR-SCL section 3.3) into RUN/generator, and finish the index."""

import sys
from collections.abc import Sequence

from scripts.arguments import run_stage
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage, unless it is up to date."""
    run_stage("train-generator", __doc__, "train_generator", argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
