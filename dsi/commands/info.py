"""`dsi info`: show what an index is: documents, docids, encoder, weights and who chose them, sizes, versions."""

import json
from collections.abc import Sequence

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries


def main(argv: Sequence[str] | None = None) -> None:
    """Print the facts, as lines or as JSON."""
    command_line = parser("info", __doc__)
    add_index(command_line)
    command_line.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = command_line.parse_args(argv)
    load_libraries()
    from dsi.store.info import as_lines, index_info

    info = index_info(arguments.run)
    print(json.dumps(info, ensure_ascii=False) if arguments.json else as_lines(info))
