"""Configurations of the experiments, by name: `dsi reproduce table3 --config reproduce-small`.

A `base` may be a configuration that ships with the library.
"""

from argparse import ArgumentTypeError
from pathlib import Path

from dsi.commands.values import configuration

CONFIGS = Path(__file__).parent


def experiment_configuration(value: str) -> str:
    """Return the file or the name of a configuration: of an experiment, or any that `dsi train` takes."""
    own = CONFIGS / f"{value}.toml"
    if own.is_file() and not Path(value).is_file():
        return str(own)
    try:
        return configuration(value)
    except ArgumentTypeError as error:
        names = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.toml")))
        raise ArgumentTypeError(f"{str(error).rstrip('.')}, and of the experiments {names}.") from None
