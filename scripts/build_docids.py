"""`dsi build-docids`: embed the documents and make their docids, into RUN/docids (DR-SCL section 3.4, or another scheme)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.arguments import training_parser, training_run
from scripts.main import run_command
from scripts.values import existing_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def main(argv: Sequence[str] | None = None) -> None:
    """Run the stage and print statistics of the tree."""
    parser = training_parser("build-docids", __doc__)
    parser.add_argument(
        "--embeddings", type=existing_file, help=".npy matrix with one row per document, to cluster on instead"
    )
    arguments = parser.parse_args(argv)
    points = None if arguments.embeddings is None else read_embeddings(arguments.embeddings)
    run = training_run(arguments)
    run.build_docids(points)
    print((run.folder / "docids" / "diagnostics.json").read_text(), end="")


def read_embeddings(path: Path) -> "NDArray[np.float32]":
    """Read embeddings [documents, dim] of any type of number from a .npy file.

    Raises:
        ValueError: the file is another one, or holds something else.
    """
    import numpy as np

    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception:  # a broken header raises nearly anything
        found = "a file that NumPy cannot read"
    else:
        if array.ndim == 2 and array.dtype.kind in "fiu":
            return np.ascontiguousarray(array, dtype=np.float32)
        found = f"an array of {array.dtype} {list(array.shape)}"
    raise ValueError(f"{path} must be a .npy file of numbers [documents, dim], got {found}; write it with numpy.save.")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
