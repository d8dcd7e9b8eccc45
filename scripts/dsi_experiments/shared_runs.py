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

    def run_stage(self, name: str) -> None:
        """Run a stage unless it is up to date, here or in the store."""
        own, shared, states = self.folder / name, self.store / name / self.keys[name][:16], self.folder / "states"
        if self.processes.is_main and not states.exists():  # of one encoder, as a run removes those of others
            place = self.store.resolve() / "states" / self.keys["encoder"][:16]
            place.mkdir(parents=True, exist_ok=True)
            states.symlink_to(place, target_is_directory=True)
        if self.processes.is_main and shared.exists() and not own.exists():
            with replace_folder(own) as taken:
                link_files(shared, taken)
        super().run_stage(name)
        if self.processes.is_main and name in self.seconds:
            with writing_to(shared), replace_folder(shared) as given:  # several may end it at once
                link_files(own, given)
