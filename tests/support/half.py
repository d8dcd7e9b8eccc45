"""Models with their weights in half precision, as many are published."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

HALVES = (torch.float16, torch.bfloat16)


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
