"""Where the command `dsi` begins, also as `python -m dsi`. Alone in `dsi`, it knows the commands."""

import sys

from dsi.names import LIBRARY, check_names


def main() -> int:
    """Run one command and return its exit status, 2 if another package shadows one of ours."""
    try:
        check_names(*LIBRARY)
    except ImportError as error:
        sys.stderr.write(f"dsi: {error}\n")
        return 2
    from dsi.commands.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
