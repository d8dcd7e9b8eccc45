"""Files from strangers: kind, size and content are checked before use.

No check costs more than the file's size: a shape that the file cannot hold is refused before an array is made. Knows nothing of
what the files mean.
"""

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from dsi.docids.files.storage import DTYPES, map_tensors

RESTORE = "restore it or train again"
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_PSEUDO = (("/", "proc"), ("/", "sys"))
"""Where files have no size and may have no end."""
_LARGE = 2**26
"""Bytes from which on a file may not be mostly a hole."""
_DEEPEST = 30
"""Folders in folders."""
_EMPTY = 2**24
"""Largest product of the other dimensions of an array without elements."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Where JSON may spell out a half of a pair."""
Type = type[np.generic]

_CODE = (
    ".py", ".pyc", ".pyd", ".so", ".dll", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npz", ".h5",
    ".gguf", ".onnx", ".msgpack",
)  # fmt: skip
"""File name endings of programs, pickles, and weights other than safetensors."""


class Entry(NamedTuple):
    """An array in a safetensors file.

    Attributes:
        dtype: its code in the file, such as "F32".
        shape: its dimensions.
    """

    dtype: str
    shape: tuple[int, ...]


@contextmanager
def reading(path: Path, *passing: type[Exception]) -> Iterator[None]:
    """Turn any error about a damaged file into a ValueError that names `path`.

    Args:
        path: file or folder that is read in the block.
        *passing: exceptions that pass unchanged, besides missing files and lack of memory.
    """
    unchanged: tuple[type[BaseException], ...] = (FileNotFoundError, MemoryError, *_STOPS, *passing)
    try:
        yield
    except unchanged:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"{path} cannot be read ({reason}); {RESTORE}.") from error


@contextmanager
def catching_panics() -> Iterator[None]:
    """Turn a panic of a library in Rust, which is no Exception and would end a thread, into a RuntimeError."""
    try:
        yield
    except (Exception, *_STOPS):
        raise
    except BaseException as error:
        raise RuntimeError(f"A library failed on this text ({error!r}).") from error


def check_file(path: Path, remedy: str = RESTORE, *, large: int = _LARGE) -> None:
    """Raise unless a path is a regular file or a link to one, and its bytes were written: reading may never end otherwise.

    Args:
        path: of the file.
        remedy: what to do about it, for messages.
        large: bytes from which on it may not be mostly a hole; some file systems keep zeros as one.

    Raises:
        FileNotFoundError: it does not exist.
        ValueError: it is of another kind, or large and mostly a hole.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; {remedy}.") from None
    except OSError as error:  # circular links
        raise ValueError(f"{path} cannot be read ({error.strerror}); {remedy}.") from None
    mode, size = found.st_mode, found.st_size
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} must be a regular file, and is a folder, a device or a pipe; {remedy}.")
    if path.resolve().parts[:2] in _PSEUDO:
        raise ValueError(f"{path} must be a regular file, and is one of the system; {remedy}.")
    if size > large and _stored_bytes(path, size) < size / 2:
        raise ValueError(f"{path} has {size:,} bytes, most of which were never written; {remedy}.")


def _stored_bytes(path: Path, size: int) -> int:
    """Return how many bytes of a file are no holes, which take no room on a disk and read as zeros."""
    if not hasattr(os, "SEEK_HOLE"):
        return size
    stored, end = 0, 0
    with path.open("rb") as file:
        while end < size and 2 * stored < size:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # there is a hole up to the end
                break
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            stored += end - start
    return stored


def check_folder(folder: Path) -> None:
    """Raise ValueError if a folder holds anything but regular files in folders, or files that could run code."""
    for parent, folders, files in walked(folder):
        for name in [*files, *folders]:
            if not name.isprintable():
                raise ValueError(f"{parent} holds {name!r}, a name that no part of an index has; remove it.")
        for name in files:
            check_file(Path(parent, name))
        for name in [*files, *folders]:
            if name.lower().endswith(_CODE):
                raise ValueError(f"{Path(parent, name)} could run code and is not read from an index; remove it.")
            if Path(parent, name).is_symlink() and name in folders:
                raise ValueError(f"{Path(parent, name)} must be a folder, and is a link to one; {RESTORE}.")


def walked(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder in a folder, itself first, with the names of its folders, of which some may be removed, and files.

    Raises:
        PermissionError: one may not be read.
        ValueError: one lies too deep for the functions of Python that call themselves.
    """
    for parent, folders, files in os.walk(folder, onerror=_raise_if_forbidden):
        path = Path(parent)
        if len(path.parts) - len(folder.parts) > _DEEPEST:
            raise ValueError(f"{folder} has folders in folders, more than {_DEEPEST} of them; move what is needed up.")
        yield path, folders, files


