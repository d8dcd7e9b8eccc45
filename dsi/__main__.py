"""Where the command `dsi` begins, also as `python -m dsi`. Alone in `dsi`, it knows the commands."""

import sys

from dsi.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
