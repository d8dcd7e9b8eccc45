"""Files and folders that are replaced in one step, by one writer at a time, and arrays on disk.

Knows nothing of what they hold.
"""

import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from gzip import open as open_gzip
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ATTEMPTS = 20


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def folder_sums(folder: Path) -> dict[str, str]:
    """{path below `folder`: sha256} of all its files, in the order of their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def file_name(title: str) -> str:
    """A title's letters and digits in lower case, with dashes between words.

    >>> file_name("DR-SCL+QG (beta=0)")
    'dr-scl-qg-beta-0'
    """
    return "-".join(re.findall(r"[^\W_]+", title.lower()))


def digest(value: object) -> str:
    """Hexadecimal sha256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


_DTYPES = {"I32": np.int32, "F32": np.float32, "F16": np.float16, "I8": np.int8, "BOOL": np.bool_, "U8": np.uint8}


def tensor_header(path: Path) -> tuple[dict[str, Any], int]:
    """({name: type, shape and offsets of each array}, the byte at which the arrays start) of a safetensors file.

    The format: eight bytes with the length of a JSON header, the header, the arrays. The entries are as the file has them.

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
    """The arrays of a safetensors file, mapped into memory: data is read when it is used.

    The library's numpy reader copies everything into memory.

    Raises:
        ValueError: the file is shorter than its header says, or has none.
    """
    header, first = tensor_header(path)
    size, arrays = path.stat().st_size, dict[str, NDArray[Any]]()
    for name, entry in header.items():
        start, end = (first + offset for offset in entry["data_offsets"])
        if end > size:
            raise ValueError(f"it ends within {name}")
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        mapped = np.memmap(path, dtype, "c", start, shape) if end > start else np.empty(shape, dtype)
        arrays[name] = mapped.view(np.ndarray)  # indexing a memmap takes a microsecond longer
    return arrays


def save_tensors(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write arrays as a safetensors file for `map_tensors`; the library's writer first copies all of them into memory.

    Matrices come first and start at a multiple of 64 bytes, so that products with mapped matrices equal those in memory.
    """
    names, header, start = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}, {}, 0
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].ndim))
    for name, array in ordered.items():
        places = [start, start := start + array.nbytes]
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": places}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in ordered.values():
            np.ascontiguousarray(array).tofile(file)


def scratch_array(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros that may be larger than memory: they live in an unnamed temporary file (in TMPDIR), deleted with the array.

    Raises:
        OSError: the disk is too small.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # a full disk fails here, not when the array is written
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            folder = tempfile.gettempdir()
            message = f"no room for {size / 2**30:.2f} GiB in {folder} ({error.strerror}); set TMPDIR to a larger disk"
            raise OSError(error.errno, message) from None
        return np.memmap(file, dtype, "w+", shape=shape)  # type: ignore[call-overload, no-any-return]


def open_text(path: Path) -> TextIO:
    """A text file opened for reading; one whose name ends in .gz is decompressed."""
    if path.suffix == ".gz":
        return open_gzip(path, "rt", encoding="utf-8")  # type: ignore[return-value]
    return path.open(encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON in one step; infinity becomes the string "inf", which float() reads back."""
    write_text(path, json.dumps(_strict(value), indent=1, ensure_ascii=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours; empty if there is none, or none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def read_while_unchanged(path: Path, read: Callable[[], T]) -> T:
    """What `read` returns or raises when the file `path` has stayed the same meanwhile; otherwise it reads again.

    Raises:
        BlockingIOError: the file changed every time.
    """
    for _ in range(_ATTEMPTS):
        before = _content(path)
        try:
            found = read()
        except Exception:
            if _content(path) == before:
                raise
            continue
        if _content(path) == before:
            return found
    raise BlockingIOError(
        f"{path} changed {_ATTEMPTS} times while it was read; try again when there are fewer updates."
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""  # a pipe would be waited for


def beside(folder: Path, role: str) -> Path:
    """The hidden path beside a folder for its "lock", its "partial" replacement, or the "previous" one set aside by that."""
    whole = folder if folder.name not in ("", "..") else folder.resolve()  # "." has no name
    return whole.parent / f".{whole.name}.{role}"


@contextmanager
def writing_to(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Be the only one who writes to a folder, among all processes and threads that ask here; readers need not ask.

    A thread may ask again for what it has. A process that dies has it no more. The lock is a file beside the folder, which may
    be replaced meanwhile, or in it where the user may not write beside it.

    Args:
        folder: which need not exist.
        wait: until whoever writes now has finished.

    Raises:
        BlockingIOError: somebody writes now, and `wait` is False.
    """
    file = beside(folder.resolve(), "lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        file = folder / ".lock"
    lock, writer = FileLock(file, is_singleton=True), file.with_suffix(".writer")  # one lock in all calls of a process
    try:
        lock.acquire(blocking=False)
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
    outermost = lock.lock_counter == 1
    try:
        if outermost:
            writer.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        if outermost:
            writer.unlink(missing_ok=True)
        lock.release()


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` when the block ends without an exception.

    POSIX cannot exchange two folders in one portable step, so the old one is set aside for an instant. If the process dies in
    that instant, `recover_folder` (called by everything that reads such a folder) brings it back.
    """
    partial, previous = beside(folder, "partial"), beside(folder, "previous")
    recover_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(previous)
    partial.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Undo a replacement that was killed between its two renames, and remove what a finished one left behind."""
    previous = beside(folder, "previous")
    if not previous.exists():
        return
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)  # several may do so at once
        return
    with writing_to(folder):  # perhaps nobody was killed and the second rename is to come
        if not folder.exists():
            previous.rename(folder)
