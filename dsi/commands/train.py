"""`dsi train`: run all stages, from a collection to a searchable and tuned INDEX.

Stages that are up to date are skipped, and a killed run resumes where it stopped. From Python: `dsi.train`.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsi.commands.arguments import add_collection, add_configuration, add_device, add_overwriting, add_pairs, parser
from dsi.commands.libraries import load_libraries, set_up
from dsi.commands.values import output_folder

if TYPE_CHECKING:
    from dsi.training.pipeline import TrainingRun


def main(argv: Sequence[str] | None = None) -> None:
    """Train, tune on dev, print how long it took."""
    arguments = build_parser().parse_args(argv)
    run = _training_run(arguments)
    run.train()
    if run.processes.is_main:
        took = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in run.seconds.items()) or "up to date"
        print(f"train: {took} -> {run.folder}")


def _training_run(arguments: argparse.Namespace) -> "TrainingRun":
    """Return the run that the arguments describe; settings and device are checked before imports that take long."""
    set_up()
    from dsi.commands.arguments import with_settings
    from dsi.config import dev_cut, run_config
    from dsi.contrastive.devices import check_device

    check_device(arguments.device)
    config = with_settings(run_config(arguments.output, arguments.config), arguments.settings)
    load_libraries(training=True)
    from dsi.docids.data.collection import read_collection
    from dsi.docids.extensions import open_cluster
    from dsi.training.pipeline import TrainingRun
    from dsi.training.preflight import for_collection

    collection = read_collection(arguments.data, **dev_cut(config))
    if arguments.pairs:
        collection = collection.with_pairs(arguments.pairs, **dev_cut(config))
    return TrainingRun(
        arguments.output, collection, for_collection(config, collection), arguments.device,
        discard_updates=arguments.discard_updates, replace=arguments.replace,
        cluster=open_cluster(arguments.cluster) if arguments.cluster else None,
    )  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = parser("train", __doc__)
    default = "configuration: a name (paper, …) or a TOML file; by default INDEX/config.toml, or else what we recommend"
    add_configuration(arguments, default)
    add_collection(arguments)
    add = arguments.add_argument
    add("output", type=output_folder, metavar="INDEX", help="folder that becomes the index")
    add_device(arguments)
    add_pairs(arguments, "training pairs: query, positive and perhaps negatives")
    cluster = (
        "embed and cluster documents in local processes (local), in the Ray cluster of this process (auto), or in one at "
        "HOST:PORT; every machine must see INDEX"
    )
    add("--cluster", metavar="ADDRESS", help=cluster)
    add_overwriting(arguments)
    return arguments
