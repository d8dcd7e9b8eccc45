"""Writes an index to its folder: whole, or what an update has changed. The manifest is written last, in one step."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.checks import folder_to_replace
from dsi.docids.files.reading import folder_sums, read_record
from dsi.docids.files.storage import (
    beside,
    link,
    link_files,
    no_index,
    recover_folder,
    remove,
    replace_folder,
    writing_to,
)
from dsi.docids.tree import DocidTree
from dsi.search.request import SearchConfig
from dsi.store.folder.loading import TOKENS, index_state, load_tree
from dsi.store.folder.manifest import (
    FORMAT_VERSION,
    MOST_GENERATIONS,
    PARTS,
    part,
    read_entries,
    read_manifest,
    search_config,
)
from dsi.store.folder.verify import write_manifest_file
from dsi.store.folder.versions import package_versions
from dsi.store.snapshot import Snapshot
from dsi.store.updating import CHANGING, Content, changed_parts

_OF_DOCUMENTS = ("pseudo_queries", "states", "checkpoints")
"""What training leaves that is made of documents' texts; an update that removes a document removes it."""
_OF_TRAINING = (
    *PARTS, *_OF_DOCUMENTS, "manifest.json", "config.toml", "tuning.json", "docids.tsv", ".lock",
    ".manifest.json.partial",
)  # fmt: skip
"""What a run holds that belongs to its index."""
_GENERATION = re.compile(r"docids|lexical|memory|\.?(?:docids|lexical|memory)-(\d+)(?:\.partial|\.previous)?")
"""Names of such folders, and of what a kill leaves of them."""
_LEFT = frozenset(f".{name}.{role}" for name in (*PARTS, *_OF_DOCUMENTS) for role in ("partial", "previous"))
"""Names of what a kill leaves of a training."""


class ChangedError(ValueError):
    """The index on disk is not the one that was loaded."""


