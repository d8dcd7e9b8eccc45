"""`dsi results`: the table of the README, measured again.

Minipedia ships. --data names a folder with the others, as the README's numbers had them: squad2k and nq10k, in BEIR layout. A
collection that is missing or another one is left out, and named. Each column is trained and measured in OUTPUT/NAME, where a
killed command resumes; the table goes to OUTPUT/results.md. Minutes on two cores: Minipedia 2, SQuAD 25, NQ 50.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dsi.commands.arguments import add_device, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import output_folder
from dsi.docids.data import SHIPPED

if TYPE_CHECKING:
    from dsi.measuring.evaluation import Evaluation


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        name: of the collection's folder.
        title: in the table.
        digest: how `Collection.digest` begins for the collection that was measured.
        minutes: on two cores that other work shares, about.
    """

    name: str
    title: str
    digest: str
    minutes: int


COLUMNS = (
    Column("minipedia", "Minipedia: 600 documents, 1,920 queries", "18d8a8a182e69277", 1),
    Column("squad2k", "SQuAD: 2,067, 2,067", "a3ac5c484ff8632f", 4),
    Column("nq10k", "NQ passages: 10,000, 2,000", "dca99f05cddd830b", 12),
)


def rows() -> dict[str, str]:
    """Return {row of an evaluation: its name in the README}."""
    from dsi.measuring.evaluation import BM25, BM25_CANDIDATES, DENSE, DENSE_BM25, EXACT, GENERATE, RRF, WALK_40

    names = (BM25, DENSE, RRF, DENSE_BM25, BM25_CANDIDATES, WALK_40, GENERATE, EXACT)
    return {name: f"**{name}**" if name == GENERATE else name for name in names}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every column whose collection is there, then print and write the table."""
    command_line = parser("results", __doc__)
    command_line.add_argument("--data", type=Path, metavar="DIR", help="with the folders squad2k and nq10k")
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="of everything written"
    )
    add_device(command_line)
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.docids.files.storage import write_text
    from dsi.eval.tables import markdown_table

    cells = {column.title: _cells(column, arguments) for column in COLUMNS}
    measured = {title: found for title, found in cells.items() if found}
    lines = [[title, *(found[name] for found in measured.values())] for name, title in rows().items()]
    table = markdown_table(["", *measured], lines)
    write_text(arguments.output / "results.md", f"{table}\n")
    print(table)


def _cells(column: Column, arguments: argparse.Namespace) -> dict[str, str]:
    """Return {row: Hit@1 / Hit@10 and vectors read} of a column; empty if its collection is not there."""
    from dsi.docids.data.collection import read_collection

    folder = SHIPPED.get(column.name) or (arguments.data or Path()) / column.name
    if not folder.is_dir():
        return _leave_out(column, f"{folder} does not exist; --data DIR names the folder above it")
    collection = read_collection(folder)
    if not collection.digest.startswith(column.digest):
        return _leave_out(column, f"{folder} is another collection ({collection.digest[:16]}, not {column.digest})")
    unit = "minutes" if column.minutes > 1 else "minute"
    sys.stderr.write(f"{column.title}: about {column.minutes} {unit} on two cores\n")
    from dsi.measuring.evaluation import evaluate
    from dsi.training.pipeline import train

    run = arguments.output / column.name
    retriever = train(collection, run, device=arguments.device)
    evaluation = evaluate(retriever, collection)
    evaluation.save(run / "evaluation.json")
    return {name: _cell(evaluation, name) for name in rows()}


def _cell(evaluation: "Evaluation", name: str) -> str:
    from dsi.eval.measures import mean
    from dsi.measuring.evaluation import READ

    row = evaluation.row(name)
    first, tenth = (100 * mean(row.values[measure]) for measure in ("Hit@1", "Hit@10"))
    read = row.settings.get(READ)
    return f"{first:.2f} / {tenth:.2f}" + (f", {read:,}" if read else "")


def _leave_out(column: Column, reason: str) -> dict[str, str]:
    sys.stderr.write(f"{column.name} is left out: {reason}.\n")
    return {}
