"""Models in the folders of an index, checked before sentence-transformers loads them: they run no code of their own.

A model that a configuration names is the user's choice; the one in an index may be a stranger's. Its modules must be those of
sentence-transformers that are known to be harmless, and its sizes those of its weights, so that loading costs what its files
say. Knows nothing of what a model computes.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from docids.files.untrusted import (
    RESTORE,
    Entry,
    check_folder,
    is_inside,
    read_any_json,
    read_json,
    reading,
    tensor_entries,
)

M = TypeVar("M", bound=nn.Module)

_TRANSFORMERS = ("Transformer", "MLMTransformer")
_PLAIN = (*_TRANSFORMERS, "Pooling", "Normalize", "SpladePooling", "SparseStaticEmbedding", "Dropout", "Router")
_SHAPES = {
    "Dense": ("linear.weight", ("out_features", "in_features")),
    "LayerNorm": ("norm.weight", ("dimension",)),
    "SparseAutoEncoder": ("encoder.weight", ("hidden_dim", "input_dim")),
}
"""{module: (one of its weights, the settings that are its shape)}."""
_MODULE = re.compile(rf"sentence_transformers(\.\w+)*\.({'|'.join([*_PLAIN, *_SHAPES])})")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.\w+")
_ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
_COUNTS = re.compile("layer|block|depth|stage|expert|label")
"""Settings that say how many modules or names are made, one at a time."""
_FEW = 256
_ROOM = 2**24
"""Elements that a model may have besides those of its weights: buffers, and an encoder-decoder's decoder, which is dropped."""


def check_model(folder: Path) -> None:
    """Raise unless the model in a folder can be loaded without running its code or taking more memory than its weights.

    Raises:
        FileNotFoundError: no model.
        ValueError: a module, an option or a file that an index may not hold, or sizes that are not those of the weights.
    """
    check_folder(folder)
    for path in filter(Path.is_file, folder.rglob("*.json")):
        if not path.name.startswith(("tokenizer.", "vocab", "added_tokens", "special_tokens", "stage.")):
            _check_options(read_any_json(path), path)
    path = folder / "modules.json"
    if not path.exists():
        return _check_transformer(folder)
    modules = read_any_json(path)
    if not isinstance(modules, list) or not modules:
        raise ValueError(f"{path} must be a list of modules; {RESTORE}.")
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("name"), str):
            raise ValueError(f"{path} must be a list of modules with names; {RESTORE}.")
        _check_module(folder, module.get("path"), module.get("type"), path)
    return None


def _check_module(folder: Path, place: object, kind: object, source: Path) -> None:
    """Check a module by its type and folder; one that routes to others, also them."""
    match = _MODULE.fullmatch(kind) if isinstance(kind, str) else None
    if match is None:
        raise ValueError(f"{source} names the module {kind!r}; an index may use only {', '.join([*_PLAIN, *_SHAPES])}.")
    if not isinstance(place, str) or not is_inside(place):
        raise ValueError(f"{source} names the folder {place!r}, which must lie inside the model; {RESTORE}.")
    name, own = match[2], folder / place
    if name == "Router":
        _check_router(own)
    elif name in _SHAPES:
        _check_shape(own, *_SHAPES[name])
    elif name in _TRANSFORMERS:
        _check_transformer(own)


def _check_router(folder: Path) -> None:
    path = folder / "router_config.json"
    types = read_json(path).get("types")
    if not isinstance(types, dict):
        raise ValueError(f"{path} must say the types of its modules; {RESTORE}.")
    for place, kind in types.items():
        if isinstance(kind, str) and kind.endswith(".Router"):
            raise ValueError(f"{path} routes to another router; {RESTORE}.")
        _check_module(folder, place, kind, path)


def _check_shape(folder: Path, weight: str, settings: tuple[str, ...]) -> None:
    path = folder / "config.json"
    config, entry = read_json(path), tensor_entries(folder / "model.safetensors").get(weight)
    found = tuple(config.get(name) for name in settings)
    if entry is None or entry.shape != found:
        raise ValueError(
            f"{path} does not fit model.safetensors beside it: {', '.join(settings)} are {found}; {RESTORE}."
        )


