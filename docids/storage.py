"""Files and folders that are replaced in one step, and arrays on disk. Knows nothing of what they hold."""

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from gzip import open as open_gzip
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_name(title: str) -> str:
    """A title's letters and digits in lower case, with dashes between words.

    >>> file_name("DR-SCL+QG (beta=0)")
    'dr-scl-qg-beta-0'
    """
    return "-".join(re.findall(r"[^\W_]+", title.lower()))


def digest(value: object) -> str:
    """Hexadecimal sha256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


_DTYPES = {"I32": np.int32, "F32": np.float32, "BOOL": np.bool_, "U8": np.uint8}


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, mapped into memory: data is read when it is used.

    The library's numpy reader copies everything into memory. The format: eight bytes with the length of a JSON header, the
    header with type, shape and place of each array, the arrays.

    Raises:
        ValueError: the file is shorter than its header says, or has none.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError("its header is not that of a safetensors file")
        header = json.loads(file.read(length))
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > size:
            raise ValueError(f"it ends within {name}")
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        arrays[name] = np.memmap(path, dtype, "c", start, shape) if end > start else np.empty(shape, dtype)
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


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` when the block ends without an exception.

    POSIX cannot exchange two folders in one portable step, so the old one is set aside for an instant. If the process dies in
    that instant, `recover_folder` (called by everything that reads such a folder) brings it back.
    """
    partial, previous = _beside(folder, "partial"), _beside(folder, "previous")
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
    previous = _beside(folder, "previous")
    if previous.exists():
        if folder.exists():
            shutil.rmtree(previous)
        else:
            previous.rename(folder)


def _beside(folder: Path, role: str) -> Path:
    return folder.with_name(f".{folder.name}.{role}")
