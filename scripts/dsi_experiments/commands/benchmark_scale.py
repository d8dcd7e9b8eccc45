"""`dsi benchmark-scale`: time, memory and bytes as a collection grows, to a hundred million documents on one machine.

For each size, synthetic embeddings are written, the tree is built of them, and a fresh process loads and searches it: the walk
with one beam after another, and how many of the exact ten documents it finds. Vectors are int8 with codes. What is finished
stays in WORK, so a run that is killed goes on. Set OMP_NUM_THREADS=1 for times of one thread.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsi.commands.arguments import parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, number, output_folder

RECALLS = (0.8, 0.9, 0.95)
_FEWEST = 1024


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-scale", __doc__)
    sizes = number(int, _FEWEST)
    command_line.add_argument("--sizes", type=sizes, nargs="+", default=[10_000, 100_000, 1_000_000], help="documents")
    command_line.add_argument("--dim", type=count, default=64, help="of the embeddings")
    command_line.add_argument("--processes", type=count, default=1, help="that build (default: 1)")
    command_line.add_argument(
        "--output", type=output_folder, default=Path("scale"), metavar="DIR", help="of JSON, table and picture"
    )
    command_line.add_argument(
        "--work", type=output_folder, metavar="DIR", help="keeps what is built, for the next time"
    )
    command_line.add_argument("--search", type=Path, help=argparse.SUPPRESS)  # what the fresh process does
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every size, write JSON, table and picture after each."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi_experiments.benchmarks.scale_costs import search_costs
    from dsi_experiments.report import save_report

    if arguments.search:
        print(json.dumps(search_costs(arguments.search)))
        return
    rows: list[dict[str, Any]] = []
    for size in sorted(arguments.sizes):
        rows.append(measure(size, arguments))
        text = report(rows)
        save_report(arguments.output, "scale", text, {"dim": arguments.dim, "rows": rows})
        _picture(rows, arguments.output)
    print(text)


def measure(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one size: builds and writes here, loads and searches in a fresh process."""
    from dsi.cluster.cluster import Cluster
    from dsi.docids.files.processes import ALONE
    from dsi_experiments.benchmarks.scale_costs import build, true_answers, write_documents

    with TemporaryDirectory(prefix="dsi-") as temporary:
        folder = (arguments.work or Path(temporary)) / f"{size}x{arguments.dim}"
        folder.mkdir(parents=True, exist_ok=True)
        write_documents(folder, size, arguments.dim)
        with Cluster(processes=arguments.processes) as cluster:
            built = build(folder, cluster.processes if arguments.processes > 1 else ALONE)
        true_answers(folder)
        command = [sys.executable, "-m", "dsi", "benchmark-scale", "--search", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"Searching {size} documents failed: {done.stderr.strip().splitlines()[-1]}")
        costs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"documents": size, "processes": arguments.processes, **built, **costs}


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a column a size, then a line for each beam."""
    from dsi.eval.tables import markdown_table

    heads = ["documents", *(format(row["documents"], ",") for row in rows)]
    simple = [name for name, value in rows[0].items() if isinstance(value, int | float) and name != "documents"]
    lines = [[name, *(f"{row[name]:,g}" for row in rows)] for name in simple]
    for recall in RECALLS:
        name = f"ms a query at recall@10 of {recall:g}, batch 1 / 64"
        lines.append([name, *(_cells(row, recall) for row in rows)])
    exact = [f"{row['exact']['ms at batch 1']:,g}, {row['exact']['recall@10']:g}" for row in rows]
    lines.append(['"exact": ms at batch 1, recall@10 of int8', *exact])
    beams = [
        [format(row["documents"], ","), *(f"{v:,g}" for v in beam.values())] for row in rows for beam in row["beams"]
    ]
    return "\n\n".join([markdown_table(heads, lines), markdown_table(["documents", *rows[0]["beams"][0]], beams)])


def _cells(row: dict[str, Any], recall: float) -> str:
    good = [beam for beam in row["beams"] if beam["recall@10"] >= recall]
    return f"{good[0]['ms at batch 1']:g} / {good[0]['ms at batch 64']:g}" if good else "—"


def _picture(rows: Sequence[dict[str, Any]], output: Path) -> None:
    from dsi_experiments.figures import lines_figure

    series = {
        f"recall {recall:g}, batch {batch}": {
            row["documents"]: good[0][f"ms at batch {batch}"]
            for row in rows
            if (good := [beam for beam in row["beams"] if beam["recall@10"] >= recall])
        }
        for recall in RECALLS
        for batch in (1, 64)
    }
    series['"exact", batch 1'] = {row["documents"]: row["exact"]["ms at batch 1"] for row in rows}
    series = {name: points for name, points in series.items() if points}
    title = "Growth with the collection"
    lines_figure(series, "documents", "milliseconds a query", title, output / "scale", log_y=True)
