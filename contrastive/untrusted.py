"""Checks of models in the folders of an index, before sentence-transformers loads them: they must not run code.

A model that a configuration names is the user's choice; the one in an index may be a stranger's. Its modules must be known
harmless ones of sentence-transformers, and its sizes those of its weights, so that loading costs no more than its files. Knows
nothing of what a model computes.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field
from safetensors.torch import load_file
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import (
    MLMTransformer,
    SparseAutoEncoder,
    SparseStaticEmbedding,
    SpladePooling,
)
from torch import nn
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dsi.contrastive.config import LONGEST_INPUT, LONGEST_PROMPT
from dsi.contrastive.tokenizers import Part, Short, TokenizerConfigFile, TokenizerFile, check_declared
from dsi.docids.files.checks import shown
from dsi.docids.files.storage import write_json
from dsi.docids.files.untrusted import (
    RESTORE,
    Entry,
    check_file,
    check_folder,
    is_inside,
    read_any_json,
    read_json,
    reading,
    tensor_entries,
)

M = TypeVar("M", bound=nn.Module)

MODEL_TYPES = (
    "albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "gemma3_text", "modernbert", "mpnet", "mt5",
    "nomic_bert", "qwen3", "roberta", "t5", "umt5", "xlm-roberta",
)  # fmt: skip
"""Transformers that an index may hold: they open no other file, and cost what their sizes say."""
_MODULES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Transformer, MLMTransformer, Pooling, Normalize, SpladePooling, SparseStaticEmbedding, Dropout, Router, Dense,
        LayerNorm, SparseAutoEncoder, MultiVectorMask, HierarchicalTokenPooling,
    )
}  # fmt: skip
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_SHAPES = {
    "Dense": ("linear.weight", ("out_features", "in_features")),
    "LayerNorm": ("norm.weight", ("dimension",)),
    "SparseAutoEncoder": ("encoder.weight", ("hidden_dim", "input_dim")),
}
"""{module: (one of its weights, the settings that are its shape)}."""
_MODULE = re.compile(rf"sentence_transformers(\.\w+)*\.({'|'.join(_MODULES)})")
_ACTIVATION = re.compile(
    r"torch\.nn\.modules\.(activation\.(Tanh|ReLU|GELU|SiLU|Sigmoid|LeakyReLU|Softplus|Mish)|linear\.Identity)"
)
_FILES = re.compile(
    r"(config|modules|config_sentence_transformers|sentence_bert_config|router_config|tokenizer|tokenizer_config|stage"
    r"|model\.safetensors\.index)\.json|model(-\d{5}-of-\d{5})?\.safetensors"
)
"""Files of a model as sentence-transformers writes it, and the marker of a finished stage."""
_SAME, _TOKENIZERS = 64, 4
"""Files of one name, and tokenizers, in a model, at most."""
_COUNTS = re.compile("layer|block|group|head|label")
"""Settings that count modules, labels or heads, which are made one at a time."""
_EPSILON = re.compile("(^|_)eps(ilon)?$")
"""Names of what norms add to a variance: without it, or below 0, some texts get scores that are no numbers."""
_FEW = 256
_LARGEST = 10**7
_FIXED: dict[str, Any] = {
    "chunk_size_feed_forward": 0, "sinusoidal_pos_embds": False, "is_decoder": False, "add_cross_attention": False,
    "output_attentions": False, "output_hidden_states": False, "return_dict": True,
}  # fmt: skip
"""Settings of a transformer that have one value in an index."""
_ROOM = 2**24
"""Elements that a model may have beyond its weights: buffers, and the decoder of an encoder-decoder, which is dropped."""
_UNLIMITED = ("modernbert", "mt5", "nomic_bert", "t5", "umt5")
"""Transformers that know positions by their distance."""
_AFTER_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""Transformers whose positions begin after the number of the padding token."""
_SPECIAL = 8
"""Tokens that a tokenizer may add to a text."""
_HEAVIEST = 1e15
"""Size of a weight; products of two, and their sums, are numbers."""
PROBE = "A noble gas: Ünïcödé, ﬁ① ½\u00a0 中文 русский हिन्दी\u200d 👩‍🚀 \U0001f680\n\t ~~ 1234567890 " + "w" * 300
"""A text with characters that no vocabulary has."""
_Prompt = Annotated[str, Field(max_length=LONGEST_PROMPT)]


