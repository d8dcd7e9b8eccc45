"""Checks of models in the folders of an index, before sentence-transformers loads them: they must not run code.

A model that a configuration names is the user's choice; the one in an index may be a stranger's. Its modules must be known
harmless ones of sentence-transformers, and its sizes those of its weights, so that loading costs no more than its files. Knows
nothing of what a model computes.
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
"""Settings that count modules or labels, which are made one at a time."""
_FEW = 256
_ROOM = 2**24
"""Elements that a model may have beyond its weights: buffers, and the decoder of an encoder-decoder, which is dropped."""


def check_model(folder: Path) -> None:
    """Raise unless the model in a folder can be loaded without running code or needing much more memory than its weights.

    Raises:
        FileNotFoundError: no model.
        ValueError: a module, option or file that an index may not hold, or sizes that differ from those of the weights.
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


def _check_module(folder: Path, subfolder: object, kind: object, source: Path) -> None:
    """Check a module by its type and folder, and the modules that it routes to."""
    match = _MODULE.fullmatch(kind) if isinstance(kind, str) else None
    if match is None:
        raise ValueError(f"{source} names the module {kind!r}; an index may use only {', '.join([*_PLAIN, *_SHAPES])}.")
    if not isinstance(subfolder, str) or not is_inside(subfolder):
        raise ValueError(f"{source} names the folder {subfolder!r}, which must lie inside the model; {RESTORE}.")
    name, module_folder = match[2], folder / subfolder
    if name == "Router":
        _check_router(module_folder)
    elif name in _SHAPES:
        _check_shape(module_folder, *_SHAPES[name])
    elif name in _TRANSFORMERS:
        _check_transformer(module_folder)


def _check_router(folder: Path) -> None:
    path = folder / "router_config.json"
    types = read_json(path).get("types")
    if not isinstance(types, dict):
        raise ValueError(f"{path} must say the types of its modules; {RESTORE}.")
    for subfolder, kind in types.items():
        if isinstance(kind, str) and kind.endswith(".Router"):
            raise ValueError(f"{path} routes to another router; {RESTORE}.")
        _check_module(folder, subfolder, kind, path)


def _check_shape(folder: Path, weight: str, settings: tuple[str, ...]) -> None:
    path = folder / "config.json"
    config, entry = read_json(path), tensor_entries(folder / "model.safetensors").get(weight)
    shape = tuple(config.get(name) for name in settings)
    if entry is None or entry.shape != shape:
        raise ValueError(
            f"{path} does not fit model.safetensors beside it: {', '.join(settings)} are {shape}; {RESTORE}."
        )


def _check_options(value: Any, path: Path) -> None:
    """Raise ValueError if JSON, at any depth, names code or passes arguments to the functions that load the model."""
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
    """True if transformers has the model and so ignores code that a config names."""
    return str(config.get("model_type")) in CONFIG_MAPPING


def _check_transformer(folder: Path) -> None:
    """Raise ValueError unless a transformer's config describes a model of about the size of its weights."""
    path, entries = folder / "config.json", _weights(folder)
    record = read_json(path)
    if not _is_native(record):
        raise ValueError(f"{path} must name a model_type of transformers, got {record.get('model_type')!r}; {RESTORE}.")
    if setting := _too_many(record, max(len(entries), _FEW)):
        raise ValueError(f"{path}: {setting} is more than the weights beside it have; {RESTORE}.")
    with reading(path), torch.device("meta"):
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        model = AutoModel.from_config(config, trust_remote_code=False)
    size = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    if size > 4 * sum(math.prod(entry.shape) for entry in entries.values()) + _ROOM:
        raise ValueError(f"{path} asks for {size:,} weights, far more than there are beside it; {RESTORE}.")


def _weights(folder: Path) -> dict[str, Entry]:
    """Return the weights of a transformer, in one file or in several that an index file names."""
    listed = folder / "model.safetensors.index.json"
    if not listed.exists():
        return tensor_entries(folder / "model.safetensors")
    names = read_json(listed).get("weight_map")
    files = set(names.values()) if isinstance(names, dict) and all(map(is_inside, names.values())) else {""}
    return {name: entry for file in files for name, entry in tensor_entries(folder / file).items()}


def _too_many(record: Any, most: int) -> str:
    """Return the first setting, at any depth, that counts more modules than `most`, or an empty string."""
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        if isinstance(value, int) and isinstance(key, str) and _COUNTS.search(key) and value > most:
            return f"{key} = {value}"
        if deeper := _too_many(value, most):
            return deeper
    return ""


def load_weights(make: Callable[[], M], path: Path) -> M:
    """Return a module with the weights of a safetensors file; nothing is allocated before they are known to fit.

    Args:
        make: makes the module; called with tensors on the meta device.
        path: the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is truncated, of another module, or not finite.
    """
    entries = tensor_entries(path)
    with reading(path), torch.device("meta"):
        module = make()
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    shapes = {name: entry.shape for name, entry in entries.items()}
    if expected != shapes:
        wrong = next(name for name in [*expected, *shapes] if expected.get(name) != shapes.get(name))
        raise ValueError(
            f"{path} does not fit the config beside it: {wrong} is {shapes.get(wrong)}, and should be {expected.get(wrong)}; "
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
    """Raise ValueError if a tokenizer has a token without an embedding.

    Args:
        ids: {token: number}.
        embeddings: their number in the model.
        path: of the model, for messages.
    """
    if max(ids.values(), default=0) >= embeddings:
        raise ValueError(f"{path} has tokens without an embedding; {RESTORE}.")