def _check_options(value: Any, path: Path) -> None:
    """Raise ValueError if JSON, at any depth, asks for code of its own or passes arguments to what loads the model."""
    if isinstance(value, list):
        for item in value:
            _check_options(item, path)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        named = isinstance(item, str) and (
            (key.endswith("implementation") and "/" in item)
            or ("activation" in key and "." in item and not _ACTIVATION.fullmatch(item))
        )
        if named or (key in _ARGUMENTS and item) or (key == "auto_map" and not _is_native(value)):
            raise ValueError(f"{path} sets {key}, which could run code; an index may not.")
        _check_options(item, path)


def _is_native(config: Mapping[str, Any]) -> bool:
    """True if transformers has the model itself, and so does not look at the code that a config offers."""
    return str(config.get("model_type")) in CONFIG_MAPPING


def _check_transformer(folder: Path) -> None:
    """Raise ValueError unless a transformer's config asks for a model of about the size of its weights."""
    path, entries = folder / "config.json", _weights(folder)
    record = read_json(path)
    if not _is_native(record):
        raise ValueError(f"{path} must name a model_type of transformers, got {record.get('model_type')!r}; {RESTORE}.")
    if most := _too_many(record, max(len(entries), _FEW)):
        raise ValueError(f"{path}: {most} is more than the weights beside it have; {RESTORE}.")
    with reading(path), torch.device("meta"):
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        model = AutoModel.from_config(config, trust_remote_code=False)
    asked = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    if asked > 4 * sum(math.prod(entry.shape) for entry in entries.values()) + _ROOM:
        raise ValueError(f"{path} asks for {asked:,} weights, far more than there are beside it; {RESTORE}.")


def _weights(folder: Path) -> dict[str, Entry]:
    """The weights of a transformer, of one file or of several that an index names."""
    listed = folder / "model.safetensors.index.json"
    if not listed.exists():
        return tensor_entries(folder / "model.safetensors")
    names = read_json(listed).get("weight_map")
    files = set(names.values()) if isinstance(names, dict) and all(map(is_inside, names.values())) else {""}
    return {name: entry for file in files for name, entry in tensor_entries(folder / file).items()}


def _too_many(record: Any, most: int) -> str:
    """The first setting, at any depth, that counts more modules than `most`; an empty string if there is none."""
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        if isinstance(value, int) and isinstance(key, str) and _COUNTS.search(key) and value > most:
            return f"{key} = {value}"
        if deeper := _too_many(value, most):
            return deeper
    return ""


def load_weights(make: Callable[[], M], path: Path) -> M:
    """A module with the weights of a safetensors file; nothing is allocated before they are known to fit.

    Args:
        make: makes the module; called while tensors have shapes only.
        path: the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: truncated, or weights of another module, or not finite.
    """
    entries = tensor_entries(path)
    with reading(path), torch.device("meta"):
        module = make()
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: entry.shape for name, entry in entries.items()}
    if expected != found:
        wrong = next(name for name in [*expected, *found] if expected.get(name) != found.get(name))
        raise ValueError(
            f"{path} does not fit the config beside it: {wrong} is {found.get(wrong)}, and should be {expected.get(wrong)}; "
            f"{RESTORE}."
        )
    with reading(path):
        weights = load_file(path)
        module.load_state_dict(weights, assign=True)
    check_finite(module, path)
    return module


def check_finite(module: nn.Module, path: Path) -> None:
    """Raise ValueError if a weight of a module is NaN or infinite."""
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():
            raise ValueError(f"{path} has weights that are not finite ({name}); {RESTORE}.")


def check_tokens(ids: Mapping[str, int], embeddings: int, path: Path) -> None:
    """Raise ValueError if a tokenizer has a token for which a model has no embedding.

    Args:
        ids: {token: number}.
        embeddings: how many the model has.
        path: of the model, for messages.
    """
    if max(ids.values(), default=0) >= embeddings:
        raise ValueError(f"{path} has tokens without an embedding; {RESTORE}.")
