"""`dsi queries`: show pseudo-queries of some documents of an index, and at which rank each finds its document.

They are made as training would make them, by the settings of RUN or by those that are given, such as --set
pseudo_queries.method=MODEL; a causal model has examples from --data. The rank counts the encoder and words; the margin is the
document's score, less that of the best other one.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import add_data, add_device, add_index, add_settings, open_retriever, parser, with_settings
from dsi.commands.libraries import load_libraries
from dsi.commands.values import count


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    arguments = _parse(argv)
    load_libraries()
    from dsi.config import run_config
    from dsi.docids.data.collection import read_collection
    from dsi.measuring.query_ranks import sample_queries

    config = with_settings(run_config(arguments.run), arguments.settings)
    collection = read_collection(arguments.data, dev_queries=config.dev_queries) if arguments.data else None
    print(sample_queries(open_retriever(arguments), config, arguments.show, collection))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    command_line = parser("queries", __doc__)
    add_index(command_line)
    add_settings(command_line)
    add_data(
        command_line, "its collection: texts, if the index keeps none, and train queries as examples", required=False
    )
    command_line.add_argument("--show", type=count, default=20, metavar="N", help="documents")
    add_device(command_line, searches=True)
    return command_line.parse_args(argv)