class _Method(Part):
    method: Literal["forward"]
    method_output_name: Literal["last_hidden_state", "logits"] | None


class _Modalities(Part):
    text: _Method


class _Expansion(Part):
    strategy: Literal["fixed", "min"]
    attend: bool = False
    token: Short | None = None
    length: Annotated[int, Field(ge=1, le=LONGEST_INPUT)]


_Length = Annotated[int, Field(ge=1, le=LONGEST_INPUT)] | None


class _SentenceFile(Part):
    """sentence_bert_config.json."""

    transformer_task: Literal["feature-extraction", "fill-mask", "sequence-classification"] = "feature-extraction"
    modality_config: _Modalities
    module_output_name: Literal["token_embeddings", "scores"]
    max_seq_length: Annotated[int, Field(ge=1, le=10**6)] | None = None
    do_lower_case: bool = False
    query_length: _Length = None
    document_length: _Length = None
    query_expansion: _Expansion | None = None


class _ModelFile(Part):
    """config_sentence_transformers.json."""

    versions: Annotated[dict[Short, Short], Field(alias="__version__", max_length=8)]
    model_type: Literal["SentenceTransformer", "SparseEncoder", "CrossEncoder", "MultiVectorEncoder"] = (
        "SentenceTransformer"
    )
    default_prompt_name: Short | None = None
    prompts: Annotated[dict[Short, _Prompt], Field(max_length=16)]
    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"] | None = None
    activation_fn: Annotated[str, Field(pattern=_ACTIVATION.pattern + "$")] | None = None


class _Module(Part):
    """An entry of modules.json."""

    idx: int = 0
    name: Annotated[str, Field(pattern=r"^\w{1,32}$")]
    path: str
    type: str


class _Modules(Part):
    """modules.json, as the value of a field."""

    modules: Annotated[list[_Module], Field(min_length=1, max_length=16)]


class _Routes(Part):
    default_route: Short | None = None
    allow_empty_key: bool = True
    route_mappings: Annotated[dict[str, str], Field(max_length=0)]


class _RouterFile(Part):
    """router_config.json."""

    types: Annotated[dict[str, str], Field(max_length=16)]
    structure: Annotated[dict[Short, Annotated[list[str], Field(min_length=1, max_length=16)]], Field(max_length=16)]
    parameters: _Routes


_DECLARED: dict[str, type[Part]] = {
    "sentence_bert_config.json": _SentenceFile,
    "config_sentence_transformers.json": _ModelFile,
    "router_config.json": _RouterFile,
    "tokenizer.json": TokenizerFile,
    "tokenizer_config.json": TokenizerConfigFile,
}


