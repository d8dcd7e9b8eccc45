"""What a training can be refused for before it starts: settings that do not fit, or an index that it would destroy.

Each check raises what a later stage would raise, after an encoder had been trained in vain. Trains nothing.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsi.config import EXTRACTIVE, Config, read_config, run_config
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.model_files import file_stamp
from dsi.contrastive.training import NO_QUERIES
from dsi.docids.data.collection import Collection, is_beir
from dsi.docids.data.tables import as_table
from dsi.docids.extensions import extension_room, import_path
from dsi.docids.files.checks import shown, user_path
from dsi.docids.files.processes import Processes
from dsi.docids.files.reading import folder_sums, read_record
from dsi.docids.files.storage import digest, replace_folder
from dsi.docids.schemes import DocidsConfig, check_branching, find_scheme
from dsi.store.folder.loading import load_documents
from dsi.store.folder.manifest import PARTS, part
from dsi.store.folder.writing import check_no_updates, generation_of
from dsi.training.docids_stage import load_tokenizer

_GIVEN_ENCODER = "given_encoder"
"""Folder of a run for an encoder that was passed as a loaded model."""
logger = logging.getLogger(__name__)

_NO_FOLDERS = ("none", EXTRACTIVE)
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def check_settings(config: Config, collection: Collection) -> None:
    """Raise if a stage could not run with the settings on this collection; loads no model."""
    find_scheme(config.docids.scheme)
    check_branching(len(collection.documents) * max(1, config.docids.pieces), config.docids)  # short texts have fewer
    for setting, name in _models(config):
        if not _HUB_NAME.fullmatch(name) and not Path(name).exists():
            raise FileNotFoundError(
                f"{setting} names the folder {name}, which does not exist; give its place or a Hub name."
            )
    if config.contrastive.loss != "none" and not collection.pairs("train"):
        raise ValueError(NO_QUERIES)


def _models(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (setting, name) of the models that are to be loaded."""
    yield "encoder.name", config.encoder.name
    if config.generator.decoder:
        yield "generator.decoder", config.generator.decoder
    yield "pseudo_queries.method", config.pseudo_queries.method


def model_sums(config: Config, settings: Sequence[str]) -> list[str]:
    """Return a digest of each local model that some settings or sections name: its files may change under the same name."""
    names = [name for setting, name in _models(config) if setting in settings or setting.partition(".")[0] in settings]
    folders = [Path(name) for name in names if name not in _NO_FOLDERS and Path(name).is_dir()]
    return [_model_sum(folder, file_stamp(folder)) for folder in folders]


@cache
def _model_sum(folder: Path, stamp: tuple[tuple[str, int, int, int], ...]) -> str:
    return digest(folder_sums(folder))


def check_index(folder: Path, collection: Collection, discard_updates: bool, replace: bool) -> None:
    """Raise if training would lose documents of a finished index; what a killed update left is removed."""
    _check_run(folder)
    check_no_updates(folder, discard=discard_updates)
    indexed = set() if replace else _indexed_documents(folder)
    lost = indexed - _documents_of(collection.documents) if indexed else indexed
    if lost and (generation_of(folder) == 1 or len(lost) == len(indexed)):
        raise ValueError(
            f"{collection.name} lacks {len(lost)} of the {len(indexed)} documents of the index in {folder}, such as "
            f"{min(lost)[0]!r}, and the index would be replaced. Bring it up to date (dsi update), name another folder, or "
            "allow it to be replaced (--replace, replace=True)."
        )


def with_encoder(config: Config, encoder: Any, folder: Path) -> Config:
    """Return a configuration with the encoder that a call names; a loaded one is that which `write_encoder` writes."""
    if encoder is None:
        return config
    if _is_name(encoder):
        return config.with_changes({"encoder.name": str(encoder)})
    if not hasattr(encoder, "save_pretrained") or not hasattr(encoder, "encode"):
        raise TypeError(
            f"encoder must be a sentence-transformers model, or its name on the Hub or its folder, got {shown(encoder)}."
        )
    return config.with_changes({"encoder.name": str(folder / _GIVEN_ENCODER)})


def write_encoder(encoder: Any, folder: Path) -> None:
    """Write an encoder that a call gives loaded below the folder of the run."""
    if not _is_name(encoder):
        with replace_folder(folder / _GIVEN_ENCODER) as new:
            encoder.save_pretrained(str(new), create_model_card=False)


def _is_name(encoder: Any) -> bool:
    return encoder is None or isinstance(encoder, str | Path)


