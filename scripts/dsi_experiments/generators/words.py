"""A generator that writes titles in the words of the T5 checkpoint it starts from, as GENRE does (De Cao et al. 2021).

A node of the tree stands for one token of a title. All nodes of a token share one row of the embeddings and one of the output
layer, whatever their level, and both rows are the checkpoint's: what it learned of a word holds at every place of the word.
Softmaxes run over a node's children only. Nodes are numbered as in the tree that the generator was trained for; its shape is
kept here, so that documents may be added to the tree. Knows no titles and no tokenizer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config

from dsi.config import Config
from dsi.docids.files.reading import RESTORE
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.config import GeneratorConfig
from dsi.generator.model import DocidGenerator
from dsi.search.decoder import StatesDecoder


class WordGenerator(DocidGenerator):
    """T5 decoder with the checkpoint's rows of the tokens that the tree holds.

    Args:
        config: a T5Config for the decoder stack, with the entries that `Generator` names, and how many `inner_nodes`
            and `nodes` the tree has.

    Attributes:
        rows: [nodes] row of each node's token; 0, the start token, for the root and for only children without one.
        first_child: [inner_nodes] as in the tree.
        num_children: [inner_nodes] as in the tree.
    """

    tokens_are_nodes = True
    rows: Tensor
    first_child: Tensor
    num_children: Tensor

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        for name, size in (
            ("rows", config.nodes),
            ("first_child", config.inner_nodes),
            ("num_children", config.inner_nodes),
        ):
            self.register_buffer(name, torch.zeros(size, dtype=torch.long))

    @classmethod
    def check_config(cls, config: Config) -> None:
        """Raise ValueError unless docids are titles, and a checkpoint has their words."""
        if config.docids.method != "title":
            raise ValueError(
                f'generator.docid_tokens = "words" needs docids.method = "title", got {config.docids.method!r}.'
            )
        if not config.generator.decoder:
            raise ValueError(
                'generator.docid_tokens = "words" needs generator.decoder, a T5 checkpoint that has the words.'
            )

    def search_decoder(self, dtype: torch.dtype | None = None) -> "WordDecoder":
        """Return what runs it in a search."""
        return WordDecoder(self, dtype)

    @classmethod
    def _entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        assert numbers is not None
        tokens = np.unique(node_numbers(tree, numbers))
        nodes = tree.num_inner + tree.num_places
        return {"vocab_size": 1 + int((tokens >= 0).sum()), "inner_nodes": tree.num_inner, "nodes": nodes}

    @torch.no_grad()
    def _after_creation(self, tree: DocidTree, checkpoint: Any, numbers: Ints | None) -> None:
        """Take the rows of the tree's tokens over from the checkpoint.

        Raises:
            ValueError: a token that the checkpoint does not have.
        """
        assert numbers is not None
        by_node = node_numbers(tree, numbers)
        tokens = np.unique(by_node[by_node >= 0])
        known = min(len(checkpoint.shared.weight), len(checkpoint.lm_head.weight))
        if tokens[-1] >= known:
            raise ValueError(
                f"The docids have the token {tokens[-1]}, the decoder only {known}; take its own tokenizer for docids."
            )
        source = torch.from_numpy(np.concatenate([[checkpoint.config.decoder_start_token_id], tokens])).long()
        scale = checkpoint.config.d_model**-0.5 if checkpoint.config.scale_decoder_outputs else 1.0
        self.decoder.embed_tokens.weight.copy_(checkpoint.shared.weight[source])
        self.head.weight.copy_(checkpoint.lm_head.weight[source] * scale)
        self.rows.copy_(torch.from_numpy(np.where(by_node < 0, 0, 1 + np.searchsorted(tokens, by_node))))
        self.first_child.copy_(torch.from_numpy(tree.first_child))
        self.num_children.copy_(torch.from_numpy(tree.num_children))

    def check_tree(self, tree: DocidTree) -> None:
        """Raise ValueError unless this generator was trained for the docids of `tree`, and its own numbers are sound."""
        super().check_tree(tree)
        nodes, last = len(self.rows), self.first_child + self.num_children
        if min(self.rows.min(), self.first_child.min(), self.num_children.min()) < 0 or (
            self.rows.max() >= self.config.vocab_size or last.max() > nodes
        ):
            raise ValueError(f"The generator names tokens or nodes that it does not have; {RESTORE}.")

    def children_of(self, nodes: Tensor, digits: Tensor) -> Tensor:
        """Return the children [..., digits] of inner nodes [...]; any of them for digits past the last."""
        most = self.num_children[nodes][..., None] - 1
        return self.first_child[nodes][..., None] + torch.minimum(digits, most)

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Compute the logits of the children of several inner nodes; see `DocidGenerator.forward`.

        Args:
            token_states: as there, like the others.
            states_mask: as there.
            tokens: [batch, n] the nodes themselves.
            depths: as there.
            sees: as there.
        """
        digits = torch.arange(max(self.config.fan_out), device=tokens.device)
        hidden = self._hidden(token_states, states_mask, self.rows[tokens], depths, sees)
        logits = self.head(hidden).gather(2, self.rows[self.children_of(tokens, digits)])  # [batch, n, largest fan-out]
        return {"logits": logits.masked_fill(digits >= self.num_children[tokens][..., None], -torch.inf)}


def node_numbers(tree: DocidTree, numbers: Ints) -> Ints:
    """Return [nodes] the number with which the way to each node ends; -1 for the root and nodes that have none.

    Args:
        tree: the docids.
        numbers: [N, longest] of each docid in docid order, -1 past the end; a digit of the tree is a rank among siblings.
    """
    parents, digits = tree.paths(np.arange(tree.num_places))
    by_node = np.full(tree.num_inner + tree.num_places, -1, dtype=np.int32)
    for level in range(min(tree.depth, numbers.shape[1])):
        here = digits[:, level] >= 0
        by_node[tree.first_child[parents[here, level]] + digits[here, level]] = numbers[here, level]
    return by_node


class WordDecoder(StatesDecoder):
    """A `WordGenerator`: its tokens are nodes, as they were numbered in training."""

    def _level_heads(self, head: Tensor) -> Sequence[Tensor]:
        generator, heads = self.generator, list[Tensor]()
        self.columns = torch.zeros_like(generator.rows)  # [nodes] of each node's token among the words of its level
        nodes = torch.zeros(1, dtype=torch.long, device=head.device)
        for fan_out in self.fan_out:
            digits = torch.arange(fan_out, device=head.device)
            nodes = generator.children_of(nodes, digits)[digits < generator.num_children[nodes][:, None]]
            rows, self.columns[nodes] = generator.rows[nodes].unique(return_inverse=True)
            heads.append(head[rows])  # [words of the level, width]
            nodes = nodes[nodes < len(generator.first_child)]
        return heads

    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the children [batch, beams, fan_out]; any of them for one that was added after training."""
        last: int = len(self.generator.first_child) - 1
        return self.generator.children_of(parents.clamp(max=last), digits)  # type: ignore[no-any-return]

    def _embed(self, tokens: Tensor) -> Tensor:
        return super()._embed(self.generator.rows[tokens])

    def _logits(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        children = self.tokens(tokens, torch.arange(self.fan_out[level], device=tokens.device), level)
        return super()._logits(hidden, tokens, level).gather(2, self.columns[children])
