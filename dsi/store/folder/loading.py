"""Reads the parts of an index from its folder.

An index folder holds `encoder/` (sentence-transformers), `docids/` (the tree, and the document table as Arrow), `memory/`
(what it has learned from use), optionally `generator/` (config.json, model.safetensors, and `language_model/` where it reads
texts) and `lexical/`, and `manifest.json`: format version, search config, package versions, the sha256 of every file, and the
fingerprints that bind models, docids and generator to each other. `dsi.store.folder.verify` judges a folder; after it the
parts are read as they are. Knows nothing of searching.
"""

import dataclasses
import os
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.devices import check_device, has_gpu
from dsi.contrastive.model_files import offline
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.records import COLUMNS
from dsi.docids.data.tables import Column
from dsi.docids.extensions import extension_room
from dsi.docids.files.checks import plain, user_path
from dsi.docids.files.reading import RESTORE, MappedFile, read_record, read_while_unchanged, reading
from dsi.docids.files.storage import content_fingerprint, recover_folder
from dsi.docids.query_memory import QueryMemory
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import load_lexical
from dsi.search.best_scores import BestScores
from dsi.store.folder.manifest import PARTS, has_generator, part, search_config
from dsi.store.folder.verify import verify
from dsi.store.snapshot import Snapshot
from dsi.store.updating import Content

TOKENS = "tokens.safetensors"
"""In `docids/`: the token vectors, if the index has them."""
_DTYPES = ("float32", "bfloat16")
"""Of encoder and decoder in search."""
_MAPPED = tuple(name for name in PARTS if name != "memory")  # which is read


class OnDisk(NamedTuple):
    """An index that was loaded, or written, with its `index_state` and its files that are mapped into memory."""

    folder: Path
    state: str
    snapshot: Snapshot
    mapped: tuple[MappedFile, ...] = ()


def load_docids(folder: Path) -> tuple[DocidTree, pa.Table]:
    """Load the tree and the document table; the table stays on disk."""
    return load_tree(folder), load_documents(folder / "documents.arrow")


def load_tree(folder: Path) -> DocidTree:
    """Load the tree of a folder of docids, with its token vectors if it has any."""
    tree = DocidTree.load(folder / "docids.safetensors")
    if (folder / TOKENS).exists():
        tree = dataclasses.replace(tree, tokens=TokenVectors.load(folder / TOKENS, tree.num_places))
    return tree


def load_encoder(folder: Path, config: EncoderConfig, device: str | None, dtype: str = "float32") -> TextEncoder:
    """Load the encoder that the generator reads: its own if they were trained together, else the one in `encoder/`.

    Its graph computes it on the CPU in float32 where there is one, and torch otherwise.
    """
    trained_together = folder / "generator" / "encoder"
    place = trained_together if trained_together.exists() else folder / "encoder"
    if find_spec("dsi.graph") and dtype == "float32" and (device == "cpu" or (device is None and not has_gpu())):
        from dsi.graph.encoder import GraphEncoder, has_graph

        if has_graph(place):
            return GraphEncoder.load(place, config)
    try:
        from dsi.contrastive.encoder import Encoder
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The encoder in {place} needs {error.name}, as it has no graph, or is asked for on a GPU or in another type; run "
            "pip install dr-scl.",
            name=error.name,
        ) from None
    return Encoder.load(config, place, device)


def load_content(folder: Path, manifest: dict[str, Any]) -> Content:
    """Load what updates change, in the generation of a manifest: docids, document table, lexical part and memory."""
    tree, documents = load_docids(part(folder, manifest, "docids"))
    lexical = load_lexical(part(folder, manifest, "lexical"), Column(documents["doc_id"]))
    memory, best = QueryMemory.load(part(folder, manifest, "memory")), manifest.get("best_scores")
    return Content(tree, documents, lexical, memory, BestScores.from_manifest(best))


