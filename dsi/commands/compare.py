"""`dsi compare`: compare two indexes, or two run files, on the judgements of a collection.

A and B are each an index, which is searched as it searches by default, or a run in TREC format, which is ranked as trec_eval
ranks it. Queries that one of the indexes has learned are left out, and a line counts them. Differences come with p-values of
paired randomisation tests, corrected for the number of measures by Holm's method.
From Python: `dsi.measuring.comparison.compare_runs`.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsi.commands.arguments import add_data, add_device, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import index_folder
from dsi.docids.files.checks import user_path

if TYPE_CHECKING:
    from dsi.docids.types import Run
    from dsi.search.queries import EncodedQueries


def main(argv: Sequence[str] | None = None) -> None:
    """Print the measures of both, with their differences."""
    command_line = parser("compare", __doc__)
    command_line.add_argument("a", type=_system, metavar="A", help="an index, or a TREC run")
    command_line.add_argument("b", type=_system, metavar="B", help="another")
    add_data(command_line, "the collection with the judgements")
    command_line.add_argument(
        "--split", default="test", choices=("train", "dev", "test"), help="judgements to measure on"
    )
    command_line.add_argument(
        "--measures", nargs="+", default=[], metavar="NAME", help="such as nDCG@10, Recall@100, MAP"
    )
    add_device(command_line, searches=True)
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.docids.data.collection import read_collection
    from dsi.docids.data.identical import most_identical, without_identical
    from dsi.eval.measures import cutoff, measure_name, measures_for
    from dsi.measuring.comparison import compare_runs

    collection = read_collection(arguments.data)
    qrels = collection.qrels[arguments.split]
    if not qrels:
        raise ValueError(
            f"{collection.name} has no {arguments.split} judgements; add {collection.place_of(arguments.split)}."
        )
    measures = [measure_name(name) for name in arguments.measures] or measures_for(qrels)
    depth, queries = max(map(cutoff, measures)), collection.query_texts(arguments.split)
    identical = collection.identical
    (first, second), learned = _runs((arguments.a, arguments.b), queries, depth + most_identical(identical), arguments)
    said = _said(learned, len(qrels), arguments.split)
    gone = frozenset[str]().union(*learned.values())
    qrels = {query_id: judged for query_id, judged in qrels.items() if query_id not in gone}
    first, second = (without_identical(run, identical) for run in (first, second))
    print(compare_runs(first, second, qrels, measures, (str(arguments.a), str(arguments.b))), *said, sep="\n")


def _said(learned: "Mapping[str, frozenset[str]]", total: int, split: str) -> list[str]:
    """Return a line for each index that has learned queries.

    Raises:
        ValueError: none is left.
    """
    from dsi.measuring.learned import learned_line

    said = [learned_line(len(own), total, split, name) for name, own in learned.items() if own]
    if len(frozenset[str]().union(*learned.values())) == total:
        raise ValueError(
            f"The indexes have learned all {total:,} {split} queries, so nothing can be compared; judge some that they have "
            "not learned, or forget them first."
        )
    return said


def _system(value: str) -> Path:
    path = user_path(value)
    if path.is_file():
        return path
    if not path.is_dir():
        raise ArgumentTypeError(f"{value} does not exist; name an index or a run in TREC format.")
    return index_folder(value)


def _runs(
    paths: Sequence[Path], queries: dict[str, str], depth: int, arguments: Namespace
) -> "tuple[list[Run], dict[str, frozenset[str]]]":
    """Return the runs in files, and those of indexes; and {index: query_ids that it has learned}.

    Indexes with the same encoder share the encoded queries.
    """
    from dsi.docids.files.progress import progress
    from dsi.eval.trec import read_run
    from dsi.measuring.learned import known_queries
    from dsi.store.retriever import load

    runs, encoded, learned = list["Run"](), dict[str, "EncodedQueries"](), dict[str, frozenset[str]]()
    for path in progress(paths, "systems", unit="system"):
        if path.is_file():
            runs.append(read_run(path))
            continue
        retriever = load(path, device=arguments.device, dtype=arguments.dtype)
        learned[str(path)] = known_queries(retriever, queries)
        encoder = _encoder_of(path)
        if encoder not in encoded:
            encoded[encoder] = retriever.encode_queries(queries, show_progress=True)
        runs.append(retriever.run(encoded[encoder], depth))
    return runs, learned


def _encoder_of(index: Path) -> str:
    """Return what tells apart indexes whose queries are encoded in different ways."""
    from dsi.store.folder.manifest import read_entries

    manifest = read_entries(index / "manifest.json")
    models = {name: value for name, value in manifest["fingerprints"].items() if name != "docids"}
    return f"{models}, {manifest['encoder']['query_length']}"
