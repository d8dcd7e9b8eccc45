"""`dsi train-encoder`: contrastive pre-training of the encoder (DR-SCL section 3.2) into RUN/encoder."""

import sys
from collections.abc import Sequence

from scripts.arguments import run_stage
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage, unless it is up to date."""
    run_stage("train-encoder", __doc__, "train_encoder", argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
