"""Tiny language models of transformers on disk, with a tokenizer, and the probabilities of docids by plain passes of theirs."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5Model,
)

from dsi.config import GeneratorConfig
from dsi.docids.tree import DocidTree
from dsi.generator.kinds import create_generator
from dsi.language_models import PROMPTS, LanguageModel
from tests.support.small import WIDTH

LANGUAGE_WIDTH = 24
"""Not the encoder's."""
KINDS = ("llama", "t5", "gpt2", "bart")


def language_model(kind: str) -> PreTrainedModel:
    """A tiny model with random weights of unusual size, so that all of it matters."""
    torch.manual_seed(5)
    width, vocabulary = LANGUAGE_WIDTH, 2000
    configs = {
        "llama": lambda: LlamaModel(
            LlamaConfig(
                vocab_size=vocabulary, hidden_size=width, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, pad_token_id=0, bos_token_id=None,
                eos_token_id=1,
            )
        ),
        "gpt2": lambda: GPT2Model(
            GPT2Config(
                vocab_size=vocabulary, n_embd=width, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
            )
        ),
        "t5": lambda: T5Model(
            T5Config(
                vocab_size=vocabulary, d_model=width, d_kv=6, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4,
                dropout_rate=0.0, decoder_start_token_id=0,
            )
        ),
        "bart": lambda: BartModel(
            BartConfig(
                vocab_size=vocabulary, d_model=width, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, dropout=0.0,
                init_std=0.3, pad_token_id=0, eos_token_id=1, bos_token_id=1, decoder_start_token_id=1,
            )
        ),
    }  # fmt: skip
    return configs[kind]().eval()


def save_language_model(folder: Path, kind: str, tokenizer_folder: Path, **tokens: str | None) -> Path:
    """A model in a folder; `tokens` change the special tokens of its tokenizer."""
    language_model(kind).save_pretrained(str(folder))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder), **tokens).save_pretrained(str(folder))
    return folder


def pretrained_generator(folder: Path, tree: DocidTree) -> LanguageModel:
    """A generator of random docid tokens."""
    made = create_generator(GeneratorConfig("digits", "text", str(folder)), tree, WIDTH, "ce")
    assert isinstance(made, LanguageModel)
    with torch.no_grad():
        made.head.weight.mul_(6)
    return made.eval()


@torch.no_grad()
def document_log_p(generator: LanguageModel, tree: DocidTree, query: str) -> Tensor:
    """[documents] log-probability of each docid after a query, by plain passes of the model, one for each node."""
    model, log_p = generator.model, torch.zeros(tree.num_places)
    ids = torch.tensor([generator.tokenizer(PROMPTS["query"] + query)["input_ids"]])

    @cache
    def logits(tokens: tuple[int, ...]) -> Tensor:
        docid = generator.embed(torch.tensor([tokens]))
        if model.config.is_encoder_decoder:
            output = model(input_ids=ids, decoder_inputs_embeds=docid, use_cache=False).last_hidden_state
        else:
            both = torch.cat([model.get_input_embeddings()(ids), docid], dim=1)
            output = model(inputs_embeds=both, use_cache=False).last_hidden_state
        return generator.head(output[0, -1])

    for document in range(tree.num_places):
        node, tokens = 0, (0,)
        for level, digit in enumerate(tree.digits(document)):
            first = int(tree.token_offsets[level])
            log_p[document] += logits(tokens)[first : first + int(tree.num_children[node])].log_softmax(dim=0)[digit]
            node = int(tree.first_child[node]) + digit
            tokens = (*tokens, first + digit)
    return log_p
