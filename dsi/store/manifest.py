"""The manifest of an index: written last, read first, and compared with the files that it lists.

The sums show damage, not intent: `dsi.store.verify` judges an index from elsewhere. Opens no part.
"""

import math
from pathlib import Path, PurePosixPath
from typing import Any

from dsi.contrastive.config import EncoderConfig
from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import create_settings
from dsi.docids.files.storage import no_index, read_while_unchanged, recover_folder, sha256
from dsi.docids.files.untrusted import DATA, RESTORE, check_folder, is_inside, read_json
from dsi.search.request import SearchConfig

FORMAT_VERSION = 9
PARTS = ("encoder", "token_model", "docids", "generator", "lexical")
_TABLES = ("parts", "encoder", "search", "fingerprints", "versions", "files")
_KINDS = {"generation": int, **dict.fromkeys(_TABLES, dict)}
CHANGING = ("docids", "lexical")
"""The parts that an update replaces, by new folders with the generation in their name; the manifest points to them."""
MOST_GENERATIONS = 10**9
"""Of an index: how often it can be updated."""
_ENDINGS = (*DATA, ".tsv")
"""Training leaves docids.tsv, which nobody reads here."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index, after comparing every file with it; that of a new update if one is written meanwhile.

    Raises:
        FileNotFoundError: no finished index, or a file is missing.
        ValueError: another format version, a malformed manifest, a file was altered or truncated, or is not one of data.
    """
    recover_folder(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(no_index(folder))
    return read_while_unchanged(path, lambda: _compared(folder, read_entries(path)))


def read_entries(path: Path) -> dict[str, Any]:
    """Read the file of a manifest, after checking its own entries, but none of the files that it lists.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another format version, or a malformed manifest.
    """
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
    _check_names(manifest, path)
    create_settings(EncoderConfig, manifest["encoder"], str(path), "encoder")
    search_config(manifest, str(path))
    configured_search(manifest, str(path))
    return manifest


def search_config(manifest: dict[str, Any], source: str = "manifest.json") -> SearchConfig:
    """Return the search config in a manifest.

    Raises:
        ValueError: an unknown setting, or a wrong type or value.
    """
    record = manifest["search"]
    if record.get("beta") == "inf":  # JSON has no infinity
        record = {**record, "beta": math.inf}
    return create_settings(SearchConfig, record, source, "search")


def configured_search(manifest: dict[str, Any], source: str = "manifest.json") -> SearchConfig:
    """Return the search config that was set before tuning changed it: that of `[search]`.

    Raises:
        ValueError: as `search_config`.
    """
    return search_config({"search": manifest.get("configured", manifest["search"])}, source)


def part(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the folder of a part of the index in its current generation."""
    return folder / manifest["parts"].get(name, name)


def _check_names(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest names the folders of its generation, and files in them."""
    generation = manifest["generation"]
    if not 1 <= generation <= MOST_GENERATIONS:
        raise ValueError(
            f"{path}: generation must be from 1 to {MOST_GENERATIONS}, got {shown(generation)}; {RESTORE}."
        )
    for name, folder in manifest["parts"].items():
        if name not in CHANGING or folder not in (name, f"{name}-{generation}"):
            raise ValueError(
                f"{path}: parts may name docids and lexical of generation {generation}, got {shown(name)}: {shown(folder)}; "
                f"{RESTORE}."
            )
    folders = {manifest["parts"].get(name, name) for name in PARTS}
    for file in manifest["files"]:
        if not is_inside(file) or file != PurePosixPath(file).as_posix() or file.split("/")[0] not in folders:
            raise ValueError(f"{path}: files must lie in {', '.join(sorted(folders))}, got {shown(file)}; {RESTORE}.")


def _compared(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest, after comparing the files of its parts with their sums; others may not lie there."""
    for name in PARTS:
        own = part(folder, manifest, name)
        check_folder(own, _ENDINGS)
        for path in filter(Path.is_file, own.rglob("*")):
            if path.relative_to(folder).as_posix() not in manifest["files"]:
                raise ValueError(f"{path} is not in the manifest of the index; remove it.")
    for file, expected in manifest["files"].items():
        if not (folder / file).exists():
            raise FileNotFoundError(f"{folder / file} is missing from the index; {RESTORE}.")
        if sha256(folder / file) != expected:
            raise ValueError(f"{folder / file} was altered or truncated since it was written; {RESTORE}.")
    return manifest
