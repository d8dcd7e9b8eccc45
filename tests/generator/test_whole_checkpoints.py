"""Checkpoints that lack weights, wherever a model is loaded."""

import re
import shutil

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dsi.config import GeneratorConfig
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.generator.kinds import create_generator
from tests.support.small import WIDTH, random_tree, save_cross_encoder

LACKS = "its files lack weights that its answers depend on"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, t5_folder, sentence_t5_folder, tokenizer_folder):
    place = tmp_path_factory.mktemp("checkpoints")
    config = LlamaConfig(
        vocab_size=2000, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(str(place / "llama"))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(place / "llama"))
    return {
        "encoder": sentence_t5_folder,
        "t5": t5_folder,
        "llama": place / "llama",
        "cross-encoder": save_cross_encoder(place / "cross-encoder", tokenizer_folder, layers=2),
    }


def decoder(folder, reads):
    create_generator(GeneratorConfig("digits", reads, str(folder)), random_tree(20), WIDTH, "ce")


def reranker(folder):
    rerankers = pytest.importorskip("dsi.rerankers")  # a room that may be torn off
    rerankers.load_reranker(None, "INDEX", f"cross-encoder:{folder}", device="cpu")


def query_model(folder):
    pytest.importorskip("dsi.pseudo_queries").load_query_model(str(folder))


USES = {
    "encoder": ("encoder", lambda folder: Encoder.load(EncoderConfig(name=str(folder)), device="cpu")),
    "decoder": ("t5", lambda folder: decoder(folder, "states")),
    "language model": ("llama", lambda folder: decoder(folder, "text")),
    "queries of a T5": ("t5", query_model),
    "queries of a causal model": ("llama", query_model),
    "reranker": ("cross-encoder", reranker),
}


def changed(folder, target, change):
    """A copy of a checkpoint whose weights have other names; those without one are dropped."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    kept = {name: tensor for old, tensor in weights.items() if (name := change(old))}
    assert kept.keys() != weights.keys()
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("use", USES)
def test_a_whole_checkpoint_is_taken(checkpoints, use):
    kind, load = USES[use]
    load(checkpoints[kind])


@pytest.mark.parametrize(
    "change",
    [
        lambda name: "" if re.search(r"(block|layers|layer)\.1\.", name) else name,
        lambda name: "" if re.search(r"norm\.weight$|layer_norm\.weight$|LayerNorm\.bias$", name) else name,
        lambda name: f"other_{name}_name",
    ],
    ids=["a layer", "norms, which are made of ones or zeros", "all names changed"],
)
@pytest.mark.parametrize("use", USES)
def test_a_checkpoint_that_lacks_weights_is_refused(checkpoints, tmp_path, use, change):
    kind, load = USES[use]
    with pytest.raises((ValueError, FileNotFoundError), match=f"{LACKS} \\(") as raised:
        load(changed(checkpoints[kind], tmp_path / "changed", change))
    assert "\n" not in str(raised.value)


def test_weights_that_a_use_does_not_read_may_be_missing(checkpoints, tmp_path):
    only = changed(checkpoints["t5"], tmp_path / "decoder", lambda name: "" if name.startswith("encoder.") else name)
    decoder(only, "states")
    with pytest.raises(FileNotFoundError, match=LACKS):
        query_model(only)
