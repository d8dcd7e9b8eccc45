"""Train an index: `python scripts/train.py COLLECTION INDEX`; the same as `dsi train`."""

import sys

from dsi.commands.main import main

sys.exit(main(["train", *sys.argv[1:]]))
