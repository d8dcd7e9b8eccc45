"""`dsi compare-docids`: every docid scheme at the same encoder, generator and training.

Measured for each: the generator alone and fused, where its search loses the right prefix, the tree, and documents added after
training. Rows share what they have in common (OUTPUT/store), and each is written as soon as it is
measured, so a killed command continues with the next. Files are OUTPUT/NAME.json, .values.json.gz, .md and .svg, where NAME is
"vectors" or "digits", what is walked by; with --without-added "vectors-trained" or "digits-trained".
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from dsi.commands.arguments import add_collection, add_device, add_settings, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import number, output_folder
from dsi_experiments.configs import experiment_configuration


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("compare-docids", __doc__)
    add_collection(command_line)
    command_line.add_argument(
        "--config", type=experiment_configuration, required=True, metavar="NAME", help="the base, by name or file"
    )
    command_line.add_argument(
        "--output", type=output_folder, required=True, metavar="DIR", help="of everything that is written"
    )
    add_settings(command_line)
    command_line.add_argument(
        "--schemes", nargs="+", metavar="NAME", help="all that fit the collection; NAME+2: with two pieces"
    )
    command_line.add_argument("--seeds", type=number(int, 0), nargs="+", default=[0], help="of clustering and training")
    command_line.add_argument("--digits", action="store_true", help="train a decoder of (level, digit) tokens")
    command_line.add_argument(
        "--without-added",
        action="store_true",
        help="leave out documents added later, and half of the training with them",
    )
    add_device(command_line)
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then print and write the tables."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi_experiments.docid_schemes import compare, schemes_for
    from dsi_experiments.laboratory import Laboratory

    laboratory = Laboratory.from_arguments(arguments)
    names = arguments.schemes or schemes_for(laboratory.collection)
    laboratory.say(
        compare(laboratory, names, arguments.seeds, digits=arguments.digits, add=not arguments.without_added)
    )
