"""`dsi reproduce WHAT`: the experiments of DR-SCL on a collection, those of the other papers, and our own.

On a collection (--data, --config):
  table3, table4, table5   the tables of DR-SCL, with rows that the paper lacks
  papers                   published generative retrievers as configurations of this package
  equal                    DSI and DR-SCL at equal strength: encoder by either loss, docids by each, all weights or the decoder
  figure5                  Hit@1 over alpha and beta
  fusions                  products and mixtures of the decoder and three forms of P_ANN, all documents scored
  objectives               every training objective under one budget, by beam width
  updates                  documents added without training, against training with all
  dynamic                  a collection that grows step by step: generalisation and forgetting
On a collection, by an index as `dsi train` makes it (--data):
  queries                  what train queries teach, in many forms, a linear tree among them
  curve                    what an index gains by the number of earlier queries of an answer
On a folder of lists (--data):
  ltr, diversity, parsing, treebank   rerankers (needs the extra `rerank`)
Without data:
  toy, synthetic           "Learning Optimal Tree Models under Beam Search", Tables 1, A.1 and 2

Rows share stages: what two of them have in common is trained once (OUTPUT/store). Each row and seed is written as soon as it is
measured, so a killed command continues with the next, and what is up to date is not measured again. The rows of a table are one
file, OUTPUT/TABLE.json; with OUTPUT/TABLE.values.json.gz, the values per query, --report-only writes the Markdown table again
without training. Several processes or GPUs share the work under `accelerate launch -m dsi reproduce …`.
"""

import argparse
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import add_device, add_settings, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import collection_folder, count, number, output_folder
from dsi_experiments.configs import experiment_configuration
from dsi_experiments.tables import TABLES, Row

if TYPE_CHECKING:
    from dsi_experiments.laboratory import Laboratory

ON_A_COLLECTION = {
    **{name: name for name in ("dynamic", "figure5", "fusions", "updates")},
    "objectives": "objectives_table",
}
"""Experiments that are no tables, on a collection: {name: its module here, with `reproduce(laboratory, seed)`}."""

REPORTED = ("dynamic", "figure5", "objectives")
"""Those of them whose tables `write_report(output, seed)` makes again."""

AS_TRAINED = {"curve": "query_curve", "queries": "query_contest"}
"""Experiments on a collection with the default configuration, or another: `reproduce(data, output, seeds, config)`."""

ON_LISTS = {"ltr": "ltr", "diversity": "diversity", "parsing": "parsing", "treebank": "parsing"}
"""Experiments of the rerankers: {name of the function: its module here}."""

WITHOUT_DATA = {"toy": 200, "synthetic": 3}
"""Experiments that need no collection, with their number of runs: a module here with `reproduce(output, runs, seed)`."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then print and write the table."""
    arguments = _parse(argv)
    what = arguments.what
    if arguments.report_only:
        print(_report(arguments))
        return
    _check(arguments)
    rows = _choose(TABLES[what], arguments.rows) if what in TABLES else []
    load_libraries(training=True)
    if what in WITHOUT_DATA:
        print(_module(what).reproduce(arguments.output, arguments.runs or WITHOUT_DATA[what], arguments.seeds[0]))
        return
    if what in AS_TRAINED:
        print(_module(AS_TRAINED[what]).reproduce(arguments.data, arguments.output, arguments.seeds, arguments.config))
        return
    if what in ON_LISTS:
        experiment = getattr(_module(ON_LISTS[what]), what)
        print(experiment(arguments.data, arguments.output, arguments.seeds))
        return
    from dsi_experiments.laboratory import Laboratory

    laboratory = Laboratory.from_arguments(arguments)
    if what in ON_A_COLLECTION:
        laboratory.say(_module(ON_A_COLLECTION[what]).reproduce(laboratory, arguments.seeds[0]))
        return
    _measure_table(laboratory, what, rows, arguments.seeds)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("reproduce", __doc__)
    names = [*TABLES, *ON_A_COLLECTION, *AS_TRAINED, *ON_LISTS, *WITHOUT_DATA]
    command_line.add_argument("what", choices=names, metavar="WHAT", help="see above")
    command_line.add_argument(
        "--data", type=collection_folder, metavar="DIR", help="a collection, or a folder of lists"
    )
    command_line.add_argument(
        "--config",
        type=experiment_configuration,
        metavar="NAME",
        help="the base: DR-SCL+QG on this collection, by name or file (reproduce-small, …)",
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="of everything that is written"
    )
    add_settings(command_line)
    command_line.add_argument(
        "--seeds",
        type=number(int, 0),
        nargs="+",
        default=[0],
        help="of sampling, clustering, initialisation, shuffling",
    )
    command_line.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    command_line.add_argument("--runs", type=count, help="of toy (200) and synthetic (3)")
    command_line.add_argument(
        "--report-only", action="store_true", help="write tables and figures again from what is in OUTPUT"
    )
    add_device(command_line)
    return command_line


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    arguments.seeds = list(dict.fromkeys(arguments.seeds))
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError if the experiment lacks what it is measured on."""
    what = arguments.what
    if what in ON_LISTS and not arguments.data:
        raise ValueError(f"{what} is measured on a folder of lists: give --data.")
    if what in AS_TRAINED and not arguments.data:
        raise ValueError(f"{what} is measured on a collection: give --data.")
    if what not in (*AS_TRAINED, *ON_LISTS, *WITHOUT_DATA) and not (arguments.data and arguments.config):
        raise ValueError(f"{what} is measured on a collection: give --data and --config.")


def _measure_table(laboratory: "Laboratory", table: str, rows: Sequence[Row], seeds: Sequence[int]) -> None:
    """Measure every row that this collection and configuration allow; name the others and their reasons at the end."""
    refused: dict[str, ValueError] = {}
    for seed in seeds:  # one seed of every row before the next seed of any
        for row in rows:
            try:
                laboratory.measure(table, row, seed)
            except ValueError as error:
                refused[row.name] = error
        text = laboratory.table(table, seeds) if laboratory.processes.is_main else ""
    laboratory.say(text)
    if refused:
        reasons = " ".join(f"{name}: {error}" for name, error in refused.items())
        raise ValueError(f"{len(refused)} of {len(rows)} rows could not be measured. {reasons}")


def _report(arguments: argparse.Namespace) -> str:
    """What the experiment writes at its end, from the rows in OUTPUT."""
    if arguments.what in TABLES:
        from dsi_experiments.rows import write_table

        return write_table(arguments.output, arguments.what, arguments.seeds)
    if arguments.what not in REPORTED:
        raise ValueError(f"--report-only makes tables and {', '.join(REPORTED)} again, not {arguments.what}.")
    text: str = _module(ON_A_COLLECTION[arguments.what]).write_report(arguments.output, arguments.seeds[0])
    return text


def _choose(rows: Sequence[Row], texts: Sequence[str] | None) -> list[Row]:
    if nowhere := [text for text in texts or () if not any(text in row.name for row in rows)]:
        raise ValueError(f"No row's name contains {nowhere}; the rows are: {', '.join(row.name for row in rows)}.")
    return [row for row in rows if texts is None or any(text in row.name for text in texts)]


def _module(name: str) -> Any:
    return importlib.import_module(f"dsi_experiments.{name}")
