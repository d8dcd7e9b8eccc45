"""Makes an index of texts without training. Knows nothing of stages."""

import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dsi.config import Config, run_config
from dsi.docids.data.collection import Collection, read_collection
from dsi.docids.files.checks import folder_to_write, user_path
from dsi.docids.files.progress import write_line
from dsi.docids.files.reading import check_file
from dsi.docids.files.storage import link_files, replace_folder
from dsi.store.retriever import Retriever, load
from dsi.training.pipeline import TrainingRun

_LINKING = threading.Lock()
"""Held while the encoder of temporary indexes is linked."""


def index(
    source: Collection | str | Path | Iterable[Any], output: str | Path | None = None, *,
    config: str | Path | Config | None = None, encoder: Any = None, language: str | None = None,
    pieces: int | None = None, embeddings: NDArray[Any] | str | Path | None = None,
    device: str | None = None, replace: bool = False, discard_updates: bool = False,
) -> Retriever:  # fmt: skip
    """Index texts without training: the encoder as it is, BM25 with its usual weight, late interaction.

    Example:
        >>> import dsi
        >>> retriever = dsi.index(["Neon glows in advertising signs.", "The Danube flows through Vienna."])
        >>> retriever.search("gas that glows", k=1)[0].doc_id
        '0'

    Args:
        source: what `Collection.from_records` takes; a folder or a file that `read_collection` reads; a list of `Path`s, as
            `Collection.from_files` takes; or a collection. On its dev queries, if it has some, the weights are tuned.
        output: folder for the index; by default a temporary one, which is deleted with the retriever
            (`retriever.save` keeps it). Temporary indexes share the encoder.
        config: a configuration by name, by file, or as a `Config`, of which nothing is trained; by default that of the index in
            `output`, or what we recommend.
        encoder: a sentence-transformers model, loaded, or a Hub name or a folder: the setting `encoder.name`.
        language: of the documents, for the stems of BM25, "none" for none: the setting `lexical.language`.
        pieces: of a text that are embedded one by one, at most: the setting `docids.pieces`.
        embeddings: [documents, dim] of the documents, which are searched as they are, and none is encoded; an array or a .npy
            file. The encoder that made them reads the queries. Late interaction takes no part, a long text has one vector, and
            without dev queries the weight of words is that of `[search]`.
        device: of the encoder; the best available by default.
        replace: as for `train`.
        discard_updates: as for `train`.

    Raises:
        TypeError: `source` holds no texts.
        FileNotFoundError: no such folder, file or configuration.
        ValueError: as `Collection.from_records` and `train`; or a setting out of range.
    """
    settings = {"lexical.language": language, "docids.pieces": pieces}
    changes = {name: value for name, value in settings.items() if value is not None}
    folder, usual = (Path(), Config()) if output is None else (folder_to_write(output, "output"), None)
    chosen = run_config(folder, config or usual).without_training().with_changes(changes)
    collection = _read_source(source)
    if embeddings is not None:
        chosen = _for_vectors(chosen, collection, is_told=encoder is not None or chosen.encoder != Config().encoder)
    vectors = read_embeddings(user_path(embeddings)) if isinstance(embeddings, str | Path) else embeddings

    def made(folder: Path) -> Retriever:
        TrainingRun(
            folder, collection, chosen, device, replace=replace, encoder=encoder,
            discard_updates=discard_updates, embeddings=None if vectors is None else np.asarray(vectors),
        ).train()  # fmt: skip
        return load(folder, device=device)

    return _temporary(made) if output is None else made(folder)


def _for_vectors(config: Config, collection: Collection, *, is_told: bool) -> Config:
    """Return a configuration for documents whose embeddings are given: one vector each, and nothing of them encoded."""
    if config.docids.pieces > 1:
        raise ValueError(
            f"embeddings are one vector a document, got pieces {config.docids.pieces}. Leave one of the two out."
        )
    if config.has_token_vectors:
        write_line("With embeddings of your own, documents have no token vectors, so late interaction takes no part.")
    if not is_told:
        name = config.encoder.name
        write_line(f"{name} reads the queries; if another model made the embeddings, give it (--encoder, encoder=…).")
    changed = config.with_changes({"docids.pieces": 1, "tokens.bits": 0})
    if collection.qrels["dev"]:
        return changed
    return changed.with_changes({"dev_queries": 0})  # sentences of the documents, encoded, would have other scores


def _temporary(make: Callable[[Path], Retriever]) -> Retriever:
    """Return an index in a folder that is deleted with it; it shares the encoder with the temporary index before it."""
    place = Path(_temporary_folder().name)
    folder, shared = place / uuid4().hex, place / "encoder"
    folder.mkdir()
    with _LINKING:
        if shared.exists():
            link_files(shared, folder / "encoder")
    try:
        retriever = Retriever(make(folder).snapshot)  # in no folder of the caller's: `save` asks for one
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(retriever, shutil.rmtree, folder, ignore_errors=True)
    with _LINKING, replace_folder(shared) as new:
        link_files(folder / "encoder", new)
    return retriever


def _read_source(source: Collection | str | Path | Iterable[Any]) -> Collection:
    """Return the collection of whatever `index` takes."""
    if isinstance(source, Collection):
        return source
    if isinstance(source, str | Path):
        return read_collection(source)
    if isinstance(source, Sequence) and source and all(isinstance(path, Path) for path in source):
        return read_collection(source[0]) if len(source) == 1 else Collection.from_files(*source)
    return Collection.from_records(source)


def read_embeddings(path: Path) -> NDArray[Any]:
    """Return the array in a .npy file, mapped into memory."""
    check_file(path, "write it with numpy.save")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception:  # a broken header raises nearly anything
        raise ValueError(f"NumPy cannot read {path}; write it with numpy.save.") from None


@cache
def _temporary_folder() -> TemporaryDirectory[str]:
    """Return the temporary folder of this process, for indexes without an output folder; deleted when Python ends."""
    return TemporaryDirectory(prefix="dsi-")
