"""The kinds of generators by their docid tokens: created from a config, and loaded from a folder after checking its config."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config

from dsi.contrastive.untrusted import load_weights
from dsi.docids.files.untrusted import RESTORE, read_json, reading, tensor_entries
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import Generator
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.generator.model import DocidGenerator
from dsi.generator.objectives import SCORES
from dsi.generator.tied import TiedGenerator
from dsi.generator.words import WordGenerator

KINDS: dict[str, type[Generator]] = {"digits": DocidGenerator, "tied": TiedGenerator, "words": WordGenerator}
"""{docid_tokens: class}."""

_LEAST: dict[str, int] = {
    "vocab_size": 1, "d_model": 1, "d_kv": 1, "d_ff": 1, "num_layers": 0, "num_heads": 1, "training_beam": 0,
    "relative_attention_num_buckets": 2, "embedding_dim": 1, "inner_nodes": 1, "nodes": 2,
}  # fmt: skip
"""{whole number: its least value}."""
_ONLY = {"embedding_dim": "tied", "inner_nodes": "words", "nodes": "words"}
"""{entry: the kind of tokens that has it}."""
_TEXTS = ("docid_tokens", "docids_fingerprint", "objective", "score", "feed_forward_proj")
_NUMBERS = ("dropout_rate", "layer_norm_epsilon", "initializer_factor")
_MORE = (
    "relative_attention_max_distance", "fan_out", "pad_token_id", "eos_token_id", "num_decoder_layers", "classifier_dropout",
    "tie_word_embeddings", "scale_decoder_outputs",
)  # fmt: skip
_FIXED = {"is_decoder": True, "is_encoder_decoder": False, "use_cache": False}
_MOST = 2**31 - 1


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


def read_config(folder: Path) -> T5Config:
    """Return the config of the generator in a folder, of known entries only.

    Raises:
        FileNotFoundError: no config.
        ValueError: an entry is missing, or of a wrong type or value.
    """
    path = folder / "config.json"
    record = read_json(path)
    if problem := _problem(record):
        value = record.get(problem.split()[0])
        raise ValueError(f"{path} is not the config of a generator: {problem}, got {value!r}; {RESTORE}.")
    known = [*_LEAST, *_TEXTS, *_NUMBERS, *_MORE]
    with reading(path):
        GeneratorConfig(docid_tokens=record["docid_tokens"], decoder="a checkpoint")
        return T5Config(**{name: record[name] for name in known if name in record}, **_FIXED)


def _problem(record: dict[str, Any]) -> str:
    """Return what is wrong with the entries, beginning with the name of one; "" if nothing is."""
    for name in _TEXTS:
        if not isinstance(record.get(name), str):
            return f"{name} must be a text"
    if record["score"] not in SCORES:
        return f"score must be one of {', '.join(SCORES)}"
    if (record["score"] == "estimate") != (record["docid_tokens"] == "tied"):
        return 'score must be "estimate" for tied tokens, and for them alone'
    for name, least in _LEAST.items():
        value, optional = record.get(name), _ONLY.get(name, record["docid_tokens"]) != record["docid_tokens"]
        if not (optional and value is None) and not (type(value) is int and least <= value <= _MOST):
            return f"{name} must be a whole number from {least} to {_MOST}"
    for name in _NUMBERS:
        value = record.get(name)
        if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
            return f"{name} must be a number from 0"
    return _problem_of_shape(record)


def _problem_of_shape(record: dict[str, Any]) -> str:
    fan_out = record.get("fan_out")
    if (
        not isinstance(fan_out, list)
        or not fan_out
        or not all(type(most) is int and 0 < most <= _MOST for most in fan_out)
    ):
        return "fan_out must be a list of whole numbers above 0"
    distance = record.get("relative_attention_max_distance")
    if type(distance) is not int or not record["relative_attention_num_buckets"] < distance <= _MOST:
        return "relative_attention_max_distance must be a whole number above relative_attention_num_buckets"
    if record["docid_tokens"] == "words":
        return "" if record["vocab_size"] <= record["nodes"] else "vocab_size must be at most the number of nodes"
    tokens = len(fan_out) if record["docid_tokens"] == "tied" else 1 + sum(fan_out)
    return "" if record["vocab_size"] == tokens else f"vocab_size must be {tokens}, as fan_out says"
