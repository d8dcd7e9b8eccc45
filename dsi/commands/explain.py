"""`dsi explain`: print the answers of a search with the parts of their scores, and how they were found.

Takes the search options of `dsi search`. --tree adds the nodes kept and pruned, level by level. --document says
instead why a document is, or is not, among the answers, and which of its words match. From Python: `retriever.explain(query)`
and `retriever.search(query).explain(doc_id)`.
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from dsi.commands.arguments import add_device, add_index, add_search_options, open_retriever, parser, search_options
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count, query_text


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("explain", __doc__)
    add_index(command_line)
    command_line.add_argument("query", type=query_text, metavar="QUERY", help="a text")
    command_line.add_argument("-k", type=count, default=5, help="documents")
    shown = command_line.add_mutually_exclusive_group()
    shown.add_argument("--document", metavar="DOC_ID", help="a document: is it among the answers, and if not, why?")
    shown.add_argument("--tree", action="store_true", help="also the nodes that the walk kept and pruned")
    add_search_options(command_line, without=("passages",))
    add_device(command_line, searches=True)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Print the answers of one search, and its tree if asked."""
    arguments = build_parser().parse_args(argv)
    load_libraries()
    retriever, options = open_retriever(arguments), search_options(arguments)
    if arguments.document is None:
        explanation = retriever.explain(arguments.query, arguments.k, **options)
        print(explanation if arguments.tree else explanation.answer)
    else:
        print(retriever.search(arguments.query, arguments.k, **options).explain(arguments.document))
