"""Models in the folders of an index: written as data alone, loaded without the Hub, complete in the weights that matter."""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file
from sentence_transformers.base.modules import Transformer
from torch import nn
from transformers import PreTrainedModel

from dsi.contrastive.config import LONGEST_INPUT
from dsi.contrastive.model_files import LOADING, PROBE, TOKENIZER, check_settings, refuses
from dsi.docids.files.reading import RESTORE, read_any_json
from dsi.docids.files.storage import write_json
from dsi.docids.types import Floats

M = TypeVar("M", bound=nn.Module)

_TABLES = ("position_embeddings", "embed_positions", "wpe")
"""Names of tables of positions: a model reads no text beyond their last row."""


# Writing and loading.


def reset_tokenizer(tokenizer: Any) -> None:
    """Take back the truncation and padding that the last call of a tokenizer set, if it is one that keeps them."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.no_truncation()
        backend.no_padding()


def write_model(model: Any, folder: Path) -> None:
    """Write a model for texts, in files that name no code, the same ones each time. Nobody may use its tokenizers meanwhile."""
    for module in model.modules():  # else the last truncation and padding would be saved
        reset_tokenizer(getattr(module, "tokenizer", None))
    model.save_pretrained(str(folder), create_model_card=False)
    write_plainly(folder)


def write_plainly(folder: Path) -> None:
    """Write the settings of a model in a folder again, without those that choose code or name other files."""
    for path in [*folder.rglob("*.jinja"), *folder.rglob("README.md")]:  # no chats
        path.unlink()
    for path in sorted(folder.rglob("*.json")):
        if path.name == "sentence_bert_config.json":
            config = read_any_json(path)
            if "text" not in (modalities := config["modality_config"]):
                raise ValueError(f"The model in {folder} reads {', '.join(modalities)}, and must read texts.")
            write_json(path, {**config, "modality_config": {"text": modalities["text"]}})
        elif path.name not in ("modules.json", TOKENIZER):
            write_json(path, _without_refused(read_any_json(path)))
    check_settings(folder.rglob("*"))


def _without_refused(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_refused(item) for key, item in value.items() if not refuses(key, item)}
    return [_without_refused(item) for item in value] if isinstance(value, list) else value


def is_local(name: str) -> bool:
    """True if a model is a folder, or the Hub does not answer; libraries would ask it for half a minute."""
    if Path(name).exists():
        return True
    try:
        HfApi().model_info(name, timeout=10)
    except HfHubHTTPError:  # no such model, perhaps; loading says so
        return False
    except Exception:  # of whichever HTTP library the Hub's client uses
        return True
    return False


def load_complete(load: Callable[[], M], outputs: Callable[[M], Floats] | None = None, part: str = "") -> M:
    """Return a model whose files have all weights that its answers depend on, and no layers beyond those of its configuration.

    `load`: loads it by `from_pretrained` of transformers, which makes what its files lack at random or as zeros; `outputs`:
    for which a model is used; they are compared with those after other values took the places of missing weights. Without,
    none may be missing whose name begins with `part`.
    """
    with _reporting() as reports:
        model = load()
    spare = [name for inner, info in reports for name in _spare(inner, info["unexpected_keys"])]
    if spare:
        raise ValueError(
            f"its files have layers that its configuration does not ({_named(spare)}), and would not be computed; mend its "
            "config.json, or get the whole checkpoint"
        )
    missing = {name: inner for inner, info in reports for name in sorted(info["missing_keys"]) if name.startswith(part)}
    if missing and (outputs is None or _matter(missing, lambda: outputs(model))):
        raise ValueError(
            f"its files lack weights that its answers depend on ({_named([*missing])}), which would be random; get the whole "
            "checkpoint"
        )
    return model


def _named(weights: Sequence[str]) -> str:
    more = f" and {len(weights) - 3} more" if len(weights) > 3 else ""
    return f"{', '.join(weights[:3])}{more}"


@contextmanager
def _reporting() -> Iterator[list[tuple[PreTrainedModel, dict[str, Any]]]]:
    """Give the models of transformers that this thread loads in the block, each with its `output_loading_info`.

    Libraries that load a model as a part of theirs do not ask for it, so this does at the one place that all pass.
    """
    reports, thread = list[tuple[PreTrainedModel, dict[str, Any]]](), threading.get_ident()
    plain: Any = PreTrainedModel.__dict__["from_pretrained"]

    def load(kind: Any, *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return plain.__func__(kind, *arguments, **options)
        reports.append(plain.__func__(kind, *arguments, **{**options, "output_loading_info": True}))
        return reports[-1] if options.get("output_loading_info") else reports[-1][0]

    logger = logging.getLogger("transformers.modeling_utils")
    with LOADING:
        level = logger.level
        logger.setLevel(logging.ERROR)  # what is missing is said here
        PreTrainedModel.from_pretrained = classmethod(load)  # type: ignore[assignment]
        try:
            yield reports
        finally:
            PreTrainedModel.from_pretrained = plain
            logger.setLevel(level)


def _spare(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the weights of a file that belong to layers beyond those of the model, but like them."""
    known = {_pattern(model, name) for name in model.state_dict()}
    return [name for name in sorted(unexpected) if (pattern := _pattern(model, name)) in known and "*" in pattern]


