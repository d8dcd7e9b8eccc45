"""The docid generator: a T5 decoder over the encoder's token states, with a small vocabulary of docid tokens.

A docid token is a (level, digit) pair with its own embedding and its own output row, so the output layer has as many rows
as the tree has digits, not 32,128. Probabilities are taken over a node's children only, in training as in search. The
encoder is frozen and not part of the model: its token states come in from outside. Knows the tree's shape, no documents.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention, T5PreTrainedModel, T5Stack

from docids.checks import at_least, below_one
from docids.tree import DocidTree
from dsi.trees.objectives import Objective, find_objective


@dataclass(frozen=True)
class GeneratorConfig:
    """The decoder and its training; defaults are the paper's.

    Attributes:
        decoder: a T5 checkpoint (Hub name or folder) whose decoder weights are the start, or "" for a fresh T5 stack of
            the encoder's width.
        num_layers: decoder layers; 0 keeps the checkpoint's number (a fresh stack needs a number).
        num_heads: attention heads of a fresh stack.
        feed_forward_dim: inner width of a fresh stack's feed-forward layers; 0 for four times its width.
        dropout: in training.
        state_dropout: share of the encoder's token states that the decoder does not see in training, drawn anew for every
            batch: it has to recognise a query by any half of it, and learns train queries less by heart.
        document_examples: train document -> docid (indexing) beside query -> docid (retrieval).
        pseudo_queries: of each document that are further retrieval examples, at most; 0 for none.
        document_segments: indexing examples a document: its first segments of the encoder's document_length tokens.
        dense_temperature: above 0, train on top of dense search: every child's logit gets the log-sum-exp of
            z.e_d / dense_temperature over the documents d below it, so that the decoder learns what the encoder's scores
            miss. 0 trains the decoder for itself, as the paper does.
        distillation: above 0, the dense scores are not added to the logits but taught: the loss is (1 - distillation) times
            the cross-entropy plus distillation times the KL divergence from the softmax of the dense scores to the
            decoder's, over the children of every node on the path.
        train_encoder: train the encoder together with the decoder, on texts instead of cached states (DSI, Tay et al. 2022);
            such an index is searched with the decoder alone.
        objective: what the decoder is taught, a row of `dsi.trees.objectives`: "ce" as in the paper, or one for search by beam.
        beam_width: of training, for objectives that ask the decoder's own beam; inner nodes a level.
        random_paths: documents an example whose paths are asked too, for objectives with random candidates.
        warm_start: share of the steps that train tdm first, for objectives that need a decoder that knows something.
        ramp: share of the steps after that over which targets go from z to zhat, where they are mixed.
        batch_size: examples a process and step.
        epochs: passes over all examples.
        learning_rate: peak, after a linear warm-up over a twentieth of the steps, then linear to zero.
        weight_decay: of AdamW.
        bf16: compute in bfloat16 where the device is fast at it.
        seed: of initialisation and shuffling.
    """

    decoder: str = "google-t5/t5-base"
    num_layers: int = 0
    num_heads: int = 8
    feed_forward_dim: int = 0
    dropout: float = 0.1
    state_dropout: float = 0.0
    document_examples: bool = True
    document_segments: int = 1
    pseudo_queries: int = 5
    dense_temperature: float = 0.0
    distillation: float = 0.0
    train_encoder: bool = False
    objective: str = "ce"
    beam_width: int = 10
    random_paths: int = 10
    warm_start: float = 0.3
    ramp: float = 0.5
    batch_size: int = 64
    epochs: float = 50.0
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_ranges()
        objective = find_objective(self.objective)
        if self.distillation and not self.dense_temperature:
            raise ValueError(
                f"generator.distillation needs a dense_temperature above 0, got {self.distillation} with dense_temperature 0."
            )
        if self.dense_temperature and self.objective != "ce":
            raise ValueError(
                f'generator.dense_temperature works with objective "ce", got {self.objective!r}: dense scores are taken into a '
                "softmax over children."
            )
        if self.train_encoder and self.dense_temperature:
            raise ValueError(
                "generator.train_encoder changes the encoder whose dense scores dense_temperature wants; set one of them."
            )
        if self.train_encoder and "beam" in objective.candidates:
            raise ValueError(
                f"generator.objective {self.objective!r} searches with the encoder's states, which train_encoder changes; "
                "use one without beam candidates, or a frozen encoder."
            )

    def _check_ranges(self) -> None:
        if not self.decoder and self.num_layers < 1:
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")
        at_least(self, "generator.", pseudo_queries=0, document_segments=1, beam_width=1, random_paths=1)
        at_least(self, "generator.", dense_temperature=0)
        below_one(self, ["dropout", "state_dropout", "warm_start", "ramp"], "generator.")
        if not 0 <= self.distillation <= 1:
            raise ValueError(f"generator.distillation must be in [0, 1], got {self.distillation}.")


class DocidGenerator(T5PreTrainedModel):
    """T5 decoder with docid embeddings and a docid output layer.

    Args:
        config: a T5Config for the decoder stack, with more entries: `fan_out`, the digits of each level;
            `docids_fingerprint`, the tree it belongs to; `objective` and `training_beam`, what it was taught.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.decoder = T5Stack(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def create(cls, config: GeneratorConfig, tree: DocidTree, state_dim: int) -> "DocidGenerator":
        """A generator for a tree, its decoder fresh or taken over from a T5 checkpoint.

        Args:
            config: the settings.
            tree: whose docids it will generate.
            state_dim: width of the encoder's token states.

        Raises:
            ValueError: the checkpoint's width is not the encoder's.
        """
        torch.manual_seed(config.seed)
        docid_settings = {
            "vocab_size": tree.vocab_size,
            "fan_out": tree.fan_out,
            "docids_fingerprint": tree.fingerprint,
            "objective": config.objective,
            "training_beam": config.beam_width,
            "dropout_rate": config.dropout,
            "is_decoder": True,
            "is_encoder_decoder": False,
            "use_cache": False,
        }
        if not config.decoder:
            return cls(_fresh_config(config, state_dim, docid_settings))._with_fresh_head()
        checkpoint = T5ForConditionalGeneration.from_pretrained(config.decoder)
        if checkpoint.config.d_model != state_dim:
            raise ValueError(
                f"The decoder {config.decoder} is {checkpoint.config.d_model} wide, the encoder's states {state_dim}; "
                f'choose a T5 of the encoder\'s width, or decoder = "" for a fresh one.'
            )
        t5_config = T5Config(**{**checkpoint.config.to_dict(), **docid_settings})
        t5_config.num_layers = config.num_layers or checkpoint.config.num_decoder_layers
        generator = cls(t5_config)
        weights = {
            name: tensor for name, tensor in checkpoint.decoder.state_dict().items() if "embed_tokens" not in name
        }
        missing, _ = generator.decoder.load_state_dict(weights, strict=False)
        if missing != ["embed_tokens.weight"]:
            raise ValueError(f"The decoder {config.decoder} lacks weights for {missing}; ask for fewer num_layers.")
        return generator._with_fresh_head()

    @property
    def objective(self) -> Objective:
        """What it was taught, which says how its logits rank nodes."""
        return find_objective(getattr(self.config, "objective", "ce"))

    def _with_fresh_head(self) -> "DocidGenerator":
        """Logits of unit size at the start: transformers' default would make them d_model^0.5 times as large."""
        nn.init.normal_(self.head.weight, std=self.config.d_model**-0.5)
        return self

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Logits of the children of some inner nodes of each instance, all in one pass.

        The nodes are a small tree: each attends to its ancestors and itself, and T5's relative positions are differences
        of depth, so that every node gets what it would get at the end of its own sequence of digits.

        Args:
            token_states: [batch, length, d_model] encoder states.
            states_mask: [batch, length], True at real tokens.
            tokens: [batch, n] docid token of each node's last digit, 0 for the root.
            depths: [batch, n] digits on the way to each.
            sees: [batch, n, n] True where the second node is an ancestor of the first, or the same.

        Returns:
            logits: [batch, n, largest fan-out], -inf for digits that a level does not have.
        """
        columns = _level_tokens(self.config.fan_out).to(tokens.device)[depths]
        logits = self.head(self._hidden(token_states, states_mask, tokens, depths, sees))
        picked = logits.gather(2, columns.clamp(min=0))
        return {"logits": picked.masked_fill(columns < 0, -torch.inf)}

    def _hidden(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> Tensor:
        """[batch, n, d_model] T5's blocks over a tree of nodes."""
        stack = self.decoder
        attention = stack.block[0].layer[0].SelfAttention
        buckets = attention._relative_position_bucket(
            depths[:, None, :] - depths[:, :, None],
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        bias = attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)
        lowest = torch.finfo(bias.dtype).min
        bias = bias.masked_fill(~sees[:, None], lowest)
        device = token_states.device.type
        if torch.is_autocast_enabled(device):
            token_states = token_states.to(torch.get_autocast_dtype(device))  # once, not in every layer
        hidden = stack.dropout(stack.embed_tokens(tokens))
        for attend_nodes, attend_states, feed_forward in (block.layer for block in stack.block):
            hidden = attend_nodes(hidden, position_bias=bias)[0]
            seen = _attend(attend_states.EncDecAttention, attend_states.layer_norm(hidden), token_states, states_mask)
            hidden = feed_forward(hidden + attend_states.dropout(seen))
        return stack.dropout(stack.final_layer_norm(hidden))  # type: ignore[no-any-return]

    def check_beam(self, beam_width: int) -> None:
        """Warn where search looks at nodes that training never asked: beyond the beam of an objective that asks that alone."""
        if self.objective.candidates == "beam" and beam_width > (trained := self.config.training_beam):
            warnings.warn(
                f"The decoder was trained with objective {self.config.objective!r} and a beam of {trained}; nodes outside "
                f"it were never asked, and a beam of {beam_width} may find worse answers than {trained}.",
                stacklevel=4,
            )

    def check_tree(self, tree: DocidTree) -> None:
        """Raise ValueError unless this generator was trained for the docids of `tree`."""
        if self.config.docids_fingerprint != tree.origin_fingerprint:
            raise ValueError(
                f"The generator was trained for docids {self.config.docids_fingerprint[:12]}, the docids here are "
                f"{tree.origin_fingerprint[:12]}; train the generator again or restore the docids it belongs to."
            )


def _attend(attention: T5Attention, hidden: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """T5's attention over encoder states without projecting them: queries go into the states' space, their averages out.

    q.(W_k s) = (W_k' q).s, and the weighted sum of W_v s is W_v of the weighted sum. A docid has a few digits and a text
    a hundred tokens, so this takes a small part of the work.

    Args:
        attention: its weights.
        hidden: [batch, n, d_model].
        states: [batch, length, d_model].
        mask: [batch, length], True at real tokens.

    Returns:
        [batch, n, d_model].
    """
    batch, n, _ = hidden.shape
    heads, head_dim, width = attention.n_heads, attention.key_value_proj_dim, states.shape[2]
    queries = attention.q(hidden).view(batch, n, heads, head_dim)
    queries = torch.einsum("bnhk,hkd->bnhd", queries, attention.k.weight.view(heads, head_dim, width))
    scores = torch.bmm(queries.reshape(batch, n * heads, width), states.transpose(1, 2)).float()
    weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(dim=2)
    weights = nn.functional.dropout(weights, attention.dropout, attention.training)
    means = torch.bmm(weights.to(states.dtype), states).view(batch, n, heads, width)
    values = torch.einsum("bnhd,hkd->bnhk", means, attention.v.weight.view(heads, head_dim, width))
    return attention.o(values.reshape(batch, n, heads * head_dim))  # type: ignore[no-any-return]


def _level_tokens(fan_out: list[int]) -> Tensor:
    """[depth, largest fan-out] token id of each (level, digit), -1 where a level has no such digit."""
    tokens = torch.arange(1, 1 + sum(fan_out)).split(fan_out)
    return nn.utils.rnn.pad_sequence(list(tokens), batch_first=True, padding_value=-1)


def _fresh_config(config: GeneratorConfig, width: int, docid_settings: dict[str, object]) -> T5Config:
    if width % config.num_heads:
        raise ValueError(f"generator.num_heads must divide the encoder's width {width}, got {config.num_heads}.")
    return T5Config(
        d_model=width,
        d_kv=width // config.num_heads,
        d_ff=config.feed_forward_dim or 4 * width,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        **docid_settings,
    )


def load_generator(folder: Path, device: str | torch.device) -> DocidGenerator:
    """Read a generator that `save_pretrained` wrote.

    Raises:
        FileNotFoundError: no generator there.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no generator; train it first (dsi train-generator).")
    return DocidGenerator.from_pretrained(str(folder), local_files_only=True).to(device).eval()
