"""An index on disk: its parts, and the manifest that binds them.

An index folder holds `encoder/` (sentence-transformers), `docids/` (the tree, and the document table as Arrow), `generator/`
(config.json, model.safetensors), optionally `lexical/`, and `manifest.json`: format version, search config, package
versions, the sha256 of every file, and the fingerprints that bind encoder, docids and generator to each other. Knows nothing
of searching.
"""

import dataclasses
import json
import platform
import shutil
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from contrastive.encoder import Encoder, EncoderConfig
from contrastive.sparse import load_lexical
from docids.lexical import Lexical
from docids.storage import digest, recover_folder, replace_folder, sha256, write_json
from docids.tree import DocidTree
from dsi.documents import document_table
from dsi.generator.base import Generator
from dsi.generator.kinds import load_generator
from dsi.search.request import SearchConfig

FORMAT_VERSION = 2
_PARTS = ("encoder", "docids", "generator", "lexical")
_CHANGING = ("docids", "lexical")
"""The parts that an update replaces, by new folders with the generation in their name; the manifest points to them."""
_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu")


def save_docids(tree: DocidTree, documents: datasets.Dataset, folder: Path, *, texts: bool = False) -> None:
    """Write the tree and the document table into a folder; with `texts` also the documents' texts if the table holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    table = document_table(documents, texts=texts)
    with pa.OSFile(str(folder / "documents.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def load_docids(folder: Path) -> tuple[DocidTree, datasets.Dataset]:
    """Load the tree and the document table; the table stays on disk."""
    tree = DocidTree.load(folder / "docids.safetensors")
    return tree, datasets.Dataset.from_file(str(folder / "documents.arrow"))


def load_encoder(folder: Path, config: EncoderConfig, device: str | None) -> Encoder:
    """Load the encoder that the generator reads: its own if they were trained together, else the one in `encoder/`."""
    own = folder / "generator" / "encoder"
    return Encoder.load(config, own if own.exists() else folder / "encoder", device)


def write_manifest(folder: Path, encoder: Encoder, tree: DocidTree, config: SearchConfig) -> None:
    """Write the manifest, which binds the parts in `folder` to each other; it is written last and read first."""
    manifest = {
        "format_version": FORMAT_VERSION,
        "generation": 1,
        "parts": {name: name for name in _CHANGING},
        "encoder": dataclasses.asdict(encoder.config),
        "search": dataclasses.asdict(config),
        "fingerprints": {"encoder": encoder.fingerprint, "docids": tree.fingerprint},
        "versions": package_versions(),
        "files": _hashes(folder, _PARTS),
    }
    write_json(folder / "manifest.json", manifest)


def write_search_config(folder: Path, config: SearchConfig) -> None:
    """Replace the search config of an index on disk."""
    manifest = read_manifest(folder)
    write_json(folder / "manifest.json", {**manifest, "search": dataclasses.asdict(config)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an index, after checking every file against it.

    Raises:
        FileNotFoundError: no finished index, or a file is missing.
        ValueError: another format version, or a file was altered or truncated.
    """
    recover_folder(folder)
    path = folder / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no finished index (no manifest.json); name the folder that `dsi train --output` wrote."
        )
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if manifest["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {manifest['format_version']}, this version reads {FORMAT_VERSION}; "
            "install the version that wrote it or train again."
        )
    for name, expected in manifest["files"].items():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing from the index; restore it or train again.")
        if sha256(folder / name) != expected:
            raise ValueError(
                f"{folder / name} was altered or truncated since it was written; restore it or train again."
            )
    return manifest


def check_no_updates(folder: Path, *, discard: bool = False) -> None:
    """Raise ValueError if documents were added to the index in `folder`, or removed: training again would undo that.

    Args:
        folder: of a run, new or not.
        discard: remove what the updates wrote instead; the docids are built again then.
    """
    path = folder / "manifest.json"
    generation = json.loads(path.read_text(encoding="utf-8")).get("generation", 1) if path.exists() else 1
    if generation > 1 and not discard:
        raise ValueError(
            f"{folder} was updated since it was trained (generation {generation}); training again would drop the added "
            "documents and bring back the removed ones. Train into another folder, or say that the updates may go "
            "(--discard-updates, discard_updates=True)."
        )
    if generation > 1:
        path.unlink(missing_ok=True)
        _remove_generations(folder, _CHANGING)


