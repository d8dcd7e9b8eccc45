"""Files that a stranger may have made: what they are, their sizes and their contents are checked before they are used.

Nothing here costs more than the file's own size: a shape that the file does not hold is refused before an array of it is made.
Knows nothing of what the files mean.
"""

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from docids.files.storage import map_tensors, tensor_header

RESTORE = "restore it or train again"
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4,
          "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8}  # fmt: skip
"""{element type of a safetensors file: its bytes}."""
_CODES = {np.int32: "I32", np.float32: "F32", np.float16: "F16", np.int8: "I8", np.bool_: "BOOL", np.uint8: "U8"}
Type = type[np.generic]


_CODE = (
    ".py", ".pyc", ".pyd", ".so", ".dll", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npz", ".h5",
    ".gguf", ".onnx", ".msgpack",
)  # fmt: skip
"""Ends of the names of programs, of pickles, and of weights other than safetensors."""


class Entry(NamedTuple):
    """An array in a safetensors file.

    Attributes:
        dtype: its code in the file, such as "F32".
        shape: its lengths.
    """

    dtype: str
    shape: tuple[int, ...]


@contextmanager
def reading(path: Path, *passing: type[Exception]) -> Iterator[None]:
    """Turn what a library raises on a damaged file into a ValueError that names `path`.

    Args:
        path: file or folder that is read in the block.
        *passing: what the block may raise, besides that a file is missing or memory ran out.
    """
    let_through: tuple[type[Exception], ...] = (FileNotFoundError, MemoryError, *passing)
    try:
        yield
    except let_through:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"{path} cannot be read ({reason}); {RESTORE}.") from error


def check_file(path: Path) -> None:
    """Raise unless a path is a regular file, or a link to one: reading a device or a pipe may never end.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it is something else.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; {RESTORE}.") from None
    except OSError as error:  # links in a circle
        raise ValueError(f"{path} cannot be read ({error.strerror}); {RESTORE}.") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} must be a regular file, and is a folder, a device or a pipe; {RESTORE}.")


def check_folder(folder: Path) -> None:
    """Raise ValueError unless a folder, if there is one, holds regular files in folders, and none that could run code."""
    for place, folders, files in os.walk(folder):
        for name in files:
            check_file(Path(place, name))
        for name in [*files, *folders]:
            if name.lower().endswith(_CODE):
                raise ValueError(f"{Path(place, name)} could run code and is not read from an index; remove it.")
            if Path(place, name).is_symlink() and name in folders:
                raise ValueError(f"{Path(place, name)} must be a folder, and is a link to one; {RESTORE}.")


def is_inside(name: object) -> bool:
    """True if a name is a relative path that does not leave its folder, on any system."""
    if not isinstance(name, str) or "\0" in name:
        return False
    path = PureWindowsPath(name)
    return not (path.drive or path.root or ".." in path.parts)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON, or not an object.
    """
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; {RESTORE}.")
    return value


def read_any_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not JSON.
    """
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); {RESTORE}.") from None


def tensor_entries(path: Path) -> dict[str, Entry]:
    """{name: type and shape} of the arrays of a safetensors file, all of which lie inside the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or its header is wrong.
    """
    check_file(path)
    try:
        header, first = tensor_header(path)
        size = path.stat().st_size - first
        return {name: _entry(value, size) for name, value in header.items()}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is truncated or altered: its header does not fit it; {RESTORE}.") from None


def _entry(value: dict[str, Any], size: int) -> Entry:
    """An entry of a header, checked against the number of bytes that follow it."""
    shape, (start, end) = value["shape"], value["data_offsets"]
    numbers = [*shape, start, end]
    if not all(type(number) is int and number >= 0 for number in numbers) or not start <= end <= size:
        raise ValueError
    if end - start != math.prod(shape) * _SIZES[value["dtype"]]:
        raise ValueError
    return Entry(value["dtype"], tuple(shape))


def read_tensors(
    path: Path, kinds: Mapping[str, tuple[Type | tuple[Type, ...], int]], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, mapped into memory.

    Args:
        path: the file.
        kinds: {name: (element type or types, number of dimensions)}.
        optional: names that may be missing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or it holds other arrays.
    """
    entries = tensor_entries(path)
    wrong = sorted((kinds.keys() - optional) - entries.keys() | entries.keys() - kinds.keys())
    wrong += [name for name, entry in entries.items() if name in kinds and not _is_of(entry, *kinds[name])]
    if wrong:
        raise ValueError(f"{path} was altered: {wrong[0]!r} is missing, unknown or of another type; {RESTORE}.")
    return map_tensors(path)


def _is_of(entry: Entry, types: Type | tuple[Type, ...], dimensions: int) -> bool:
    codes = [_CODES[each] for each in (types if isinstance(types, tuple) else (types,))]  # type: ignore[index]
    return entry.dtype in codes and len(entry.shape) == dimensions


def is_finite(array: NDArray[np.generic]) -> bool:
    """True if no value is NaN or infinite, nor so large that their sum in float32 is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(array.dtype == np.int8 or np.isfinite(np.sum(array, dtype=np.float32)))


def lists_problem(
    starts: NDArray[np.integer], numbers: NDArray[np.integer], values: NDArray[np.floating], most: int
) -> str:
    """What is wrong with lists that lie one after another (the arrays of a sparse matrix), or an empty string.

    Args:
        starts: [lists + 1] where each list starts, and where the last ends.
        numbers: [entries] of all lists; in 0 to `most` - 1.
        values: [entries] one a number, finite.
        most: how many numbers there are.
    """
    if not len(starts) or starts[0] or starts[-1] != len(numbers) or (starts[1:] < starts[:-1]).any():
        return "lists do not lie one after another"
    if len(numbers) != len(values) or (len(numbers) and (numbers.min() < 0 or numbers.max() >= most)):
        return "lists name documents that there are not"
    return "" if is_finite(values) else "some weights are not finite"
