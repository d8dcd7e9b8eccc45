"""Decoders from models in half precision: trained by small steps, in float32."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from dsi.config import GeneratorConfig, TrainingConfig
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.generator.examples import DocidExamples, Texts
from dsi.generator.model import DocidGenerator
from dsi.generator.trainer import train_generator
from tests.support.half import (
    HALVES,
    RATE,
    TEXTS,
    moved,
    save_t5_in,
    weights_of,
)
from tests.support.small import PROMPTS, WIDTH, random_tree


def test_encoder_and_decoder_train_together_from_half_weights(half, tmp_path):
    folder, _ = half
    encoder, tree = Encoder.load(EncoderConfig(name=str(folder), **PROMPTS), device="cpu"), random_tree(20)
    examples = DocidExamples(
        Texts(encoder.model.preprocess, encoder.model.prompts, [("document", TEXTS)]), np.array([0, 5, 11, 19]), tree
    )
    generator = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", num_layers=1), tree, WIDTH, "ce")
    start = weights_of(encoder)
    training = TrainingConfig(batch_size=4, learning_rate=10 * RATE, train_encoder=True)
    records = [
        train_generator(
            copy.deepcopy(generator), examples,
            dataclasses.replace(training, epochs=epochs), tmp_path / str(epochs), encoder,
        )
        for epochs in (1.0, 60.0)
    ]  # fmt: skip
    largest, share = moved(start, encoder)
    assert 0 < largest < 61 * 10 * RATE
    assert share > 0.9
    assert records[1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_decoder_from_half_weights_is_trained_in_float32(dtype, t5_folder, tmp_path):
    name = save_t5_in(dtype, t5_folder, tmp_path / "half")
    generator = DocidGenerator.create(
        GeneratorConfig(docid_tokens="digits", decoder=str(name)), random_tree(20), WIDTH, "ce"
    )
    assert {weights.dtype for weights in generator.parameters()} == {torch.float32}