def load_index(
    folder: Path, device: str | None
) -> tuple[Encoder, DocidTree, Generator, datasets.Dataset, SearchConfig, Lexical | None]:
    """Load the parts of an index and its search config, after checking every file."""
    manifest = read_manifest(folder)
    encoder = load_encoder(folder, EncoderConfig(**manifest["encoder"]), device)
    tree, documents = load_docids(part(folder, manifest, "docids"))
    generator = load_generator(folder / "generator", encoder.model.device)
    check_binding(manifest, encoder, tree)
    lexical = load_lexical(part(folder, manifest, "lexical"), documents["doc_id"], device)
    return encoder, tree, generator, documents, search_config(manifest), lexical


def part(folder: Path, manifest: dict[str, Any], name: str) -> Path:
    """Return the folder of a part of the index in its current generation."""
    return folder / manifest["parts"].get(name, name)


def write_update(
    folder: Path, encoder: Encoder, tree: DocidTree, documents: datasets.Dataset, lexical: Lexical | None
) -> int:
    """Replace docids, document table and lexical part of an index on disk; writing the manifest makes the switch.

    Returns:
        The new generation.

    Raises:
        ValueError: the index has another encoder, or docids that these were not updated from.
    """
    manifest = read_manifest(folder)
    before, _ = load_docids(part(folder, manifest, "docids"))
    if (
        manifest["fingerprints"]["encoder"] != encoder.fingerprint
        or before.origin_fingerprint != tree.origin_fingerprint
    ):
        raise ValueError(f"{folder} is not the index that was updated: its encoder or docids differ.")
    generation = manifest["generation"] + 1
    parts = {name: f"{name}-{generation}" for name in _CHANGING}
    with replace_folder(folder / parts["docids"]) as partial:
        save_docids(tree, documents, partial, texts=True)
    if lexical:
        with replace_folder(folder / parts["lexical"]) as partial:
            lexical.save(partial)
    old = set(manifest["parts"].values())
    files = {name: digest for name, digest in manifest["files"].items() if name.split("/")[0] not in old}
    fingerprints = {**manifest["fingerprints"], "docids": tree.fingerprint}
    write_json(
        folder / "manifest.json",
        {
            **manifest,
            "generation": generation,
            "parts": parts,
            "fingerprints": fingerprints,
            "files": {**files, **_hashes(folder, list(parts.values()))},
        },
    )
    _remove_generations(folder, parts.values())
    return int(generation)


def _remove_generations(folder: Path, keep: Collection[str]) -> None:
    """Remove the parts of other generations, and the leftovers of killed updates."""
    for path in folder.iterdir():
        if path.is_dir() and path.name.lstrip(".").startswith(_CHANGING) and path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _hashes(folder: Path, parts: Sequence[str]) -> dict[str, str]:
    files = sorted(path for name in parts for path in (folder / name).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def content_fingerprint(manifest: dict[str, Any]) -> str:
    """Return one digest of all files of an index; the search config is not part of it."""
    return digest(manifest["files"])


def search_config(manifest: dict[str, Any]) -> SearchConfig:
    """Return the search config in a manifest."""
    record = manifest["search"]
    return SearchConfig(**{**record, "beta": float(record["beta"])})  # JSON has no infinity; it is stored as "inf"


def check_binding(manifest: dict[str, Any], encoder: Encoder, tree: DocidTree) -> None:
    """Raise ValueError unless encoder and docids are those of the manifest (the generator checks its docids itself)."""
    for part, found in (("encoder", encoder.fingerprint), ("docids", tree.fingerprint)):
        expected = manifest["fingerprints"][part]
        if found != expected:
            raise ValueError(
                f"manifest.json and {part} do not belong together: the manifest names {expected[:12]}, "
                f"{part} is {found[:12]}; restore the one that was replaced."
            )