def reset_tokenizer(tokenizer: Any) -> None:
    """Take back the truncation and padding that the last call of a tokenizer set, if it is one that keeps them."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.no_truncation()
        backend.no_padding()


def write_model(model: Any, folder: Path) -> None:
    """Write a model of sentence-transformers as an index may hold it: for texts, with settings that its readers declare.

    The same model gives the same files. Meanwhile nobody may call its tokenizers.

    Raises:
        ValueError: an index may not hold this model.
    """
    for module in model.modules():  # else the last truncation and padding would be saved
        reset_tokenizer(getattr(module, "tokenizer", None))
    model.save_pretrained(str(folder), create_model_card=False)
    for path in folder.rglob("config.json"):
        if known := _declared_keys(config := read_json(path)):
            write_json(path, {name: value for name, value in config.items() if name in known})
    for path in folder.rglob("tokenizer_config.json"):
        config = read_json(path)
        write_json(path, {name: value for name, value in config.items() if name in TokenizerConfigFile.model_fields})
    for path in folder.rglob("sentence_bert_config.json"):
        config = read_json(path)
        write_json(path, {**config, "modality_config": {"text": config["modality_config"]["text"]}})  # no chats
        (path.parent / "chat_template.jinja").unlink(missing_ok=True)
    check_model(folder)


def check_model(folder: Path) -> None:
    """Raise unless the model in a folder can be loaded without running code or needing much more memory than its weights.

    Raises:
        FileNotFoundError: no model.
        ValueError: a module, setting or file that an index may not hold, or sizes that differ from those of the weights.
    """
    check_folder(folder)
    counts = Counter[str]()
    for path in filter(Path.is_file, folder.rglob("*")):
        if not _FILES.fullmatch(path.name):
            raise ValueError(f"{path} is no file of a model that an index may hold; remove it.")
        counts[path.name] += 1
        if counts[path.name] > _SAME or counts.total() > _FEW or counts["tokenizer.json"] > _TOKENIZERS:
            raise ValueError(
                f"{path} is one file too many: a model has at most {_FEW}, {_SAME} of a name and {_TOKENIZERS} tokenizers; "
                "remove it."
            )
        if path.name in _DECLARED:
            _check_declared(_DECLARED[path.name], read_any_json(path), path)
    path = folder / "modules.json"
    if not path.exists():
        return _check_transformer(folder)
    modules = read_any_json(path)
    _check_declared(_Modules, {"modules": modules}, path)
    places = [module["path"] for module in modules]
    if len(set(places)) < len(places):
        raise ValueError(f"{path} names a folder twice; {RESTORE}.")
    for module in modules:
        _check_module(folder, module["path"], module["type"], path)
    return None


def _check_declared(kind: type[Part], value: object, path: Path) -> None:
    try:
        check_declared(kind, value)
    except ValueError as error:
        raise ValueError(f"{path} holds what an index may not ({error}); {RESTORE}.") from None


def _check_module(folder: Path, subfolder: str, kind: str, source: Path) -> None:
    """Check a module by its type and folder, and the modules that it routes to."""
    match = _MODULE.fullmatch(kind)
    if match is None:
        raise ValueError(f"{source} names the module {kind!r}; an index may use only {', '.join(_MODULES)}.")
    if not is_inside(subfolder) or subfolder not in ("", PurePosixPath(subfolder).as_posix()):
        raise ValueError(f"{source} names the folder {subfolder!r}, which must lie inside the model; {RESTORE}.")
    name, module_folder = match[2], folder / subfolder
    if name == "Router":
        return _check_router(module_folder)
    if name in _TRANSFORMERS:
        return _check_transformer(module_folder)
    if (path := module_folder / "config.json").exists():
        _check_settings(read_json(path), _MODULES[name].config_keys, path)
    if name in _SHAPES:
        _check_shape(module_folder, *_SHAPES[name])
    return None


def _check_router(folder: Path) -> None:
    path = folder / "router_config.json"
    config = read_json(path)
    for subfolder, kind in config["types"].items():
        if kind.endswith(".Router"):
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


def _check_settings(record: Mapping[str, Any], known: Collection[str], path: Path) -> None:
    """Raise ValueError unless settings have known names and bounded plain values, and name no code."""
    for name, value in record.items():
        if name not in known:
            raise ValueError(f"{path} sets {name!r}, which an index may not.")
        if not _is_bounded(value):
            raise ValueError(f"{path} sets {name} to what an index may not ({shown(value)}); {RESTORE}.")
        if "activation" in name and "." in str(value) and not _ACTIVATION.fullmatch(str(value)):
            raise ValueError(f"{path} sets {name}, which could run code; an index may not.")


def _is_bounded(value: Any, depth: int = 2) -> bool:
    if isinstance(value, dict | list):
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return depth > 0 and len(value) <= _FEW and all(_is_bounded(item, depth - 1) for item in items)
    if isinstance(value, str):
        return len(value) <= 100 and value.isprintable()
    return value is None or (isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST)


def _declared_keys(record: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings that the transformer of a config declares; none if it is no transformer of `MODEL_TYPES`."""
    kind = record.get("model_type")
    if kind not in MODEL_TYPES:
        return frozenset()
    keys = {*CONFIG_MAPPING[kind]().to_dict(), "decoder_start_token_id"}  # T5's own config has that one too
    return frozenset(keys - {"_name_or_path"})


