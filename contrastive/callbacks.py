"""What is seen of a training: our progress in place of transformers' own, and reports. Knows nothing of what is trained."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, WandbCallback

from docids.files.checks import shown
from docids.files.progress import Bar

REPORTS = ("none", "tensorboard", "wandb")
"""Where losses can be reported."""


@dataclass(frozen=True)
class Reports:
    """Where the losses of trainings are reported.

    Raises:
        ModuleNotFoundError: what they are reported to is not installed.
    """

    to: str = "none"
    """A row of `REPORTS`."""
    folder: Path = Path("logs")
    """Of TensorBoard's files, a folder in it for each training."""

    def __post_init__(self) -> None:
        if self.to not in REPORTS:
            raise ValueError(f"report_to must be one of {', '.join(REPORTS)}, got {shown(self.to)}.")
        if self.to != "none" and find_spec(self.to) is None:
            raise ModuleNotFoundError(f'report_to = "{self.to}" needs {self.to}; run pip install "dr-scl[{self.to}]".')

    def callbacks(self, training: str) -> list[TrainerCallback]:
        """Return the callbacks that report a training of this name."""
        if self.to == "none":
            return []
        return [_TensorBoard(self.folder / training) if self.to == "tensorboard" else _Wandb(training)]


SILENT = Reports()


class _TensorBoard(TensorBoardCallback):
    """Writes where it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.logging_dir = str(folder)


class _Wandb(WandbCallback):
    """Makes a run for each training, of its name."""

    def __init__(self, training: str) -> None:
        super().__init__()
        self._training = training

    def on_train_begin(self, args: TrainingArguments, *others: Any, **more: Any) -> None:
        args.run_name = self._training
        super().on_train_begin(args, *others, **more)

    def on_train_end(self, *arguments: Any, **more: Any) -> None:
        super().on_train_end(*arguments, **more)
        if self._initialized:
            self._wandb.finish()


class ProgressLine(TrainerCallback):
    """The steps of a training as a `Bar`, with the last loss beside it; on the first process alone.

    Args:
        description: of the training, a few words.
    """

    def __init__(self, description: str) -> None:
        self._description = description
        self._bar: Bar | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Open the bar, at the step from which the training continues."""
        shown, done = state.is_world_process_zero, state.global_step
        self._bar = Bar(self._description, unit="step", total=state.max_steps, done=done, enabled=shown)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the bar."""
        if self._bar:
            self._bar.update()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Note the loss."""
        if self._bar and logs and "loss" in logs:
            self._bar.note(f"loss {logs['loss']:.4g}")

    def close(self) -> None:
        """End the bar, also of a training that failed."""
        if self._bar:
            self._bar.close()
