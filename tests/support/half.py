"""Models with their weights in half precision, as many are published."""

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

HALVES = (torch.float16, torch.bfloat16)
RATE = 1e-5
"""Of a training; a step of AdamW changes no weight by much more, and most weights by less than half precision can hold."""
TEXTS = ["Neon is a noble gas.", "The Danube flows through Vienna.", "Rubber is made of latex.", "Mars has two moons."]
QUERIES = ["noble gas", "river of Vienna", "latex product", "moons of Mars"]


def save_encoder_in(dtype: torch.dtype, folder: Path, copy: Path) -> Path:
    """Save the sentence encoder of a folder in another one with its weights in a dtype; returns that."""
    SentenceTransformer(str(folder), device="cpu").to(dtype).save_pretrained(str(copy), create_model_card=False)
    return copy


def save_t5_in(dtype: torch.dtype, folder: Path, copy: Path) -> Path:
    """Save the T5 of a folder in another one with its weights in a dtype; returns that."""
    AutoModelForSeq2SeqLM.from_pretrained(folder).to(dtype).save_pretrained(copy)
    AutoTokenizer.from_pretrained(folder).save_pretrained(copy)
    return copy


def stored_types(folder: Path) -> set[torch.dtype]:
    """Types of the weights in a folder."""
    return {weights.dtype for path in folder.rglob("model.safetensors") for weights in load_file(path).values()}


def weights_of(encoder):
    """Weights of layers that every text goes through."""
    elsewhere = {"embed", "embeddings", "shared", "pooler"}
    return {
        name: weights.detach().clone() for name, weights in encoder.model.named_parameters()
        if "relative" not in name and not elsewhere & set(re.split("[._]", name))
    }  # fmt: skip


def moved(before, encoder):
    """The largest change of a weight, and the share of the weights that changed."""
    after = weights_of(encoder)
    changes = torch.cat([(after[name] - weights).abs().flatten() for name, weights in before.items()])
    return float(changes.max()), float((changes > 0).float().mean())
