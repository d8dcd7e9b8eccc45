"""The steps of a training shown as our progress, in place of transformers' own. Knows nothing of what is trained."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from docids.progress import Bar


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
