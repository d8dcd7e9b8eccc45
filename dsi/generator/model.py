"""The docid generator: a T5 decoder over the encoder's token states, with a small vocabulary of docid tokens.

Each (level, digit) pair is a token with its own embedding and output row, so the output layer has one row per digit of the
tree instead of T5's 32,128. Softmaxes run over a node's children only, in training as in search. The frozen encoder is not
part of the model; its token states are inputs. Knows the shape of the tree, no documents.
"""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention, T5PreTrainedModel, T5Stack

from docids.tree import DocidTree
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.trees.objectives import Objective, find_objective


class DocidGenerator(T5PreTrainedModel):
    """T5 decoder with docid embeddings and a docid output layer.

    Args:
        config: a T5Config for the decoder stack, with additional entries: `fan_out`, the number of digits per level;
            `docids_fingerprint`, the tree it was trained for; `objective` and `training_beam`, how it was trained.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.decoder = T5Stack(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def create(
        cls,
        config: GeneratorConfig,
        tree: DocidTree,
        state_dim: int,
        objective: ObjectiveConfig = ObjectiveConfig(),  # noqa: B008 (frozen)
        seed: int = 0,
    ) -> "DocidGenerator":
        """Return a generator for a tree, with a fresh decoder or the decoder of a T5 checkpoint.

        Args:
            config: the decoder.
            tree: the docids to generate.
            state_dim: width of the encoder's token states.
            objective: the training objective, which also decides how search ranks nodes.
            seed: of fresh weights.

        Raises:
            ValueError: the checkpoint's width is not the encoder's, or it has fewer layers than asked for.
        """
        torch.manual_seed(seed)
        docid_settings = {
            "vocab_size": tree.vocab_size,
            "fan_out": tree.fan_out,
            "docids_fingerprint": tree.fingerprint,
            "objective": objective.name,
            "training_beam": objective.training_beam,
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
        """The training objective, which decides how logits rank nodes."""
        return find_objective(getattr(self.config, "objective", "ce"))

    def _with_fresh_head(self) -> "DocidGenerator":
        """Initialise the output layer for logits of unit size; transformers' default makes them d_model^0.5 times larger."""
        nn.init.normal_(self.head.weight, std=self.config.d_model**-0.5)
        return self

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Compute the logits of the children of several inner nodes of each instance in one pass.

        The nodes form a small tree. Each attends to its ancestors and itself, and relative positions are differences of depth,
        so every node gets the same logits as at the end of its own sequence of digits.

        Args:
            token_states: [batch, length, d_model] encoder states.
            states_mask: [batch, length] True at real tokens.
            tokens: [batch, n] docid token of each node's last digit, 0 for the root.
            depths: [batch, n] depth of each node, 0 for the root.
            sees: [batch, n, n] True if the second node is an ancestor of the first, or the same.

        Returns:
            logits: [batch, n, largest fan_out], -inf for digits that a level does not have.
        """
        columns = _level_tokens(self.config.fan_out).to(tokens.device)[depths]  # [batch, n, largest fan_out]
        logits = self.head(self._hidden(token_states, states_mask, tokens, depths, sees))  # [batch, n, vocab_size]
        picked = logits.gather(2, columns.clamp(min=0))
        return {"logits": picked.masked_fill(columns < 0, -torch.inf)}

    def _hidden(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> Tensor:
        """Run T5's blocks over a tree of nodes; returns [batch, n, d_model]."""
        # Attention bias: relative positions from differences of depth; other branches are masked.
        stack = self.decoder
        attention = stack.block[0].layer[0].SelfAttention
        buckets = attention._relative_position_bucket(
            depths[:, None, :] - depths[:, :, None],
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        bias = attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)  # [batch, heads, n, n]
        lowest = torch.finfo(bias.dtype).min
        bias = bias.masked_fill(~sees[:, None], lowest)
        device = token_states.device.type
        if torch.is_autocast_enabled(device):
            token_states = token_states.to(torch.get_autocast_dtype(device))  # once, not in every layer

        # The blocks of the stack, with cross-attention that does not project the states.
        hidden = stack.dropout(stack.embed_tokens(tokens))  # [batch, n, d_model]
        for attend_nodes, attend_states, feed_forward in (block.layer for block in stack.block):
            hidden = attend_nodes(hidden, position_bias=bias)[0]
            seen = _attend(attend_states.EncDecAttention, attend_states.layer_norm(hidden), token_states, states_mask)
            hidden = feed_forward(hidden + attend_states.dropout(seen))
        return stack.dropout(stack.final_layer_norm(hidden))  # type: ignore[no-any-return]

    def check_beam(self, beam_width: int) -> None:
        """Warn if `beam_width` exceeds the training beam: nodes outside it were never trained."""
        if self.objective.candidates == "beam" and beam_width > (trained := self.config.training_beam):
            warnings.warn(
                f"The decoder was trained with objective {self.config.objective!r} and a beam of {trained}; nodes outside "
                f"that beam were never trained, and a beam of {beam_width} may find worse answers than {trained}.",
                stacklevel=5,
            )

    def check_tree(self, tree: DocidTree) -> None:
        """Raise ValueError unless this generator was trained for the docids of `tree`."""
        if self.config.docids_fingerprint != tree.origin_fingerprint:
            raise ValueError(
                f"The generator was trained for docids {self.config.docids_fingerprint[:12]}, the docids here are "
                f"{tree.origin_fingerprint[:12]}; train the generator again or restore the docids it belongs to."
            )


def _attend(attention: T5Attention, hidden: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """Compute T5's cross-attention without projecting the encoder states; returns [batch, n, d_model].

    q.(W_k s) = (W_k' q).s, and the weighted sum of W_v s is W_v times the weighted sum of s. So queries are projected into the
    space of the states, and the weighted means out of it. A docid has a few digits and a text a hundred tokens, which makes
    this much cheaper than projecting every state.

    Args:
        attention: the T5 layer whose weights are used.
        hidden: [batch, n, d_model].
        states: [batch, length, d_model].
        mask: [batch, length] True at real tokens.
    """
    batch, n, _ = hidden.shape
    heads, head_dim, width = attention.n_heads, attention.key_value_proj_dim, states.shape[2]
    queries = attention.q(hidden).view(batch, n, heads, head_dim)
    # W_k' q: [batch, n, heads, d_model]
    queries = torch.einsum("bnhk,hkd->bnhd", queries, attention.k.weight.view(heads, head_dim, width))
    scores = torch.bmm(queries.reshape(batch, n * heads, width), states.transpose(1, 2)).float()
    weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(dim=2)
    weights = nn.functional.dropout(weights, attention.dropout, attention.training)  # [batch, n * heads, length]
    means = torch.bmm(weights.to(states.dtype), states).view(batch, n, heads, width)
    values = torch.einsum("bnhd,hkd->bnhk", means, attention.v.weight.view(heads, head_dim, width))
    return attention.o(values.reshape(batch, n, heads * head_dim))  # type: ignore[no-any-return]


def _level_tokens(fan_out: list[int]) -> Tensor:
    """Return the token id of each (level, digit), [depth, largest fan_out]; -1 if the level has no such digit."""
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
    """Load a generator that `save_pretrained` wrote.

    Raises:
        FileNotFoundError: the folder holds no generator.
    """
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no generator; train it first (dsi train-generator).")
    return DocidGenerator.from_pretrained(str(folder), local_files_only=True).to(device).eval()
