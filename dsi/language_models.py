"""A generator that is a whole model of transformers, causal or sequence-to-sequence: it reads the text itself.

The model reads a task prompt and the text with its own tokenizer, and then the (level, digit) tokens of a docid, which are
new to it, with new rows for input and output. All weights are trained; the loss is that of the docid alone. Knows no
queries of a search and no encoder.
"""

import copy
import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, T5Config
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from dsi.config import Config, GeneratorConfig
from dsi.contrastive.encoder import quiet_transformers
from dsi.contrastive.models import check_tokenizer, is_local, load_complete, reset_tokenizer, write_plainly
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import docid_entries
from dsi.generator.cached import DecoderCache, TokenGenerator
from dsi.generator.examples import Texts
from dsi.search.queries import QueryBatch

PROMPTS = {"query": "Query: ", "document": "Document: "}
"""{kind of text: what precedes it}, the paper's task prompts."""
_MODEL = "language_model"
"""In the folder of a generator: the model and its tokenizer, as transformers writes them."""
_LONGEST = 512
"""Tokens of a text that are read, with its prompt, at most; fewer where the model has fewer positions."""
_TRAINED_BYTES = 16
"""Memory of a weight in training: itself, its gradient and AdamW's two moments."""
_TOKENIZING = threading.Lock()
"""A tokenizer keeps the truncation of a call, so one call at a time."""