def load_index(folder: Path, device: str | None, dtype: str = "float32") -> OnDisk:
    """Load the parts of an index and its search config, after `verify` has judged it.

    An update that replaces the index meanwhile is loaded instead, and so is an index that is saved over this one.
    """
    if plain(str, dtype, "dtype") not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")

    def changing() -> tuple[dict[str, Any], Content, tuple[MappedFile, ...]]:
        """Load what updates change, which may come without a pause."""
        manifest = verify(folder)
        with reading(folder):
            return manifest, load_content(folder, manifest), mapped_files(folder)

    def whole() -> OnDisk:
        """Load the rest too, which only another index in this place changes."""
        manifest, content, mapped = read_while_unchanged(folder / "manifest.json", changing)
        snapshot = read_index(folder, manifest, content, device, dtype)
        return OnDisk(folder.resolve(), content_fingerprint(manifest), snapshot, mapped)

    return read_while_unchanged(folder, whole)


def read_index(
    folder: Path, manifest: dict[str, Any], content: Content, device: str | None, dtype: str = "float32"
) -> Snapshot:
    """Read the models of an index that was judged before, and join them to its content."""
    check_device(device)
    with reading(folder, ImportError):
        encoder = load_encoder(folder, EncoderConfig(**manifest["encoder"]), device, dtype)
        generator = _load_generator(folder / "generator", encoder.device) if has_generator(manifest) else None
    check_binding(manifest, encoder, content.tree)
    configs = search_config(manifest), search_config(manifest, "configured")
    try:
        snapshot = Snapshot.from_parts(encoder, generator, content, *configs, dtype)
    except ValueError as error:
        raise ValueError(f"{folder}: its parts do not belong together: {error}") from None
    return dataclasses.replace(snapshot, generation=manifest["generation"])


def _load_generator(folder: Path, device: Any) -> Any:
    with extension_room(), offline():
        from dsi.generator.kinds import load_generator

        return load_generator(folder, device)


def mapped_files(folder: Path) -> tuple[MappedFile, ...]:
    """Return the files of arrays and tables of an index, which are mapped into memory, as they are now."""
    mapped = []
    for where, below, names in os.walk(folder):  # which passes over a folder that an update has removed
        if Path(where) == folder:
            below[:], names = [name for name in below if name.startswith(_MAPPED)], []
        for path in (Path(where) / name for name in names):
            if path.suffix in (".safetensors", ".arrow"):
                with suppress(FileNotFoundError):  # an update has removed it
                    mapped.append(MappedFile.at(path))
    return tuple(mapped)


def index_state(folder: Path) -> str:
    """Return a digest that changes with every update of the index in `folder`; empty without an index."""
    manifest = read_record(folder / "manifest.json")
    return content_fingerprint(manifest) if "files" in manifest else ""


def load_documents(path: Path) -> pa.Table:
    """Return the document table in a file; it stays on disk."""
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all().replace_schema_metadata(None)
    if missing := [name for name in COLUMNS if name != "text" and name not in table.column_names]:
        raise ValueError(f"{path} has no column {missing[0]}; {RESTORE}.")
    return table


def index_folder(name: str | Path, revision: str | None, token: str | bool | None) -> Path:
    """Return the folder of an index: `name` itself, or a download where none is there and it has the form "user/name".

    A name in a folder that is there is a mistyped path, unless a revision is given.
    """
    folder = user_path(name)
    recover_folder(folder)
    may_be_named = isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    if not folder.exists() and may_be_named and (revision is not None or not folder.parent.is_dir()):
        from dsi.hub import download

        return download(str(name), revision, token)
    if revision is not None:
        raise ValueError(f"{name} is a folder, which has no revisions, got revision {revision!r}; leave it out.")
    return folder


def check_binding(manifest: dict[str, Any], encoder: TextEncoder, tree: DocidTree) -> None:
    """Raise ValueError unless models and docids are those of the manifest (the generator checks its docids itself)."""
    for name, fingerprint in (("encoder", encoder.fingerprint), ("docids", tree.fingerprint)):
        expected = str(manifest["fingerprints"].get(name, "none"))
        if fingerprint != expected:
            raise ValueError(
                f"manifest.json and {name} do not belong together: the manifest names {expected[:12]}, "
                f"{name} is {fingerprint[:12]}; restore the one that was replaced."
            )
