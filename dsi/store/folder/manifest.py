"""The manifest of an index: what it lists, and how it is read. It is written last and read first. Knows the parts by name."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsi.contrastive.config import EncoderConfig
from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import create_settings
from dsi.docids.files.reading import DATA, RESTORE, check_files, read_json, read_while_unchanged
from dsi.docids.files.storage import no_index, recover_folder
from dsi.search.request import SearchConfig
from dsi.store.updating import CHANGING

FORMAT_VERSION = 12
PARTS = ("encoder", "docids", "generator", "lexical", "memory")
_TABLES = ("parts", "encoder", "search", "fingerprints", "versions", "files")
_KINDS = {"generation": int, **dict.fromkeys(_TABLES, dict)}
MOST_GENERATIONS = 10**9
"""Of an index: how often it can be updated."""
_ENDINGS = (*DATA, ".tsv")
"""Training leaves docids.tsv, which only training reads."""


def read_manifest(folder: Path, sum_of: Callable[[Path], str] | None = None) -> dict[str, Any]:
    """Read the manifest of an index, after comparing every file with it; that of a new update if one is written meanwhile."""
    recover_folder(folder)
    if not (path := folder / "manifest.json").exists():
        raise FileNotFoundError(no_index(folder))

    def compared() -> dict[str, Any]:
        manifest = read_entries(path)
        check_files(folder, part_names(manifest), manifest["files"], _ENDINGS, sum_of)
        return manifest

    return read_while_unchanged(path, compared)


def read_entries(path: Path) -> dict[str, Any]:
    """Read the file of a manifest, after checking its own entries, but none of the files that it lists."""
    manifest = read_json(path)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {manifest.get('format_version')}, this version reads {FORMAT_VERSION}; "
            "install the version that wrote it or train again."
        )
    for name, kind in {**_KINDS, **({"configured": dict} if "configured" in manifest else {})}.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(
                f"{path}: {name} must be of type {kind.__name__}, got {shown(manifest.get(name))}; {RESTORE}."
            )
    _check_parts(manifest, path)
    for name in ("search", "configured"):
        search_config(manifest, name, str(path))
    create_settings(EncoderConfig, manifest["encoder"], str(path), "encoder")
    return manifest


def search_config(manifest: dict[str, Any], name: str = "search", source: str = "manifest.json") -> SearchConfig:
    """Return a search config in a manifest: "search", how the index is searched, or "configured", how before it was tuned."""
    record = manifest.get(name, manifest["search"])
    if record.get("beta") == "inf":  # JSON has no infinity
        record = {**record, "beta": math.inf}
    return create_settings(SearchConfig, record, source, "search")


def part_names(manifest: dict[str, Any]) -> list[str]:
    """Return the names of the folders of all parts in their current generation."""
    return [manifest["parts"].get(name, name) for name in PARTS]


def has_generator(manifest: dict[str, Any]) -> bool:
    """Return whether an index has a generator; without one, searches walk by the tree's vectors."""
    return any(name.startswith("generator/") for name in manifest["files"])


def part(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the folder of a part of the index in its current generation."""
    return folder / manifest["parts"].get(name, name)


def _check_parts(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest names the folders of its generation."""
    generation = manifest["generation"]
    if not 1 <= generation <= MOST_GENERATIONS:
        raise ValueError(
            f"{path}: generation must be from 1 to {MOST_GENERATIONS}, got {shown(generation)}; {RESTORE}."
        )
    for name, folder in manifest["parts"].items():
        updated = re.fullmatch(rf"{re.escape(name)}-([1-9]\d{{0,9}})", str(folder), re.ASCII)
        if name not in CHANGING or (folder != name and not (updated and int(updated[1]) <= generation)):
            raise ValueError(
                f"{path}: parts may name {', '.join(CHANGING)} of generation {generation} or an earlier one, got "
                f"{shown(name)}: {shown(folder)}; {RESTORE}."
            )
