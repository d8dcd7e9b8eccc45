"""Tiny models of learned sparse retrieval."""

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from tests.support.small import WIDTH


def save_model(folder, tokenizer_folder, *, inference_free):
    """A tiny SPLADE whose vectors are sparse; inference-free ones weigh the query's words by a table."""
    torch.manual_seed(5)
    mlm = BertForMaskedLM(
        BertConfig(
            vocab_size=2000, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            initializer_range=0.5,
        )
    )  # fmt: skip
    with torch.no_grad():
        mlm.cls.predictions.bias.fill_(-5.0)  # most terms get no weight
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder))
    mlm.save_pretrained(str(folder / "mlm"))
    tokenizer.save_pretrained(str(folder / "mlm"))
    modules = [Transformer(str(folder / "mlm"), transformer_task="fill-mask"), SpladePooling("max")]
    if inference_free:
        table = SparseStaticEmbedding(tokenizer, weight=torch.rand(2000))
        modules = [Router.for_query_document(query_modules=[table], document_modules=modules)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder / "whole"), create_model_card=False)
    return folder / "whole"
