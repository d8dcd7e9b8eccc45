"""The manifest of an index, and whether the index may be loaded.

The manifest is written last and read first. It lists the files with their sums, which show damage, and not intent; so an index
that this machine has not written is searched once in a child process (`dsi.store.probe`) before this process loads it, because
a model may need any memory, or crash the library that runs it. Indexes that were written or have passed here are remembered in
the user's cache by the sums of their manifests. After `verify` the parts are read plainly.
"""

import math
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.model_files import check_settings
from dsi.docids.extensions import program
from dsi.docids.files.checks import printable, shown
from dsi.docids.files.declarations import create_settings
from dsi.docids.files.reading import DATA, RESTORE, check_files, read_json, read_while_unchanged, sha256
from dsi.docids.files.storage import no_index, recover_folder, write_json, write_text
from dsi.search.request import SearchConfig

FORMAT_VERSION = 11
PARTS = ("encoder", "docids", "generator", "lexical", "memory")
_TABLES = ("parts", "encoder", "search", "fingerprints", "versions", "files")
_KINDS = {"generation": int, **dict.fromkeys(_TABLES, dict)}
CHANGING = ("docids", "lexical", "memory")
"""The parts that an update may replace, by new folders with the generation in their name; the manifest points to them."""
MOST_GENERATIONS = 10**9
"""Of an index: how often it can be updated."""
_ENDINGS = (*DATA, ".tsv")
"""Training leaves docids.tsv, which nobody reads here."""
SECONDS = 300.0
"""That a trial may take, and one more for each of these bytes."""
_BYTES_A_SECOND = 5 * 2**20
_REMEMBERED = 10_000
"""Manifests, at most; the oldest are forgotten."""


