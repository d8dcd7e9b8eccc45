"""`dsi push`: upload an index to the Hugging Face Hub, with a model card.

This uploads the index, but neither the other files of its training nor the texts of learned queries. Log in with `hf auth
login`, or set HF_TOKEN. The index is then loaded by its name. From Python: `dsi.hub.push`.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("push", __doc__)
    add_index(command_line)
    add = command_line.add_argument
    add("name", type=_repository, metavar="USER/INDEX", help="on the Hub; created if it does not exist")
    add("--private", action="store_true", default=None, help="make a new repository private")
    add("--license", metavar="ID", help="for the card, as the Hub names it: apache-2.0, …")
    words = "upload the hashes of learned queries' words, or keep them here; required if the index has learned any"
    add("--query-words", action=argparse.BooleanOptionalAction, help=words)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Upload, print the URL of the commit."""
    arguments = build_parser().parse_args(argv)
    load_libraries()
    from dsi.hub import push
    from dsi.store.retriever import load

    retriever = load(arguments.run, device="cpu")
    options = {"private": arguments.private, "license": arguments.license, "query_words": arguments.query_words}
    print(f"{arguments.run} -> {push(retriever, arguments.name, **options)}")


def _repository(value: str) -> str:
    user, _, name = value.partition("/")
    if not user or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"must have the form user/index, got {value!r}.")
    return value