def _raise_if_forbidden(error: OSError) -> None:
    if isinstance(error, PermissionError):  # other folders have been removed meanwhile
        raise error


def is_inside(name: object) -> bool:
    """True if a name is a relative path inside its folder, on any system."""
    if not isinstance(name, str) or not name.isprintable():
        return False
    path = PureWindowsPath(name)
    return not (path.drive or path.root or ".." in path.parts)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or not an object.
    """
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; {RESTORE}.")
    return value


def read_any_json(path: Path) -> Any:
    """Return the value in a JSON file, which every reader of JSON understands alike.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or a key occurs twice, a number is not finite, a text is not Unicode.
    """
    check_file(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); {RESTORE}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; two readers may take different ones of two values with the same key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is more than a number can be")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def tensor_entries(path: Path) -> dict[str, Entry]:
    """Return {name: type and shape} of the arrays of a safetensors file, all inside the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or its header is wrong.
    """
    check_file(path)
    try:
        with safe_open(path, "numpy") as file:  # checks types, shapes and offsets against the file's size
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
            entries = {name: Entry(entry.get_dtype(), tuple(entry.get_shape())) for name, entry in slices.items()}
    except SafetensorError:
        raise ValueError(f"{path} is truncated or altered: its header does not fit it; {RESTORE}.") from None
    most = max(path.stat().st_size, _EMPTY)  # an empty array may claim any size in its other dimensions
    if wrong := next((name for name, (_, shape) in entries.items() if math.prod(d or 1 for d in shape) > most), None):
        raise ValueError(f"{path} is truncated or altered: the shape of {wrong[:60]!r} does not fit it; {RESTORE}.")
    return entries


def read_tensors(
    path: Path, forms: Mapping[str, tuple[Type | tuple[Type, ...], int]], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, memory-mapped.

    Args:
        path: the file.
        forms: {name: (element type or types, number of dimensions)}.
        optional: names that may be missing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or it holds other arrays.
    """
    entries = tensor_entries(path)
    wrong = sorted((forms.keys() - optional) - entries.keys() | entries.keys() - forms.keys())
    wrong += [name for name, entry in entries.items() if name in forms and not _has_form(entry, *forms[name])]
    if wrong:
        raise ValueError(f"{path} was altered: {wrong[0]!r} is missing, unknown or of another type; {RESTORE}.")
    return map_tensors(path)


def _has_form(entry: Entry, types: Type | tuple[Type, ...], dimensions: int) -> bool:
    allowed = types if isinstance(types, tuple) else (types,)
    return DTYPES.get(entry.dtype) in allowed and len(entry.shape) == dimensions


def is_finite(array: NDArray[np.generic]) -> bool:
    """True if the sum of all values is finite in float32, so that no value is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(array.dtype == np.int8 or np.isfinite(np.sum(array, dtype=np.float32)))


def lists_problem(
    starts: NDArray[np.integer], numbers: NDArray[np.integer], values: NDArray[np.floating], count: int
) -> str:
    """Return what is wrong with the arrays of a sparse matrix, or an empty string.

    Args:
        starts: [lists + 1] where each list starts, and where the last ends.
        numbers: [entries] from 0 to `count` - 1.
        values: [entries] finite.
        count: how many numbers there are.
    """
    if not len(starts) or starts[0] or starts[-1] != len(numbers) or (starts[1:] < starts[:-1]).any():
        return "lists do not lie one after another"
    if len(numbers) != len(values) or (len(numbers) and (numbers.min() < 0 or numbers.max() >= count)):
        return "lists name documents that there are not"
    return "" if is_finite(values) else "some weights are not finite"