class LanguageModel(TokenGenerator):
    """A model of transformers, without its output layer and in float32, with rows for docid tokens.

    In its config `d_model` is the width of the encoder's states, of which it reads none.
    """

    def __init__(self, config: T5Config, model: PreTrainedModel, tokenizer: Any) -> None:
        super().__init__(config)
        self.model, self.tokenizer = model, tokenizer
        words = model.get_input_embeddings()
        width: int = words.embedding_dim
        self.embedding = nn.Embedding(config.vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=float(words.weight.detach().std()))  # as long as the model's own
        self.head = nn.Linear(width, config.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        self._counts_positions = "position_ids" in inspect.signature(model.forward).parameters

    @classmethod
    def create(
        cls,
        config: GeneratorConfig,
        tree: DocidTree,
        state_dim: int,
        objective: str = "ce",
        seed: int = 0,
        numbers: Ints | None = None,
    ) -> Self:
        """Return a model with untrained docid tokens; see `Generator.create`."""
        torch.manual_seed(seed)
        model, tokenizer = _load(config.decoder)
        entries = {**docid_entries(config, tree, objective), "d_model": state_dim, "reads": "text"}
        return cls(T5Config(**entries), model, tokenizer)

    @classmethod
    def check_config(cls, config: Config, device: Any = None) -> None:
        """Raise ValueError unless a configuration names a model and how it is trained, and the device has memory for it."""
        generator, training = config.generator, config.training
        decoder, layers, tokens = generator.decoder, generator.num_layers, generator.docid_tokens
        if tokens != "digits" or not decoder or layers:
            raise ValueError(
                'generator.reads = "text" needs a model as generator.decoder, which is trained whole: num_layers = 0, '
                f'docid_tokens = "digits"; got {decoder!r}, {layers}, {tokens!r}. Build on `--config language-model`.'
            )
        if training.train_encoder or training.asks("frozen_encoder", "all_relevant"):
            raise ValueError(
                'generator.reads = "text" needs a training.objective of one path, as "ce" is, and training.train_encoder '
                f"false, as it reads no states of the encoder; got {training.objective!r} and "
                f"{str(training.train_encoder).lower()}."
            )
        check_memory(decoder, device)

    def training_texts(self, parts: Sequence[tuple[str, Sequence[str]]]) -> Texts:
        """Return the texts of training with their prompts."""
        return Texts(self.tokenize, PROMPTS, parts)

    @classmethod
    def load(cls, folder: Path, config: T5Config) -> Self:
        """Load what `save_pretrained` wrote."""
        generator, rows = cls(config, *_load(str(folder / _MODEL))), load_file(folder / "model.safetensors")
        generator.embedding.load_state_dict({"weight": rows["embed.weight"]})
        generator.head.load_state_dict({"weight": rows["head.weight"]})
        return generator

    def save_pretrained(self, save_directory: Any, **_: Any) -> None:
        """Write config.json and the rows of docid tokens into a folder, and the model with its tokenizer into one below it."""
        folder = Path(save_directory)
        (folder / _MODEL).mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(str(folder))
        rows = {"embed.weight": self.embedding.weight, "head.weight": self.head.weight}
        save_file({name: row.detach().cpu().contiguous() for name, row in rows.items()}, folder / "model.safetensors")
        self.model.save_pretrained(str(folder / _MODEL))
        with _TOKENIZING:
            reset_tokenizer(self.tokenizer)
            self.tokenizer.save_pretrained(str(folder / _MODEL))
        write_plainly(folder / _MODEL)

    @property
    def is_seq2seq(self) -> bool:
        """True if an encoder reads the text, and a decoder the docid."""
        return bool(self.model.config.is_encoder_decoder)

    @property
    def longest(self) -> int:
        """Tokens of a text that are read, at most."""
        positions: int = getattr(self.model.config, "max_position_embeddings", None) or _LONGEST
        return min(_LONGEST, positions - (0 if self.is_seq2seq else len(self.config.fan_out)))

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, [len(texts), longest] each, of texts with their prompts; cut at `longest`.

        A causal model's are padded on the left, so that all docids follow their texts at once.
        """
        with _TOKENIZING:
            encoded = self.tokenizer(
                list(texts), padding=True, truncation=True, max_length=self.longest, return_tensors="pt",
                padding_side="right" if self.is_seq2seq else "left",
            )  # fmt: skip
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}

    def read(self, input_ids: Tensor, attention_mask: Tensor, docid: Tensor, **more: Any) -> Any:
        """Run the model over texts and the docid tokens after them; its `last_hidden_state` ends with those of the docids.

        `input_ids` and `attention_mask`: [batch, length]; `docid`: [batch, n, width] embeddings of docid tokens, the
        root first.
        """
        if self.is_seq2seq:
            return self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                decoder_inputs_embeds=docid,
                return_dict=True,
                **more,
            )
        mask = F.pad(attention_mask, (0, docid.shape[1]), value=1)
        more |= self.positions(mask, mask.shape[1])
        both = torch.cat([self.model.get_input_embeddings()(input_ids), docid], dim=1)
        return self.model(inputs_embeds=both, attention_mask=mask, return_dict=True, **more)

    def positions(self, mask: Tensor, last: int) -> dict[str, Tensor]:
        """Return the argument that says where the last tokens of mask [batch, length] stand, if the model takes one."""
        if not self._counts_positions:
            return {}
        return {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -last:]}

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Compute the logits of the children of the inner nodes on one path of each instance, after a text.

        `tokens`, `depths` and `sees` are as in `DocidGenerator.forward`, from the root on; nodes past the end of the
        path follow it.
        """
        steps = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        if not ((sees.sum(dim=2) == steps) | (depths == 0)).all():
            raise ValueError(
                f"The objective {self.config.objective!r} scores nodes of several paths at once, and a model that reads texts "
                'one path; take another, or generator.reads = "states".'
            )
        output = self.read(input_ids, attention_mask, self.embed(tokens), use_cache=False)
        logits = self.head(output.last_hidden_state[:, -tokens.shape[1] :])  # [batch, n, vocab_size]
        return self.pick(logits, depths)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of docid tokens."""
        return self.embedding(tokens)

    def for_search(self, dtype: torch.dtype | None = None) -> Self:
        """Return it in a dtype; see `Generator.for_search`."""
        return (self if dtype in (None, self.head.weight.dtype) else copy.deepcopy(self).to(dtype)).eval()

    @torch.no_grad()
    def start(self, batch: QueryBatch) -> DecoderCache:
        """Read a batch of queries, and the root of the docids after them."""
        inputs = self.tokenize([PROMPTS["query"] + text for text in batch.read or batch.texts])
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        root = self.embed(torch.zeros(len(batch.texts), 1, dtype=torch.long, device=self.device))
        past: Cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if self.is_seq2seq else DynamicCache()
        output = self.read(**inputs, docid=root, past_key_values=past, use_cache=True)
        first, mask = output.last_hidden_state[:, -1], inputs["attention_mask"]
        if self.is_seq2seq:
            return DecoderCache(past, output.encoder_last_hidden_state, mask, first)
        return DecoderCache(past, None, F.pad(mask, (0, 1), value=1), first)

    def read_on(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        """Return the hidden states of one more digit of each beam; see `TokenGenerator`."""
        more: dict[str, Any] = {"past_key_values": cache.past, "use_cache": True, "return_dict": True}
        if self.is_seq2seq:
            states = cache.shape_of_states(len(mask))
            more |= {"encoder_outputs": (states,), "decoder_inputs_embeds": embeddings}
        else:
            mask = F.pad(mask, (0, cache.digits), value=1)
            more |= {"inputs_embeds": embeddings, **self.positions(mask, 1)}
        return self.model(attention_mask=mask, **more).last_hidden_state[:, -1]

    @torch.no_grad()
    def check(self, name: str) -> None:
        """Raise ValueError unless a model gives the same numbers where it reads on from keys and values as in one pass.

        It must also be causal: a later digit changes nothing before it. Docids have two digits at least; `name`: its setting.
        """
        texts = ["a", "a longer text than that"]
        nothing, tokens = np.zeros((2, 0), np.float32), torch.tensor([[0, 1], [0, 1]], device=self.device)
        with _refusing(name):
            cache = self.start(QueryBatch(np.arange(2), nothing, nothing.astype(bool), nothing, texts))
            self.child_logits(tokens[:, :1], 0, cache)
            cached = self.child_logits(tokens[:, 1:], 1, cache)[:, 0]
            inputs = self.tokenize([PROMPTS["query"] + text for text in texts])
            inputs = {kind: tensor.to(self.device) for kind, tensor in inputs.items()}
            depths = torch.arange(2, device=self.device).expand(2, -1)
            sees = torch.ones(2, 2, 2, dtype=torch.bool, device=self.device).tril()
            whole, other = (
                self(**inputs, tokens=digits, depths=depths, sees=sees)["logits"] for digits in (tokens, 2 * tokens)
            )
            if not torch.allclose(whole[:, 0], other[:, 0], rtol=1e-4, atol=1e-5):
                raise ValueError("it is not causal")
            if not torch.allclose(cached, whole[:, 1, : cached.shape[1]], rtol=1e-3, atol=1e-3):
                raise ValueError("its numbers are others where it reads on from the keys and values of a query")


# Loading a model, and what it is refused for.


def check_memory(name: str, device: torch.device) -> None:
    """Raise ValueError if a model, `generator.decoder`, cannot be trained in the memory of a device; loads no weights."""
    with _refusing(name), torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.from_pretrained(name, local_files_only=is_local(name)))
    needed = _TRAINED_BYTES * sum(weights.numel() for weights in model.parameters())
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if needed > available:
        raise ValueError(
            f"generator.decoder {name!r} needs {needed / 1e9:.1f} GB to be trained, {available / 1e9:.1f} GB are free on "
            f"{device}; choose a smaller model, or a machine with more memory."
        )


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Make one line of what is raised where a model cannot generate docids."""
    try:
        yield
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"generator.decoder {name!r} cannot generate docids: {reason}; name a causal or sequence-to-sequence model, one of "
            "attention layers alone."
        ) from None


def _load(name: str) -> tuple[PreTrainedModel, Any]:
    """Return a model without its output layer, and its tokenizer."""
    with _refusing(name):
        with quiet_transformers():
            options = {"local_files_only": is_local(name)}
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            model = load_complete(lambda: AutoModel.from_pretrained(name, dtype=torch.float32, **options).eval())
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        check_tokenizer(tokenizer, model.get_input_embeddings().num_embeddings)
    return model, tokenizer


def available_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return how many bytes a process may take: what is free here, and in a container no more than its limit."""
    free = int(psutil.virtual_memory().available)
    allowed = limit.read_text().strip() if limit.exists() else ""
    return min(free, int(allowed)) if allowed.isdigit() else free
