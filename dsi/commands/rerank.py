"""`dsi rerank`: rank the candidates of anybody's run by the document score of an index.

FILE is a run in TREC format, of any system. For each query of --queries its documents are scored by the index, as `dsi search`
scores them, and the run OUT has them in that order. Documents that the index lacks are left out, and a line counts them. From
Python: `retriever.run(queries, k, among=run)`.
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from dsi.commands.arguments import add_device, add_index, add_search_options, open_retriever, parser, search_options
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, existing_file, output_file, read_queries_file

_OF_THE_WALK = ("method", "beam_width", "candidates", "alpha", "beta", "ann_temperature", "passages")
"""Search options that do not change the score of a given document."""


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("rerank", __doc__)
    add_index(command_line)
    command_line.add_argument(
        "--candidates", type=existing_file, required=True, metavar="FILE", dest="found", help="a TREC run"
    )
    command_line.add_argument(
        "--queries", type=existing_file, required=True, metavar="FILE", help="their texts, as for `dsi search`"
    )
    command_line.add_argument(
        "--run", type=output_file, required=True, metavar="OUT", dest="output", help="TREC run to write"
    )
    command_line.add_argument("-k", type=count, help="documents per query; all by default")
    add_search_options(command_line, without=_OF_THE_WALK)
    add_device(command_line, searches=True)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Write the candidates of a run in another order."""
    arguments = build_parser().parse_args(argv)
    queries = read_queries_file(arguments.queries)
    load_libraries()
    from dsi.docids.files.storage import file_name
    from dsi.eval.trec import check_fields, read_run, write_run

    candidates = read_run(arguments.found)
    check_fields(arguments.output, queries)  # before the search
    asked = {query_id: text for query_id, text in queries.items() if query_id in candidates}
    retriever, k = open_retriever(arguments), arguments.k or max(map(len, candidates.values()), default=1)
    found = retriever.run(asked or queries, k, among=candidates, **search_options(arguments))
    write_run(found, arguments.output, file_name(arguments.output.stem) or "dsi")
    print(
        f"{arguments.output}: {len(found)} of {len(candidates)} queries, {sum(map(len, found.values()))} of "
        f"{sum(map(len, candidates.values()))} documents"
    )
