"""Search an index: `python scripts/search.py INDEX`; the same as `dsi search`."""

import sys

from dsi.commands.main import main

sys.exit(main(["search", *sys.argv[1:]]))
