"""The stages of a run: what each is made from, and their folders.

A folder is written atomically, with a record that tells whether its content is up to date.

A stage's key is a digest of the collection and the settings that its output depends on. The record holds it, the sums of the
stage's files, and digests of the outputs of earlier stages that it was made from. The processes of `accelerate launch` share
the work. Knows nothing of what stages do.
"""

import dataclasses
import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object

from dsi.config import Config
from dsi.docids.files.processes import Processes
from dsi.docids.files.progress import stage_line
from dsi.docids.files.ram import free_memory
from dsi.docids.files.reading import folder_sums, read_record, sha256
from dsi.docids.files.storage import digest, naming_full_disk, recover_folder, replace_folder
from dsi.store.folder.manifest import PARTS
from dsi.store.folder.writing import retire

logger = logging.getLogger(__name__)

_RECORD = "stage.json"
_LONG = 5.0
"""Seconds of work after which memory is freed before the next stage."""


class StageInputs(NamedTuple):
    """What the output of a stage is made from, beside the collection and local folders of models."""

    settings: tuple[str, ...]  # of the configuration; a section stands for all of its settings
    stages: tuple[str, ...] = ()  # earlier ones whose output it reads
    is_versioned: bool = False  # files of another format version cannot be read


STAGES = {
    "pseudo_queries": StageInputs(("seed", "pseudo_queries")),
    "encoder": StageInputs(("seed", "bf16", "encoder", "contrastive", "lexical.language")),  # BM25 finds hard negatives
    "docids": StageInputs(
        ("seed", "docids", "vectors", "tokens", "docid_tokenizer", "text_megabytes", "lexical.language"),
        ("encoder",),
        is_versioned=True,
    ),
    "lexical": StageInputs(("lexical",), is_versioned=True),
    "generator": StageInputs(("seed", "bf16", "generator", "training"), ("docids", "pseudo_queries")),
    "memory": StageInputs(("memory",), ("encoder", "lexical", "generator"), is_versioned=True),
}
"""{stage: its inputs}; embeddings depend on the encoder and the texts alone (see `dsi.training.embedding`)."""


def enabled_stages(config: Config) -> list[str]:
    """Return the stages that a run has, in order."""
    disabled = {
        "pseudo_queries": config.pseudo_queries.method == "none",
        "lexical": config.lexical.model == "none",
        "generator": not config.generator.exists,
    }
    return [stage for stage in STAGES if not disabled.get(stage)]


def needed_stages(stage: str, config: Config) -> list[str]:
    """Return the earlier stages whose output a stage of a run reads."""
    enabled, needed = enabled_stages(config), STAGES[stage].stages
    if stage == "encoder" and config.contrastive.loss != "none" and config.contrastive.texts == "all":
        needed = ("pseudo_queries", *needed)
    if stage == "memory" and not config.training.train_encoder:  # then the generator has no encoder of its own
        needed = ("encoder", "lexical")
    return [name for name in needed if name in enabled]


def setting_values(stage: str, config: Config) -> list[Any]:
    """Return the values of the settings that a stage is made from, in a form that JSON can hold."""
    values = []
    for name in STAGES[stage].settings:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        values.append(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value)  # type: ignore[arg-type]
    return values


def launch(device: str | None) -> Processes:
    """Return this process among those started by `accelerate launch`; without a launcher it is alone."""
    state = PartialState(cpu=device == "cpu")
    return Processes(state.process_index, state.num_processes, lambda value: gather_object([value]))


class StageFolders:
    """The folders of a run's stages, shared by the processes that train it; `states` is for what encoders make of texts."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.states, self.processes = folder, folder / "states", processes
        self.seconds: dict[str, float] = {}
        self._freed = time.perf_counter()
        self._started: dict[str, float] = {}
        self._needed: dict[str, dict[str, str]] = {}

    @contextmanager
    def stage(self, name: str, key: str, needs: Sequence[str] = ()) -> Iterator[bool]:
        """Yield True if the stage has to run, False if it is up to date; all processes leave together."""
        self._started[name] = started = time.perf_counter()
        records = {need: stage_record(self.folder / need) for need in needs}
        made = {need: digest(record["files"]) if record else "" for need, record in records.items()}
        self._needed[name] = self.processes.first(made)
        has_to_run = self.processes.first(self.processes.is_main and not self.find(name, key, self._needed[name]))
        if not has_to_run:
            logger.info("%s: up to date", name)
        with ExitStack() as stack:
            if has_to_run:
                shown = "docids and embeddings" if name == "docids" else name
                stack.enter_context(stage_line(shown, enabled=self.processes.is_main))
                stack.enter_context(naming_full_disk(self.folder))
                if time.perf_counter() - self._freed > _LONG:
                    free_memory()  # it takes half a second
                    self._freed = time.perf_counter()
            yield has_to_run
        self.processes.wait()
        if has_to_run:
            self.seconds[name] = time.perf_counter() - started
        if self.processes.is_main:  # also what a kill left when the stage had just been written
            for folder in self._work_folder(name, key).parent.glob(f"{name}-{key[:12]}-*"):  # also of other outputs
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def writing(self, name: str, key: str) -> Iterator[Path]:
        """Yield a folder to write the stage's output into; it replaces the stage's folder when the block ends."""
        with replace_folder(self.folder / name) as folder:
            yield folder
            record = {
                "key": key,
                "seconds": round(time.perf_counter() - self._started[name], 1),
                "needs": self._needed[name],
                "files": folder_sums(folder),
            }
            (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n")
            if name in PARTS:  # the folder holds no index from now on until the run ends
                retire(self.folder)

    def work(self, name: str, key: str) -> Path:
        """Return the folder for what a killed stage needs to resume; removed when the stage is done."""
        folder = self._work_folder(name, key)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def find(self, name: str, key: str, needed: Mapping[str, str] | None = None) -> Path | None:
        """Return the folder of the run that holds the undamaged output with a key, None if there is none.

        `needed`: {earlier stage: digest of the output that it was made from}, if that counts too.
        """
        recover_folder(self.folder / name)
        return self.folder / name if _is_intact(self.folder / name, key, needed) else None

    def _work_folder(self, name: str, key: str) -> Path:
        """Return the folder named by all that a stage is made from: its key, and the outputs of earlier stages."""
        return self.folder / "checkpoints" / f"{name}-{key[:12]}-{digest(self._needed[name])[:12]}"


def stage_record(folder: Path) -> dict[str, Any]:
    """Return the record of a stage's output; empty if there is none that can be read whole."""
    record = read_record(folder / _RECORD)
    kinds = {"key": str, "needs": dict, "files": dict, "seconds": int | float}
    return record if all(isinstance(record.get(name), kind) for name, kind in kinds.items()) else {}


def _is_intact(folder: Path, key: str, needed: Mapping[str, str] | None) -> bool:
    """True if a folder holds the output with this key as it was written, made from the outputs `needed` of earlier stages."""
    record = stage_record(folder)
    if record.get("key") != key or needed not in (None, record["needs"]):
        return False
    paths = {folder / name: expected for name, expected in record["files"].items()}
    return all(path.is_file() and sha256(path) == expected for path, expected in paths.items())
