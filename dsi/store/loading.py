"""An index on disk: its parts, and the manifest that binds them.

An index folder holds `encoder/` (sentence-transformers), `docids/` (the tree, and the document table as Arrow), `memory/`
(what it has learned from use), optionally `generator/` (config.json, model.safetensors, and `language_model/` where it reads
texts), `lexical/` and `token_model/` (a multi-vector model), and `manifest.json`: format version, search config, package
versions, the sha256 of every file, and the fingerprints that bind models, docids and generator to each other.
`dsi.store.verify` judges a folder; after it the parts are read as they are. Knows nothing of searching.
"""

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.devices import check_device, has_gpu
from dsi.contrastive.graph import GraphEncoder, has_graph
from dsi.contrastive.model_files import offline
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.records import COLUMNS
from dsi.docids.data.tables import Column
from dsi.docids.files.checks import folder_to_replace, user_path
from dsi.docids.files.reading import RESTORE, MappedFile, folder_sums, read_record, read_while_unchanged, reading
from dsi.docids.files.storage import (
    beside,
    content_fingerprint,
    link,
    link_files,
    no_index,
    recover_folder,
    remove,
    replace_folder,
    writing_to,
)
from dsi.docids.query_memory import QueryMemory
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25, load_lexical
from dsi.search.best_scores import BestScores
from dsi.search.request import SearchConfig
from dsi.store.updating import Content, changed_parts
from dsi.store.verify import (
    CHANGING,
    FORMAT_VERSION,
    MOST_GENERATIONS,
    PARTS,
    has_generator,
    part,
    read_entries,
    read_manifest,
    search_config,
    verify,
    write_manifest_file,
)
from dsi.store.versions import package_versions, threads

if TYPE_CHECKING:
    from dsi.generator.base import Generator

_TOKENS = "tokens.safetensors"
"""In `docids/`: the token vectors, if the index has them."""
_TOKEN_MODEL = "token_model"
_OF_DOCUMENTS = ("pseudo_queries", "states", "checkpoints")
"""What training leaves that is made of documents' texts; an update that removes a document removes it."""
_OF_TRAINING = (
    *PARTS, *_OF_DOCUMENTS, "manifest.json", "config.toml", "threads.json", "tuning.json", "docids.tsv", "logs", ".lock",
    ".manifest.json.partial",
)  # fmt: skip
"""What a run holds that belongs to its index."""
_GENERATION = re.compile(r"docids|lexical|memory|\.?(?:docids|lexical|memory)-(\d+)(?:\.partial|\.previous)?")
"""Names of such folders, and of what a kill leaves of them."""
_LEFT = frozenset(f".{name}.{role}" for name in (*PARTS, *_OF_DOCUMENTS) for role in ("partial", "previous"))
"""Names of what a kill leaves of a training."""
_MAPPED = tuple(name for name in PARTS if name != "memory")  # which is read


class ChangedError(ValueError):
    """The index on disk is not the one that was loaded."""


Parts: TypeAlias = tuple[
    TextEncoder, DocidTree, "Generator | None", pa.Table, SearchConfig, BM25 | None, QueryMemory, BestScores | None
]


# Writing and reading the parts.


