"""Checks of single values: plain types and texts that files can hold; values in messages are short. Imports nothing heavy."""

import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from reprlib import Repr
from typing import Any

_NAMES = {bool: "True or False", int: "an integer", float: "a number", str: "a string"}
_TAKEN: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (float, int), str: (str,)}
_LONGEST_ID = 1000
"""Bits of a whole number that is written out as an id, at most."""
_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""What moves a terminal's cursor, changes its colours or turns the order of its text, and what is not a character."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for one.

    >>> counted(1, "document"), counted(2000, "document"), counted(2, "query")
    ('1 document', '2,000 documents', '2 queries')
    """
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"


def and_more(number: int) -> str:
    """Return how many things a message does not name, "" for none."""
    return f" (and {number:,} more)" if number > 0 else ""


def printable(text: str) -> str:
    r"""Return a text for a line of a terminal: control characters are written as in Python.

    >>> printable("Nile\x1b[2J\n")
    'Nile\\x1b[2J\\n'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _Short(Repr):
    """`repr`, cut to a line."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 64 else f"an integer of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return the `repr` of a value for a message: on one line however long, deep or large the value is."""
    return printable(_SHORT.repr(value))


def short_number(number: float) -> str:
    """Return a bound as it is written in a message: 1000000000, 1e6, 1e-6, 0.5."""
    return str(number) if isinstance(number, int) else f"{number:g}".replace("e+0", "e").replace("e-0", "e-")


def id_of(value: Any) -> Any:
    """Return an id with whole numbers written out, also those that became floats beside a missing one."""
    value = whole(value) if type(value) is float else value
    return str(value) if type(value) is int and value.bit_length() <= _LONGEST_ID else value


def whole(value: float) -> float:
    """Return a number as an integer where it is one."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def unpack(value: Any) -> Any:
    """Return the Python value of a NumPy scalar, and every other value as it is."""
    is_scalar = type(value).__module__ == "numpy" and type(value).__name__ != "ndarray" and hasattr(value, "item")
    if is_scalar and type(value).__name__ == "datetime64":
        return value.astype("datetime64[us]").item()  # type: ignore[attr-defined]  # of nanoseconds it would be a number
    return value.item() if is_scalar else value


def plain(kind: type, value: object, name: str) -> Any:
    """Return a value as bool, int, float or str; NumPy's scalars and, for float, integers are taken too."""
    value = unpack(value)
    if not isinstance(value, _TAKEN[kind]) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{name} must be {_NAMES[kind]}, got {shown(value)}.")
    try:
        return kind(value)  # type: ignore[call-arg]
    except OverflowError:
        raise ValueError(f"{name} must be a number that a float can hold, got an integer beyond 1e308.") from None


def text(value: object, name: str) -> str:
    """Return a value that is a text which files can hold."""
    if not isinstance(value, str):
        cure = "leave out what is missing" if shown(value) in ("None", "nan") else "write it as a text"
        raise ValueError(f"{name} must be a string, got {shown(value)}; {cure}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be Unicode text, got the lone surrogate {value[error.start]!r} at character {error.start + 1}; "
            "remove it, or decode the text again."
        ) from None
    return value


def user_path(value: str | Path) -> Path:
    """Return a path that a user names, with the home folder in place of ~; a name without such a user stays.

    >>> user_path("~/run") == Path.home() / "run", user_path("~$draft.docx")
    (True, PosixPath('~$draft.docx'))
    """
    if "\0" in str(value):
        raise ValueError(f"A path cannot have the character NUL, got {shown(value)}. Name a file or folder.")
    return Path(os.path.expanduser(value))  # noqa: PTH111 - Path.expanduser raises where there is no such user


def folder_to_write(value: object, name: str) -> Path:
    """Return the path of a folder that is there or can be made."""
    if not isinstance(value, str | Path):
        raise TypeError(f"{name} must be the path of a folder, got {shown(value)}; name one to write into.")
    if value == "":  # which Python takes for the current folder
        raise ValueError(f"{name} must name a folder, got ''; use . for the current one.")
    path = user_path(value)
    place = next((place for place in (path, *path.parents) if place.exists()), path)
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(f"{place} is a file; name a folder to write into.")
    if place != path:
        check_writable(place)
    return path


def check_writable(folder: Path) -> None:
    """Raise PermissionError if a folder is there, and may not be written into."""
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"You may not write into {folder}; name another place, or change its mode.")


def folder_to_replace(value: object, name: str, ours: Callable[[Path], bool]) -> Path:
    """Return the path of a folder that may be replaced as a whole: it is new, or all that it holds is ours."""
    path = folder_to_write(value, name)
    if Path.cwd().is_relative_to(path.resolve()):
        raise ValueError(f"{path} is the current folder or one above it, and would be replaced; name another.")
    other = next((entry.name for entry in sorted(path.iterdir()) if not ours(entry)), "") if path.exists() else ""
    if other:
        raise FileExistsError(f"{path} holds {other!r}, which would be lost; name a new folder.")
    return path


def check_name(setting: str, name: str, what: str) -> None:
    """Raise ValueError if a setting that names something is blank; `what` is what it should name."""
    if not name.strip():
        raise ValueError(f"{setting} must name {what}, got {shown(name)}.")


def same(query: str) -> str:
    """Return the form of a query that is alike for queries which differ in spaces, or in how characters are composed."""
    return " ".join(unicodedata.normalize("NFC", query).split())
