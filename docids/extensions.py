"""Extensions by other packages: found by name, through entry points, and imported when they are used.

What `dsi.train` is given is found by its import path, "module:name", among the modules that the program has imported: a
stranger's file imports nothing.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from dsi.docids.files.checks import shown

SCHEMES = "dsi.docid_schemes"
"""Entry points that are functions from `SchemeInput` to `Docids`."""
GENERATORS = "dsi.generators"
"""Entry points that are subclasses of `dsi.generator.base.Generator`, by their `docid_tokens`."""
OBJECTIVES = "dsi.objectives"
"""Entry points that are subclasses of `dsi.generator.objectives.Objective`."""
FUSIONS = "dsi.fusions"
"""Entry points that are functions as `dsi.generator.fusion.product`."""
RERANKERS = "dsi.rerankers"
"""Entry points, by their kind, whose `load(folder, retriever)` returns a model for `dsi.rerankers.rerank`."""
COMMANDS = "dsi.commands"
"""Entry points that are functions from a list of arguments, run as `dsi NAME`."""
CLUSTERS = "dsi.clusters"
"""Entry points that are classes like `dsi.cluster.cluster.Cluster`, made from an address: their name, or NAME://…; all others
are Ray's."""
_WHAT = {
    SCHEMES: "docid scheme",
    GENERATORS: "generator",
    OBJECTIVES: "objective",
    FUSIONS: "fusion",
    RERANKERS: "reranker",
    COMMANDS: "command",
    CLUSTERS: "cluster",
}


class NotImportedError(ImportError, ValueError):
    """An index or a configuration names a part of a module that the program has not imported."""


IMPORTABLE: set[str] = set()
"""Modules that an import path may import: when an index is tried in a process, those that the asking program has imported."""
_IMPORT_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def is_import_path(name: str) -> bool:
    """Return whether a name is an import path, as `import_path` gives it.

    >>> is_import_path("my_work.losses:Smooth"), is_import_path("kmeans"), is_import_path("C:/docids.tsv")
    (True, False, False)
    """
    return _IMPORT_PATH.fullmatch(name) is not None


def import_path(obj: Any, what: str) -> str:
    """Return the import path of a function or a class; a name stays one.

    >>> import_path(is_import_path, "docids")
    'dsi.docids.extensions:is_import_path'
    """
    if isinstance(obj, str):
        return obj
    name, module = getattr(obj, "__qualname__", ""), getattr(obj, "__module__", "")
    path = f"{program() if module == '__main__' else module}:{name}"
    if "<" in name or not callable(obj) or not is_import_path(path):
        raise ValueError(f"{what} must be a function or a class at the top of a .py file, or a name, got {shown(obj)}.")
    return path


def program() -> str:
    """Return the module name of the program's file; "<prompt>" at a prompt."""
    return Path(getattr(sys.modules["__main__"], "__file__", "") or "<prompt>").stem


def extensions(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, by name; they are looked up again after a package is installed or removed."""
    return list(_found(group, entry_points, _places()))


@lru_cache(maxsize=64)
def _found(
    group: str, find: Callable[..., Iterable[EntryPoint]], places: tuple[tuple[str, int, int], ...]
) -> tuple[EntryPoint, ...]:
    """Looking through all packages takes a twentieth of a second, and every configuration asks."""
    return tuple(sorted(find(group=group), key=lambda point: point.name))


def _places() -> tuple[tuple[str, int, int], ...]:
    """Return the folders that hold packages, and when each last changed."""
    places = []
    for path in sys.path:
        with suppress(OSError):
            status = Path(path or os.curdir).stat()
            places.append((path, status.st_ino, status.st_mtime_ns))
    return tuple(places)


def takes(function: Any, *names: str) -> bool:
    """Return whether something can be called with these arguments, in this order; True if nobody can tell."""
    try:
        inspect.signature(function).bind(*names)
    except (TypeError, ValueError) as error:  # a ValueError of a builtin without a signature
        return isinstance(error, ValueError)
    return True


def extension_names(group: str, known: Sequence[str] = ()) -> list[str]:
    """Return the known names, then those that other packages add."""
    return [*known, *(point.name for point in extensions(group) if point.name not in known)]


def load_extension(group: str, name: str) -> Any | None:
    """Return the extension of that name or import path; None if no package has it."""
    if is_import_path(name):
        return _load_imported(group, name)
    for point in extensions(group):
        if point.name == name:
            return _load(point)
    return None


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import the libraries of an extra of this package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error.name} is not installed; run pip install "dr-scl[{name}]".') from None


@contextmanager
def extension_room() -> Iterator[None]:
    """Import an extension room of this package, which an installation may lack."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("dsi."):
            raise
        raise ModuleNotFoundError(
            f"This index or configuration needs {error.name}, which this installation lacks. Install dr-scl whole.",
            name=error.name,
        ) from None


def open_cluster(address: str) -> Any:
    """Return the cluster at an address, as `dsi.cluster.cluster.Cluster`."""
    kind = load_extension(CLUSTERS, address.partition("://")[0]) or load_extension(CLUSTERS, "ray")
    if kind is None:
        raise ValueError(f"No installed package has the cluster {shown(address)}; install dr-scl again.")
    return kind(address)


def package_of(group: str, name: str) -> str:
    """Return name and version of another package's extension, "" if it is ours; for an import path, a digest of its code."""
    if is_import_path(name):
        return f"{name} {_digest_of_code(load_extension(group, name))}"
    for point in extensions(group):
        if point.name == name and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""


def _digest_of_code(function: Any) -> str:
    """Return a digest of the source of a function or a class, "" if there is none, as at a prompt."""
    try:
        return sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def _load_imported(group: str, path: str) -> Any:
    """Return what an import path names, of a module that the program has imported."""
    module, _, names = path.partition(":")
    target = sys.modules.get(module) or (sys.modules["__main__"] if module == program() else None)
    if target is None and module in IMPORTABLE:
        target = import_module(module)
    if target is None:
        raise NotImportedError(
            f"The {_WHAT[group]} {path!r} is not known here; in Python import {module} first; in a shell only a part that a "
            f"package names is known (entry points of {group}). Names in files import nothing."
        )
    for name in names.split("."):
        target = getattr(target, name, None)
    if not callable(target):
        what = f"The {_WHAT[group]} {path!r}"
        raise ValueError(f"{what} must be a function or a class at the top of {module}, got {shown(target)}.")
    return target


def _load(point: EntryPoint) -> Any:
    try:
        loaded = point.load()
        cause = "" if callable(loaded) else f"it is not a function but {shown(loaded)}"
    except Exception as error:  # whatever the other package raises
        cause = str(error).partition("\n")[0] or type(error).__name__
    if cause:
        raise ValueError(
            f"The {_WHAT[point.group]} {point.name!r} ({point.value}) cannot be loaded: {cause}; repair or remove the package "
            "that brings it."
        )
    return loaded
