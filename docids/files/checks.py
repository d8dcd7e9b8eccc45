"""Checks of types and ranges; messages give the setting (with its section, as in "docids."), what it may be and its value."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from reprlib import Repr
from typing import Any, get_type_hints

import numpy as np

LARGEST = 10**9
"""No count, seed or weight is larger: every library takes this number."""
_WANTED = {bool: "True or False", int: "an integer", float: "a number", str: "a string"}
_TAKEN = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    str: (str,),
}


class _Short(Repr):
    """`repr`, cut to a line."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 64 else f"an integer of {x.bit_length()} bits"


shown = _Short().repr
"""`repr` of a value for a message: on one line however long, deep or large the value is."""


def plain(kind: type, value: object, name: str) -> Any:
    """Return a value as bool, int, float or str; NumPy's scalars and, for float, integers are taken too.

    Raises:
        ValueError: it is of another type.
    """
    if not isinstance(value, _TAKEN[kind]) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"{name} must be {_WANTED[kind]}, got {shown(value)}.")
    try:
        return kind(value)  # type: ignore[call-arg]
    except OverflowError:
        raise ValueError(f"{name} must be a number that a float can hold, got an integer beyond 1e308.") from None


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def plain_fields(settings: object, section: str = "") -> None:
    """Make the fields of a dataclass that are annotated bool, int, float or str of that type, as `plain` does.

    Raises:
        ValueError: a field is of another type, or a text that files and their names cannot hold.
    """
    for name, kind in _hints(type(settings)).items():
        if kind in _WANTED:
            value = plain(kind, getattr(settings, name), f"{section}{name}")
            if kind is str and "\0" in text(value, f"{section}{name}"):
                raise ValueError(f"{section}{name} must be text without NUL characters, got {shown(value)}.")
            object.__setattr__(settings, name, value)


def text(value: object, name: str) -> str:
    """Return a value that is a text which files can hold.

    Raises:
        ValueError: it is no text, or not one that UTF-8 can write.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {shown(value)}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be Unicode text, got the lone surrogate {value[error.start]!r} at character {error.start + 1}; "
            "remove it, or decode the text anew."
        ) from None
    return value


def at_least(settings: object, section: str = "", /, **least: float) -> None:
    """Raise ValueError if a setting is below its least value, above `LARGEST`, or NaN."""
    for name, bound in least.items():
        value = getattr(settings, name)
        if not bound <= value <= LARGEST:
            range_ = f"at most {LARGEST}" if value > LARGEST else f"at least {bound}"
            raise ValueError(f"{section}{name} must be {range_}, got {shown(value)}.")


def between(settings: object, section: str = "", /, **ranges: tuple[float, float]) -> None:
    """Raise ValueError if a setting is not between its least and its largest value, both of which it may be."""
    for name, (least, largest) in ranges.items():
        if not least <= (value := getattr(settings, name)) <= largest:
            raise ValueError(f"{section}{name} must be between {least:g} and {largest:g}, got {shown(value)}.")


def above_zero(settings: object, names: Sequence[str], section: str = "") -> None:
    """Raise ValueError if a setting is not above 0, or infinite."""
    for name in names:
        value = getattr(settings, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{section}{name} must be {'finite' if value > 0 else 'above 0'}, got {shown(value)}.")


def below_one(settings: object, names: Sequence[str], section: str = "") -> None:
    """Raise ValueError if a setting is not in [0, 1)."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{section}{name} must be in [0, 1), got {shown(getattr(settings, name))}.")


def one_of(settings: object, section: str = "", /, **allowed: Sequence[str]) -> None:
    """Raise ValueError if a setting is not one of its allowed values."""
    for name, values in allowed.items():
        if getattr(settings, name) not in values:
            raise ValueError(
                f"{section}{name} must be one of {', '.join(values)}, got {shown(getattr(settings, name))}."
            )


def names_something(settings: object, section: str = "", /, **what: str) -> None:
    """Raise ValueError if a setting that names something is blank; `what` says what it should name."""
    for name, thing in what.items():
        if not getattr(settings, name).strip():
            raise ValueError(f"{section}{name} must name {thing}, got {shown(getattr(settings, name))}.")
