"""`dsi benchmark-scale`: time, memory and bytes as a collection grows, with synthetic embeddings and random weights.

For each size, the tree is built and written in one process, mapped and searched in a fresh one. Searches are timed alternating,
with batches of eight queries and ten answers. With tied tokens, "generate" has the default beam: it scores the children of
the nodes that it keeps and the documents below the last ones, by codes in a large index; "exact" scores all documents, as flat
search does. With (level, digit) tokens and a beam of ten, the decoder alone and "paper" fusion grow with the depth of the
tree; "bound" fusion scores every document first. The usual ways to constrain decoding, a trie of nested dictionaries and a
sorted array searched by bisection, are timed on the same prefixes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, output_folder
from dsi.docids.files.storage import read_record, write_json

if TYPE_CHECKING:
    from dsi.docids.vectors import VectorKind


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every size, write JSON, table and picture after each."""
    command_line = parser("benchmark-scale", __doc__)
    command_line.add_argument("--sizes", type=count, nargs="+", default=[10_000, 100_000, 1_000_000], help="documents")
    command_line.add_argument("--dim", type=count, default=64, help="of the embeddings")
    command_line.add_argument("--rounds", type=count, default=10, help="of the alternating measurements")
    command_line.add_argument(
        "--output", type=output_folder, default=Path("scale"), metavar="DIR", help="of JSON, table and picture"
    )
    command_line.add_argument(
        "--vectors", choices=["float32", "int8"], default="float32", help="how an index keeps them"
    )
    command_line.add_argument(
        "--work", type=output_folder, metavar="DIR", help="keeps what is built, for the next time"
    )
    command_line.add_argument("--search", type=Path, help=argparse.SUPPRESS)  # what the fresh process does
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi_experiments.benchmarks.scale_costs import search_costs
    from dsi_experiments.report import save_report

    if arguments.search:
        print(json.dumps(search_costs(arguments.search, arguments.rounds)))
        return
    rows: list[dict[str, Any]] = []
    for size in sorted(arguments.sizes):
        rows.append(measure(size, arguments))
        fits = {name: growth(rows, name) for name in rows[0]["ms a query"]} if len(rows) > 1 else {}
        text = table(rows, fits)
        save_report(arguments.output, "scale", text, {"rows": rows, "exponents": fits})
        _pictures(rows, arguments.output)
    print(text)


def measure(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one size: builds and writes here, loads and searches in a fresh process."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.work or Path(temporary)) / f"{size}x{arguments.dim}-{arguments.vectors}"
        built = read_record(folder / "built.json") or build(size, arguments.dim, arguments.vectors, folder)
        options = ["--search", str(folder), "--rounds", str(arguments.rounds)]
        command = [sys.executable, "-m", "dsi_experiments.commands.benchmark_scale", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"Searching {size} documents failed: {done.stderr.strip().splitlines()[-1]}")
        costs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"documents": size, **built, **costs}


def build(size: int, dim: int, kind: "VectorKind", folder: Path) -> dict[str, Any]:
    """Write an index of random vectors, and return what it took; the record of it comes last."""
    from dsi.docids.clustering import DocidsConfig, build_tree
    from dsi.docids.files.memory import own_memory, watching_memory
    from dsi.docids.vectors import VectorsConfig
    from dsi_experiments.commands.benchmark_docids import clustered_points

    points = clustered_points(size, dim, topics=max(10, size // 500))
    before = own_memory()
    with watching_memory() as most:
        started = time.process_time()
        tree = build_tree(points, DocidsConfig(max_leaf_size=10), progress=True)
        tree_seconds = time.process_time() - started
        tree = tree.stored_as(VectorsConfig(kind))
        build_seconds = time.process_time() - started
    structure = ("first_child", "num_children", "doc_start", "doc_end", "doc_rows", "trained")
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    record = {
        "inner nodes": tree.num_inner,
        "depth": tree.depth,
        "tree seconds": round(tree_seconds, 1),
        "build seconds": round(build_seconds, 1),
        "private bytes a document at most": round((most() - before) / size, 1),
        "trie bytes a document": round(sum(getattr(tree, name).nbytes for name in structure) / size, 2),
        "bytes a document with vectors": round((folder / "docids.safetensors").stat().st_size / size, 1),
    }
    write_json(folder / "built.json", record)
    return record


def growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    """The exponent e of milliseconds = c * documents^e, by least squares over the logarithms."""
    import numpy as np

    sizes = np.log([row["documents"] for row in rows])
    return round(float(np.polyfit(sizes, np.log([row["ms a query"][name] for row in rows]), 1)[0]), 3)


def table(rows: Sequence[dict[str, Any]], fits: dict[str, float]) -> str:
    """Markdown: a column a size."""
    from dsi.eval.tables import markdown_table

    simple = [name for name, value in rows[0].items() if isinstance(value, int | float) and name != "documents"]
    lines = [[name, *(f"{row[name]:,g}" for row in rows)] for name in simple]
    for name in rows[0]["ms a query"]:
        grows = f" (grows with documents^{fits[name]:g})" if fits else ""
        lines.append([f"ms a query, {name}{grows}", *(str(row["ms a query"][name]) for row in rows)])
    lines += [
        [f"vectors read a query, {name}", *(f"{row['vectors read'][name]:,.0f}" for row in rows)]
        for name in rows[0]["vectors read"]
    ]
    for name in rows[0]["constraints"]:
        cells = [row["constraints"].get(name) for row in rows]
        shown = [f"{c['microseconds a prefix']:g} / {c['bytes a document']:g}" if c else "—" for c in cells]
        lines.append([f"constraints by {name}: µs a prefix / bytes a document", *shown])
    return markdown_table(["documents", *(format(row["documents"], ",") for row in rows)], lines)


def _pictures(rows: Sequence[dict[str, Any]], output: Path) -> None:
    from dsi.eval.figures import lines_figure

    series = {name: {row["documents"]: row["ms a query"][name] for row in rows} for name in rows[0]["ms a query"]}
    series["build, µs a document"] = {row["documents"]: 1e6 * row["build seconds"] / row["documents"] for row in rows}
    lines_figure(
        series, "documents", "milliseconds a query", "Growth with the collection", output / "scale", log_y=True
    )


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
