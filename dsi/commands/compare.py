"""`dsi compare`: compare two indexes, or two run files, on the judgements of a collection.

A and B are each an index, which is searched as it searches by default, or a run in TREC format, which is ranked as trec_eval
ranks it. Queries that one of the indexes has learned are left out, and a line counts them. Differences come with p-values of
paired randomisation tests, corrected for the number of measures by Holm's method.
From Python: `dsi.measuring.comparison.compare_runs`.
"""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsi.commands.arguments import add_device, add_judgements, parser, read_judged
from dsi.commands.libraries import load_libraries
from dsi.commands.values import index_folder
from dsi.docids.files.checks import user_path

if TYPE_CHECKING:
    from dsi.docids.types import Run


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("compare", __doc__)
    command_line.add_argument("a", type=_system, metavar="A", help="an index, or a TREC run")
    command_line.add_argument("b", type=_system, metavar="B", help="another")
    add_judgements(command_line, "the collection with the judgements")
    add_device(command_line, searches=True)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Print the measures of both, with their differences."""
    arguments = build_parser().parse_args(argv)
    load_libraries()
    from dsi.docids.data.collection import compare_documents
    from dsi.docids.data.identical import most_identical, without_identical
    from dsi.docids.files.progress import progress
    from dsi.eval.measures import cutoff, measure_name, measures_for
    from dsi.eval.trec import read_run
    from dsi.measuring.comparison import compare_runs
    from dsi.measuring.learned import known_queries, learned_line
    from dsi.store.retriever import load

    # 1) the queries and the measures
    collection, split, systems = read_judged(arguments), arguments.split, (arguments.a, arguments.b)
    qrels, identical = collection.qrels[split], collection.identical
    if not qrels:
        raise ValueError(f"{collection.name} has no {split} judgements; add {collection.place_of(split)}, or --pairs.")
    measures = [measure_name(name) for name in arguments.measures] or measures_for(qrels)
    depth, queries = max(map(cutoff, measures)) + most_identical(identical), collection.query_texts(split)
    # 2) the runs, and what the indexes have learned
    runs, learned = list["Run"](), dict[str, frozenset[str]]()
    for path in progress(systems, "systems", unit="system"):
        if path.is_file():
            run = read_run(path)
        else:
            retriever = load(path, device=arguments.device, dtype=arguments.dtype)
            compare_documents(collection, retriever.snapshot.documents.rows)
            learned[str(path)] = known_queries(retriever, queries)
            run = retriever.run(retriever.encode_queries(queries, show_progress=True), depth)
        runs.append(without_identical(run, identical))
    # 3) the table, without learned queries
    said = [learned_line(len(ids), len(qrels), split, name) for name, ids in learned.items() if ids]
    gone = frozenset[str]().union(*learned.values())
    remaining = {query_id: judged for query_id, judged in qrels.items() if query_id not in gone}
    if not remaining:
        raise ValueError(
            f"The indexes have learned all {len(qrels):,} {split} queries, so nothing can be compared; judge some that they "
            "have not learned, or forget them first."
        )
    print(compare_runs(runs[0], runs[1], remaining, measures, (str(arguments.a), str(arguments.b))), *said, sep="\n")


def _system(value: str) -> Path:
    path = user_path(value)
    if path.is_file():
        return path
    if not path.is_dir():
        raise ArgumentTypeError(f"{value} does not exist; name an index or a run in TREC format.")
    return index_folder(value)