def _pattern(model: PreTrainedModel, name: str) -> str:
    """Return the name of a weight with * for numbers of layers, without the prefix that models with a head have."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name.removeprefix(f"{model.base_model_prefix}."))


@torch.no_grad()
def _matter(missing: Mapping[str, PreTrainedModel], outputs: Callable[[], Floats]) -> bool:
    """True if outputs depend on the missing weights of some models; they have noise instead of their values afterwards."""
    before = outputs()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name, model in missing.items():
            weight = model.get_parameter_or_buffer(name)
            weight.copy_(torch.randn(weight.shape).to(weight))
    return not np.allclose(before, outputs(), rtol=1e-5, atol=1e-6)


def check_inputs(model: nn.Module) -> None:
    """Check the tokenizers of a loaded model, and let them cut texts at the length that it can read."""
    for module in model.modules():
        if isinstance(module, Transformer):
            most = _positions(module.auto_model)
            module.max_seq_length = min(module.max_seq_length or most, most)
            check_tokenizer(module.tokenizer, module.auto_model.get_input_embeddings().num_embeddings)


def check_tokenizer(tokenizer: Any, embeddings: int) -> None:
    """Raise ValueError if a tokenizer pads nothing, or gives tokens beyond those that a model embeds."""
    if tokenizer.pad_token is None:
        raise ValueError("its tokenizer has no padding token, without which texts are not read together")
    if max([*tokenizer.get_vocab().values(), *tokenizer(PROBE)["input_ids"]]) >= embeddings:
        raise ValueError(f"its tokenizer has tokens beyond the {embeddings} that the model embeds")


def _positions(model: nn.Module) -> int:
    """Return how many tokens a transformer reads, at most: the rows of its table of positions, if it has one."""
    most = LONGEST_INPUT
    for name, module in model.named_modules():
        if name.endswith(_TABLES) and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from there
            most = min(most, module.num_embeddings - first, getattr(model.config, "max_position_embeddings", most))
    return int(most)


def load_weights(make: Callable[[], M], path: Path) -> M:
    """Return a module with the weights of a safetensors file; it is made on the meta device."""
    weights = load_file(path)
    with torch.device("meta"):
        module = make()
    for name, tensor in module.state_dict().items():
        if name in weights and weights[name].dtype != tensor.dtype:
            raise ValueError(f"{path}: {name!r} is {weights[name].dtype}, and should be {tensor.dtype}; {RESTORE}.")
    module.load_state_dict(weights, assign=True)
    return module
