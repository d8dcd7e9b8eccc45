"""Trains the generator with `transformers.Trainer`, on cached encoder states or on texts together with the encoder.

Knows nothing of how examples are made or of the folders of a run.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dsi.config import TrainingConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.trainers import FiniteTraining, run_trainer, trainer_settings
from dsi.docids.files.checks import shown
from dsi.generator.base import Generator
from dsi.generator.examples import DocidExamples, LengthBucketSampler
from dsi.generator.objectives import Objective, Task, find_objective

WEIGHT_DECAY = 0.01
"""Of AdamW."""


class _Whole(nn.Module):
    """A generator, perhaps with an encoder beside it, as one model whose checkpoints are one file."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the weights, tied ones only once: safetensors checkpoints hold no duplicates."""
        weights: dict[str, Any] = super().state_dict(*arguments, **keywords)
        names = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}
        return {name: tensor for name, tensor in weights.items() if names.get(tensor.data_ptr()) == name}

    @property
    def _keys_to_ignore_on_save(self) -> set[str]:
        """What a checkpoint lacks: the trainer asks for it when it resumes, and calls `tie_weights`."""
        return set(super().state_dict()) - set(self.state_dict())

    def tie_weights(self) -> None:
        """Do nothing: tied weights are one tensor."""

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Return what the generator gives."""
        return self.generator(**inputs)  # type: ignore[no-any-return]


class WholeModel(_Whole):
    """Encoder and generator as one model; the first module of the sentence-transformers model gives the token states."""

    def __init__(self, encoder: nn.Sequential, generator: Generator) -> None:
        super().__init__(generator)
        self.encoder = encoder[0]

    def forward(  # type: ignore[override]
        self, tokens: Tensor, depths: Tensor, sees: Tensor, **features: Tensor
    ) -> dict[str, Tensor]:
        """Encode the features and return `DocidGenerator.forward` of their token states."""
        states = self.encoder(features)["token_embeddings"]
        return self.generator(states, features["attention_mask"].bool(), tokens, depths, sees)  # type: ignore[no-any-return]


class _Account(TrainerCallback):
    """Logs the seconds since the first step with every loss, and a loss at every checkpoint, so that both survive a kill."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        before = state.log_history[-1].get("seconds", 0.0) if state.log_history else 0.0
        self.started = time.perf_counter() - before

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_log |= control.should_save

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.log_history[-1]["seconds"] = time.perf_counter() - self.started

    @staticmethod
    def record(state: TrainerState) -> dict[str, float]:
        """Return the mean loss, steps and seconds of a finished training, counted from its first step."""
        logged = [entry for entry in state.log_history if "loss" in entry]
        steps = np.array([entry["step"] for entry in logged])
        loss = np.average([entry["loss"] for entry in logged], weights=np.diff(steps, prepend=0))
        return {"loss": float(loss), "steps": int(steps[-1]), "seconds": state.log_history[-1]["seconds"]}


class _GeneratorTrainer(FiniteTraining, Trainer):
    """A `Trainer` with batches of similar length and an objective's loss."""

    remedy = "lower training.learning_rate ({rate:g})"

    def __init__(self, objective: Objective, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.objective = objective

    def _get_train_sampler(self, train_dataset: DocidExamples | None = None) -> LengthBucketSampler:
        examples: DocidExamples = train_dataset or self.train_dataset
        batch_size = self.args.train_batch_size * self.args.world_size
        return LengthBucketSampler(examples.inputs.lengths, batch_size, self.args.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Any:
        loss = self.objective.loss(model, inputs, self.state.global_step / self.state.max_steps)
        if not (isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad):
            raise ValueError(
                f"{type(self.objective).__name__}.loss must return a scalar tensor with a gradient, got {shown(loss)}; compute "
                "it from self.logits, and average it over the batch."
            )
        if not self.state.global_step and not loss.isfinite():
            raise ValueError(
                f"{type(self.objective).__name__}.loss is {loss.item():g} before the first step; children that a node lacks "
                "have logits of -inf, so leave them out of sums and products."
            )
        return loss


def train_generator(
    generator: Generator, examples: DocidExamples, training: TrainingConfig, work_folder: Path,
    encoder: Encoder | None = None, *, seed: int = 0, bf16: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Train `generator` in place, and the encoder, if one is given; resumes from the last checkpoint in `work_folder`.

    Examples are cached states, or `Texts` if the encoder is trained too. Returned are the mean loss (nats per example), steps,
    and seconds from the first step on, over all resumptions. ValueError if the training diverged.
    """
    # 1) how it is trained
    arguments = TrainingArguments(
        **trainer_settings(
            work_folder,
            epochs=training.epochs,
            learning_rate=training.learning_rate,
            seed=seed,
            bf16=bf16,
            use_cpu=generator.device.type == "cpu",
        ),
        per_device_train_batch_size=training.batch_size,
        weight_decay=WEIGHT_DECAY,
        warmup_steps=0.05,
        remove_unused_columns=False,
    )
    # 2) what is trained, on what
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32  # `arguments.bf16` is False on devices without bfloat16
    task = Task(generator, examples.tree, arguments.device, dtype, examples.positions)
    trainer = _GeneratorTrainer(
        find_objective(training.objective)(task),
        model=WholeModel(encoder.model, generator) if encoder else _Whole(generator),
        args=arguments,
        train_dataset=examples,
        data_collator=examples.collate,
        callbacks=[_Account()],
    )
    # 3) the training, and its record
    run_trainer(trainer, "decoder", work_folder, round(training.epochs * len(examples)))
    trainer.model.eval()
    return _Account.record(trainer.state)
