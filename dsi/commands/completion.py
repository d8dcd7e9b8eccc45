"""`dsi completion`: print a script that lets a shell complete commands, options and their values (extra `completion`).

bash: `dsi completion bash > ~/.local/share/bash-completion/completions/dsi`; zsh: `dsi completion zsh > DIR/_dsi`, with DIR in
$fpath; fish: `dsi completion fish > ~/.config/fish/completions/dsi.fish`. Commands of other packages are completed by name.
Write the script anew after an update of the package.
"""

import argparse
import sys
from collections.abc import Sequence

from dsi.commands.arguments import parser, parser_of
from dsi.commands.main import COMMANDS, command_modules, purpose, run_command

SHELLS = ("bash", "zsh", "fish")
_FILES = ("existing_file", "output_file", "configuration")
_FOLDERS = ("collection_folder", "index_folder", "output_folder", "run_folder")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the script."""
    command_line = parser("completion", __doc__)
    command_line.add_argument("shell", choices=SHELLS, help="that reads the script")
    shell = command_line.parse_args(argv).shell
    from dsi.integrations import extra

    with extra("completion"):
        import shtab
    print(shtab.complete(_whole_command_line(), shell))


def _whole_command_line() -> argparse.ArgumentParser:
    """Return `dsi` as one parser, with a sub-parser for each command."""
    import shtab

    whole = argparse.ArgumentParser("dsi")
    whole.add_argument("--version", action="store_true", help="show the version")
    commands = whole.add_subparsers()
    for name, module in command_modules().items():
        parents = [parser_of(module)] if name in COMMANDS else []
        command = commands.add_parser(name, parents=parents, add_help=not parents, help=purpose(module))
        for action in command._actions:
            kind = getattr(action.type, "__name__", "")
            if kind in _FILES or kind in _FOLDERS:
                action.complete = shtab.FILE if kind in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return whole


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
