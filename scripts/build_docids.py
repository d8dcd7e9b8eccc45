"""`dsi build-docids`: embed the documents and make their docids, into RUN/docids (DR-SCL section 3.4, or another scheme)."""

import sys
from collections.abc import Sequence

from scripts.arguments import training_parser, training_run
from scripts.main import run_command
from scripts.values import existing_file


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage and print statistics of the tree."""
    parser = training_parser("build-docids", __doc__)
    parser.add_argument(
        "--embeddings", type=existing_file, help=".npy matrix with one row per document, to cluster on instead"
    )
    arguments = parser.parse_args(argv)
    run = training_run(arguments)
    import numpy as np

    run.build_docids(None if arguments.embeddings is None else np.load(arguments.embeddings, allow_pickle=False))
    print((run.folder / "docids" / "diagnostics.json").read_text(), end="")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
