"""What all trainings share: settings, checkpoints, progress, and a stop when a loss is not finite."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dsi.contrastive.devices import has_bfloat16
from dsi.docids.files.progress import Bar
from dsi.docids.files.ram import give_back_memory

CHECKPOINTS = 10
"""Of a training; a loss is logged as often."""


class _ProgressLine(TrainerCallback):
    """Shows how many of the texts that all steps read are read, as a `Bar` with the last loss, on the first process."""

    def __init__(self, description: str, texts: int) -> None:
        self._description, self._texts = description, texts
        self._bar: Bar | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Open the bar at the step from which the training continues."""
        is_first, done = state.is_world_process_zero, self._texts_of(state)
        self._bar = Bar(self._description, unit="text", total=self._texts, done=done, enabled=is_first)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the bar to the end of the step."""
        if self._bar:
            self._bar.update(self._texts_of(state) - self._bar.n)

    def _texts_of(self, state: TrainerState) -> int:
        return round(self._texts * min(1.0, state.global_step / state.max_steps))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Show the loss."""
        if self._bar and logs and "loss" in logs:
            self._bar.set_postfix_str(f"loss {logs['loss']:.4g}", refresh=False)

    def close(self) -> None:
        """Close the bar, even if the training failed."""
        if self._bar:
            self._bar.close()


class GivesBack(TrainerCallback):
    """Gives freed memory back to the system after every step: 1,400 abstracts hold 2.0 GB, not 2.5, in the same time."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Give back what is free."""
        give_back_memory()


def trainer_settings(
    work_folder: Path, *, epochs: float, learning_rate: float, seed: int, bf16: bool, use_cpu: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the trainer arguments that all our trainings share: a loss and a checkpoint every tenth, two checkpoints kept."""
    return {
        "output_dir": str(work_folder),
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "bf16": bf16 and has_bfloat16(use_cpu=use_cpu),
        "seed": seed,
        "save_strategy": "steps",
        "save_steps": 1 / CHECKPOINTS,
        "save_total_limit": 2,
        "logging_steps": 1 / CHECKPOINTS,
        "logging_nan_inf_filter": False,  # `FiniteTraining` checks the loss
        "report_to": "none",
        "disable_tqdm": True,  # `run_trainer` shows the progress
        "use_cpu": use_cpu,
        "dataloader_pin_memory": False,
    }


def run_trainer(trainer: Any, description: str, work_folder: Path, texts: int) -> None:
    """Train with a bar of the texts that all steps read; resumes from the last checkpoint in `work_folder`, if there is one."""
    progress_line = _ProgressLine(description, texts)
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    trainer.add_callback(progress_line)
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint(work_folder))
    finally:
        progress_line.close()


def last_checkpoint(work_folder: Path) -> str | None:
    """Return the last complete checkpoint; incomplete ones, of killed trainings, are removed."""
    folders = [folder for folder in work_folder.glob("checkpoint-*") if folder.name.rpartition("-")[2].isdigit()]
    complete = [folder for folder in folders if _is_complete(folder)]
    for folder in set(folders) - set(complete):
        shutil.rmtree(folder, ignore_errors=True)  # several processes may do so at once
    return str(max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]))) if complete else None


def _is_complete(checkpoint: Path) -> bool:
    """True if all files of a checkpoint are complete; the trainer writes its state last."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        for weights in checkpoint.rglob("*.safetensors"):
            with safe_open(weights, "numpy"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    has_weights = any(checkpoint.rglob("*.safetensors"))
    return has_weights and all(zipfile.is_zipfile(path) for path in checkpoint.glob("*.pt*"))


class FiniteTraining:
    """A mixin, listed before the trainer, that stops a training whose loss or weights are not finite.

    The loss is checked at every step on a CPU; on other devices, where reading it means waiting for it, when it is logged.

    `remedy`: what to do about it; {rate} stands for the learning rate.
    """

    remedy = "lower the learning rate ({rate:g})"

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Run one step, whose loss must be finite."""
        trainer: Any = self
        loss: torch.Tensor = super().training_step(*arguments, **keywords)  # type: ignore[misc]
        step = trainer.state.global_step + 1
        if (loss.device.type == "cpu" or step % trainer.state.logging_steps == 0) and not loss.isfinite():
            self._stop(step, f"the loss is {loss.item():g}")
        return loss

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """Train; the weights must be finite at the end."""
        trainer: Any = self
        output = super().train(*arguments, **keywords)  # type: ignore[misc]
        if not all(weights.isfinite().all() for weights in trainer.model.parameters()):
            self._stop(trainer.state.global_step, "there are weights that are not finite")
        return output

    def _stop(self, step: int, reason: str) -> NoReturn:
        rate = self.args.learning_rate  # type: ignore[attr-defined]
        raise ValueError(f"The training diverged at step {step}: {reason}; {self.remedy.format(rate=rate)}.")
