"""One configuration for a whole run: the settings of every part, read from and written back to TOML."""

import dataclasses
import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tomli_w

from contrastive.encoder import EncoderConfig
from contrastive.training import ContrastiveConfig
from docids.clustering import DocidsConfig
from docids.lexical import LexicalConfig
from docids.storage import write_text
from dsi.generator.model import GeneratorConfig
from dsi.generator.pseudo_queries import QueriesConfig
from dsi.search.settings import SearchConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """Settings of a run, a section (TOML table) a part.

    Attributes:
        dev_queries: train queries set aside for tuning where the collection has no dev split.
        tune: choose lexical_weight and alpha (with fusion "paper" alpha, beta and ann_temperature) on the dev queries after
            training.
    """

    dev_queries: int = 500
    tune: bool = True
    queries: QueriesConfig = field(default_factory=QueriesConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)
    docids: DocidsConfig = field(default_factory=DocidsConfig)
    lexical: LexicalConfig = field(default_factory=LexicalConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


def read_config(path: Path) -> Config:
    """Read a TOML file; what it leaves out keeps its default.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not TOML, an unknown key (the message names the nearest known one), a wrong type or value.
    """
    if not path.exists():
        raise FileNotFoundError(f"The configuration {path} does not exist; see configs/ for examples.")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None
    return from_dict(Config, settings, str(path))


def write_config(config: Config, path: Path) -> None:
    """Write every setting, defaults included."""
    write_text(path, tomli_w.dumps(dataclasses.asdict(config)))


def from_dict(kind: type[T], settings: dict[str, Any], source: str) -> T:
    """Build a dataclass from nested dictionaries, checking keys and types.

    Args:
        kind: the dataclass.
        settings: {field: value}.
        source: named in messages.
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1, cutoff=0.0)
            raise ValueError(f"{source}: unknown key {key!r}; the nearest known one is {near[0]!r}.")
        values[key] = _checked(hints[key], value, f"{source}: {key}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _checked(kind: type, value: Any, source: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{source} must be a table of settings, got {value!r}.")
        return from_dict(kind, value, source)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or value != value:
        raise ValueError(f"{source} must be of type {kind.__name__}, got {value!r}.")
    return value
