"""The kinds of generators by their docid tokens: made from a config, and loaded from a folder."""

from pathlib import Path

import torch

from contrastive.untrusted import load_weights
from docids.files.untrusted import RESTORE, tensor_entries
from docids.tree import DocidTree
from docids.types import Ints
from dsi.generator.base import Generator
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.generator.model import DocidGenerator
from dsi.generator.stored import read_config
from dsi.generator.tied import TiedGenerator
from dsi.generator.words import WordGenerator

KINDS: dict[str, type[Generator]] = {"digits": DocidGenerator, "tied": TiedGenerator, "words": WordGenerator}
"""{docid_tokens: class}."""


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
        ValueError: the T5 checkpoint's width is not the encoder's, or it has fewer layers than asked for.
    """
    return KINDS[config.docid_tokens].create(config, tree, state_dim, objective, seed, numbers)


def load_generator(folder: Path, device: str | torch.device) -> Generator:
    """Load a generator that `save_pretrained` wrote.

    Raises:
        FileNotFoundError: the folder holds no generator.
        ValueError: its config or its weights are not those of a generator.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no generator; train it first (dsi train --stage generator).")
    config, path = read_config(folder), folder / "model.safetensors"
    if config.num_layers > len(tensor_entries(path)):
        raise ValueError(
            f"{folder / 'config.json'} asks for {config.num_layers} layers, more than {path} has; {RESTORE}."
        )
    generator = load_weights(lambda: KINDS[config.docid_tokens](config), path)
    return generator.to(device).eval()
