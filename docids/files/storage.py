"""Files and folders that are replaced atomically, by one writer at a time, and arrays on disk. Knows nothing of contents."""

import errno
import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from dsi.docids.files.reading import DTYPES

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ATTEMPTS = 20
_PAUSE = 0.05
"""Seconds between two of them."""
_FULL = ("No space left", "Disk quota exceeded", "File too large", "requested and")
"""What libraries say of a full disk; the last one is NumPy's."""


def content_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return one digest of all files of an index, by their sums in its manifest; the search config is not part of it."""
    return digest(manifest["files"])


def no_index(folder: Path) -> str:
    """Return the message that a folder holds no finished index, or is not there."""
    absent = "holds no finished index (no manifest.json)" if folder.exists() else "does not exist"
    return f"{folder} {absent}; name a folder that `dsi index` or `dsi train` made."


def file_name(title: str) -> str:
    """Return the letters and digits of a title in lower case, words joined by dashes.

    >>> file_name("DR-SCL+QG (beta=0)")
    'dr-scl-qg-beta-0'
    """
    return "-".join(re.findall(r"[^\W_]+", title.lower()))


def digest(value: object) -> str:
    """Return the hexadecimal sha256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def save_tensors(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write arrays as a safetensors file; the library's writer copies all of them into memory first.

    Matrices come first, at a multiple of 64 bytes, so that products with mapped matrices equal those with copies.
    """
    names, header, start = {np.dtype(dtype): name for name, dtype in DTYPES.items()}, {}, 0
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].ndim))
    for name, array in ordered.items():
        offsets = [start, start := start + array.nbytes]
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in ordered.values():
            np.ascontiguousarray(array).tofile(file)


def scratch_blocks(shape: tuple[int, ...], dtype: type[np.generic], blocks: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return a scratch array that holds blocks of rows, one after another."""
    array, end = scratch_array(shape, dtype), 0
    for block in blocks:
        array[end : end + len(block)] = block
        end += len(block)
    return array


def scratch_array(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Return zeros that may be larger than memory, in an unnamed temporary file (in TMPDIR) that is deleted with the array."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # fail now if the disk is full, not when the array is written
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            folder = tempfile.gettempdir()
            message = f"no room for {size / 2**30:.2f} GiB in {folder} ({error.strerror}); set TMPDIR to a larger disk"
            raise OSError(error.errno, message) from None
        return np.memmap(file, dtype, "w+", shape=shape)  # type: ignore[call-overload, no-any-return]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, after a loss of power too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    remove(partial)  # a stranger's could be a link to another file, or a pipe
    with naming_full_disk(path):
        with partial.open("xb") as file:
            file.write(content)
        _sync(partial)
    _replace(partial, path)
    _sync(path.parent)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file that is whole or missing if the process is killed."""
    with replacing(path) as partial, naming_full_disk(path), partial.open("wb") as file:
        np.save(file, array)


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a safetensors file that is whole or missing if the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, naming_full_disk(path):
        save_tensors(arrays, partial)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a file that takes the place of `path`; two processes may write the same one at once."""
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        yield partial
        _replace(partial, path)
    except BaseException:
        remove(partial)
        raise


def _replace(partial: Path, path: Path) -> None:
    """Rename a file over another one. Windows refuses while a reader has that open, so there it is tried again for a while."""
    for _ in range(_ATTEMPTS if os.name == "nt" else 0):
        try:
            partial.replace(path)
        except PermissionError:
            time.sleep(_PAUSE)
        else:
            return
    partial.replace(path)


def remove(path: Path) -> None:
    """Remove a folder with all it holds, or a file, link or pipe, as far as possible; nothing is opened but folders."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, survive a loss of power."""
    if os.name == "nt":  # has no such call for folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Name what is written if the block fails because the disk is full."""
    try:
        yield
    except Exception as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if is_full or any(text in str(error) for text in _FULL):
            message = f"no room left for {path} ({error}); free some space, or write to another disk"
            raise OSError(errno.ENOSPC, message) from None
        raise


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically; infinity becomes the string "inf", which float() reads back, and NaN null."""
    write_text(path, json.dumps(_strict(value), indent=1, ensure_ascii=False) + "\n")


def write_json_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Write a record as a line of JSON."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def beside(folder: Path, role: str) -> Path:
    """Return the hidden path beside a folder for its "lock", "partial" replacement, or "previous" version."""
    named = folder if folder.name not in ("", "..") else folder.resolve()  # "." has no name
    return named.parent / f".{named.name}.{role}"


@contextmanager
def writing_to(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock for writing to a folder, among all processes and threads; readers need no lock.

    The lock is reentrant within a thread and released when a process dies.
    It is a file beside the folder, which may be replaced meanwhile, or in the folder where the user may not write beside it.
    """
    file = beside(folder.resolve(), "lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"You may write neither {folder} nor beside it; name another place.")
        file = folder / ".lock"
    lock, writer = FileLock(file, is_singleton=True), file.with_suffix(".writer")  # one lock in all calls of a process
    _check_own(file, writer)
    _acquire(lock, folder, writer, wait=wait)
    outermost = lock.lock_counter == 1
    try:
        if outermost:
            with suppress(OSError):  # a full disk fails what is written next
                writer.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        if outermost:
            writer.unlink(missing_ok=True)
        lock.release()


def _check_own(*paths: Path) -> None:
    """Raise ValueError if one of our small files is something else: a pipe would be waited for, and a link written through."""
    for path in paths:
        with suppress(FileNotFoundError):  # others remove it meanwhile
            if not stat.S_ISREG(path.lstat().st_mode):
                raise ValueError(
                    f"{path} must be a file of this package, and is a link, a pipe or a folder; remove it."
                )


def _acquire(lock: FileLock, folder: Path, writer: Path, *, wait: bool) -> None:
    """Take the lock of a folder."""
    try:
        lock.acquire(blocking=False)  # which a thread that has it may do again
    except Timeout:
        name = "another process"
        with suppress(OSError):
            name = writer.read_text(encoding="utf-8")
        if not wait:
            raise BlockingIOError(f"{folder} is being written by {name}; wait for its end or take another.") from None
        logger.warning("%s is being written by %s; waiting for its end.", folder, name)
        lock.acquire()
    except OSError as error:
        raise OSError(
            error.errno, f"the file system of {folder} cannot lock files ({error.strerror}); use a folder on another"
        ) from None


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` if the block ends without an exception; a loss of power leaves one of them.

    Whoever may read the folder may read its files, which some libraries write for their user alone.

    POSIX has no portable exchange of two folders, so the old one is renamed first. If the process dies between the two renames,
    `recover_folder`, which every reader of such a folder calls, restores it.
    """
    partial, previous = beside(folder, "partial"), beside(folder, "previous")
    recover_folder(folder)
    remove(partial)
    partial.mkdir(parents=True)
    try:
        with naming_full_disk(folder):
            yield partial
            mode = partial.stat().st_mode & 0o666
            for path in (*partial.rglob("*"), partial):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # a linked file is not ours alone
                    path.chmod(mode)
                if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):  # a pipe would be waited for
                    _sync(path)
        if folder.is_dir():
            _move_away(folder, previous)
        remove(folder)  # if it is a file
    except BaseException:
        remove(partial)
        raise
    partial.rename(folder)
    _sync(folder.parent)
    remove(previous)


def link_files(source: Path, target: Path) -> None:
    """Hard-link all files into another folder; files are replaced, never changed, so sharing them is safe."""
    shutil.copytree(source, target, symlinks=True, copy_function=link, dirs_exist_ok=True)


def link(source: str | Path, target: str | Path) -> None:
    """Hard-link a file, or copy it where the file system has no links (exFAT, some network drives)."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _move_away(folder: Path, previous: Path) -> None:
    """Rename a folder that is replaced."""
    try:
        folder.rename(previous)
    except PermissionError as error:
        raise PermissionError(
            f"{folder} cannot be replaced ({error.strerror}): it is read-only, or a process has it open; end that process or "
            "write to another folder."
        ) from None


def recover_folder(folder: Path) -> None:
    """Undo a replacement that was killed between its two renames, and remove leftovers of a finished one."""
    previous = beside(folder, "previous")
    if not previous.exists():
        return
    if folder.exists():
        remove(previous)  # several processes may do so at once
        return
    with writing_to(folder):  # perhaps the second rename is still to come
        if not folder.exists():
            previous.rename(folder)
