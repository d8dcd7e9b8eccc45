"""Training of the generator with `transformers.Trainer`: on cached encoder states, or on texts and the encoder with it."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from contrastive.encoder import Encoder
from contrastive.training import last_checkpoint, trainer_settings
from dsi.generator.model import DocidGenerator, GeneratorConfig
from dsi.training.examples import DocidExamples, LengthBucketSampler
from dsi.training.objective import DenseLogits, GeneratorLoss, drop_states


class WholeModel(nn.Module):
    """Encoder and generator as one model, trained together.

    Args:
        encoder: a sentence-transformers model; its first module gives the token states.
        generator: the decoder.
    """

    def __init__(self, encoder: nn.Sequential, generator: DocidGenerator) -> None:
        super().__init__()
        self.encoder, self.generator = encoder[0], generator

    def state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:  # type: ignore[override]
        """Tied weights once: a checkpoint refuses to hold them twice."""
        weights: dict[str, Any] = super().state_dict(*arguments, **keywords)
        names = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}
        return {name: tensor for name, tensor in weights.items() if names[tensor.data_ptr()] == name}

    def forward(self, tokens: Tensor, depths: Tensor, sees: Tensor, **features: Tensor) -> dict[str, Tensor]:
        """`DocidGenerator.forward` on the token states of the features."""
        states = self.encoder(features)["token_embeddings"]
        return self.generator(states, features["attention_mask"].bool(), tokens, depths, sees)  # type: ignore[no-any-return]


class _Account(TrainerCallback):
    """Seconds beside every loss, and a loss beside every checkpoint: a killed training goes on counting where it was."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        before = state.log_history[-1].get("seconds", 0.0) if state.log_history else 0.0
        self.started = time.perf_counter() - before

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_log |= control.should_save

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.log_history[-1]["seconds"] = time.perf_counter() - self.started

    @staticmethod
    def record(state: TrainerState) -> dict[str, float]:
        """Mean loss, steps and seconds of a training that has ended, from its first step."""
        logged = [entry for entry in state.log_history if "loss" in entry]
        steps = np.array([entry["step"] for entry in logged])
        loss = np.average([entry["loss"] for entry in logged], weights=np.diff(steps, prepend=0))
        return {"loss": float(loss), "steps": int(steps[-1]), "seconds": state.log_history[-1]["seconds"]}


class _GeneratorTrainer(Trainer):
    """Knows how to shuffle, and what the objective asks of a batch."""

    def __init__(self, loss: GeneratorLoss, config: GeneratorConfig, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.loss, self.config = loss, config

    def _get_train_sampler(self, train_dataset: DocidExamples | None = None) -> LengthBucketSampler:
        examples: DocidExamples = train_dataset or self.train_dataset
        batch_size = self.args.train_batch_size * self.args.world_size
        return LengthBucketSampler(examples.inputs.lengths, batch_size, self.args.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Any:
        relevant = inputs.pop("relevant")
        of_dense: dict[str, Tensor] = {name: inputs.pop(name) for name in ("embeddings", "kinds") if name in inputs}
        if self.config.state_dropout and model.training and "states_mask" in inputs:
            inputs["states_mask"] = drop_states(inputs["states_mask"], self.config.state_dropout)
        return self.loss(model, inputs, relevant, of_dense, self.state.global_step / self.state.max_steps)


def train_generator(
    generator: DocidGenerator,
    examples: DocidExamples,
    config: GeneratorConfig,
    work_folder: Path,
    encoder: Encoder | None = None,
) -> dict[str, float]:
    """Train `generator` in place; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        generator: the decoder.
        examples: on cached states, or on `Texts` where the encoder is trained too.
        config: the settings.
        work_folder: of the checkpoints.
        encoder: trained in place with it (`config.train_encoder`).

    Returns:
        loss: the mean training loss (nats an example); steps; seconds: all since the first step, whatever was killed between.
    """
    arguments = TrainingArguments(
        **trainer_settings(config, work_folder, use_cpu=generator.device.type == "cpu"),
        per_device_train_batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        warmup_steps=0.05,
        remove_unused_columns=False,
    )
    config = dataclasses.replace(config, bf16=arguments.bf16)  # as the device allows: the objective searches too
    dense = None
    if config.dense_temperature > 0:
        frequencies = examples.log_frequencies()
        if config.distillation:
            frequencies = torch.zeros_like(frequencies)  # the teacher is dense search as it is
        dense = DenseLogits(examples.tree, config.dense_temperature, frequencies, arguments.device)
    trainer = _GeneratorTrainer(
        GeneratorLoss(generator, examples.tree, config, arguments.device, dense),
        config,
        model=generator if encoder is None else WholeModel(encoder.model, generator),
        args=arguments,
        train_dataset=examples,
        data_collator=examples.collate,
        callbacks=[_Account()],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(work_folder))
    trainer.model.eval()
    return _Account.record(trainer.state)
