"""`dsi benchmark-index`: the index beside faiss at equal milliseconds and equal bytes.

Each system draws a curve over its own knob: recall@10 of the exact answer against milliseconds a query. The index (methods
"generate" and "exact"; vectors as float32, or as int8 with codes) stands beside flat search, IVF-Flat, IVF-PQ with and without
refinement, and HNSW. Times are those of each part of a search: of the walk alone, of words alone, of both, and of the encoder.

Searched are synthetic embeddings of the sizes given, your own, or an index with the test queries of its collection, and its
encoder. At the knob that reaches a recall of .95, each system is measured once more with a filter that lets 1 % of the
documents through, and with a tenth of them removed.

Systems are built first, and measured in a fresh process, alternating, at one query a call and at 64. Set OMP_NUM_THREADS for
the number of threads that all of them use.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import collection_folder, count, index_folder, number, output_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FEWEST, _DIMS = 1024, 16


def main(argv: Sequence[str] | None = None) -> None:
    """Build and measure each collection; write JSON, tables and picture after each."""
    arguments = build_parser().parse_args(argv)
    if arguments.dim % _DIMS:
        raise ValueError(f"--dim must be a multiple of {_DIMS}, so that codes have whole bytes, got {arguments.dim}.")
    if arguments.vectors and arguments.run:
        raise ValueError("Choose one of --run and --vectors.")
    if (arguments.run is None) != (arguments.data is None):
        raise ValueError("--run and --data go together: an index, and the collection whose test queries it answers.")
    load_libraries(training=True)
    from dsi_experiments.benchmarks.index_report import picture, report
    from dsi_experiments.benchmarks.index_systems import systems
    from dsi_experiments.report import save_report

    systems(arguments.leave_out)  # refuses names that are none
    if arguments.measure:
        from dsi_experiments.benchmarks.index_measure import measure

        print(json.dumps(measure(arguments.measure, arguments.rounds, arguments.leave_out)))
        return
    with TemporaryDirectory(prefix="dsi-") as temporary:
        work = arguments.work or Path(temporary)
        for name, folder in _collections(arguments, work):
            found = _measured(folder, arguments)
            own = arguments.data or (arguments.vectors[0].with_suffix("") if arguments.vectors else Path("synthetic"))
            collection = own.name
            record = {"collection": collection, "rounds": arguments.rounds, **found}
            save_report(arguments.output, name, report(record), record)
            picture(record, arguments.output / name)
            print(report(record))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-index", __doc__)
    sizes = number(int, _FEWEST)
    command_line.add_argument("--sizes", type=sizes, nargs="+", default=[10_000, 100_000], help="synthetic documents")
    command_line.add_argument("--dim", type=count, default=64, help="of their embeddings")
    command_line.add_argument("--run", type=index_folder, metavar="INDEX", help="an index to measure instead")
    command_line.add_argument("--data", type=collection_folder, metavar="DATA", help="the collection of INDEX")
    command_line.add_argument(
        "--vectors",
        type=Path,
        nargs=2,
        metavar=("DOCUMENTS", "QUERIES"),
        help="embeddings [n, dim] to measure instead, .npy",
    )
    command_line.add_argument("--rounds", type=count, default=10, help="of the alternating measurements")
    command_line.add_argument(
        "--leave-out", nargs="*", default=[], metavar="NAME", help="systems that take too long, or much memory"
    )
    command_line.add_argument(
        "--output", type=output_folder, default=Path("index"), metavar="DIR", help="of JSON, tables and picture"
    )
    command_line.add_argument(
        "--work", type=output_folder, metavar="DIR", help="keeps what is built, for the next time"
    )
    command_line.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # what the fresh process does
    return command_line


def _collections(arguments: argparse.Namespace, work: Path) -> "list[tuple[str, Path]]":
    """(name of the results, folder) of each collection."""
    from dsi.docids.files.reading import sha256

    if arguments.run:
        return [("index", work / f"index-{sha256(arguments.run / 'manifest.json')[:16]}")]
    if arguments.vectors:
        return [("index", work / f"vectors-{sha256(arguments.vectors[0])[:16]}")]
    sizes = sorted(set(arguments.sizes))
    return [(f"index-{size}x{arguments.dim}", work / f"{size}x{arguments.dim}") for size in sizes]


def _measured(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one collection, built if it is not there."""
    _build(folder, arguments)
    options = ["--rounds", str(arguments.rounds), "--leave-out", *arguments.leave_out]
    command = [sys.executable, "-m", "dsi", "benchmark-index", "--measure", str(folder), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ValueError(f"Measuring {folder.name} failed with status {done.returncode}.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _build(folder: Path, arguments: argparse.Namespace) -> None:
    """The collection and all systems' files; those that are there are kept."""
    from dsi.docids.data.collection import read_collection
    from dsi_experiments.benchmarks.index_data import Searched, write_index, write_synthetic, write_vectors
    from dsi_experiments.benchmarks.index_systems import systems

    if not (folder / "facts.json").exists():
        if arguments.run:
            write_index(arguments.run, read_collection(arguments.data), folder, _FEWEST)
        elif arguments.vectors:
            documents, queries = map(_vectors, arguments.vectors)
            write_vectors(documents, queries, folder)
        else:
            write_synthetic(int(folder.name.split("x")[0]), arguments.dim, folder)
    data = Searched.load(folder)
    for system in systems(arguments.leave_out):
        system.prepare(data)


def _vectors(path: Path) -> "NDArray[np.float32]":
    """The embeddings [n, dim] of a file of NumPy's."""
    import numpy as np

    found = np.load(path)
    if found.ndim != 2 or len(found) < 1 or not np.isfinite(found).all():
        raise ValueError(f"{path} must hold finite embeddings [n, dim], got an array of shape {list(found.shape)}.")
    return np.ascontiguousarray(found, dtype=np.float32)
