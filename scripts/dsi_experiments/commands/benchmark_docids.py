"""`dsi benchmark-docids`: time and memory of clustering many random embeddings into a docid tree."""

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, output_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def main(argv: Sequence[str] | None = None) -> None:
    """Build one tree and print what it took."""
    command_line = parser("benchmark-docids", __doc__)
    command_line.add_argument("--documents", type=count, default=1_000_000, help="points")
    command_line.add_argument("--dim", type=count, default=384, help="of a point")
    command_line.add_argument(
        "--topics", type=count, default=2000, help="the points lie around this many random centres"
    )
    command_line.add_argument(
        "--method", default="kmeans", choices=("kmeans", "balanced", "random"), help="of clustering"
    )
    command_line.add_argument("--results", type=output_file, help="write the figures as JSON")
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.docids.clustering import DocidsConfig, build_tree
    from dsi.docids.files.storage import write_json
    from dsi.docids.tree import diagnostics
    from dsi.measuring.provenance import provenance
    from dsi_experiments.benchmarks.memory import watching_memory

    points = clustered_points(arguments.documents, arguments.dim, arguments.topics)
    started = time.perf_counter()
    with watching_memory() as most:
        tree = build_tree(points, DocidsConfig(method=arguments.method, max_leaf_size=10), progress=True)
        peak = most()
    seconds = time.perf_counter() - started
    figures = {
        "method": arguments.method,
        "dim": arguments.dim,
        "seconds": round(seconds, 1),
        "embeddings_gib": round(points.nbytes / 2**30, 2),
        "peak_private_memory_gib": round(peak / 2**30, 2),
        **{name: value for name, value in diagnostics(tree).items() if name != "entropy"},
        **provenance(),
    }
    print(json.dumps(figures, indent=1))
    if arguments.results:
        write_json(arguments.results, figures)


def clustered_points(documents: int, dim: int, topics: int, seed: int = 0) -> "NDArray[np.float32]":
    """[documents, dim] points of unit length around random centres, made block by block in a scratch file."""
    import numpy as np

    from dsi.docids.files.storage import scratch_array

    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((topics, dim), dtype=np.float32)
    points = scratch_array((documents, dim), np.float32)
    for start in range(0, documents, 50_000):
        block = points[start : start + 50_000]
        rng.standard_normal(out=block, dtype=np.float32)
        block += centres[rng.integers(0, topics, len(block))]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return points


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
