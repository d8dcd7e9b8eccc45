"""What the training commands have in common: their arguments, the run they make of them, quiet logging."""

import argparse
import dataclasses
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docids.collection import read_collection
from dsi.config import Config, read_config
from dsi.pipeline import TrainingRun
from dsi.trees.objectives import OBJECTIVES


def training_parser(command: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with --config, --data, --output, --encoder, --objective and --device."""
    parser = argparse.ArgumentParser(
        prog=f"dsi {command}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=Path, help="TOML file with settings; RUN/config.toml, then the defaults, without it"
    )
    parser.add_argument("--data", type=Path, required=True, help="the collection, a folder in BEIR layout")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="RUN", help="folder of the run; becomes the index"
    )
    parser.add_argument(
        "--encoder", help="sentence-transformers model, Hub name or folder, instead of the configured one"
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="what the generator is taught, instead of the configured one",
    )
    parser.add_argument("--device", help="cpu, cuda, …; the best there is by default")
    return parser


def training_run(arguments: argparse.Namespace, **queries: Any) -> TrainingRun:
    """The run that the arguments describe; `queries` are settings of that section which they override."""
    quiet_libraries()
    config = _config(arguments)
    config = with_encoder(config, arguments.encoder)
    if arguments.objective:
        config = dataclasses.replace(
            config, generator=dataclasses.replace(config.generator, objective=arguments.objective)
        )
    given = {name: value for name, value in queries.items() if value is not None}
    config = dataclasses.replace(config, queries=dataclasses.replace(config.queries, **given))
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    return TrainingRun(arguments.output, collection, config, arguments.device)


def with_encoder(config: Config, name: str | None) -> Config:
    """The configuration with the encoder that was named instead, if one was."""
    return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, name=name)) if name else config


def _config(arguments: argparse.Namespace) -> Config:
    earlier = arguments.output / "config.toml"
    if arguments.config:
        return read_config(arguments.config)
    return read_config(earlier) if earlier.exists() else Config()


def run_stage(command: str, description: str | None, stage: str, argv: Sequence[str] | None) -> None:
    """Parse, run one stage, say where its output is."""
    run = training_run(training_parser(command, description).parse_args(argv))
    getattr(run, stage)()
    if run.processes.is_main:
        print(
            f"{command}: {'; '.join(f'{n} {s:.0f} s' for n, s in run.seconds.items()) or 'up to date'} -> {run.folder}"
        )


def quiet_libraries() -> None:
    """Our own messages and progress bars; of the libraries only warnings that matter."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for package in ("contrastive", "docids", "dsi", "eval", "scripts"):
        logging.getLogger(package).setLevel(logging.INFO)
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    from datasets.utils.logging import disable_progress_bar
    from transformers.utils import logging as transformers_logging

    disable_progress_bar()  # of reading tables: they take no time
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
