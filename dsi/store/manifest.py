"""The manifest of an index: read, and checked together with the files that it lists.

An index may come from a stranger, who can make the sums fit anything. So sums detect damage only. The content of a file is
checked when it is loaded; here it must be a regular file inside the folder that cannot run code. Opens no part.
"""

import math
from pathlib import Path, PurePosixPath
from typing import Any

from dsi.contrastive.config import EncoderConfig
from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import create_settings
from dsi.docids.files.storage import no_index, read_while_unchanged, recover_folder, sha256
from dsi.docids.files.untrusted import RESTORE, check_file, check_folder, is_inside, read_json
from dsi.search.request import SearchConfig

FORMAT_VERSION = 8
PARTS = ("encoder", "token_model", "docids", "generator", "lexical")
_TABLES = ("parts", "encoder", "search", "fingerprints", "versions", "files")
_KINDS = {"generation": int, **dict.fromkeys(_TABLES, dict)}
CHANGING = ("docids", "lexical")
"""The parts that an update replaces, by new folders with the generation in their name; the manifest points to them."""
MOST_GENERATIONS = 10**9
"""Of an index: how often it can be updated."""
_MOST_FILES = 1000
"""Files of an index, at most: each is read to compare its sum."""


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
        raise FileNotFoundError(no_index(folder))
    return read_while_unchanged(path, lambda: _checked(folder, path))


def _checked(folder: Path, path: Path) -> dict[str, Any]:
    manifest = read_entries(path)
    for name in PARTS:
        check_folder(folder / manifest["parts"].get(name, name))
    sums: dict[tuple[int, int], str] = {}
    for name, expected in manifest["files"].items():
        _check_sum(folder / name, expected, sums)
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
    return create_settings(SearchConfig, record, source, "search")


def configured_search(manifest: dict[str, Any], source: str = "manifest.json") -> SearchConfig:
    """Return the search config that was set before tuning changed it: that of `[search]`.

    Raises:
        ValueError: as `search_config`.
    """
    return search_config({"search": manifest.get("configured", manifest["search"])}, source)


def _check_entries(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest has the entries it should, of the right types."""
    for name, kind in {**_KINDS, **({"configured": dict} if "configured" in manifest else {})}.items():
        if type(manifest.get(name)) is not kind:
            raise ValueError(
                f"{path}: {name} must be of type {kind.__name__}, got {shown(manifest.get(name))}; {RESTORE}."
            )
    for name in ("encoder", "docids"):
        if not isinstance(manifest["fingerprints"].get(name), str):
            raise ValueError(f"{path}: fingerprints must have a text for {name}; {RESTORE}.")
    _check_names(manifest, path)
    create_settings(EncoderConfig, manifest["encoder"], str(path), "encoder")
    search_config(manifest, str(path))
    configured_search(manifest, str(path))


def _check_names(manifest: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless a manifest names the folders of its generation, and each file once."""
    if not 1 <= (generation := manifest["generation"]) <= MOST_GENERATIONS:
        raise ValueError(
            f"{path}: generation must be from 1 to {MOST_GENERATIONS}, got {shown(generation)}; {RESTORE}."
        )
    for part, name in manifest["parts"].items():
        if part not in CHANGING or name not in (part, f"{part}-{generation}"):
            raise ValueError(
                f"{path}: parts may name docids and lexical of generation {generation}, got {shown(part)}: {shown(name)}; "
                f"{RESTORE}."
            )
    if len(manifest["files"]) > _MOST_FILES:
        raise ValueError(f"{path}: an index has at most {_MOST_FILES} files, got {len(manifest['files'])}; {RESTORE}.")
    for name, expected in manifest["files"].items():
        if not is_inside(name) or name != PurePosixPath(name).as_posix() or not isinstance(expected, str):
            raise ValueError(
                f"{path}: files must be names inside the index with their sums, got {shown(name)}; {RESTORE}."
            )
    folders = {manifest["parts"].get(part, part) for part in PARTS}
    if other := next((name for name in manifest["files"] if str(name).split("/")[0] not in folders), None):
        raise ValueError(f"{path}: files must lie in {', '.join(sorted(folders))}, got {shown(other)}; {RESTORE}.")


def _check_sum(path: Path, expected: str, sums: dict[tuple[int, int], str]) -> None:
    """Compare the sum of a file; `sums` has those of files that were read, which may have several names."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing from the index; {RESTORE}.")
    check_file(path)
    found = path.stat()
    key = found.st_dev, found.st_ino
    if key not in sums:
        sums[key] = sha256(path)
    if sums[key] != expected:
        raise ValueError(f"{path} was altered or truncated since it was written; {RESTORE}.")
