"""Temporary files and folders that do not outlive their processes: what a killed process leaves, the next one removes.

The owner holds a lock on a file beside them, which the system releases however the process ends. Its number does not count, so
this holds in containers and on drives that several machines share.
"""

import atexit
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from dsi.docids.files.storage import remove

RANDOM = "[0-9a-f]" * 32
"""What matches the digits of a UUID."""
_LOCK = ".lock"


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, deleted with its object or at the end of its block."""
    return tempfile.TemporaryDirectory(dir=temporary_root())


def temporary_root() -> Path:
    """Return the folder in which this process makes its temporary files and folders; it is deleted when Python ends."""
    folder = _root(os.getpid())[0]  # a fork has its own
    folder.mkdir(mode=0o700, exist_ok=True)  # again, if the system has cleared old files
    return folder


@cache
def _root(process: int) -> tuple[Path, FileLock | None]:
    """Return the folder of a process and its lock, after removing the folders of processes that are gone."""
    remove_temporary_orphans()
    folder = Path(tempfile.gettempdir()) / f"dsi-{uuid4().hex}"
    try:
        lock = _hold(folder)  # before there is a folder, so that nobody finds one without an owner
    except Timeout:  # another process looks whether it has an owner
        return _root.__wrapped__(process)
    atexit.register(_give_up, folder, lock, process)
    return folder, lock


@cache
def remove_temporary_orphans() -> None:
    """Remove the temporary folders of processes that are gone, once in a process."""
    remove_orphans(Path(tempfile.gettempdir()), f"dsi-{RANDOM}")


@contextmanager
def owning(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder that is made in the block, so that `remove_orphans` spares it meanwhile."""
    lock = _hold(path)
    try:
        yield
    finally:
        _drop(path, lock)


def remove_orphans(folder: Path, pattern: str) -> None:
    """Remove what was made by processes that are gone, and matches a pattern."""
    with suppress(OSError):
        for file in folder.glob(f"{pattern}{_LOCK}"):
            _remove_orphan(file)


def _remove_orphan(file: Path) -> None:
    """Remove what a lock is beside that no process holds, if it is this user's."""
    with suppress(OSError):  # of Timeout too: it has an owner
        found = file.lstat()
        if stat.S_ISREG(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid()):
            path = file.with_name(file.name.removesuffix(_LOCK))
            _give_up(path, _hold(path), os.getpid())


def _hold(path: Path) -> FileLock | None:
    """Take the lock of a path; None where the file system has no locks, so that nobody removes what a process leaves there."""
    lock = FileLock(f"{path}{_LOCK}", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise
    except OSError:
        remove(Path(lock.lock_file))
        return None
    return lock


def _give_up(path: Path, lock: FileLock | None, process: int) -> None:
    """Remove a path, and then its lock, unless this is a fork of the process that made it."""
    if process == os.getpid():
        remove(path)
        if not path.exists():
            _drop(path, lock)


def _drop(path: Path, lock: FileLock | None) -> None:
    """Release the lock of a path and remove its file: first, but on Windows, which removes none that is open."""
    if lock:
        if os.name != "nt":
            remove(Path(lock.lock_file))
        lock.release()
        remove(Path(f"{path}{_LOCK}"))