def save_docids(tree: DocidTree, documents: pa.Table, folder: Path) -> None:
    """Write the tree and the document table into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    if tree.tokens:
        tree.tokens.save(folder / _TOKENS)
    with pa.OSFile(str(folder / "documents.arrow"), "wb") as sink, pa.ipc.new_stream(sink, documents.schema) as writer:
        writer.write_table(documents)


def load_docids(folder: Path) -> tuple[DocidTree, pa.Table]:
    """Load the tree and the document table; the table stays on disk.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file was altered, or they are of different documents.
    """
    tree, documents = load_tree(folder), load_documents(folder / "documents.arrow")
    if tree.num_rows != len(documents):
        raise ValueError(
            f"{folder}: the docids cover {tree.num_rows} documents, the document table has {len(documents)}; {RESTORE}."
        )
    return tree, documents


def load_tree(folder: Path) -> DocidTree:
    """Load the tree of a folder of docids, with its token vectors if it has any."""
    tree = DocidTree.load(folder / "docids.safetensors")
    if (folder / _TOKENS).exists():
        tree = dataclasses.replace(tree, tokens=TokenVectors.load(folder / _TOKENS, tree.num_places))
    return tree


def load_encoder(folder: Path, config: EncoderConfig, device: str | None, dtype: str = "float32") -> TextEncoder:
    """Load the encoder that the generator reads: its own if they were trained together, else the one in `encoder/`.

    Its graph computes it on the CPU in float32 where there is one, and torch otherwise. With it comes the multi-vector model
    in `token_model/`, if the index has one.

    Raises:
        ModuleNotFoundError: torch is needed and not installed.
    """
    trained_together = folder / "generator" / "encoder"
    own = trained_together if trained_together.exists() else folder / "encoder"
    encoder: TextEncoder
    if dtype == "float32" and has_graph(own) and (device == "cpu" or (device is None and not has_gpu())):
        encoder = GraphEncoder.load(own, config)
    else:
        encoder = _encoder_by_torch(own, config, device)
    if (folder / _TOKEN_MODEL).exists():
        from dsi.contrastive.multi_vector import MultiVectorModel

        encoder.token_model = MultiVectorModel.load("", folder / _TOKEN_MODEL, device)
    return encoder


def _encoder_by_torch(folder: Path, config: EncoderConfig, device: str | None) -> TextEncoder:
    try:
        from dsi.contrastive.encoder import Encoder
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The encoder in {folder} needs {error.name}, as it has no graph, or is asked for on a GPU or in another type; run "
            "pip install dr-scl.",
            name=error.name,
        ) from None
    return Encoder.load(config, folder, device)


def replace_index(
    folder: Path,
    encoder: TextEncoder,
    generator: "Generator | None",
    config: SearchConfig,
    content: Content,
    configured: SearchConfig | None = None,
) -> None:
    """Write a whole index; it replaces one in this place with what training left of that. Rerankers and other files stay."""
    tree, documents, lexical, memory, best_scores = content
    with replace_folder(folder) as new:
        encoder.save(new / "encoder")
        if encoder.token_model:
            encoder.token_model.save(new / _TOKEN_MODEL)
        if generator:
            from dsi.contrastive.encoder import quiet_transformers

            with quiet_transformers():
                generator.save_pretrained(str(new / "generator"))
        if lexical:
            lexical.save(new / "lexical")
        memory.save(new / "memory")
        save_docids(tree, documents, new / "docids")
        write_manifest(new, encoder, tree, config, configured=configured, best_scores=best_scores)
        for entry in folder.iterdir() if folder.exists() else ():
            if entry.name in _OF_TRAINING or _GENERATION.fullmatch(entry.name):
                continue
            if entry.is_symlink():
                (new / entry.name).symlink_to(entry.readlink(), target_is_directory=entry.is_dir())
            else:
                (link_files if entry.is_dir() else link)(entry, new / entry.name)


def index_to_replace(folder: str | Path) -> Path:
    """Return the whole path of a folder that is new or empty, or holds an index.

    Raises:
        FileExistsError: it holds other files and no index.
        ValueError: it is the current folder, or one above that.
    """
    return folder_to_replace(folder, "folder", lambda entry: (entry.parent / "manifest.json").exists()).resolve()


def write_manifest(
    folder: Path, encoder: TextEncoder, tree: DocidTree, config: SearchConfig, seed: int | None = None,
    configured: SearchConfig | None = None, best_scores: BestScores | None = None,
) -> None:  # fmt: skip
    """Write the manifest, which binds the parts in `folder` to each other; it is written last and read first.

    `seed` is that of the training; None for a copy, whose parts a process may have got from anywhere. `configured` says how the
    index was searched before it was tuned, by default as now.
    """
    manifest = {
        "format_version": FORMAT_VERSION,
        "generation": 1 if tree.fingerprint == tree.origin_fingerprint else 2,  # training must not drop updates
        "parts": {name: name for name in CHANGING},
        "encoder": dataclasses.asdict(encoder.config),
        **_search_entries(config, configured),
        "best_scores": best_scores and dataclasses.asdict(best_scores),
        "fingerprints": {**_fingerprints(encoder), "docids": tree.fingerprint},
        "versions": package_versions(),
        "threads": threads(),
        "seed": seed,
        "files": _hashes(folder, PARTS),
    }
    write_manifest_file(folder, manifest)


def write_search_config(folder: Path, config: SearchConfig, configured: SearchConfig | None = None) -> None:
    """Replace the search config of an index on disk; `configured` is how it was before tuning, by default the same."""
    with updating(folder):
        write_manifest_file(folder, {**read_manifest(folder), **_search_entries(config, configured)})


def _search_entries(config: SearchConfig, configured: SearchConfig | None) -> dict[str, Any]:
    return {"search": dataclasses.asdict(config), "configured": dataclasses.asdict(configured or config)}


@contextmanager
def updating(folder: Path) -> Iterator[None]:
    """Lock an index on disk against other writers; waits for them.

    Raises:
        FileNotFoundError: no finished index.
    """
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
    """Raise ValueError if the index in `folder` was updated: training again would undo that.

    Args:
        folder: of a run, new or not; what a killed update left there is removed.
        discard: allow training to drop the updates. They stay until training replaces a part of the index.
    """
    generation = generation_of(folder)
    if generation > 1 and not discard:
        raise ValueError(
            f"{folder} was updated since it was trained (generation {generation}); training again would drop the added "
            "documents, bring back the removed ones and forget what it learned. Train into another folder, or say that the "
            "updates may go (--discard-updates, discard_updates=True)."
        )
    if generation == 1 and folder.exists():
        _remove_generations(folder, CHANGING)


def retire(folder: Path) -> None:
    """Make `folder` no index until a manifest is written again, and remove what updates wrote; parts of generation 1 stay."""
    (folder / "manifest.json").unlink(missing_ok=True)
    _remove_generations(folder, CHANGING)


def load_content(folder: Path, manifest: dict[str, Any], device: str | None) -> Content:
    """Load what updates change, in the generation of a manifest: docids, document table, lexical part and memory."""
    tree, documents = load_docids(part(folder, manifest, "docids"))
    lexical = load_lexical(part(folder, manifest, "lexical"), Column(documents["doc_id"]))
    memory, best = QueryMemory.load(part(folder, manifest, "memory")), manifest.get("best_scores")
    return Content(tree, documents, lexical, memory, BestScores.from_manifest(best))


class Loaded(NamedTuple):
    """An index that was loaded.

    Attributes:
        parts: the arguments of a retriever.
        configured: how it was searched before it was tuned.
        state: the `index_state`.
        mapped: its files that are mapped into memory.
    """

    parts: Parts
    configured: SearchConfig
    state: str
    mapped: tuple[MappedFile, ...]


def load_index(folder: Path, device: str | None, dtype: str = "float32") -> Loaded:
    """Load the parts of an index and its search config, after `verify` has judged it.

    An update that replaces the index meanwhile is loaded instead, and so is an index that is saved over this one.
    """

    def changing() -> tuple[dict[str, Any], Content, tuple[MappedFile, ...]]:
        """Load what updates change, which may come without a pause."""
        manifest = verify(folder)
        with reading(folder):
            return manifest, load_content(folder, manifest, device), mapped_files(folder)

    def whole() -> Loaded:
        """Load the rest too, which only another index in this place changes."""
        manifest, content, mapped = read_while_unchanged(folder / "manifest.json", changing)
        config, configured = search_config(manifest), search_config(manifest, "configured")
        parts = read_index(folder, manifest, content, config, device, dtype)
        return Loaded(parts, configured, content_fingerprint(manifest), mapped)

    return read_while_unchanged(folder, whole)


def read_index(
    folder: Path,
    manifest: dict[str, Any],
    content: Content,
    config: SearchConfig,
    device: str | None,
    dtype: str = "float32",
) -> Parts:
    """Read the models of an index that was judged before, and join them to its content.

    Raises:
        ValueError: parts do not belong together.
    """
    tree, documents, lexical, memory, best_scores = content
    check_device(device)
    with reading(folder, ImportError):
        encoder = load_encoder(folder, EncoderConfig(**manifest["encoder"]), device, dtype)
        generator = None
        if has_generator(manifest):
            from dsi.generator.kinds import load_generator

            with offline():
                generator = load_generator(folder / "generator", encoder.device)
    check_binding(manifest, encoder, tree)
    _check_fit(folder, encoder, tree, generator)
    return encoder, tree, generator, documents, config, lexical, memory, best_scores


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


def write_update(
    folder: Path,
    known: Collection[str],
    encoder: TextEncoder,
    content: Content,
    held: Content | None = None,
) -> int:
    """Replace the parts of an index on disk that have changed; writing the manifest makes the switch.

    Nobody else writes to `folder`. `known` are the states of the index that these parts were made from, `held` is what it holds
    on disk; None if that is not known. Returns the new generation.

    Raises:
        ChangedError: the index has another encoder, docids that these were not updated from, or it is in another state.
        ValueError: it was updated as often as a manifest may say.
    """
    # 1) Compare the index on disk with these parts.
    tree, documents, lexical, memory, best_scores = content
    changed = changed_parts(content, held)
    manifest, left = read_entries(folder / "manifest.json"), tuple[str, ...]()
    if "docids" in changed:
        left = _of_removed(folder, encoder, tree)
    check_known(folder, known)
    generation = manifest["generation"] + 1
    if generation > MOST_GENERATIONS:
        raise ValueError(
            f"{folder} can be updated no more, it is in its last generation; save it with save_pretrained."
        )
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
    _remove_left(folder, left)
    # 3) Switch, and remove the old parts.
    old = {manifest["parts"].get(name, name) for name in changed}
    files = {name: digest for name, digest in manifest["files"].items() if name.split("/")[0] not in old}
    blocks = _block_sums(part(folder, manifest, "memory"), manifest)
    files |= {name: own for part_name in new.values() for name, own in _hashes(folder, [part_name], blocks).items()}
    parts = {name: manifest["parts"].get(name, name) for name in CHANGING} | new
    fingerprints = {**manifest["fingerprints"], "docids": tree.fingerprint}
    entries = {"generation": generation, "parts": parts, "fingerprints": fingerprints, "files": files}
    write_manifest_file(folder, {**manifest, **entries, "best_scores": best_scores and dataclasses.asdict(best_scores)})
    _remove_generations(folder, parts.values())
    return int(generation)


def _of_removed(folder: Path, encoder: TextEncoder, tree: DocidTree) -> tuple[str, ...]:
    """Return what may hold documents that an update removes, after comparing the models and docids of the index with it.

    Raises:
        ChangedError: they differ.
    """
    manifest = read_manifest(folder)
    before = load_tree(part(folder, manifest, "docids"))
    models = {name: value for name, value in manifest["fingerprints"].items() if name in ("encoder", _TOKEN_MODEL)}
    if models != _fingerprints(encoder) or before.origin_fingerprint != tree.origin_fingerprint:
        raise ChangedError(f"{folder} is not the index that was updated: its encoder or docids differ.")
    return () if _trained_documents(tree) == _trained_documents(before) else _OF_DOCUMENTS


def _block_sums(memory: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """Return {name of a file: sha256} of the blocks of a memory, which are linked where they stay as they are."""
    files = ((Path(name), own) for name, own in manifest["files"].items())
    return {path.name: own for path, own in files if path.parent.name == memory.name and path.suffix == ".safetensors"}


def _trained_documents(tree: DocidTree) -> int:
    """Return how many places have the document that the decoder was trained with."""
    return int(np.count_nonzero(tree.trained[tree.num_inner :] & (tree.doc_rows >= 0)))


def _remove_generations(folder: Path, keep: Collection[str]) -> None:
    """Remove the parts of other generations, and the leftovers of killed updates."""
    for path in folder.iterdir():
        if _GENERATION.fullmatch(path.name) and path.name not in keep:
            remove(path)


def _remove_left(folder: Path, more: Iterable[str]) -> None:
    """Remove what may hold removed documents: what killed trainings and saves have left, and more."""
    for name in (*_LEFT, *more):
        remove(folder / name)
    remove(beside(folder, "partial"))


def _hashes(folder: Path, parts: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    return {f"{name}/{file}": own for name in parts for file, own in folder_sums(folder / name, known).items()}


def _fingerprints(encoder: TextEncoder) -> dict[str, str]:
    """Return {part: fingerprint} of the models of an index that read texts."""
    model = encoder.token_model
    return {"encoder": encoder.fingerprint, **({_TOKEN_MODEL: model.fingerprint} if model else {})}


def check_binding(manifest: dict[str, Any], encoder: TextEncoder, tree: DocidTree) -> None:
    """Raise ValueError unless models and docids are those of the manifest (the generator checks its docids itself)."""
    found = {**_fingerprints(encoder), "docids": tree.fingerprint}
    for name in ("encoder", _TOKEN_MODEL, "docids"):
        expected, fingerprint = (str(own.get(name, "none")) for own in (manifest["fingerprints"], found))
        if fingerprint != expected:
            raise ValueError(
                f"manifest.json and {name} do not belong together: the manifest names {expected[:12]}, "
                f"{name} is {fingerprint[:12]}; restore the one that was replaced."
            )


# Checks of parts.


def load_documents(path: Path) -> pa.Table:
    """Return the document table in a file; it stays on disk.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or it has no column doc_id or title.
    """
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all().replace_schema_metadata(None)
    if missing := [name for name in COLUMNS if name != "text" and name not in table.column_names]:
        raise ValueError(f"{path} has no column {missing[0]}; {RESTORE}.")
    return table


def _check_fit(folder: Path, encoder: TextEncoder, tree: DocidTree, generator: "Generator | None") -> None:
    """Raise ValueError unless encoder and generator fit the docids.

    Args:
        folder: of the index, for messages.
        encoder: must have embeddings of the docids' width, and states of the generator's.
        tree: the docids.
        generator: must have the digits of all docids that it was trained with.
    """
    if (dim := tree.embeddings.shape[1]) != encoder.embedding_dim:
        raise ValueError(
            f"{folder / 'encoder'} and the docids do not belong together: its embeddings are {encoder.embedding_dim} wide, the "
            f"docids need {dim}; restore the one that was replaced."
        )
    if tree.tokens is not None and tree.tokens.head.shape[1] != encoder.token_dim:
        name = "the multi-vector model" if encoder.token_model else "the encoder"
        raise ValueError(
            f"{folder / 'docids'} and {name} do not belong together: token vectors are made of states "
            f"{tree.tokens.head.shape[1]} wide, those of {name} are {encoder.token_dim}; restore the one that was replaced."
        )
    if generator is not None:
        _check_generator(folder / "generator", encoder, tree, generator)


def _check_generator(folder: Path, encoder: TextEncoder, tree: DocidTree, generator: "Generator") -> None:
    """Raise ValueError unless a generator has the encoder's width, and the digits of all docids that it was trained with."""
    try:
        generator.check_states(encoder.state_dim)
    except ValueError as error:
        raise ValueError(f"{folder} and the encoder do not belong together: {error}") from None
    fan_out, digits = generator.config.fan_out, _trained_fan_out(tree)
    if len(fan_out) != tree.depth or any(known < used for known, used in zip(fan_out, digits, strict=True)):
        raise ValueError(
            f"{folder} and the docids do not belong together: it knows {fan_out} digits by level, the docids have {digits}; "
            "restore the one that was replaced."
        )


def _trained_fan_out(tree: DocidTree) -> list[int]:
    """Return how many digits the nodes of each level have that the generator was trained with."""
    nodes = np.flatnonzero(tree.trained[1:]) + 1
    digits = nodes - tree.first_child[tree.parents[nodes]]
    return [
        int(digits[(tree.parents[nodes] >= level.start) & (tree.parents[nodes] < level.stop)].max(initial=-1)) + 1
        for level in tree.levels
    ]


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
