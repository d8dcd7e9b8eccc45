"""Files from strangers: their kind is checked before use, and what is wrong with them is said in one line.

Knows nothing of what the files mean.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.storage import map_tensors

RESTORE = "restore it or train again"
_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
Type = type[np.generic]

DATA = (".json", ".arrow", ".safetensors")
"""How the names of an index's files end; nothing else is read from one."""


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
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
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
    """Raise unless a path is a regular file, or a link to one; the message ends with a remedy.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is of another kind: reading a pipe or a device may never end.
    """
    if path.is_file():
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
    """Return the value in a JSON file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is not JSON.
    """
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); {RESTORE}.") from None


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
    with reading(path):
        arrays = map_tensors(path)
        wrong = sorted((forms.keys() - optional) - arrays.keys() | arrays.keys() - forms.keys())
        wrong += [name for name, array in arrays.items() if name in forms and not _has_form(array, *forms[name])]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is missing, unknown or of another type")
    return arrays


def _has_form(array: NDArray[Any], types: Type | tuple[Type, ...], dimensions: int) -> bool:
    return array.dtype in (types if isinstance(types, tuple) else (types,)) and array.ndim == dimensions


def is_finite(array: NDArray[np.generic]) -> bool:
    """True if the sum of all values is finite in float32, so that no value is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(array.dtype == np.int8 or np.isfinite(np.sum(array, dtype=np.float32)))
