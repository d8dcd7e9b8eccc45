"""Extensions by packages: docid schemes, generators, objectives, rerankers, commands and clusters, found by their entry points.

A package is imported only when its extension is used by name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dsi.docids.files.checks import shown

SCHEMES = "dsi.docid_schemes"
"""Entry points that are functions from `SchemeInput` to `Docids`."""
GENERATORS = "dsi.generators"
"""Entry points that are subclasses of `dsi.generator.base.Generator`, by their `docid_tokens`."""
OBJECTIVES = "dsi.objectives"
"""Entry points that are subclasses of `dsi.generator.objectives.Objective`."""
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
    RERANKERS: "reranker",
    COMMANDS: "command",
    CLUSTERS: "cluster",
}


def extensions(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, by name."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def extension_names(group: str, known: Sequence[str] = ()) -> list[str]:
    """Return the known names, then those that other packages add."""
    return [*known, *(point.name for point in extensions(group) if point.name not in known)]


def load_extension(group: str, name: str) -> Any | None:
    """Return the extension of that name; None if no package has it.

    Raises:
        ValueError: it cannot be imported or called.
    """
    for point in extensions(group):
        if point.name == name:
            return _load(point)
    return None


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import the libraries of an extra of this package.

    Args:
        name: of the extra.

    Raises:
        ModuleNotFoundError: one of them is not installed; the message names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error.name} is not installed; run pip install "dr-scl[{name}]".') from None


def open_cluster(address: str) -> Any:
    """Return the cluster at an address, as `dsi.cluster.cluster.Cluster`.

    Raises:
        ValueError: no package has such clusters.
    """
    kind = load_extension(CLUSTERS, address.partition("://")[0]) or load_extension(CLUSTERS, "ray")
    if kind is None:
        raise ValueError(f"No installed package has the cluster {shown(address)}; install dr-scl again.")
    return kind(address)


def package_of(group: str, name: str) -> str:
    """Return name and version of the package of an extension, "" if no other package has it."""
    for point in extensions(group):
        if point.name == name and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""


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
