"""Files and folders that are replaced atomically, by one writer at a time, and arrays on disk.

Knows nothing of their content.
"""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from gzip import open as open_gzip
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ATTEMPTS = 20
_PAUSE = 0.05
"""Seconds between two of them."""
_FULL = ("No space left", "Disk quota exceeded", "File too large", "requested and")
"""What libraries say of a full disk; the last one is NumPy's."""


def sha256(path: Path) -> str:
    """Return the hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def content_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return one digest of all files of an index, by their sums in its manifest; the search config is not part of it."""
    return digest(manifest["files"])


def no_index(folder: Path) -> str:
    """Return the message that a folder holds no finished index, or is not there."""
    absent = "" if folder.exists() else " does not exist, so it"
    return (
        f"{folder}{absent} holds no finished index (no manifest.json); name the folder that `dsi train --output` wrote."
    )


def folder_sums(folder: Path) -> dict[str, str]:
    """Return {path below `folder`: sha256} of all its files, sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def file_name(title: str) -> str:
    """Return the letters and digits of a title in lower case, words joined by dashes.

    >>> file_name("DR-SCL+QG (beta=0)")
    'dr-scl-qg-beta-0'
    """
    return "-".join(re.findall(r"[^\W_]+", title.lower()))


def digest(value: object) -> str:
    """Return the hexadecimal sha256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


DTYPES = {"I32": np.int32, "F32": np.float32, "F16": np.float16, "I8": np.int8, "BOOL": np.bool_, "U8": np.uint8}
"""{element type in a safetensors file: NumPy's}."""


def tensor_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return ({name: type, shape and offsets}, the byte at which the arrays start) of a safetensors file, unchecked.

    The format: eight bytes with the length of a JSON header, the header, the arrays.

    Raises:
        ValueError: the file has no such header.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ValueError("its header is not that of a safetensors file")
        header = dict(json.loads(file.read(length)))
    header.pop("__metadata__", None)
    return header, 8 + length


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, memory-mapped; the library's NumPy reader copies them into memory.

    Raises:
        ValueError: the file is shorter than its header says, or has none.
    """
    header, first = tensor_header(path)
    size, arrays = path.stat().st_size, dict[str, NDArray[Any]]()
    for name, entry in header.items():
        start, end = (first + offset for offset in entry["data_offsets"])
        if end > size:
            raise ValueError(f"it ends within {name}")
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        mapped = np.memmap(path, dtype, "c", start, shape) if end > start else np.empty(shape, dtype)
        arrays[name] = mapped.view(np.ndarray)  # indexing a memmap is a microsecond slower
    return arrays


class MappedFile(NamedTuple):
    """A file that is mapped into memory: where it is, which one it is, and its size in bytes."""

    path: str
    device: int
    inode: int
    size: int

    @classmethod
    def at(cls, path: Path) -> "MappedFile":
        """Return the file that a path names now."""
        found = path.stat()
        return cls(str(path), found.st_dev, found.st_ino, found.st_size)


def check_mapped(files: Iterable[MappedFile]) -> None:
    """Raise OSError if a file was cut off since it was mapped: reading what it lacks would end the process (SIGBUS).

    One that was replaced or deleted stays mapped as it was.
    """
    for path, device, inode, size in files:
        try:
            found = os.stat(path)  # noqa: PTH116 - before every search
        except OSError:
            continue
        if found.st_size < size and (found.st_dev, found.st_ino) == (device, inode):
            raise OSError(
                f"{path} was cut off since it was loaded, at {found.st_size:,} of {size:,} bytes; restore it and load the "
                "index again."
            )


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
    """Return zeros that may be larger than memory, in an unnamed temporary file (in TMPDIR) that is deleted with the array.

    Raises:
        OSError: the disk is too small.
    """
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


def open_text(path: Path) -> TextIO:
    """Open a text file for reading; one whose name ends in .gz is decompressed."""
    if path.suffix == ".gz":
        return open_gzip(path, "rt", encoding="utf-8")  # type: ignore[return-value]
    return path.open(encoding="utf-8")


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
    """Name what is written if the block fails because the disk is full.

    Raises:
        OSError: it is full.
    """
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


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of ours; empty if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None  # a pipe would be waited for
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def read_while_unchanged(path: Path, read: Callable[[], T]) -> T:
    """Call `read` until the file `path`, or the folder that has this name, stays the same meanwhile.

    Returns:
        Its result, or its error is raised.

    Raises:
        BlockingIOError: the file or folder was replaced at every attempt.
    """
    for _ in range(_ATTEMPTS):
        before = _identity(path)
        try:
            result = read()
        except Exception:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return result
    raise BlockingIOError(
        f"{path} changed {_ATTEMPTS} times while it was read; try again when there are fewer updates."
    )


def _identity(path: Path) -> bytes:
    """Return the content of a file or the number of a folder; empty if there is neither."""
    try:
        found = path.stat()
        return path.read_bytes() if stat.S_ISREG(found.st_mode) else b"%d" % found.st_ino  # a pipe would be waited for
    except OSError:
        return b""


def beside(folder: Path, role: str) -> Path:
    """Return the hidden path beside a folder for its "lock", "partial" replacement, or "previous" version."""
    whole = folder if folder.name not in ("", "..") else folder.resolve()  # "." has no name
    return whole.parent / f".{whole.name}.{role}"


@contextmanager
def writing_to(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock for writing to a folder, among all processes and threads; readers need no lock.

    The lock is reentrant within a thread and released when a process dies.
    It is a file beside the folder, which may be replaced meanwhile, or in the folder where the user may not write beside it.

    Args:
        folder: need not exist.
        wait: until the lock is free.

    Raises:
        BlockingIOError: another process writes to the folder, and `wait` is False.
        OSError: the file system has no locks.
        PermissionError: the user may write neither the folder nor beside it.
        ValueError: something else lies where the lock is kept.
    """
    file = beside(folder.resolve(), "lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        if not os.access(folder, os.W_OK):
            raise PermissionError(
                f"You may write neither {folder} nor beside it; name another place, or change its mode."
            )
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
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ValueError(
                f"{path} must be a file that this package writes, and is a link, a pipe or a folder; remove it."
            )


def _acquire(lock: FileLock, folder: Path, writer: Path, *, wait: bool) -> None:
    """Take the lock of a folder.

    Raises:
        BlockingIOError: as `writing_to`.
        OSError: the file system has no locks.
    """
    try:
        lock.acquire(blocking=False)  # which a thread that has it may do again
    except Timeout:
        name = "another process"
        with suppress(OSError):
            name = writer.read_text(encoding="utf-8")
        if not wait:
            raise BlockingIOError(
                f"{folder} is being written by {name}; wait for its end or write to another folder."
            ) from None
        logger.warning("%s is being written by %s; waiting for its end.", folder, name)
        lock.acquire()
    except OSError as error:
        raise OSError(
            error.errno,
            f"the file system of {folder} cannot lock files ({error.strerror}); use a folder on another",
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
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:  # a linked file is not ours alone
                    path.chmod(mode)
                if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):  # a pipe would be waited for
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
    """Rename a folder that is replaced.

    Raises:
        PermissionError: it may not be renamed, on Windows also while a process has one of its files open or mapped.
    """
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
