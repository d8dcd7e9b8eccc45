"""Write Natural Questions as a collection: `python scripts/prepare_nq.py --output DIR`; the same as `dsi prepare-nq`."""

import sys

from dsi.commands.main import main

sys.exit(main(["prepare-nq", *sys.argv[1:]]))