def check_apart(folder: Path, source: str | Path) -> None:
    """Raise ValueError if the folder of a run is that of its collection, or lies among texts, where it would be read again."""
    data, run = user_path(source).resolve(), folder.resolve()
    if data.is_dir() and (run == data or (data in run.parents and not is_beir(data))):
        raise ValueError(
            f"{folder} is the folder of the collection, or lies in it; the index would be among its files, so name a folder "
            "beside it."
        )


def _check_run(folder: Path) -> None:
    """Raise FileExistsError if a folder that is not a run holds a name that training would replace."""
    names = [name for name in ("pseudo_queries", *PARTS, "states", "checkpoints") if (folder / name).exists()]
    marks = [folder / name for name in ("manifest.json", *(f"{name}/stage.json" for name in names))]
    if any(mark.exists() for mark in marks):
        return
    if (folder / "config.toml").exists():
        try:
            read_config(folder / "config.toml")
        except ValueError:
            names.append("config.toml")
        else:
            return
    if names:
        raise FileExistsError(
            f"{folder} is not a run and holds {names[0]!r}, which training would replace; name a new folder."
        )


def _indexed_documents(folder: Path) -> set[tuple[str, str]]:
    """Return the documents of the finished index in a folder; none if it holds no index, or a damaged one."""
    manifest = read_record(folder / "manifest.json")
    if not isinstance(manifest.get("parts"), dict):
        return set()
    try:
        return _documents_of(load_documents(part(folder, manifest, "docids") / "documents.arrow"))
    except (OSError, ValueError):
        return set()


def _documents_of(documents: Any) -> set[tuple[str, str]]:
    table = as_table(documents)
    return set(zip(table["doc_id"].to_pylist(), table["title"].to_pylist(), strict=True))


def check_encoder(config: Config, encoder: Encoder) -> None:
    """Raise if decoder or docids do not fit the encoder."""
    if config.training.train_encoder and encoder.is_static:
        raise ValueError(
            f"training.train_encoder needs a transformer, and {config.encoder.name} is a table of token vectors "
            "(StaticEmbedding); set it to false, or name another encoder."
        )
    if config.pseudo_queries.method != "none":
        with extension_room():
            import dsi.pseudo_queries  # noqa: F401
    if config.generator.exists:
        with extension_room():
            from dsi.generator.stage import check_decoder
        check_decoder(config, encoder)
    if config.docid_tokenizer:
        load_tokenizer(config.docid_tokenizer)


def check_storable(name: str, model: Encoder, processes: Processes) -> None:
    """Raise ValueError if an index may not hold a model, such as one with custom code: it is written on trial."""
    problem = ""
    if processes.is_main:
        with TemporaryDirectory(prefix="dsi-") as folder:
            try:
                model.save(Path(folder))
            except ValueError as error:
                problem = str(error).replace(f"{folder}/", "").rstrip(".")
    if problem := processes.first(problem):
        raise ValueError(f"The model {name!r} cannot be part of an index: {problem}.")


def with_hooks(folder: Path, name: str | Path | Config | None, hooks: Mapping[str, Any]) -> Config:
    """Return the configuration of a training, which names the functions and classes that it is given."""
    paths = {hook: import_path(value, hook) for hook, value in hooks.items() if value is not None}
    needs_generator = paths.keys() - {"docids"} and not (folder / "config.toml").exists()
    config = run_config(folder, "digits" if name is None and needs_generator else name)
    for hook, path in paths.items():
        config = config.with_changes(_CHANGES[hook](path))
    if not config.generator.exists and (unused := paths.keys() - {"docids"}):
        raise ValueError(
            f'{min(unused)} is a part of a generator, and this configuration has none; give config="digits", or leave it out.'
        )
    return config


_CHANGES: dict[str, Callable[[str], dict[str, Any]]] = {
    "docids": lambda path: {"docids": {**asdict(DocidsConfig()), "method": path}},
    "objective": lambda path: {"training": {"objective": path}},
    "generator": lambda path: {"generator": {"docid_tokens": path, "num_layers": 0, "decoder": ""}},
    "fusion": lambda path: {"search": {"fusion": path}},
}
"""{hook of `dsi.train`: the settings that name it}."""


def for_collection(config: Config, collection: Collection) -> Config:
    """Return a configuration for training on a collection: without train queries the encoder stays as it is, which is told."""
    if config.contrastive.loss == "none" or collection.pairs("train"):
        return config
    logger.warning("%s has no train queries: the encoder stays as it is.", collection.name)
    return config.with_changes({"contrastive": {"loss": "none"}})
