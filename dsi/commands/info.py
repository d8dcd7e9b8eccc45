"""`dsi info`: show what an index is: documents, docids, encoder, weights and how they were chosen, sizes, versions.

--learned lists the pairs that it has learned instead, one per line with tabs between: hash of the query, doc_id, how often it
counts, when it was first learned, and the query if texts are kept. From Python: `retriever.learned()`.
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("info", __doc__)
    add_index(command_line)
    command_line.add_argument("--learned", action="store_true", help="list only the pairs that the index has learned")
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Print the facts, or the learned pairs, a line each."""
    arguments = build_parser().parse_args(argv)
    load_libraries()
    from dsi.store.folder.info import as_lines, index_info, learned_lines

    for line in learned_lines(arguments.run) if arguments.learned else [as_lines(index_info(arguments.run))]:
        print(line)
