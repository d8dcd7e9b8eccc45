"""`dsi tune`: choose weights, alpha and the beam of an index on dev queries, and write them to its manifest.

An index that was tuned since its last training or update is left as it is. From Python: `dsi.tune`.
"""

import sys
from collections.abc import Sequence

from dsi.commands.arguments import add_data, add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """Tune, print the choice."""
    arguments = parser("tune", __doc__)
    add_index(arguments)
    add_data(arguments, "the collection it was trained on")
    add_device(arguments)
    given = arguments.parse_args(argv)
    load_libraries()
    from docids.data.collection import read_collection
    from dsi.config import read_dev_queries
    from dsi.store.manifest import read_manifest, search_config
    from dsi.training.tuning import tune_index

    collection = read_collection(given.data, dev_queries=read_dev_queries(given.run))
    tune_index(given.run, collection, given.device)
    print(f"{given.run} searches with {search_config(read_manifest(given.run))}")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
