"""What every generator of docids is: weights bound to the docids they were trained for, and an objective. Runs nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import AutoConfig, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5PreTrainedModel, T5Stack

from dsi.config import GeneratorConfig
from dsi.contrastive.encoder import DTYPES
from dsi.contrastive.models import is_local, load_complete, load_weights
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.docids.words.bm25 import BM25
from dsi.generator.beam import PathEngine, Scorer
from dsi.generator.objectives import find_objective

DROPOUT = 0.1
"""Rate in training, as T5's."""
FIXED = {"is_decoder": True, "is_encoder_decoder": False, "use_cache": False}
"""Entries of every generator's config."""


class Generator(T5PreTrainedModel, Scorer):
    """A model that scores the nodes of one docid tree for a query.

    Whatever is inside, transformers saves and loads it as a T5 model, whose decoder most generators have.
    Its config is a `T5Config` with additional entries: `docid_tokens`, the kind of its tokens; `fan_out`, the number of digits
    per level; `docids_fingerprint`, the tree it was trained for; `objective`, the name of its training objective, whose `score`
    and `training_beam` search reads here.
    """

    tokens_are_nodes: ClassVar[bool] = False
    """Whether docid tokens are nodes of the tree, not (level, digit) pairs."""

    @classmethod
    def create(
        cls, config: GeneratorConfig, tree: DocidTree, state_dim: int, objective: str = "ce", seed: int = 0,
        numbers: Ints | None = None,
    ) -> Self:  # fmt: skip
        """Return an untrained generator for a tree; its decoder, if any, is fresh or that of a T5 checkpoint.

        `state_dim` is the width of the encoder's token states; `numbers` [N, longest] are those of the docids in docid
        order, -1 past the end, where tokens are nodes.
        """
        torch.manual_seed(seed)
        t5_config, checkpoint = _decoder_config(config, tree, state_dim, objective, cls.entries(config, tree, numbers))
        generator = cls(t5_config)
        if checkpoint is not None:
            _take_over(generator.decoder, checkpoint, config.decoder)
        generator.initialise(tree, checkpoint, numbers)
        return generator

    @classmethod
    def load(cls, folder: Path, config: T5Config) -> Self:
        """Load what `save_pretrained` wrote."""
        return load_weights(lambda: cls(config), folder / "model.safetensors")

    @classmethod
    def check_config(cls, config: Any, device: Any = None) -> None:
        """Raise ValueError if generators of this kind cannot be trained with a `dsi.config.Config` on a device."""

    def check(self, name: str) -> None:
        """Raise ValueError if a search could not walk with the model, `generator.decoder`, that it was made from."""

    def training_texts(self, parts: Sequence[tuple[str, Sequence[str]]]) -> Any:
        """Return `Texts` of (kind, texts) that it reads in training; None if it reads the encoder's states."""
        return None

    @classmethod
    def entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        """Return what a kind of generator adds to the T5Config, or sets otherwise; arguments as of `create`."""
        return {}

    def initialise(self, tree: DocidTree, checkpoint: Any, numbers: Ints | None) -> None:
        """Set the weights that transformers' defaults do not suit, given the T5 checkpoint it starts from, if any."""

    def for_search(self, dtype: torch.dtype | None = None) -> Self:
        """Return the generator laid out for search, in a dtype, by default unchanged; weights of that dtype are shared."""
        return self.eval()  # type: ignore[no-any-return]

    def engine(
        self, encoder: TextEncoder, tree: DocidTree, lexical: BM25 | None, memory: QueryMemory, dtype: str
    ) -> PathEngine:
        """Return what searches with it, on the encoder's device; see `dsi.search.engine.IndexGenerator`."""
        self.check_tree(tree)
        if (width := self.config.d_model) != encoder.state_dim:
            raise ValueError(
                f"The generator reads states {width} wide, the encoder gives {encoder.state_dim}; restore the one that was "
                "replaced."
            )
        return PathEngine(tree, self.to(encoder.device).for_search(DTYPES[dtype]), lexical, memory)

    def check_tree(self, tree: DocidTree) -> None:
        """Raise ValueError unless this generator was trained for the docids of `tree`."""
        if self.config.docids_fingerprint != tree.origin_fingerprint:
            raise ValueError(
                f"The generator was trained for docids {self.config.docids_fingerprint[:12]}, the docids here are "
                f"{tree.origin_fingerprint[:12]}; train the generator again or restore the docids it belongs to."
            )


