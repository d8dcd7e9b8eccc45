"""The kinds of generators by their docid tokens: created from a config, and loaded from a folder."""

import json
from pathlib import Path

import torch
from transformers import T5Config

from dsi.config import GeneratorConfig
from dsi.docids.extensions import GENERATORS, extension_names, extension_room, load_extension
from dsi.docids.files.checks import shown
from dsi.docids.files.reading import RESTORE
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import FIXED, Generator
from dsi.generator.model import DocidGenerator
from dsi.generator.nodes import NodeGenerator
from dsi.generator.objectives import SCORES

_DIGITS = "digits"


def find_kind(docid_tokens: str, reads: str = "states") -> type[Generator]:
    """Return the class of generators with these docid tokens, ours or another's, that read texts or states of the encoder."""
    if reads == "text":
        with extension_room():
            from dsi.language_models import LanguageModel
        return LanguageModel
    if docid_tokens == _DIGITS:
        return DocidGenerator
    kind: type[Generator] | None = load_extension(GENERATORS, docid_tokens)
    if kind is None:
        names = ", ".join(extension_names(GENERATORS, [_DIGITS]))
        raise ValueError(
            f"docid_tokens must be one of {names}, got {shown(docid_tokens)}; install the package that adds them."
        )
    if not (isinstance(kind, type) and issubclass(kind, Generator)):
        raise ValueError(f"The generator {docid_tokens!r} must be a subclass of Generator, got {shown(kind)}.")
    if issubclass(kind, NodeGenerator) and kind.log_probs is NodeGenerator.log_probs:
        raise ValueError(f"The generator {docid_tokens!r} has no step: it must define log_probs(queries, nodes).")
    return kind


def create_generator(
    config: GeneratorConfig, tree: DocidTree, state_dim: int, objective: str, seed: int = 0,
    numbers: Ints | None = None,
) -> Generator:  # fmt: skip
    """Return an untrained generator for a tree."""
    kind = find_kind(config.docid_tokens, config.reads)
    return kind.create(config, tree, state_dim, objective, seed, numbers)


def load_generator(folder: Path, device: str | torch.device) -> Generator:
    """Load a generator that `save_pretrained` wrote."""
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no generator; train it first (dsi train).")
    record = json.loads((path := folder / "config.json").read_text(encoding="utf-8"))
    if record["score"] not in SCORES:
        raise ValueError(f"{path}: score must be one of {', '.join(SCORES)}, got {shown(record['score'])}; {RESTORE}.")
    kind = find_kind(record["docid_tokens"], record.get("reads", "states"))
    return kind.load(folder, T5Config(**{**record, **FIXED})).to(device).eval()
