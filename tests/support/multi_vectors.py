"""Tiny multi-vector models as sentence-transformers reads them."""

import json
import string
from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from transformers import BertConfig, BertModel

from tests.support.encoders import _tokenizer
from tests.support.small import WIDTH

FORMS = {"modules": 24, "pooled": 24, "pylate": 20}
"""{form: dimensions}: explicit modules, also with documents pooled; PyLate's."""


def save_multi_vector(folder: Path, form: str) -> Path:
    """Save a model in one of `FORMS`; returns its folder."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=490, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=66, initializer_range=0.5,
    )  # fmt: skip
    model, tokenizer = BertModel(config), _tokenizer("bert")
    tokenizer.model_max_length = 60
    tokenizer.add_tokens(["[Q] ", "[D] "] if form == "pylate" else ["[unused0]", "[unused1]"])
    tokenizer.save_pretrained(str(folder))
    model.save_pretrained(str(folder / "base"))
    tokenizer.save_pretrained(str(folder / "base"))
    lengths = {"query_length": 14, "document_length": 50} if form == "modules" else {}
    modules = [
        Transformer(str(folder / "base"), **lengths),
        Dense(
            WIDTH, FORMS[form], bias=False, activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings", module_output_name="token_embeddings",
        ),
    ]  # fmt: skip
    if form != "pylate":
        skipped = list(string.punctuation) if form == "modules" else None
        modules += [MultiVectorMask(skiplist_words=skipped), Normalize(module_input_name="token_embeddings")]
    if form == "pooled":
        modules += [HierarchicalTokenPooling(pool_factor=2), Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "find: ", "document": "text: "} if form == "modules" else None
    whole = MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts)
    whole.save(str(folder), create_model_card=False)
    if form == "pylate":
        _make_pylate(folder)
    return folder


def _make_pylate(folder: Path) -> None:
    """Rewrite what sentence-transformers has written as PyLate writes it."""
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text())
    config = {name: value for name, value in config.items() if name not in ("model_type", "prompts")}
    config["model_type"] = "ColBERT"
    config |= {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 40}
    config |= {"attend_to_expansion_tokens": False, "do_query_expansion": True, "similarity_fn_name": "MaxSim"}
    _write(path, config)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "pylate.models.Dense.Dense"
    _write(folder / "modules.json", modules)
    dense = folder / modules[1]["path"] / "config.json"
    names = ("in_features", "out_features", "bias", "activation_function")
    _write(dense, {name: value for name, value in json.loads(dense.read_text()).items() if name in names})


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