def docid_entries(config: GeneratorConfig, tree: DocidTree, objective: str) -> dict[str, object]:
    """Return the entries of a generator's config on the docids that it is for, and on how search ranks their nodes."""
    trained = find_objective(objective)
    return {
        "docid_tokens": config.docid_tokens,
        "vocab_size": tree.vocab_size,
        "fan_out": tree.fan_out,
        "docids_fingerprint": tree.fingerprint,
        "objective": objective,
        "score": trained.score,
        "training_beam": trained.training_beam,
        **FIXED,
    }


def _decoder_config(
    config: GeneratorConfig, tree: DocidTree, state_dim: int, objective: str, more: dict[str, object]
) -> tuple[T5Config, Any]:
    """Return the T5Config of a generator, and the T5 checkpoint whose decoder it starts from (None for a fresh decoder)."""
    settings = {
        **docid_entries(config, tree, objective),
        "dropout_rate": DROPOUT,
        "eos_token_id": None,  # a docid ends at its leaf
        **more,
    }
    if not config.decoder:
        return _fresh_config(config, state_dim, settings), None
    kind = AutoConfig.from_pretrained(config.decoder, local_files_only=(local := is_local(config.decoder))).model_type
    if not kind.endswith("t5"):
        raise ValueError(
            f"generator.decoder {config.decoder!r} is of type {kind}, and only a T5's decoder reads the encoder's states; set "
            'generator.reads = "text", or name a T5 checkpoint.'
        )
    checkpoint = _t5(config.decoder, local)
    if checkpoint.config.d_model != state_dim:
        raise ValueError(
            f"The decoder {config.decoder} is {checkpoint.config.d_model} wide, the encoder's states {state_dim}; "
            f'choose a T5 of the encoder\'s width, decoder = "" for a fresh one, or reads = "text", which needs no width.'
        )
    t5_config = T5Config(**{**checkpoint.config.to_dict(), **settings})
    t5_config.num_layers = config.num_layers or checkpoint.config.num_decoder_layers
    return t5_config, checkpoint


def _t5(name: str, local: bool) -> Any:

    def load() -> Any:
        return T5ForConditionalGeneration.from_pretrained(name, dtype=torch.float32, local_files_only=local)

    try:
        return load_complete(load, part="decoder.")
    except ValueError as error:
        raise ValueError(f"generator.decoder {name!r} cannot be used, because {error}.") from None


def _fresh_config(config: GeneratorConfig, width: int, settings: dict[str, Any]) -> T5Config:
    heads = _heads(width)
    return T5Config(
        d_model=width, d_kv=width // heads, d_ff=4 * width, num_layers=config.num_layers, num_heads=heads, **settings
    )


def _heads(width: int) -> int:
    """Return the attention heads of a fresh stack: 64 dimensions each as in T5, at least four, and a divisor of its width."""
    return next(heads for heads in range(min(width, max(4, width // 64)), 0, -1) if width % heads == 0)


def _take_over(stack: T5Stack, checkpoint: Any, name: str) -> None:
    """Copy the decoder weights of a T5 checkpoint into a stack, all but the token embeddings."""
    weights = {key: tensor for key, tensor in checkpoint.decoder.state_dict().items() if "embed_tokens" not in key}
    missing, _ = stack.load_state_dict(weights, strict=False)
    if missing != ["embed_tokens.weight"]:
        raise ValueError(f"The decoder {name} lacks weights for {missing}; ask for fewer num_layers.")