def _check_transformer(folder: Path) -> None:
    """Raise ValueError unless a transformer's config describes a model of about the size of its weights."""
    path, entries = folder / "config.json", _weights(folder)
    record = read_json(path)
    if not (known := _declared_keys(record)):
        raise ValueError(
            f"{path} has the model_type {shown(record.get('model_type'))}; an index may hold {', '.join(MODEL_TYPES)}."
        )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        check_file(folder / name)
    if setting := _too_many(record):
        raise ValueError(f"{path}: {setting} is more than a model in an index may have, {_FEW}; {RESTORE}.")
    _check_settings(record, known, path)
    _check_numbers(record, known, path)
    with reading(path), torch.device("meta"):
        model = AutoModel.from_config(CONFIG_MAPPING[record["model_type"]].from_dict(record), trust_remote_code=False)
    count, size = (
        len(list(model.parameters())),
        sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()]),
    )
    if count > 4 * len(entries) + _FEW:
        raise ValueError(f"{path} asks for {count:,} tensors, far more than there are beside it; {RESTORE}.")
    if size > 4 * sum(math.prod(entry.shape) for entry in entries.values()) + _ROOM:
        raise ValueError(f"{path} asks for {size:,} weights, far more than there are beside it; {RESTORE}.")


def _check_numbers(record: Mapping[str, Any], known: Collection[str], path: Path) -> None:
    """Raise ValueError unless the numbers of a transformer's config, with these known names, compute something."""
    for name, value in _FIXED.items():
        if record.get(name, value) != value:
            raise ValueError(f"{path} sets {name} to {shown(record[name])}; in an index it must be {value}.")
    for name in sorted({*known} & record.keys()):
        if _EPSILON.search(name) and not (type(record[name]) in (int, float) and 0 < record[name] <= 1):
            raise ValueError(f"{path}: {name} must be above 0 and at most 1, got {shown(record[name])}; {RESTORE}.")
    buckets = record.get("relative_attention_num_buckets", 1)
    distance = record.get("relative_attention_max_distance", 128)
    if {type(buckets), type(distance)} != {int} or not 0 < buckets < 4 * distance:  # others end in no bucket
        raise ValueError(
            f"{path}: relative_attention_num_buckets must be below four times the largest distance; {RESTORE}."
        )


def _weights(folder: Path) -> dict[str, Entry]:
    """Return the weights of a transformer, in one file or in several that an index file names."""
    listed = folder / "model.safetensors.index.json"
    if not listed.exists():
        return tensor_entries(folder / "model.safetensors")
    names = read_json(listed).get("weight_map")
    files = set(map(str, names.values())) if isinstance(names, dict) else {""}
    if not all(map(_FILES.fullmatch, files)):
        raise ValueError(f"{listed} must name files of weights beside it; {RESTORE}.")
    return {name: entry for file in sorted(files) for name, entry in tensor_entries(folder / file).items()}


def _too_many(record: Mapping[str, Any]) -> str:
    """Return the first setting that counts more modules than a model has, or an empty string."""
    for name, value in record.items():
        if isinstance(value, int) and _COUNTS.search(name) and value > _FEW:
            return f"{name} = {value}"
    return ""


