"""What commands share: arguments, search options, the run of training commands, quiet libraries.

Imports nothing heavy, so that `dsi COMMAND --help` answers at once.
"""

import argparse
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsi.config import Config
    from dsi.pipeline import TrainingRun


def parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for a command; its description keeps its line breaks."""
    return argparse.ArgumentParser(
        prog=f"dsi {command}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_device(arguments: argparse.ArgumentParser, *, dtype: bool = False) -> None:
    """Add --device, and --dtype for commands that search."""
    arguments.add_argument("--device", help="cpu, cuda, …; the best available by default")
    if dtype:
        arguments.add_argument("--dtype", default="float32", help="float32 or bfloat16, of encoder and decoder")


def add_search_options(arguments: argparse.ArgumentParser, *, methods: bool = True) -> None:
    """Add an argument for each search option that fits on a command line."""
    group = arguments.add_argument_group("search options", "the index's own by default")
    group.add_argument("--alpha", type=float, help="the generator's weight in [0, 1]")
    group.add_argument(
        "--beta",
        type=float,
        help="levels with dense scores: inf for all, 0 for the decoder only",
    )
    group.add_argument("--fusion", choices=("bound", "estimate", "paper"), help="how nodes are scored")
    group.add_argument("--ann-temperature", type=float, help="divides the dense scores")
    group.add_argument("--beam-width", type=int, help="inner nodes kept per level")
    group.add_argument("--lexical-weight", type=float, help="weight of the lexical scores beside the dense ones")
    group.add_argument("--allow", nargs="+", metavar="DOC_ID", help="only these documents may be returned")
    group.add_argument("--deny", nargs="+", metavar="DOC_ID", help="these documents must not be returned")
    group.add_argument("--where", metavar="SQL", help="filter on metadata: lang = 'en' and year > 2000")
    group.add_argument(
        "--exact", action="store_true", default=None, help="widen the beam until the result is certified"
    )
    group.add_argument("--max-expansions", type=int, help="with --exact: most inner nodes expanded per query")
    if not methods:
        return
    group.add_argument(
        "--method", choices=("beam", "mcts"), help="mcts: Monte Carlo tree search by the document's score"
    )
    group.add_argument("--simulations", type=int, help="with mcts: simulations per query")


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the search options that were given."""
    from dsi.search.request import OPTIONS

    given = {name: getattr(arguments, name, None) for name in OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def training_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with --config, --data, --output, --encoder, --objective and --device."""
    arguments = parser(command, description)
    arguments.add_argument(
        "--config",
        metavar="NAME",
        help="configuration: a name (nq10k-small, …) or a TOML file; by default RUN/config.toml, or else the defaults",
    )
    arguments.add_argument("--data", type=Path, required=True, help="the collection, a folder in BEIR layout")
    arguments.add_argument(
        "--output", type=Path, required=True, metavar="RUN", help="folder of the run; becomes the index"
    )
    add_encoder(arguments)
    arguments.add_argument(
        "--objective", help="training objective, a row of dsi.trees.objectives, instead of the configured one"
    )
    add_device(arguments)
    return arguments


def add_encoder(arguments: argparse.ArgumentParser) -> None:
    """Add --encoder."""
    arguments.add_argument(
        "--encoder", help="sentence-transformers model, Hub name or folder, instead of the configured one"
    )


def add_discard_updates(arguments: argparse.ArgumentParser) -> None:
    """--discard-updates."""
    arguments.add_argument(
        "--discard-updates", action="store_true", help="train again although `dsi update` changed the index since"
    )


def training_run(arguments: argparse.Namespace, **pseudo_queries: Any) -> "TrainingRun":
    """Return the run that the arguments describe; `pseudo_queries` override settings of that section."""
    quiet_libraries()
    from docids.collection import read_collection
    from dsi.pipeline import TrainingRun

    given = {name: value for name, value in pseudo_queries.items() if value is not None}
    config = with_encoder(_config(arguments), arguments.encoder).with_changes({"pseudo_queries": given})
    if arguments.objective:
        config = config.with_changes({"objective": {"name": arguments.objective}})
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    discard_updates = getattr(arguments, "discard_updates", False)
    return TrainingRun(arguments.output, collection, config, arguments.device, discard_updates=discard_updates)


def with_encoder(config: "Config", name: str | None) -> "Config":
    """Return the configuration with another encoder, if one is named."""
    return config.with_changes({"encoder": {"name": name}}) if name else config


def _config(arguments: argparse.Namespace) -> "Config":
    from dsi.config import Config, read_config

    earlier = arguments.output / "config.toml"
    if arguments.config:
        return read_config(arguments.config)
    return read_config(earlier) if earlier.exists() else Config()


def run_stage(command: str, description: str | None, stage: str, argv: Sequence[str] | None) -> None:
    """Parse, run one stage, print where its output is."""
    run = training_run(training_parser(command, description).parse_args(argv))
    getattr(run, stage)()
    if run.processes.is_main:
        print(f"{command}: {in_words(run.seconds)} -> {run.folder}")


def in_words(seconds: dict[str, float]) -> str:
    """Return {what: seconds} as one line of text."""
    return ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items()) or "up to date"


def quiet_libraries() -> None:
    """Show our own messages and progress, and only serious warnings of the libraries."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for package in ("contrastive", "docids", "dsi", "eval", "scripts"):
        logging.getLogger(package).setLevel(logging.INFO)
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    from datasets.utils.logging import disable_progress_bar
    from transformers.utils import logging as transformers_logging

    disable_progress_bar()  # reading tables takes no time
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
