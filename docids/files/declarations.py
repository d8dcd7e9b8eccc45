"""Declares settings once: a frozen dataclass whose annotations are types and ranges, with each meaning in a docstring below.

pydantic checks the values; a wrong one is a ValueError on one line. Commands, HTTP and documentation read the same.
"""

import ast
import difflib
import functools
import inspect
import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from dsi.docids.files.checks import plain, short_number, shown, text, unpack

T = TypeVar("T")

LARGEST = 10**9
"""No count, seed or number of epochs is larger: every library takes this number."""
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NameOrPath = Annotated[str, AfterValidator(os.path.expanduser)]
"""Of a model or a file."""

ALIASES = {
    **dict.fromkeys(("top_k", "topk", "num_results", "n", "limit"), "k"),
    "beam": "beam_width",
    "filter": "where",
}
"""{what other libraries call it: our name}."""


@dataclass(frozen=True)
class Remedy:
    """What to do instead, or what a value means; ends the message about a value out of range."""

    text: str


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting or an option."""

    section: str  # of the configuration, as in "training."; "" for those of none
    name: str  # of the setting
    kind: type  # bool, int, float or str; object for others
    default: Any  # `dataclasses.MISSING` if there is none
    meaning: str  # the docstring below the field
    choices: tuple[str, ...] = ()  # the only values, if they are texts of a short list
    bounds: tuple[Ge | Gt | Le | Lt, ...] = ()  # that its numbers keep
    remedy: str = ""  # what to do instead of a value out of range, or ""

    def bound(self, kind: type) -> Any:
        """Return the bound of a kind, `Ge`, `Gt`, `Le` or `Lt`; None if there is none."""
        limits = (getattr(bound, kind.__name__.lower()) for bound in self.bounds if isinstance(bound, kind))
        return next(limits, None)

    @property
    def range(self) -> str:
        """What its values must be, in words; "" if any value of its type will do."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        least, above, most, below = (self.bound(kind) for kind in (Ge, Gt, Le, Lt))
        if below is None and most in (None, LARGEST):
            if least is None:
                return "" if above is None else f"above {short_number(above)}"
            return f"at least {short_number(least)}"
        if least is not None and most is not None:
            return f"between {short_number(least)} and {short_number(most)}"
        opening = f"({short_number(above)}" if least is None else f"[{short_number(least)}"
        return f"in {opening}, {short_number(below)})" if most is None else f"in {opening}, {short_number(most)}]"

    def refuse(self, value: object) -> ValueError:
        """Return the error for a value that is not allowed."""
        name = f"{self.section}{self.name}"
        if self.kind in (bool, int, float, str):
            value = plain(self.kind, value, name)  # raises if it is of another type
        wanted = self.range
        if self.bound(Le) == LARGEST and isinstance(value, int | float) and value > LARGEST:
            wanted = f"at most {LARGEST}"
        elif value == math.inf and self.bound(Le) is None:
            wanted = "finite"
        remedy = f"; {self.remedy}" if self.remedy else ""
        return ValueError(f"{name} must be {wanted}, got {shown(value)}{remedy}.")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(section: str = "", *, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass whose values are checked; strings are texts that files can hold, without NUL.

    Checks of several settings together stand in its `__post_init__`, which raises ValueError.

    Args:
        section: of the configuration, for messages.
        eq: instances are equal if their values are.
    """

    def declare(kind: type[T]) -> type[T]:
        config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
        made: Any = pydantic_dataclass(kind, frozen=True, eq=eq, config=config)
        made.section = f"{section}." if section else ""
        checked = made.__init__

        @functools.wraps(checked)
        def create(self: Any, *values: Any, **named: Any) -> None:
            arguments = dict(zip(made.__dataclass_fields__, values, strict=False)) | named
            try:
                checked(self, **{name: _storable(value, f"{made.section}{name}") for name, value in arguments.items()})
            except ValidationError as error:
                raise _first_error(made, error) from None

        made.__init__ = create
        return made  # type: ignore[no-any-return]

    return declare


@functools.cache
def declarations(kind: type) -> dict[str, Setting]:
    """Return {name: declaration} of the settings of a class that `settings` made; sections in it are left out."""
    by_name: dict[str, Setting] = {}
    meanings = read_meanings(kind)
    for member in fields(kind):  # type: ignore[arg-type]
        annotation, metadata = _parts(kind, member.name)
        if is_dataclass(annotation):
            continue
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        by_name[member.name] = Setting(
            section=kind.section,  # type: ignore[attr-defined]
            name=member.name,
            kind=str if choices else annotation if annotation in (bool, int, float, str) else object,
            default=member.default,
            meaning=meanings.get(member.name, ""),
            choices=choices,
            bounds=tuple(bound for bound in metadata if isinstance(bound, Ge | Gt | Le | Lt)),
            remedy=next((item.text for item in metadata if isinstance(item, Remedy)), ""),
        )
    return by_name


def _parts(kind: Any, name: str) -> tuple[Any, list[Any]]:
    """Return the type of a field, without None, and what annotates it."""
    declared = kind.__pydantic_fields__[name]
    annotation, metadata = declared.annotation, list(declared.metadata)
    if type(None) in get_args(annotation):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    return annotation, metadata


def read_meanings(kind: type) -> dict[str, str]:
    """Return {field: the docstring below it} of a class, on one line each."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    meanings = {}
    for named, below in pairwise(declared.body):  # type: ignore[attr-defined]
        if isinstance(named, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            meanings[ast.unparse(named.target)] = " ".join(str(below.value.value).split())
    return meanings


def create_settings(kind: type[T], values: Mapping[str, Any], source: str = "", section: str = "") -> T:
    """Return settings made of nested dictionaries; keys that are left out keep their defaults. Messages name the source."""
    where = f"{source}: " if source else ""
    known, sections, arguments = [member.name for member in fields(kind)], section_kinds(kind), dict(values)  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            full_name = f"{section}.{name}" if section else name
            raise ValueError(f"{where}{shown(full_name)} is not a setting{meant(name, known, section)}")
        if name in sections:
            if not isinstance(value, dict):
                raise ValueError(f"{where}{name} must be a table of settings, got {shown(value)}.")
            arguments[name] = create_settings(sections[name], value, source, name)
    try:
        return kind(**arguments)
    except ValueError as error:
        prefix = f"{section}: " if section and not kind.section else ""  # type: ignore[attr-defined]
        raise ValueError(f"{where}{prefix}{error}") from None


def section_kinds(kind: type) -> dict[str, type]:
    """Return {name: class} of the fields that are sections."""
    parts = {member.name: _parts(kind, member.name)[0] for member in fields(kind)}  # type: ignore[arg-type]
    return {name: part for name, part in parts.items() if is_dataclass(part) and isinstance(part, type)}


def meant(name: str, known: Collection[str], section: str = "") -> str:
    """Return "; did you mean 'k'?" for a name that is near a known one of a section, else the list of names."""
    near = nearest(name, known)
    near = f"{section}.{near}" if near and section else near
    return f"; did you mean {near!r}?" if near else f"; there are {', '.join(known)}."


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a wrong one means, or None where none is near."""
    alias = ALIASES.get(name.lower())
    if alias in known:
        return alias
    by_letters = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name[:100].lower(), by_letters, n=1, cutoff=0.7)
    return by_letters[near[0]] if near else None


def _storable(value: Any, name: str) -> Any:
    """Return a value without NumPy's types; raises ValueError for a text that files and their names cannot hold."""
    value = unpack(value)
    if isinstance(value, str) and "\0" in text(value, name):
        raise ValueError(f"{name} must be text without NUL characters, got {shown(value)}.")
    return value


def _first_error(kind: Any, error: ValidationError) -> Exception:
    """Return the first of pydantic's errors as one line."""
    first: Any = error.errors(include_url=False)[0]
    if "error" in first.get("ctx", {}):
        return first["ctx"]["error"]  # type: ignore[no-any-return]
    name, known = str(first["loc"][0]), list(kind.__dataclass_fields__)
    if first["type"] == "unexpected_keyword_argument":
        return TypeError(f"{kind.__name__} has no setting {shown(name)}{meant(name, known)}")
    if first["type"] == "missing":
        return TypeError(f"{kind.__name__} needs {name}.")
    if name not in declarations(kind):
        return ValueError(f"{name} must be a {section_kinds(kind)[name].__name__}, got {shown(first['input'])}.")
    try:
        return declarations(kind)[name].refuse(first["input"])
    except ValueError as wrong_type:
        return wrong_type
