"""`dsi verify`: check an index from elsewhere before you load it.

The command compares the files with the manifest, checks that they contain only data, and loads and searches the index in a
child process. An index that this machine did not write is checked once when it is loaded; this command checks it again.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries


def main(argv: Sequence[str] | None = None) -> None:
    """Judge, print what was found."""
    arguments = build_parser().parse_args(argv)
    load_libraries()
    from dsi.store.folder.verify import verify

    manifest = verify(arguments.run, again=True)
    size = sum((arguments.run / name).stat().st_size for name in manifest["files"])
    print(
        f"{arguments.run}: {len(manifest['files'])} files, {size / 1e6:.1f} MB, generation {manifest['generation']}; fine"
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("verify", __doc__)
    add_index(command_line)
    return command_line