def save_docids(tree: DocidTree, documents: pa.Table, folder: Path) -> None:
    """Write the tree and the document table into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    if tree.tokens:
        tree.tokens.save(folder / TOKENS)
    with pa.OSFile(str(folder / "documents.arrow"), "wb") as sink, pa.ipc.new_stream(sink, documents.schema) as writer:
        writer.write_table(documents)


def replace_index(folder: Path, index: Snapshot) -> None:
    """Write a whole index; it replaces one in this place with what training left of that. Rerankers and other files stay."""
    with replace_folder(folder) as new:
        save_encoder(index.encoder, new / "encoder")
        if index.generator:
            from dsi.contrastive.encoder import quiet_transformers

            with quiet_transformers():
                index.generator.save_pretrained(str(new / "generator"))
        if index.lexical:
            index.lexical.save(new / "lexical")
        index.memory.save(new / "memory")
        save_docids(index.tree, index.documents.table, new / "docids")
        is_as_made = index.generation == 1 and index.tree.fingerprint == index.tree.origin_fingerprint
        generation = 1 if is_as_made else 2  # training must not drop updates
        write_manifest(new, index.encoder, index.tree, settings_of(index, config=True), generation)
        for entry in folder.iterdir() if folder.exists() else ():
            if entry.name in _OF_TRAINING or _GENERATION.fullmatch(entry.name):
                continue
            if entry.is_symlink():
                (new / entry.name).symlink_to(entry.readlink(), target_is_directory=entry.is_dir())
            else:
                (link_files if entry.is_dir() else link)(entry, new / entry.name)


def save_encoder(encoder: TextEncoder, folder: Path) -> None:
    """Write an encoder into a folder of an index, with its graph if `dsi.graph` is there."""
    encoder.save(folder)
    if find_spec("dsi.graph"):
        from dsi.graph import add_graph

        add_graph(encoder, folder)


def index_to_replace(folder: str | Path) -> Path:
    """Return the whole path of a folder that is new or empty, or holds an index; refuses the current one and those above."""
    return folder_to_replace(folder, "folder", lambda entry: (entry.parent / "manifest.json").exists()).resolve()


def write_manifest(
    folder: Path, encoder: TextEncoder, tree: DocidTree, entries: dict[str, Any], generation: int = 1
) -> None:
    """Write the manifest, which binds the parts in `folder` to each other; `entries`: its search config and the like."""
    manifest = {
        "format_version": FORMAT_VERSION,
        "generation": generation,
        "parts": {name: name for name in CHANGING},
        "encoder": dataclasses.asdict(encoder.config),
        "fingerprints": {"encoder": encoder.fingerprint, "docids": tree.fingerprint},
        "versions": package_versions(),
        **entries,
        "files": _hashes(folder, PARTS),
    }
    write_manifest_file(folder, manifest)


def write_entries(folder: Path, entries: dict[str, Any]) -> None:
    """Replace entries in the manifest of an index on disk."""
    with index_lock(folder):
        write_manifest_file(folder, {**read_manifest(folder), **entries})


def settings_of(index: Snapshot, *, config: bool) -> dict[str, Any]:
    """Return the entries of a manifest for best scores, and perhaps for the search config."""
    entries = search_entries(index.search_config, index.configured) if config else {}
    return {**entries, "best_scores": index.best_scores and dataclasses.asdict(index.best_scores)}


def search_entries(config: SearchConfig, configured: SearchConfig | None = None) -> dict[str, Any]:
    """Return the entries of a manifest for a search config, and for what it was before it was tuned, by default the same."""
    return {"search": dataclasses.asdict(config), "configured": dataclasses.asdict(configured or config)}


@contextmanager
def index_lock(folder: Path) -> Iterator[None]:
    """Lock an index on disk against other writers; waits for them."""
    recover_folder(folder)
    if not (folder / "manifest.json").exists():  # no lock is left without an index
        raise FileNotFoundError(no_index(folder))
    with writing_to(folder):
        yield


def is_whole(folder: Path) -> bool:
    """True if a folder holds a finished index with all its files as they were written."""
    try:
        read_manifest(folder)
    except (FileNotFoundError, ValueError):
        return False
    return True


def generation_of(folder: Path) -> int:
    """Return the generation of the index in `folder`, new or not: above 1 if documents were added, or removed."""
    updates = [int(match[1]) for entry in folder.glob("*-*") if (match := _GENERATION.fullmatch(entry.name))]
    # without a manifest the folders tell
    return int(read_record(folder / "manifest.json").get("generation", max(updates, default=1)))


def check_no_updates(folder: Path, *, discard: bool = False) -> None:
    """Raise ValueError if the index in `folder`, new or not, was updated: training again would undo that.

    With `discard` updates may go; they stay until training replaces a part of the index. What a killed update left is removed.
    """
    generation = generation_of(folder)
    if generation > 1 and not discard:
        raise ValueError(
            f"{folder} was updated since it was made (generation {generation}); making it again would drop the added "
            "documents, bring back the removed ones and forget what it learned. `dsi update` takes new documents; else use "
            "another folder, or say that the updates may go (--discard-updates, discard_updates=True)."
        )
    if generation == 1 and folder.exists():
        _remove_generations(folder, CHANGING)


def retire(folder: Path) -> None:
    """Make `folder` no index until a manifest is written again, and remove what updates wrote; parts of generation 1 stay."""
    (folder / "manifest.json").unlink(missing_ok=True)
    _remove_generations(folder, CHANGING)


def check_known(folder: Path, known: Collection[str], configs: Collection[SearchConfig] = ()) -> None:
    """Raise ChangedError if the index in `folder` is in none of the states that the caller's index was made from.

    With `configs` also if it has none of these search configs, as it was tuned since.
    """
    if index_state(folder) not in known or (configs and search_config(read_manifest(folder)) not in configs):
        generation = read_record(folder / "manifest.json").get("generation")
        raise ChangedError(
            f"{folder} (generation {generation} now) was changed since this index was loaded from it or saved to it; saving "
            "would undo that. Load the index again, repeat your changes, and save then."
        )


def write_update(folder: Path, index: Snapshot, held: Content | None, *, config: bool = False) -> None:
    """Replace the parts of an index on disk that have changed, and perhaps its search config; the manifest makes the switch.

    Nobody else writes to the folder; `held`: what it holds of these parts, None if that is not known.
    """
    # 1) Compare the index on disk with these parts.
    tree, documents, lexical, memory, _ = index.content
    changed = changed_parts(index.content, held)
    manifest, left = read_entries(folder / "manifest.json"), tuple[str, ...]()
    if "docids" in changed:
        left = _of_removed(folder, manifest, tree)
    generation = manifest["generation"] + 1
    if generation > MOST_GENERATIONS:
        raise ValueError(f"{folder} can be updated no more, it is in its last generation; save it to another folder.")
    # 2) Write the new parts beside the old ones, and remove what may hold removed documents.
    new = {name: f"{name}-{generation}" for name in changed}
    if "docids" in new:
        with replace_folder(folder / new["docids"]) as partial:
            save_docids(tree, documents, partial)
    if "lexical" in new and lexical:
        with replace_folder(folder / new["lexical"]) as partial:
            lexical.save(partial)
    if "memory" in new:
        with replace_folder(folder / new["memory"]) as partial:
            memory.save(partial, part(folder, manifest, "memory"))
    for name in (*_LEFT, *left):
        remove(folder / name)
    remove(beside(folder, "partial"))
    # 3) Switch, and remove the old parts.
    old = {manifest["parts"].get(name, name) for name in changed}
    files = {name: digest for name, digest in manifest["files"].items() if name.split("/")[0] not in old}
    blocks = _block_sums(part(folder, manifest, "memory"), manifest)
    files |= {name: sha for part_name in new.values() for name, sha in _hashes(folder, [part_name], blocks).items()}
    parts = {name: manifest["parts"].get(name, name) for name in CHANGING} | new
    fingerprints = {**manifest["fingerprints"], "docids": tree.fingerprint}
    entries = {"generation": generation, "parts": parts, "fingerprints": fingerprints, "files": files}
    write_manifest_file(folder, {**manifest, **entries, **settings_of(index, config=config)})
    _remove_generations(folder, parts.values())


def _of_removed(folder: Path, manifest: dict[str, Any], tree: DocidTree) -> tuple[str, ...]:
    """Return what of the index on disk may hold documents that an update to `tree` removes."""
    before = load_tree(part(folder, manifest, "docids"))  # of both, the places that have a document of the training
    now, then = (np.count_nonzero(side.trained[side.num_inner :] & (side.doc_rows >= 0)) for side in (tree, before))
    return () if now == then else _OF_DOCUMENTS


def _block_sums(memory: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """Return {name of a file: sha256} of the blocks of a memory, which are linked where they stay as they are."""
    files = ((Path(name), sha) for name, sha in manifest["files"].items())
    return {path.name: sha for path, sha in files if path.parent.name == memory.name and path.suffix == ".safetensors"}


def _remove_generations(folder: Path, keep: Collection[str]) -> None:
    """Remove the parts of other generations, and the leftovers of killed updates."""
    for path in folder.iterdir():
        if _GENERATION.fullmatch(path.name) and path.name not in keep:
            remove(path)


def _hashes(folder: Path, parts: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    return {f"{name}/{file}": sha for name in parts for file, sha in folder_sums(folder / name, known).items()}
