"""`dsi build-docids`: embed the documents and cluster them into a docid tree (DR-SCL section 3.4), into RUN/docids."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scripts.arguments import training_parser, training_run
from scripts.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage and print statistics of the tree."""
    parser = training_parser("build-docids", __doc__)
    parser.add_argument("--embeddings", type=Path, help=".npy matrix with one row per document, to cluster on instead")
    arguments = parser.parse_args(argv)
    run = training_run(arguments)
    run.build_docids(None if arguments.embeddings is None else _read_matrix(arguments.embeddings))
    print((run.folder / "docids" / "diagnostics.json").read_text(), end="")


def _read_matrix(path: Path) -> "np.ndarray":
    if not path.exists():
        raise FileNotFoundError(f"The embeddings {path} do not exist; pass a .npy file with one row per document.")
    return np.load(path, allow_pickle=False)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
