"""The stages of a run: folders written atomically, with keys that tell whether their content is up to date.

A stage's key is a digest of everything its output depends on. Runs that share a store share every stage with the same key.
Knows nothing of what stages do.
"""

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docids.processes import Processes
from docids.progress import Bar
from docids.storage import recover_folder, replace_folder

logger = logging.getLogger(__name__)

STAGES = ("pseudo_queries", "encoder", "docids", "generator", "lexical")
_KEY_FILE = "stage.json"


class StageFolders:
    """The folders of a run's stages, shared by the processes that train it.

    Args:
        folder: of the run; each stage is a folder in it.
        store: folder in which runs share stages; None if this run shares none.
        processes: share the work; rank 0 writes.

    Attributes:
        seconds: {stage: wall time} of the stages that ran.
    """

    def __init__(self, folder: Path, store: Path | None, processes: Processes) -> None:
        self.folder, self.store, self.processes = folder, store, processes
        self.seconds: dict[str, float] = {}
        self._started: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, key: str) -> Iterator[bool]:
        """Yield True if the stage has to run, False if it is up to date; all processes leave together."""
        folder, started = self.folder / name, time.perf_counter()
        self._started[name] = started
        if self.processes.is_main:
            recover_folder(folder)
        self.processes.wait()
        if self.processes.is_main and self.key(name) != key:
            self._take_from_store(name, key)
        self.processes.wait()
        done = self.key(name) == key
        self.processes.wait()
        if done:
            logger.info("%s: up to date", name)
        elif self.processes.is_main:
            (self.folder / "manifest.json").unlink(missing_ok=True)  # until the run ends, the folder is no index
        with stage_line(name, enabled=not done and self.processes.is_main):
            yield not done
        self.processes.wait()
        if not done:
            self.seconds[name] = time.perf_counter() - started
            if self.processes.is_main:
                shutil.rmtree(self._work_folder(name, key), ignore_errors=True)

    @contextmanager
    def writing(self, name: str, key: str) -> Iterator[Path]:
        """Yield a folder to write the stage's output into; it replaces the stage's folder when the block ends."""
        with replace_folder(self.folder / name) as folder:
            yield folder
            seconds = round(time.perf_counter() - self._started[name], 1)
            (folder / _KEY_FILE).write_text(json.dumps({"key": key, "seconds": seconds}) + "\n")
        if self.store:
            with replace_folder(self.store / name / key[:16]) as shared:
                _link_files(self.folder / name, shared)

    def work(self, name: str, key: str) -> Path:
        """Return the folder for what a killed stage needs to resume; removed when the stage is done."""
        folder = self._work_folder(name, key)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def existing(self, name: str, command: str) -> Path:
        """Return the folder of a finished stage.

        Raises:
            FileNotFoundError: it is not finished; the message names the command that runs it.
        """
        folder = self.folder / name
        recover_folder(folder)
        if not (folder / _KEY_FILE).exists():
            raise FileNotFoundError(
                f"{folder} is not there yet; run `{command}` (or `dsi train` for all stages) first."
            )
        return folder

    def key(self, name: str) -> str:
        """Return the key of the output on disk, "" if there is none."""
        return _stored_key(self.folder / name)

    def _work_folder(self, name: str, key: str) -> Path:
        return self.folder / "checkpoints" / f"{name}-{key[:12]}"

    def _take_from_store(self, name: str, key: str) -> None:
        found = self.store and self.store / name / key[:16]
        if found and _stored_key(found) == key:
            (self.folder / "manifest.json").unlink(missing_ok=True)
            with replace_folder(self.folder / name) as folder:
                _link_files(found, folder)


def stage_line(name: str, *, enabled: bool = True) -> Bar:
    """Return one line of text for a stage where there is no terminal; on a terminal the bars of its parts show."""
    return Bar(name, enabled=enabled and not sys.stderr.isatty())


def stage_seconds(folder: Path) -> dict[str, float]:
    """Return {stage: wall time of the run that finished it} for the finished stages in a run's folder."""
    files = {stage: folder / stage / _KEY_FILE for stage in STAGES}
    return {stage: json.loads(file.read_text())["seconds"] for stage, file in files.items() if file.exists()}


def _link_files(source: Path, target: Path) -> None:
    """Hard-link all files into another folder; files are replaced, never changed, so sharing them is safe."""
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)


def _stored_key(folder: Path) -> str:
    path = folder / _KEY_FILE
    return str(json.loads(path.read_text())["key"]) if path.exists() else ""
