"""Configurations of the experiments, by name: `dsi reproduce table3 --config reproduce-small`.

A `base` may be a configuration that ships with the library.
"""

from argparse import ArgumentTypeError
from pathlib import Path

from dsi.docids.files.checks import user_path

CONFIGS = Path(__file__).parent


def experiment_configuration(value: str) -> str:
    """Return the file or the name of a configuration: of an experiment, or any that `dsi train` takes."""
    own = CONFIGS / f"{value}.toml"
    if own.is_file() and not Path(value).is_file():
        return str(own)
    from dsi.config import config_names

    if user_path(value).is_file() or value in config_names():
        return value
    names = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.toml")))
    raise ArgumentTypeError(
        f"The configuration {value!r} does not exist: neither a file nor one of {', '.join(config_names())}, and of the "
        f"experiments {names}."
    )
