"""The stages of a run in the order in which they run, and all that each is made from, stated once. Runs nothing."""

import dataclasses
from typing import Any, NamedTuple

from dsi.config import Config


class Inputs(NamedTuple):
    """What the output of a stage is made from, beside the collection and local folders of models.

    Attributes:
        settings: of the configuration; a section stands for all of its settings.
        stages: earlier ones whose output it reads.
        is_versioned: True where files of another format version cannot be read.
    """

    settings: tuple[str, ...]
    stages: tuple[str, ...] = ()
    is_versioned: bool = False


STAGES = {
    "pseudo_queries": Inputs(("seed", "pseudo_queries")),
    "encoder": Inputs(("seed", "bf16", "encoder", "contrastive", "lexical.language")),  # BM25 finds hard negatives
    "docids": Inputs(
        ("seed", "docids", "vectors", "tokens", "docid_tokenizer", "text_megabytes", "lexical.language"),
        ("encoder",),
        is_versioned=True,
    ),
    "lexical": Inputs(("lexical",), is_versioned=True),
    "generator": Inputs(
        ("seed", "bf16", "generator", "training", "lexical"),  # words find pseudo-queries that mislead
        ("docids", "pseudo_queries"),
    ),
    "memory": Inputs(("memory",), ("encoder", "lexical", "generator"), is_versioned=True),
}
"""{stage: its inputs}; embeddings depend on the encoder and the texts alone (see `dsi.training.embedding`)."""


def enabled_stages(config: Config) -> list[str]:
    """Return the stages that a run has, in order."""
    disabled = {
        "pseudo_queries": config.pseudo_queries.method == "none",
        "lexical": config.lexical.model == "none",
        "generator": not config.generator.exists,
    }
    return [stage for stage in STAGES if not disabled.get(stage)]


def needed_stages(stage: str, config: Config) -> list[str]:
    """Return the earlier stages whose output a stage of a run reads."""
    enabled, read = enabled_stages(config), STAGES[stage].stages
    if stage == "encoder" and config.contrastive.loss != "none" and config.contrastive.texts == "all":
        read = ("pseudo_queries", *read)
    if stage == "memory" and not config.training.train_encoder:  # then the generator has no encoder of its own
        read = ("encoder", "lexical")
    return [name for name in read if name in enabled]


def setting_values(stage: str, config: Config) -> list[Any]:
    """Return the values of the settings that a stage is made from, in a form that JSON can hold."""
    values = []
    for name in STAGES[stage].settings:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        values.append(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value)  # type: ignore[arg-type]
    return values
