"""`dsi tune`: choose the weights and the beam of an index on dev queries, and write them to its manifest.

If the index has a generator, alpha and ann_temperature are chosen together, since neither means anything alone. From Python:
`dsi.tune`.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict

from dsi.commands.arguments import add_collection, add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.docids.files.checks import check_writable


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("tune", __doc__)
    add_index(command_line)
    add_collection(command_line, "the collection it was trained on")
    add_device(command_line)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Tune, print the choice."""
    arguments = build_parser().parse_args(argv)
    check_writable(arguments.run)
    load_libraries()
    from dsi.config import read_dev_cut
    from dsi.docids.data.collection import read_collection
    from dsi.measuring.tuning import CHOSEN, in_words, tune_index
    from dsi.search.request import used_settings
    from dsi.store.folder.manifest import has_generator, read_manifest, search_config

    collection = read_collection(arguments.data, **read_dev_cut(arguments.run))
    tune_index(arguments.run, collection, arguments.device)
    manifest = read_manifest(arguments.run)
    config = used_settings(asdict(search_config(manifest)), has_generator=has_generator(manifest))
    chosen = {name: config[name] for name in CHOSEN if name in config}
    print(f"{arguments.run} searches with {in_words(chosen)}")
