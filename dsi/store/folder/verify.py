"""Whether an index may be loaded.

The manifest lists the files with their sums, which show damage, and not intent; so an index that this machine has not written
is searched once in a child process (`dsi.store.folder.probe`) before this process loads it, because a model may need any
memory, or crash the library that runs it. Indexes that were written or have passed here are remembered in the user's cache by
the sums of their manifests, and the sums of large files by their places, sizes and times. After `verify` the parts are read
plainly.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from dsi.contrastive.model_files import check_settings
from dsi.docids.extensions import program
from dsi.docids.files.checks import printable
from dsi.docids.files.reading import sha256
from dsi.docids.files.storage import write_json, write_text
from dsi.store.folder.manifest import read_manifest

SECONDS = 300.0
"""That a trial may take, and one more for each of these bytes."""
_BYTES_A_SECOND = 5 * 2**20
_REMEMBERED = 10_000
"""Manifests, and files, at most; the oldest are forgotten."""
_LARGE = 2**20
"""Bytes of a file from which on its sum is remembered."""
_LATELY = 2 * 10**9
"""Nanoseconds after a change of a file in which another one need not change its times."""


def verify(folder: Path, *, again: bool = False, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the manifest of an index that may be loaded; ValueError says why it may not.

    `again`: judge it whole, though it was written here or has passed; `seconds`: of its trial, besides what its size adds.
    """
    manifest, manifest_sum = read_manifest(folder, None if again else known_sums()), sha256(folder / "manifest.json")
    if again or not is_known(manifest_sum):
        with _one_trial(manifest_sum):
            if again or not is_known(manifest_sum):  # others may have waited for the same trial
                check_data(folder, list(manifest["files"]))
                size = sum((folder / name).stat().st_size for name in manifest["files"])
                _try(folder, seconds + size / _BYTES_A_SECOND)
                remember(manifest_sum)
    return manifest


def check_data(folder: Path, names: list[str]) -> None:
    """Raise ValueError unless files lie in a folder, and none chooses code or names another file."""
    whole = folder.resolve()
    # A folder of the Hub's cache has links to the blobs beside it.
    allowed = [whole, whole.parents[1] / "blobs"] if whole.parent.name == "snapshots" else [whole]
    for path in map(folder.joinpath, names):
        if not any(path.resolve().is_relative_to(root) for root in allowed):
            raise ValueError(f"{path} is a link out of the index; put the file in its place.")
    check_settings(map(folder.joinpath, names))


def _one_trial(manifest_sum: str) -> "BaseFileLock | nullcontext[None]":
    """Return a lock for the trial of the index whose manifest has this sum, or none where no lock can be kept."""
    path = cache().with_name(f"{manifest_sum}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except (OSError, RuntimeError):
        return nullcontext()
    return FileLock(path)


def _try(folder: Path, seconds: float) -> None:
    """Load and search an index in a child process; raise ValueError if that fails, with the last line that the child wrote."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    path = os.pathsep.join(filter(None, sys.path))
    variables |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "dsi.store.folder.probe", str(folder.resolve())]
    try:
        imported = "\n".join([program(), *sys.modules]).encode()
        done = subprocess.run(command, env=variables, input=imported, capture_output=True, timeout=seconds, check=False)
        status, wrote = done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        status, wrote = None, late.stderr or b""
    if status == 0:
        return
    how = f"did not end within {seconds:.0f} seconds" if status is None else "failed"
    if status is not None and status < 0:
        how = f"was ended by {signal.Signals(-status).name}"
    last = (wrote.decode(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
    raise ValueError(f"{folder} is not loaded, because a process that tried it {how}: {printable(last)}")


# What was written here.


def write_manifest_file(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of an index in one step; loading it needs no trial on this machine."""
    write_json(folder / "manifest.json", manifest)
    remember(sha256(folder / "manifest.json"))


def cache() -> Path:
    """Return the file with the sums of manifests that were written here or have passed, below XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dr-scl" / "verified"


def is_known(manifest_sum: str) -> bool:
    """True if the index whose manifest has this sum was written here, or has passed a trial."""
    return manifest_sum in _lines("verified")


def remember(manifest_sum: str) -> None:
    """Remember that the index whose manifest has this sum may be loaded; where nothing can be kept, it is tried again."""
    _add("verified", manifest_sum)


def known_sums() -> Callable[[Path], str]:
    """Return what gives the sha256 of a file; a large one is read for it once, as long as its place, size and times stay."""
    known = dict(line.split(":", 1) for line in _lines("sums") if ":" in line)

    def sum_of(path: Path) -> str:
        found = path.stat()
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        if found.st_size < _LARGE or time.time_ns() - changed < _LATELY:
            return sha256(path)
        stamp = f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"
        if stamp not in known:
            known[stamp] = sha256(path)
            _add("sums", f"{stamp}:{known[stamp]}")
        return known[stamp]

    return sum_of


def _lines(name: str) -> list[str]:
    try:
        return cache().with_name(name).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError, RuntimeError):  # nothing is remembered, or no home exists
        return []


def _add(name: str, line: str) -> None:
    with suppress(OSError, ValueError, RuntimeError):
        path = cache().with_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write(f"{line}\n")  # one write, which others cannot part
        if path.stat().st_size > 2 * _REMEMBERED * len(f"{line}\n"):
            write_text(path, "\n".join(path.read_text(encoding="ascii").split()[-_REMEMBERED:]) + "\n")
