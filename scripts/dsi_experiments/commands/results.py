"""`dsi results`: the table of the README, assembled from measured files, or measured again.

Without --data nothing is trained: the table is made of the files in --results, as the repository has them. --data names a
folder with squad2k, nq10k and onet_titles in BEIR layout; these and Minipedia, which ships, are then trained and measured in
OUTPUT/NAME, where a killed command resumes, and take the place of the files. A collection that is missing or another one keeps
its file, and is named. Half an hour on two cores. Groups are means over files of `dsi benchmark-world`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dsi.commands.arguments import add_device, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import output_folder
from dsi.docids.data import SHIPPED

MEASURE = "nDCG@10"
PAPER = "the paper's system"


class Column(NamedTuple):
    """A column of one collection, on which `dsi train` made the index."""

    name: str  # of the collection's folder
    title: str
    file: str  # its evaluation below the folder of results
    digest: str  # how `Collection.digest` begins for the collection that was measured


class Group(NamedTuple):
    """A column of the mean over collections, each indexed by `dsi.index` from its documents alone."""

    title: str
    encoder: str  # the folder of its files
    collections: tuple[str, ...]


COLUMNS = (
    Column("minipedia", "Minipedia", "evaluate/minipedia/example.json", "18d8a8a182e69277"),
    Column("squad2k", "SQuAD", "evaluate/squad2k/default.json", "a3ac5c484ff8632f"),
    Column("nq10k", "NQ passages", "evaluate/nq10k/default.json", "dca99f05cddd830b"),
    Column("onet_titles", "job titles", "evaluate/onet_titles/default.json", "95b97960c43d60b7"),
)
_LANGUAGES = ("cmrc2018_zh", "iapp_thai", "xquad_mixed")
GROUPS = (
    Group(
        "short texts",
        "minilm",
        ("cisi", "climate_fever_ev", "limit_small", "onet_titles", "qatarliving", "trec_dl1920"),
    ),
    Group("long texts", "minilm", ("birco_arguana", "birco_dorismae", "liveqa_med", "qmsum_segments", "scifact")),
    Group("code", "minilm", ("cosqa",)),
    Group("other languages", "minilm", _LANGUAGES),
    Group("the same, multilingual encoder", "multilingual-e5-small", _LANGUAGES),
)
"""A collection is one of long texts if its documents have one and a half pieces or more in the mean."""


def rows() -> dict[str, str]:
    """Return {row of an evaluation: the same system in a file of `dsi benchmark-world`, "" if it is not there}."""
    from dsi.measuring.evaluation import BM25, DENSE, DENSE_BM25, EXACT, GENERATE, RRF, UNTAUGHT

    both = {name: name for name in (BM25, DENSE, DENSE_BM25, GENERATE, EXACT)}
    order = (BM25, DENSE, RRF, DENSE_BM25, UNTAUGHT, GENERATE, EXACT)
    others = both | {RRF: "RRF (k = 60)", UNTAUGHT: ""}
    return {name: others[name] for name in order}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("results", __doc__)
    command_line.add_argument(
        "--data", type=Path, metavar="DIR", help="with the folders squad2k and nq10k, to measure again"
    )
    command_line.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="measured files, as the repository has them",
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="of everything written"
    )
    add_device(command_line)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the collections of --data, then print and write the table."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.files.storage import write_text

    again = {column.name: _measure(column, arguments) for column in COLUMNS} if arguments.data else {}
    table = readme_table(arguments.results, {name: path for name, path in again.items() if path})
    write_text(arguments.output / "results.md", f"{table}\n")
    print(table)


def readme_table(results: Path, again: Mapping[str, Path] | None = None) -> str:
    """Return the README's table: nDCG@10 in percent, systems as rows.

    `again`: {column: an evaluation to take in the place of its file}.
    """
    from dsi.docids.files.reading import read_json
    from dsi.eval.tables import markdown_table
    from dsi.measuring.evaluation import GENERATE

    measured = [read_json((again or {}).get(column.name, results / column.file)) for column in COLUMNS]
    world = [
        [read_json(results / "evaluate" / "world" / group.encoder / f"{name}.json") for name in group.collections]
        for group in GROUPS
    ]
    lines = [
        [
            f"**{name}**" if name == GENERATE else name,
            *(f"{evaluation['systems'][name]['Total'][MEASURE]:.1f}" for evaluation in measured),
            *(_mean([record["systems"].get(other) for record in group]) for group in world),
        ]
        for name, other in rows().items()
    ]
    lines.append([PAPER, *(_of_the_paper(results, column.name) for column in COLUMNS), *("–" for _ in GROUPS)])
    return markdown_table(["", *(column.title for column in (*COLUMNS, *GROUPS))], lines)


def _mean(systems: Sequence[Mapping[str, float] | None]) -> str:
    """Return the cell of a group of collections; "–" if one was not measured."""
    return "–" if None in systems else f"{fmean(own[MEASURE] for own in systems if own):.1f}"


def _of_the_paper(results: Path, name: str) -> str:
    """Return the cell of the paper's fused system at a small size: of `paper-minilm`, or of a longer `dsi reproduce table3`."""
    from dsi.docids.files.reading import read_json
    from dsi.measuring.evaluation import GENERATE
    from dsi_experiments.rows import Rows

    if (file := results / "evaluate" / name / "paper-minilm.json").exists():
        return f"{read_json(file)['systems'][GENERATE]['Total'][MEASURE]:.1f}"
    row = Rows(results / "reproduce" / name / "passes.json").find("DR-SCL+QG, fused", 0)
    return f"{row['measures']['Total'][MEASURE]:.1f}" if row else "–"


def _measure(column: Column, arguments: argparse.Namespace) -> Path | None:
    """Train and measure a column's collection; return its evaluation, or None if the collection is not there."""
    from dsi.docids.data.collection import read_collection

    folder = SHIPPED.get(column.name) or arguments.data / column.name
    if not folder.is_dir():
        _say_kept(column, f"{folder} does not exist; --data DIR names the folder above it")
        return None
    collection = read_collection(folder)
    if not collection.digest.startswith(column.digest):
        _say_kept(column, f"{folder} is another collection ({collection.digest[:16]}, not {column.digest})")
        return None
    from dsi.measuring.evaluation import evaluate
    from dsi.training.pipeline import train

    path: Path = arguments.output / column.name / "evaluation.json"
    evaluate(train(collection, path.parent, device=arguments.device), collection).save(path)
    return path


def _say_kept(column: Column, reason: str) -> None:
    sys.stderr.write(f"{column.name} is not measured again: {reason}.\n")
