"""Measure an index: `python scripts/evaluate.py INDEX COLLECTION`; the same as `dsi evaluate`."""

import sys

from dsi.commands.main import main

sys.exit(main(["evaluate", *sys.argv[1:]]))