def load_weights(make: Callable[[], M], path: Path) -> M:
    """Return a module with the weights of a safetensors file; nothing is allocated before they are known to fit.

    Args:
        make: makes the module; called with tensors on the meta device.
        path: the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is truncated, of another module, of another type, or not finite.
    """
    entries = tensor_entries(path)
    with reading(path), torch.device("meta"):
        module = make()
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    shapes = {name: entry.shape for name, entry in entries.items()}
    if expected != shapes:
        wrong = next(name for name in [*expected, *shapes] if expected.get(name) != shapes.get(name))
        raise ValueError(
            f"{path} does not fit the config beside it: {wrong!r} is {shapes.get(wrong)}, and should be {expected.get(wrong)}; "
            f"{RESTORE}."
        )
    types = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    with reading(path):
        weights = load_file(path)
        module.load_state_dict(weights, assign=True)
    for name, tensor in weights.items():
        if tensor.dtype != types[name]:
            raise ValueError(f"{path} was altered: {name!r} is {tensor.dtype}, and should be {types[name]}; {RESTORE}.")
    check_finite(module, path)
    return module


def check_finite(module: nn.Module, path: Path) -> None:
    """Raise ValueError if a weight of a module is NaN, or so large that what it is multiplied by overflows."""
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and tensor.numel():
            least, most = tensor.aminmax()
            if not (least >= -_HEAVIEST and most <= _HEAVIEST):
                raise ValueError(f"{path} has weights that are not finite, or beyond 1e15 ({name}); {RESTORE}.")


def check_inputs(model: nn.Module) -> None:
    """Check a loaded model's tokenizers, and let them cut texts at the length that it can read.

    Raises:
        ValueError: an index may not hold the model, or a tokenizer gives tokens that the model does not have.
    """
    for module in model.modules():
        if isinstance(module, Transformer):
            if (kind := module.auto_model.config.model_type) not in MODEL_TYPES:
                raise ValueError(
                    f"it is of type {kind!r}, which no index may hold; choose one of type {', '.join(MODEL_TYPES)}"
                )
            most = _positions(module.auto_model.config)
            module.max_seq_length = min(module.max_seq_length or most, most)
            for name in ("query_length", "document_length"):  # of multi-vector models
                if length := getattr(module, name):
                    setattr(module, name, min(length, most))
            if (expansion := module.query_expansion) and expansion["length"] > most:
                raise ValueError(f"it expands queries to {expansion['length']} tokens and reads {most}")
            _check_tokenizer(module.tokenizer, module.auto_model.get_input_embeddings().num_embeddings)
            _check_room(module)
        elif isinstance(module, SparseStaticEmbedding):
            _check_tokenizer(module.tokenizer, len(module.weight))


def _check_room(module: Transformer) -> None:
    """Raise ValueError if a length is one at which a tokenizer cuts nothing: its special tokens alone are as many."""
    special = len(module.tokenizer.backend_tokenizer.encode("").ids)
    lengths = {name: getattr(module, name) for name in ("max_seq_length", "query_length", "document_length")}
    lengths["length of expanded queries"] = (module.query_expansion or {}).get("length")
    for name, length in lengths.items():
        if length and length <= special:
            raise ValueError(f"its {name} of {length} leaves no room for a text beside {special} special tokens")


def _check_tokenizer(tokenizer: Any, embeddings: int) -> None:
    backend = tokenizer.backend_tokenizer
    reset_tokenizer(tokenizer)
    if tokenizer.pad_token is None:
        raise ValueError("its tokenizer has no padding token, without which texts are not read together")
    numbers = [*tokenizer.get_vocab().values(), *backend.encode(PROBE).ids, *backend.encode("a", PROBE).ids]
    if max(numbers) >= embeddings:
        raise ValueError("it has tokens without an embedding")
    if len(backend.encode("").ids) > _SPECIAL:
        raise ValueError(f"it adds more than {_SPECIAL} tokens to a text")


def _positions(config: Any) -> int:
    """Return how many tokens of a text a transformer can read, by its config."""
    if config.model_type in _UNLIMITED:
        return LONGEST_INPUT
    first = config.pad_token_id + 1 if config.model_type in _AFTER_PADDING else 0
    if (most := int(config.max_position_embeddings) - first) <= _SPECIAL:
        raise ValueError(f"it reads {most} tokens of a text")
    return min(most, LONGEST_INPUT)
