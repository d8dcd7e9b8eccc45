"""The values that arguments of commands may have, checked while the command line is read. Imports nothing heavy."""

import math
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dsi.docids.data import find_collection
from dsi.docids.files.checks import check_writable, folder_to_write, short_number, user_path

if TYPE_CHECKING:
    from dsi.docids.files.declarations import Setting

N = TypeVar("N", int, float)


def number(kind: type[N], least: float, most: float = math.inf) -> Callable[[str], N]:
    """Return the type of an argument that is a number from `least` to `most`."""
    wanted = "a whole number" if kind is int else "a number"
    if most < math.inf:
        wanted += f", from {short_number(least)} to {short_number(most)}"
    elif least > -math.inf:
        wanted += f", at least {short_number(least)}"

    def read(value: str) -> N:
        try:
            parsed = kind(value)
        except ValueError:
            parsed = None
        if parsed is None or not least <= parsed <= most:
            raise ArgumentTypeError(f"must be {wanted}, got {value!r}.")
        return parsed

    return read


def flag(name: str) -> str:
    """Return the option that sets a setting: --beam-width for beam_width."""
    return f"--{name.replace('_', '-')}"


def argument_of(declared: "Setting") -> dict[str, Any]:
    """Return the keywords of `add_argument` for a declared setting: type, choices and help."""
    from annotated_types import Ge, Le

    from dsi.docids.files.declarations import LARGEST

    shown: dict[str, Any] = {"help": declared.meaning.rstrip(".").replace("%", "%%")}
    if declared.choices:
        return {**shown, "choices": declared.choices}
    if declared.kind is list:
        return {**shown, "nargs": "+"}
    if declared.kind not in (int, float):
        return shown
    least, most = declared.bound(Ge), declared.bound(Le)  # the library itself names the largest number that it takes
    least, most = -math.inf if least is None else least, math.inf if most in (None, LARGEST) else most
    return {**shown, "type": number(declared.kind, least, most)}


count = number(int, 1)
"""The type of an argument that counts."""


def query_text(value: str) -> str:
    """Return a text that is not blank."""
    if not value.strip():
        raise ArgumentTypeError(f"must be a text that is not blank, got {value!r}.")
    return value


def collection_folder(value: str) -> Path:
    """Return the folder of a collection."""
    try:
        return find_collection(value)
    except FileNotFoundError as error:
        raise ArgumentTypeError(str(error)) from None


def index_folder(value: str) -> Path:
    """Return the folder of a finished index."""
    folder = user_path(value)
    if not (folder / "manifest.json").is_file():
        from dsi.docids.files.storage import beside, no_index

        if not beside(folder, "previous").exists():  # left by a kill; loading the index brings it back
            raise ArgumentTypeError(no_index(folder))
    return folder


def existing_file(value: str) -> Path:
    """Return a file that is there."""
    path = user_path(value)
    if not path.is_file():
        raise ArgumentTypeError(f"{value} {'is a folder' if path.is_dir() else 'does not exist'}. Name a file.")
    return path


def source_path(value: str) -> Path:
    """Return a file that is there, or the folder of a collection or of files."""
    if (path := user_path(value)).is_file():
        return path
    try:
        return find_collection(value)
    except FileNotFoundError:
        raise ArgumentTypeError(f"{value} does not exist; name a file or a folder of texts, or a collection.") from None


def read_queries_file(path: Path) -> dict[str, str]:
    """Return {query_id: text} of a .jsonl, .csv, .tsv or .parquet file with id and text, or of `id<TAB>text` lines."""
    from dsi.docids.data.records import checked_queries
    from dsi.docids.data.sources import RECORDS, bare_records, file_records

    is_known = path.name.lower().endswith(RECORDS)
    return checked_queries(file_records(path) if is_known else bare_records(path), path)


def output_folder(value: str) -> Path:
    """Return a folder that is there or can be made."""
    try:
        return folder_to_write(value, "the argument")
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from None


def output_file(value: str) -> Path:
    """Return a file that is there or can be made; that of a link."""
    path = user_path(value)
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        raise ArgumentTypeError(f"Expected a regular file, which is replaced as a whole, got {value}. Name another.")
    try:
        check_writable(folder_to_write(path.parent, "the argument"))
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(str(error)) from None
    return path


def toml_value(value: object) -> str:
    """Return a value as a TOML file has it."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value}"


def setting(value: str) -> tuple[str, str, object]:
    """Return section ("" for the top), name and value of a setting SECTION.NAME=VALUE; a VALUE that is not TOML is a text."""
    name, equals, text = value.partition("=")
    section, _, key = name.rpartition(".")
    if not equals or not key.isidentifier() or not (section or "x").isidentifier():
        raise ArgumentTypeError(f"must be SECTION.NAME=VALUE, such as docids.branching=10, got {value!r}.")
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return section, key, text
    return section, key, read["value"] if len(read) == 1 else text  # a line after the value is not a setting
