"""Reads files: whole, unchanged meanwhile, of the expected kind; and arrays that stay on disk.

A file may be a stranger's: its kind is checked before use, and an error names it on one line. Knows nothing of what files mean.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
RESTORE = "restore it or train again"
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_ATTEMPTS = 20
"""How often a file, or a folder, that is replaced meanwhile is read again."""
Type = type[np.generic]

DATA = (".json", ".arrow", ".safetensors", ".onnx")
"""Endings of an index's files; no other files are read."""


@contextmanager
def reading(path: Path, *passing: type[Exception]) -> Iterator[None]:
    """Turn any error about a damaged file or folder, except missing ones, lack of memory and `passing`, into a ValueError."""
    unchanged: tuple[type[BaseException], ...] = (FileNotFoundError, MemoryError, *_STOPS, *passing)
    try:
        yield
    except unchanged:
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        is_named = isinstance(error, ValueError) and str(error).startswith(str(path))
        if is_named or type(error).__name__ == "OutOfMemoryError":  # of torch
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"{path} cannot be read ({reason}); {RESTORE}.") from error


@contextmanager
def catching_panics() -> Iterator[None]:
    """Turn a panic of a library in Rust, which is not an Exception and would end a thread, into a RuntimeError."""
    try:
        yield
    except (Exception, *_STOPS):
        raise
    except BaseException as error:
        raise RuntimeError(f"A library failed on this text ({error!r}).") from error


def check_file(path: Path, remedy: str = RESTORE) -> None:
    """Raise unless a path is a regular file, or a link to one; the message ends with a remedy."""
    # A link without a size is one of /proc, which may have no end.
    if path.is_file() and not (path.is_symlink() and not path.stat().st_size):
        return
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; {remedy}.")
    raise ValueError(f"{path} must be a regular file, and is a folder, a device or a pipe; {remedy}.")


def check_folder(folder: Path, endings: Sequence[str] = DATA) -> None:
    """Raise ValueError if a folder holds anything but regular files of data, in folders."""
    for path in folder.rglob("*"):
        if not path.name.isprintable():
            raise ValueError(f"{path.parent} holds {path.name!r}, a name that no part of an index has; remove it.")
        if path.is_dir():
            if path.is_symlink():
                raise ValueError(f"{path} must be a folder, and is a link to one; {RESTORE}.")
        elif not path.name.endswith((*endings,)):
            raise ValueError(f"{path} is not read from an index, whose files end in {', '.join(endings)}; remove it.")
        else:
            check_file(path)


def check_files(
    folder: Path, parts: Collection[str], sums: Mapping[str, str], endings: Sequence[str] = DATA,
    sum_of: "Callable[[Path], str] | None" = None,
) -> None:  # fmt: skip
    """Raise unless the parts of a folder hold the files of its manifest, {path: sha256}, unaltered, and no others."""
    check_names(folder, parts, sums)
    for part in parts:
        check_folder(folder / part, endings)
        for path in filter(Path.is_file, (folder / part).rglob("*")):
            if path.relative_to(folder).as_posix() not in sums:
                raise ValueError(f"{path} is not in the manifest of the index; remove it.")
    for file, expected in sums.items():
        if not (folder / file).exists():
            raise FileNotFoundError(f"{folder / file} is missing from the index; {RESTORE}.")
        check_file(folder / file)
        if (sum_of or sha256)(folder / file) != expected:
            raise ValueError(f"{folder / file} was altered or truncated since it was written; {RESTORE}.")


def check_names(folder: Path, parts: Collection[str], names: Iterable[str]) -> None:
    """Raise ValueError unless the files of a manifest have names in the parts of its folder."""
    for name in names:
        if not is_inside(name) or name != PurePosixPath(name).as_posix() or name.split("/")[0] not in parts:
            place = f"must lie in {', '.join(sorted(parts))}, got {ascii(name)[:100]}"
            raise ValueError(f"{folder / 'manifest.json'}: files {place}; {RESTORE}.")


def is_inside(name: object) -> bool:
    """True if a name is a relative path inside its folder, on any system."""
    if not isinstance(name, str) or not name.isprintable():
        return False
    path = PureWindowsPath(name)
    return not (path.drive or path.root or ".." in path.parts)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; {RESTORE}.")
    return value


def read_any_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); {RESTORE}.") from None


def read_tensors(
    path: Path, forms: Mapping[str, tuple[Type | tuple[Type, ...], int]], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, memory-mapped: {name: (element type or types, number of dimensions)}."""
    arrays = map_tensors(path)
    wrong = sorted((forms.keys() - optional) - arrays.keys() | arrays.keys() - forms.keys())
    wrong += [name for name, array in arrays.items() if name in forms and not _has_form(array, *forms[name])]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]!r} is missing, unknown or of another type; {RESTORE}.")
    return arrays


def _has_form(array: NDArray[Any], types: Type | tuple[Type, ...], dimensions: int) -> bool:
    return array.dtype in (types if isinstance(types, tuple) else (types,)) and array.ndim == dimensions


def is_finite(array: NDArray[np.generic]) -> bool:
    """True if the sum of all values is finite in float32, so that no value is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(array.dtype == np.int8 or np.isfinite(np.sum(array, dtype=np.float32)))


def sha256(path: Path) -> str:
    """Return the hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sums(folder: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return {path below `folder`: sha256} of all its files, sorted by path; `known` are those that need not be read."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (known or {}).get(name) or sha256(folder / name) for name in files}


DTYPES = {"I32": np.int32, "F32": np.float32, "F16": np.float16, "I8": np.int8, "BOOL": np.bool_, "U8": np.uint8}
"""{element type in a safetensors file: NumPy's}."""


def tensor_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return ({name: type, shape and offsets}, the byte at which the arrays start) of a safetensors file, unchecked.

    The format: eight bytes with the length of a JSON header, the header, the arrays.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ValueError(f"{path} is not a safetensors file; {RESTORE}.")
        header = dict(json.loads(file.read(length)))
    header.pop("__metadata__", None)
    return header, 8 + length


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, memory-mapped; the library's NumPy reader copies them into memory."""
    header, first = tensor_header(path)
    size, arrays = path.stat().st_size, dict[str, NDArray[Any]]()
    for name, entry in header.items():
        start, end = (first + offset for offset in entry["data_offsets"])
        if end > size:
            raise ValueError(f"{path} ends within {name}; {RESTORE}.")
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
        status = path.stat()
        return cls(str(path), status.st_dev, status.st_ino, status.st_size)


def check_mapped(files: Iterable[MappedFile]) -> None:
    """Raise OSError if a mapped file was cut off: reading what it lacks would end the process (SIGBUS)."""
    for path, device, inode, size in files:
        try:
            status = os.stat(path)  # noqa: PTH116 - before every search
        except OSError:
            continue
        if status.st_size < size and (status.st_dev, status.st_ino) == (device, inode):
            raise OSError(
                f"{path} was cut off since it was loaded, at {status.st_size:,} of {size:,} bytes; restore it and load the "
                "index again."
            )


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of ours; empty if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None  # a pipe would be waited for
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_while_unchanged(path: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`, called until the file `path`, or the folder that has this name, stays the same meanwhile."""
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
    raise BlockingIOError(f"{path} changed {_ATTEMPTS} times while it was read; try again with fewer updates.")


def _identity(path: Path) -> bytes:
    """Return the content of a file or the number of a folder; empty if there is neither."""
    try:
        state = path.stat()  # first, as a pipe would be waited for
        return path.read_bytes() if stat.S_ISREG(state.st_mode) else b"%d" % state.st_ino
    except OSError:
        return b""
