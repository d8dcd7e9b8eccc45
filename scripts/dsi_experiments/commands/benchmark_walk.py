"""`dsi benchmark-walk`: what the walk of an index earns: controls without it or without words, and beam widths.

Hit@1 and Hit@10 in percent on the judgements of a split, the share of the exact top ten, and the cost: vectors of nodes and
documents read, and milliseconds after the encoder.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsi.commands.arguments import add_collection, add_device, add_index, open_retriever, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, output_folder

if TYPE_CHECKING:
    from dsi.docids.types import Run
    from dsi.measuring.runs import IndexRuns

WORDS, WALK, WALK_40 = "BM25 candidates, full score", "walk without BM25", "walk without BM25, beam 40"
CONTROLS = {
    WORDS: "the best `candidates` by BM25, and those of earlier queries, by the document score; no walk",
    WALK: "only documents below the nodes of the walk, and those of earlier queries, by the document score without BM25",
    WALK_40: "the same with a beam of 40, alike for every index",
}
"""{row: what it is}."""
BEAMS = (5, 10, 20, 40, 80)
MEASURES = ("Hit@1", "Hit@10")
_K = 10


@dataclass(frozen=True)
class WalkRow:
    """One way to search."""

    name: str
    hits: tuple[float, float]  # Hit@1 and Hit@10, in percent
    agree: float  # share of the exact top ten that was found
    read: float  # vectors of nodes and documents that were scored, a query
    milliseconds: float  # a query, after the encoder


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-walk", __doc__)
    add_index(command_line)
    add_collection(command_line, "the collection with judged queries")
    command_line.add_argument("--split", default="test", choices=("train", "dev", "test"), help="judgements")
    command_line.add_argument("--beam-widths", type=count, nargs="+", default=list(BEAMS), metavar="N", help="of rows")
    command_line.add_argument("--output", type=output_folder, metavar="DIR", help="write walk.json and walk.md there")
    add_device(command_line, searches=True)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every row; print the table, write it and its JSON where asked."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.config import read_dev_cut
    from dsi.docids.data.collection import read_collection
    from dsi.eval.tables import markdown_table
    from dsi.measuring.runs import IndexRuns
    from dsi_experiments.report import save_report

    collection = read_collection(arguments.data, **read_dev_cut(arguments.run))
    if not collection.qrels[arguments.split]:
        raise ValueError(f"{collection.name} has no {arguments.split} judgements; add qrels/{arguments.split}.tsv.")
    rows = walk_rows(IndexRuns(collection, open_retriever(arguments)), arguments.split, arguments.beam_widths)
    cells = [
        [
            row.name,
            *(f"{hit:.2f}" for hit in row.hits),
            f"{row.agree:.4f}",
            f"{row.read:.0f}",
            f"{row.milliseconds:.2f}",
        ]
        for row in rows
    ]
    table = markdown_table(["search", *MEASURES, "share of the exact top ten", "vectors read", "ms per query"], cells)
    print(table)
    if arguments.output:
        save_report(
            arguments.output, "walk", table, {"collection": arguments.data.name, "rows": [vars(row) for row in rows]}
        )


def walk_rows(runs: "IndexRuns", split: str, beam_widths: Sequence[int]) -> list[WalkRow]:
    """Return a row per control and beam width, of an index as it searches otherwise; the last is "exact"."""
    from dsi.eval.measures import evaluate, mean
    from dsi_experiments.controls import WordsOnly

    exact = runs.search(split, _K, method="exact").run

    def row(name: str, changes: Mapping[str, Any]) -> WalkRow:
        found = runs.search(split, _K, WordsOnly if name == WORDS else None, **changes)
        measured = evaluate(found.run, runs.collection.qrels[split], MEASURES)
        first, ten = (100 * mean(values) for values in measured.values())
        return WalkRow(name, (first, ten), _agreement(found.run, exact), found.read, found.milliseconds)

    beams = {f"beam {width}": {"method": "generate", "beam_width": width} for width in beam_widths}
    searches = {**_controls(runs), **beams, "exact": {"method": "exact"}}
    return [row(name, changes) for name, changes in searches.items()]


def _controls(runs: "IndexRuns") -> dict[str, dict[str, Any]]:
    """Return {control: settings of `[search]`} of those that an index can be searched with."""
    from dsi.search.request import LEXICAL_WEIGHT

    index, config = runs.retriever.snapshot, runs.retriever.search_config
    if index.engine.has_generator:
        return {}
    without_words: dict[str, Any] = {"method": "generate", "lexical_weight": 0.0}
    found = {WALK: without_words, WALK_40: {**without_words, "beam_width": 40}}
    if index.lexical:  # without a weight, no document is found by words
        found = {WORDS: {"method": "generate", "lexical_weight": config.lexical_weight or LEXICAL_WEIGHT}, **found}
    return found


def _agreement(run: "Run", exact: "Run") -> float:
    """Return the share of the documents of one run that another has, as the mean over queries."""
    shares = [len(own.keys() & run[query_id].keys()) / len(own) for query_id, own in exact.items() if own]
    return sum(shares) / max(len(shares), 1)
