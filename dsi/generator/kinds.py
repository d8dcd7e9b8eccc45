"""The kinds of generators by their docid tokens: created from a config, and loaded from a folder."""

import json
from pathlib import Path

import torch
from transformers import T5Config

from dsi.contrastive.models import load_weights
from dsi.docids.files.reading import RESTORE
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import Generator
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.generator.model import DocidGenerator
from dsi.generator.objectives import SCORES
from dsi.generator.pretrained import PretrainedGenerator
from dsi.generator.tied import TiedGenerator
from dsi.generator.words import WordGenerator

KINDS: dict[str, type[Generator]] = {"digits": DocidGenerator, "tied": TiedGenerator, "words": WordGenerator}
"""{docid_tokens: class}."""

_FIXED = {"is_decoder": True, "is_encoder_decoder": False, "use_cache": False}


def create_generator(
    config: GeneratorConfig,
    tree: DocidTree,
    state_dim: int,
    objective: ObjectiveConfig,
    seed: int = 0,
    numbers: Ints | None = None,
) -> Generator:
    """Return an untrained generator for a tree.

    Args:
        config: the decoder, and the kind of its tokens.
        tree: the docids to generate.
        state_dim: width of the encoder's token states.
        objective: the training objective, which also decides how search ranks nodes.
        seed: of fresh weights.
        numbers: [N, longest] of the docids in docid order, -1 past the end, for tokens that are words.

    Raises:
        OSError: the decoder cannot be loaded.
        ValueError: the T5 checkpoint's width is not the encoder's, or it has fewer layers than asked for; or a model that is to
            read texts cannot generate docids.
    """
    kind = PretrainedGenerator if config.reads == "text" else KINDS[config.docid_tokens]
    return kind.create(config, tree, state_dim, objective, seed, numbers)


def load_generator(folder: Path, device: str | torch.device) -> Generator:
    """Load a generator that `save_pretrained` wrote.

    Raises:
        FileNotFoundError: the folder holds no generator.
        ValueError: its config names no known kind or score. What else a damaged file raises, `reading` makes a ValueError of.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no generator; train it first (dsi train --stage generator).")
    record = json.loads((path := folder / "config.json").read_text(encoding="utf-8"))
    if record["docid_tokens"] not in KINDS or record["score"] not in SCORES:
        known = f"docid_tokens must be one of {', '.join(KINDS)}, score one of {', '.join(SCORES)}"
        raise ValueError(f"{path}: {known}, got {record['docid_tokens']!r} and {record['score']!r}; {RESTORE}.")
    kind, config = KINDS[record["docid_tokens"]], T5Config(**{**record, **_FIXED})
    if record.get("reads") == "text":
        return PretrainedGenerator.load(folder, config).to(device).eval()
    return load_weights(lambda: kind(config), folder / "model.safetensors").to(device).eval()
