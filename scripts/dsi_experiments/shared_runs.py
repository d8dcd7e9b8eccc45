"""Training runs that share finished stages, and what encoders make of texts, in one folder. Knows nothing of experiments."""

from pathlib import Path
from typing import Any

from dsi.docids.files.storage import link_files, replace_folder, writing_to
from dsi.training.pipeline import TrainingRun


class SharedRun(TrainingRun):
    """A run that takes stages which other runs with the same `store` have finished, as links, and gives them its own.

    What it takes is judged as what it made itself: a damaged stage, or one of other inputs, runs again.
    """

    def __init__(self, *arguments: Any, store: Path) -> None:
        super().__init__(*arguments)
        self.store = store

    def _shared(self, name: str) -> Path:
        return self.store / name / self.keys[name][:16]

    def set_keys(self) -> None:
        """Digest what the stages depend on, and take those that are there."""
        super().set_keys()
        if self.processes.is_main:
            for name in self.keys:
                if self._shared(name).exists() and not (self.folder / name).exists():
                    with replace_folder(self.folder / name) as own:
                        link_files(self._shared(name), own)
        self.processes.wait()

    def run_stage(self, name: str) -> None:
        """Run a stage unless it is up to date, and give it to the other runs."""
        states, shared = self.folder / "states", self.store.resolve() / "states" / self.keys["encoder"][:16]
        if self.processes.is_main and not states.exists():  # of one encoder, as a run removes those of others
            shared.mkdir(parents=True, exist_ok=True)
            states.symlink_to(shared, target_is_directory=True)
        super().run_stage(name)
        if self.processes.is_main and name in self.seconds:
            with (
                writing_to(self._shared(name)),
                replace_folder(self._shared(name)) as copy,
            ):  # several may end it at once
                link_files(self.folder / name, copy)