def verify(folder: Path, *, again: bool = False, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the manifest of an index that may be loaded.

    Args:
        folder: of the index.
        again: judge it whole, though it was written here or has passed.
        seconds: that its trial may take, besides what its size adds.

    Raises:
        FileNotFoundError: no finished index, or a file is missing.
        ValueError: another format version, a damaged file, one that is not data, a setting that chooses code or names another
            file, or the trial failed.
    """
    manifest, own = read_manifest(folder), sha256(folder / "manifest.json")
    if again or not is_known(own):
        with _one_trial(own):
            if again or not is_known(own):  # others may have waited for the same trial
                check_data(folder, list(manifest["files"]))
                size = sum((folder / name).stat().st_size for name in manifest["files"])
                _try(folder, seconds + size / _BYTES_A_SECOND)
                remember(own)
    return manifest


def check_data(folder: Path, names: list[str]) -> None:
    """Raise ValueError unless files lie in a folder, and none chooses code or names another file."""
    whole = folder.resolve()
    # A folder of the Hub's cache has links to the blobs beside it.
    allowed = [whole, whole.parents[1] / "blobs"] if whole.parent.name == "snapshots" else [whole]
    for path in map(folder.joinpath, names):
        if not any(path.resolve().is_relative_to(own) for own in allowed):
            raise ValueError(f"{path} is a link out of the index; put the file in its place.")
    check_settings(map(folder.joinpath, names))


def _one_trial(own: str) -> "BaseFileLock | nullcontext[None]":
    """Return a lock for the trial of the index whose manifest has this sum, or none where no lock can be kept."""
    path = cache().with_name(f"{own}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except (OSError, RuntimeError):
        return nullcontext()
    return FileLock(path)


def _try(folder: Path, seconds: float) -> None:
    """Load and search an index in a child process; raise ValueError if that fails, with the last line that the child wrote."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    variables |= {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "dsi.store.probe", str(folder.resolve())]
    try:
        done = subprocess.run(
            command,
            env=variables,
            input="\n".join([program(), *sys.modules]).encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        status, wrote = done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        status, wrote = None, late.stderr or b""
    if status == 0:
        return
    how = f"did not end within {seconds:.0f} seconds" if status is None else _ending(status)
    last = (wrote.decode(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
    raise ValueError(f"{folder} is not loaded, because a process that tried it {how}: {printable(last)}")


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else "failed"


# The manifest.


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index, after comparing every file with it; that of a new update if one is written meanwhile.

    Raises:
        FileNotFoundError: no finished index, or a file is missing.
        ValueError: another format version, a malformed manifest, a file was altered or truncated, or is not one of data.
    """
    recover_folder(folder)
    if not (path := folder / "manifest.json").exists():
        raise FileNotFoundError(no_index(folder))

    def compared() -> dict[str, Any]:
        manifest = read_entries(path)
        check_files(folder, part_names(manifest), manifest["files"], _ENDINGS)
        return manifest

    return read_while_unchanged(path, compared)


def read_entries(path: Path) -> dict[str, Any]:
    """Read the file of a manifest, after checking its own entries, but none of the files that it lists.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another format version, or a malformed manifest.
    """
    manifest = read_json(path)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {manifest.get('format_version')}, this version reads {FORMAT_VERSION}; "
            "install the version that wrote it or train again."
        )
    for name, kind in {**_KINDS, **({"configured": dict} if "configured" in manifest else {})}.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(
                f"{path}: {name} must be of type {kind.__name__}, got {shown(manifest.get(name))}; {RESTORE}."
            )
    _check_parts(manifest, path)
    for name in ("search", "configured"):
        search_config(manifest, name, str(path))
    create_settings(EncoderConfig, manifest["encoder"], str(path), "encoder")
    return manifest


def search_config(manifest: dict[str, Any], name: str = "search", source: str = "manifest.json") -> SearchConfig:
    """Return a search config in a manifest: "search", how the index is searched, or "configured", how before it was tuned.

    Raises:
        ValueError: an unknown setting, or a wrong type or value.
    """
    record = manifest.get(name, manifest["search"])
    if record.get("beta") == "inf":  # JSON has no infinity
        record = {**record, "beta": math.inf}
    return create_settings(SearchConfig, record, source, "search")


def part_names(manifest: dict[str, Any]) -> list[str]:
    """Return the names of the folders of all parts in their current generation."""
    return [manifest["parts"].get(name, name) for name in PARTS]


def has_generator(manifest: dict[str, Any]) -> bool:
    """Return whether an index has a generator; without one, searches walk by the tree's vectors."""
    return any(name.startswith("generator/") for name in manifest["files"])


def part(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the folder of a part of the index in its current generation."""
    return folder / manifest["parts"].get(name, name)


def _check_parts(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest names the folders of its generation."""
    generation = manifest["generation"]
    if not 1 <= generation <= MOST_GENERATIONS:
        raise ValueError(
            f"{path}: generation must be from 1 to {MOST_GENERATIONS}, got {shown(generation)}; {RESTORE}."
        )
    for name, folder in manifest["parts"].items():
        updated = re.fullmatch(rf"{re.escape(name)}-([1-9]\d{{0,9}})", str(folder), re.ASCII)
        if name not in CHANGING or (folder != name and not (updated and int(updated[1]) <= generation)):
            raise ValueError(
                f"{path}: parts may name {', '.join(CHANGING)} of generation {generation} or an earlier one, got "
                f"{shown(name)}: {shown(folder)}; {RESTORE}."
            )


# What was written here.


def write_manifest_file(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of an index in one step; loading it needs no trial on this machine."""
    write_json(folder / "manifest.json", manifest)
    remember(sha256(folder / "manifest.json"))


def cache() -> Path:
    """Return the file with the sums of manifests that were written here or have passed, below XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dr-scl" / "verified"


def is_known(own: str) -> bool:
    """True if the index whose manifest has this sum was written here, or has passed a trial."""
    try:
        return own in cache().read_text(encoding="ascii").splitlines()
    except (OSError, ValueError, RuntimeError):  # nothing is remembered, or no home exists
        return False


def remember(own: str) -> None:
    """Remember that the index whose manifest has this sum may be loaded; where nothing can be kept, it is tried again."""
    with suppress(OSError, ValueError, RuntimeError):
        path = cache()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write(f"{own}\n")  # one write, which others cannot part
        if path.stat().st_size > 2 * _REMEMBERED * len(f"{own}\n"):
            write_text(path, "\n".join(path.read_text(encoding="ascii").split()[-_REMEMBERED:]) + "\n")
