"""A multi-vector model, such as ColBERT, whose vectors take the place of an encoder's own token states in late interaction.

sentence-transformers reads it: prompts, lengths, query expansion and mask are the model's own. Knows nothing of codes or
docids.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import load_file_path
from torch import Tensor

from dsi.contrastive.devices import check_device
from dsi.contrastive.encoder import DTYPES, quiet_transformers, state_fingerprint
from dsi.contrastive.inference import for_inference
from dsi.contrastive.model_files import PROBE, TEXTS, Reloads, offline
from dsi.contrastive.models import check_inputs, is_local, load_complete, write_model
from dsi.contrastive.prompts import own_prompt
from dsi.contrastive.text_encoder import PLURALS, TokenModel, TokenSpan
from dsi.docids.files.checks import shown
from dsi.docids.files.reading import catching_panics
from dsi.docids.files.storage import digest

_KINDS = ("MultiVectorEncoder", "ColBERT")
"""How sentence-transformers and PyLate record such a model."""
_UNIT = 1e-3
"""Lengths of vectors that are closer to 1 are 1."""
_REMEDY = "name a folder or Hub name of a MultiVectorEncoder of sentence-transformers or a PyLate model"


class MultiVectorModel(Reloads, TokenModel):
    """A model that gives each token of a text a vector of length 1.

    Args:
        model: with its own prompts.
        source: what `load` was given; None if it was made otherwise.
    """

    def __init__(self, model: MultiVectorEncoder, source: tuple[str, Path | None, str | None] | None = None) -> None:
        self.model, self._source = model.eval(), source
        self._prompts = {kind: own_prompt(model, kind) for kind in PLURALS}
        self._tokenizing = threading.Lock()  # a call sets the tokenizer's padding and truncation

    @classmethod
    def load(cls, name: str, folder: Path | None = None, device: str | None = None) -> "MultiVectorModel":
        """Load the model that the user names, or the one in a folder of an index, which was judged before.

        Args:
            name: a folder, or a name on the Hub.
            folder: of an index.
            device: of the model; the best available by default.

        Raises:
            FileNotFoundError: a file is missing, or the named model is not a folder and the Hub cannot be reached.
            ValueError: it is not a multi-vector model, weights that matter are missing, its vectors do not have length 1, or
                the device cannot be used.
        """
        check_device(device)
        return cls(_stored(folder, device) if folder else _named(name, device), (name, folder, device))

    @property
    def dim(self) -> int:
        """Width of a token vector."""
        return int(self.model.get_embedding_dimension())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, prompts, lengths and masks: models with the same one give the same vectors."""
        configs = [module.get_config_dict() for module in self.model]
        for config in configs:
            config.pop("modality_config", None)  # texts alone are read
        return digest([state_fingerprint(self.model), self._prompts, configs])

    def vectors(self, texts: Sequence[str], kind: str) -> list[NDArray[np.float32]]:
        """Return the vectors [tokens, dim] of each text's tokens that the model scores, of one pass.

        Args:
            texts: whole; the model cuts them at its own length.
            kind: "document" or "query".

        Raises:
            ValueError: a vector is not finite.
        """
        if not texts:
            return []
        states, mask, _ = self._forward(texts, kind)
        vectors = [own[kept].float().numpy(force=True) for own, kept in zip(states, mask, strict=True)]
        for text, own in zip(texts, vectors, strict=True):
            if not np.isfinite(own).all():
                raise ValueError(
                    f"The multi-vector model gives vectors that are not finite for {shown(text[:40])}; choose another model."
                )
        return vectors

    def spans(self, text: str, kind: str) -> list[TokenSpan]:
        """Return where each token of `vectors` lies in a text; those of pooled and expansion tokens are empty."""
        _, mask, features = self._forward([text], kind)
        kept, numbers = mask[0].tolist(), features["input_ids"][0].tolist()
        spans = [TokenSpan(0, 0, is_special=True)] * len(kept)
        if len(kept) == len(numbers):
            expanded = features.get("query_expansion_positions", torch.zeros(1, len(numbers)))[0].tolist()
            real = [place for place, is_added in enumerate(expanded) if not is_added]
            prompt, tokenizer = self._prompts[kind], self.model.tokenizer
            with self._tokenizing, catching_panics():
                ends = tokenizer(prompt + text, truncation=True, max_length=len(real), return_offsets_mapping=True)
            special, length = set(tokenizer.all_special_ids), len(prompt)
            for place, (start, end) in zip(real, ends["offset_mapping"], strict=True):
                spans[place] = TokenSpan(max(0, start - length), max(0, end - length), numbers[place] in special)
        return [span for span, is_kept in zip(spans, kept, strict=True) if is_kept]

    @torch.no_grad()
    def _forward(self, texts: Sequence[str], kind: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return vectors [n, length, dim], True [n, length] at those that count, and what the model was given."""
        with self._tokenizing, catching_panics():
            features = self.model.preprocess(list(texts), prompt=self._prompts[kind], task=kind)
        features = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in features.items()}
        output = self.model(dict(features), task=kind)
        return output["token_embeddings"], output["attention_mask"].bool(), features

    def for_search(self, dtype: str = "float32") -> "MultiVectorModel":
        """Return a copy for fast inference in a dtype."""
        return MultiVectorModel(for_inference(self.model, DTYPES[dtype]))

    def save(self, folder: Path) -> None:
        """Write the model as an index holds it; the same model gives the same files.

        Raises:
            ValueError: an index may not hold this model.
        """
        with self._tokenizing, quiet_transformers():
            write_model(self.model, folder)


def _named(name: str, device: str | None) -> MultiVectorEncoder:
    """Load the model that the user names."""
    offline = is_local(name)
    try:
        with quiet_transformers():
            if not _is_multi_vector(name, offline):
                raise ValueError("no file says that it is one, and its projection would be random")
            model = load_complete(
                lambda: MultiVectorEncoder(name, device=device, local_files_only=offline).float(), _vectors
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        kind = FileNotFoundError if isinstance(error, OSError) else ValueError
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise kind(f"tokens.model {name!r} cannot be loaded as a multi-vector model ({reason}); {_REMEDY}.") from None
    try:
        _check(model)
    except ValueError as error:
        raise ValueError(f"The multi-vector model {name!r} cannot be used, because {error}.") from None
    return model


def _is_multi_vector(name: str, offline: bool) -> bool:
    """Return whether a checkpoint says that it is a multi-vector model; any other would get a random projection."""
    path = load_file_path(name, "config_sentence_transformers.json", local_files_only=offline)
    if path is None:
        if load_file_path(name, "config.json", local_files_only=offline) is None:
            raise FileNotFoundError("it has no config.json, or the Hub cannot be reached")
        return False
    return json.loads(Path(path).read_text(encoding="utf-8")).get("model_type") in _KINDS


def _stored(folder: Path, device: str | None) -> MultiVectorEncoder:
    """Load the model from a folder of an index, which was judged before."""

    def load() -> MultiVectorEncoder:
        return MultiVectorEncoder(str(folder), device=device, local_files_only=True, trust_remote_code=False).float()

    with offline(), quiet_transformers():
        model = load_complete(load, _vectors)
        _check(model)
    return model


def _vectors(model: MultiVectorEncoder) -> NDArray[np.float32]:
    """Return the vectors of the tokens of some texts, one below another."""
    return np.concatenate(MultiVectorModel(model).vectors(TEXTS, "document"))


def _check(model: MultiVectorEncoder) -> None:
    """Raise ValueError unless the vectors of a model have the stated width and length 1."""
    check_inputs(model)
    for kind in PLURALS:
        states, mask, _ = MultiVectorModel(model)._forward([PROBE], kind)
        if (width := states.shape[-1]) != model.get_embedding_dimension():
            raise ValueError(f"its vectors are {width} wide, and should be {model.get_embedding_dimension()}")
        if not states[mask].isfinite().all():
            raise ValueError("its token vectors are not finite")
        if ((states[mask].norm(dim=1) - 1).abs() > _UNIT).any():
            raise ValueError("its token vectors do not have length 1; add a Normalize module")
