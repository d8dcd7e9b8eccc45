"""The manifest of an index: read, and checked together with the files that it lists.

An index may come from a stranger, who can make the sums fit anything. So sums detect damage only. The content of a file is
checked when it is loaded; here it must be a regular file inside the folder that cannot run code. Opens no part.
"""

import math
import os
from pathlib import Path
from typing import Any

from dsi.contrastive.encoder import EncoderConfig
from dsi.docids.files.declarations import create_settings
from dsi.docids.files.storage import read_while_unchanged, recover_folder, sha256
from dsi.docids.files.untrusted import RESTORE, check_file, check_folder, is_inside, read_json
from dsi.search.request import SearchConfig

FORMAT_VERSION = 6
PARTS = ("encoder", "docids", "generator", "lexical")
_TABLES = ("parts", "encoder", "search", "fingerprints", "versions", "files")
_KINDS = {"generation": int, **dict.fromkeys(_TABLES, dict)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index, after checking every file against it; that of a new update if one is written meanwhile.

    Raises:
        FileNotFoundError: no finished index, or a file is missing.
        ValueError: another format version, a malformed manifest, or a file was altered or truncated, is no file, or could run
            code.
    """
    recover_folder(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no finished index (no manifest.json); name the folder that `dsi train --output` wrote."
        )
    return read_while_unchanged(path, lambda: _checked(folder, path))


def _checked(folder: Path, path: Path) -> dict[str, Any]:
    manifest = read_entries(path)
    for name in PARTS:
        check_folder(folder / manifest["parts"].get(name, name))
    for name, expected in manifest["files"].items():
        _check_sum(folder / name, expected)
    return manifest


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
    _check_entries(manifest, path)
    return manifest


def search_config(manifest: dict[str, Any], source: str = "manifest.json") -> SearchConfig:
    """Return the search config in a manifest.

    Raises:
        ValueError: an unknown setting, or a wrong type or value.
    """
    record = manifest["search"]
    if record.get("beta") == "inf":  # JSON has no infinity
        record = {**record, "beta": math.inf}
    return create_settings(SearchConfig, record, f"{source}: search")


def _check_entries(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest has the entries it should, of the right types."""
    for name, kind in _KINDS.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(f"{path}: {name} must be of type {kind.__name__}, got {manifest.get(name)!r}; {RESTORE}.")
    for name in ("encoder", "docids"):
        if not isinstance(manifest["fingerprints"].get(name), str):
            raise ValueError(f"{path}: fingerprints must have a text for {name}; {RESTORE}.")
    for part, name in manifest["parts"].items():
        if not is_inside(name) or os.sep in name or not name.strip("."):
            raise ValueError(f"{path}: the folder of {part} must be a plain name, got {name!r}; {RESTORE}.")
    for name, expected in manifest["files"].items():
        if not is_inside(name) or not isinstance(expected, str):
            raise ValueError(f"{path}: files must be names inside the index with their sums, got {name!r}; {RESTORE}.")
    create_settings(EncoderConfig, manifest["encoder"], f"{path}: encoder")
    search_config(manifest, str(path))


def _check_sum(path: Path, expected: str) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing from the index; {RESTORE}.")
    check_file(path)
    if sha256(path) != expected:
        raise ValueError(f"{path} was altered or truncated since it was written; {RESTORE}.")
