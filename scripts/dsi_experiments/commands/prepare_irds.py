"""`dsi prepare-irds`: write any collection of ir_datasets as a BEIR folder (extra `irds`).

`dsi prepare-irds --train msmarco-passage/train --test msmarco-passage/dev/small --output DIR`: documents come from the test
data set, queries and judgements from each. Judgements of documents that are missing or have no text are left out and counted.
"""

import argparse
from collections.abc import Sequence

from dsi.commands.arguments import parser
from dsi.commands.libraries import quiet_logging
from dsi.commands.values import output_folder


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder, print its counts."""
    arguments = build_parser().parse_args(argv)
    from dsi_experiments.collections.irds import prepare

    quiet_logging()
    names = {split: name for split in ("train", "dev", "test") if (name := getattr(arguments, split))}
    documents, judgements = prepare(names, arguments.output)
    print(f"{arguments.output}: {documents} documents")
    for split, count in judgements.items():
        print(f"  {split}: {count} judgements, from {names[split]}")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("prepare-irds", __doc__)
    command_line.add_argument(
        "--test", required=True, metavar="NAME", help="ir_datasets name of documents and test queries"
    )
    command_line.add_argument("--train", metavar="NAME", help="ir_datasets name of train queries")
    command_line.add_argument(
        "--dev", metavar="NAME", help="ir_datasets name of dev queries; without it, cut from train"
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="folder of the collection"
    )
    return command_line
