"""The docid generator: a T5 decoder over the encoder's token states, with a small vocabulary of docid tokens.

A docid token is a (level, digit) pair with its own embedding and its own output row, so the output layer has as many rows
as the tree has digits, not 32,128. Probabilities are taken over a node's children only, in training as in search. The
encoder is frozen and not part of the model: its token states come in from outside. Knows the tree's shape, no documents.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5PreTrainedModel, T5Stack

from docids.tree import DocidTree

IGNORED = -1
"""Digit that stands for "the docid has ended"."""


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
    batch_size: int = 64
    epochs: float = 50.0
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.decoder and self.num_layers < 1:
            raise ValueError(f"generator.num_layers must be at least 1 without a T5 checkpoint, got {self.num_layers}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"generator.dropout must be in [0, 1), got {self.dropout}.")
        if not 0 <= self.state_dropout < 1:
            raise ValueError(f"generator.state_dropout must be in [0, 1), got {self.state_dropout}.")
        if self.pseudo_queries < 0:
            raise ValueError(
                f"generator.pseudo_queries must be 0 (none) or more a document, got {self.pseudo_queries}."
            )
        if not self.dense_temperature >= 0:
            raise ValueError(
                f"generator.dense_temperature must be 0 (off) or above, got {self.dense_temperature}; about 0.03 suits cosines."
            )
        if self.document_segments < 1:
            raise ValueError(f"generator.document_segments must be at least 1, got {self.document_segments}.")
        if not 0 <= self.distillation <= 1 or (self.distillation and not self.dense_temperature):
            raise ValueError(
                f"generator.distillation must be in [0, 1], and needs a dense_temperature above 0; "
                f"got {self.distillation} with dense_temperature {self.dense_temperature}."
            )
        if self.train_encoder and self.dense_temperature:
            raise ValueError(
                "generator.train_encoder changes the encoder whose dense scores dense_temperature wants; set one of them."
            )


class DocidGenerator(T5PreTrainedModel):
    """T5 decoder with docid embeddings and a docid output layer.

    Args:
        config: a T5Config for the decoder stack, with two more entries: `fan_out`, the digits of each level, and
            `docids_fingerprint`, the tree it belongs to.
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

    def _with_fresh_head(self) -> "DocidGenerator":
        """Logits of unit size at the start: transformers' default would make them d_model^0.5 times as large."""
        nn.init.normal_(self.head.weight, std=self.config.d_model**-0.5)
        return self

    def digit_logits(self, token_states: Tensor, states_mask: Tensor, digits: Tensor) -> Tensor:
        """Logits of every digit at every level, the digits before it given.

        Args:
            token_states: [batch, length, d_model] encoder states.
            states_mask: [batch, length], True at real tokens.
            digits: [batch, depth], `IGNORED` past the end.

        Returns:
            [batch, depth, largest fan-out], -inf for digits that a level does not have.
        """
        columns = _level_tokens(self.config.fan_out).to(digits.device)
        tokens = columns[torch.arange(len(columns), device=digits.device), digits.clamp(min=0)]
        inputs = F.pad(tokens[:, :-1], (1, 0))  # token 0 starts every docid
        hidden = self.decoder(
            input_ids=inputs,
            encoder_hidden_states=token_states,
            encoder_attention_mask=states_mask.to(token_states.dtype),
            use_cache=False,
        ).last_hidden_state
        logits = self.head(hidden)
        picked = logits.gather(2, columns.clamp(min=0).expand(len(digits), -1, -1))
        return picked.masked_fill(columns < 0, -torch.inf)

    def forward(
        self,
        token_states: Tensor,
        states_mask: Tensor,
        digits: Tensor,
        num_children: Tensor,
        dense_logits: Tensor | None = None,
        distillation: float = 0.0,
    ) -> dict[str, Tensor]:
        """Negative log-likelihood of docids (DR-SCL eq. 8), each digit's softmax over its node's children only.

        Args:
            token_states: [batch, length, d_model].
            states_mask: [batch, length].
            digits: [batch, depth], `IGNORED` past the end.
            num_children: [batch, depth] children of the node at which each digit is chosen.
            dense_logits: [batch, depth, largest fan-out], added to the decoder's, or with distillation its teacher.
            distillation: the teacher's share of the loss.

        Returns:
            loss: mean over the batch; log_likelihood: [batch].
        """
        logits = self.digit_logits(token_states, states_mask, digits).float()
        if dense_logits is not None and not distillation:
            logits = logits + dense_logits
        log_p = children_log_softmax(logits, num_children)
        log_likelihood = path_sum(log_p, digits)
        loss = -log_likelihood.mean()
        if dense_logits is not None and distillation:
            teacher = children_log_softmax(dense_logits, num_children)
            divergence = teacher.exp() * (teacher - log_p).masked_fill(teacher == -torch.inf, 0.0)
            taught = divergence.sum(dim=2).masked_fill(digits < 0, 0.0).sum(dim=1).mean()
            loss = (1 - distillation) * loss + distillation * taught
        return {"loss": loss, "log_likelihood": log_likelihood}

    def check_tree(self, tree: DocidTree) -> None:
        """Raise ValueError unless this generator was trained for the docids of `tree`."""
        if self.config.docids_fingerprint != tree.origin_fingerprint:
            raise ValueError(
                f"The generator was trained for docids {self.config.docids_fingerprint[:12]}, the docids here are "
                f"{tree.origin_fingerprint[:12]}; train the generator again or restore the docids it belongs to."
            )


def children_log_softmax(logits: Tensor, num_children: Tensor) -> Tensor:
    """[batch, depth, fan-out] log softmax of logits over each node's valid children, -inf at the others."""
    invalid = torch.arange(logits.shape[2], device=logits.device) >= num_children[:, :, None].clamp(min=1)
    return logits.masked_fill(invalid, -torch.inf).log_softmax(dim=2)


def path_sum(log_p: Tensor, digits: Tensor) -> Tensor:
    """[batch] sum over levels of log_p [batch, depth, fan-out] at the digits [batch, depth]."""
    chosen = log_p.gather(2, digits.clamp(min=0)[:, :, None]).squeeze(2)
    return chosen.masked_fill(digits < 0, 0.0).sum(dim=1)


def path_log_likelihood(logits: Tensor, digits: Tensor, num_children: Tensor) -> Tensor:
    """[batch] sum over levels of log softmax over valid children, from `digit_logits`."""
    return path_sum(children_log_softmax(logits, num_children), digits)


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
