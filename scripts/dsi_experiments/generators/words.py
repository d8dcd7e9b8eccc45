"""A generator that writes titles in the words of the T5 checkpoint it starts from, as GENRE does (De Cao et al. 2021).

A node of the tree stands for one token of a title. All nodes of a token share one row of the embeddings and one of the output
layer, whatever their level, and both rows are the checkpoint's: what it learned of a word holds at every place of the word.
Softmaxes run over a node's children only. Nodes are numbered as in the tree that the generator was trained for; its shape is
kept here, so that documents may be added to the tree. Knows no titles and no tokenizer.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import T5Config

from dsi.config import Config, GeneratorConfig
from dsi.docids.files.reading import RESTORE
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.model import DocidGenerator


class WordGenerator(DocidGenerator):
    """T5 decoder with the checkpoint's rows of the tokens that the tree holds.

    Its config has `inner_nodes` and `nodes`, the sizes of the tree.
    """

    tokens_are_nodes = True
    rows: Tensor  # [nodes] row of each node's token; 0, the start token, for the root and for only children without one
    first_child: Tensor  # [inner_nodes] as in the tree
    num_children: Tensor  # [inner_nodes] as in the tree

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        for name, size in (
            ("rows", config.nodes),
            ("first_child", config.inner_nodes),
            ("num_children", config.inner_nodes),
        ):
            self.register_buffer(name, torch.zeros(size, dtype=torch.long))

    @classmethod
    def check_config(cls, config: Config, device: Any = None) -> None:
        """Raise ValueError unless docids are titles, and a checkpoint has their words."""
        if config.docids.method != "title":
            raise ValueError(
                f'generator.docid_tokens = "words" needs docids.method = "title", got {config.docids.method!r}.'
            )
        if not config.generator.decoder:
            raise ValueError(
                'generator.docid_tokens = "words" needs generator.decoder, a T5 checkpoint that has the words.'
            )

    @classmethod
    def entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        """Return the sizes of the tree and of its vocabulary; see `Generator.entries`."""
        assert numbers is not None
        tokens = np.unique(node_numbers(tree, numbers))
        nodes = tree.num_inner + tree.num_places
        return {"vocab_size": 1 + int((tokens >= 0).sum()), "inner_nodes": tree.num_inner, "nodes": nodes}

    @torch.no_grad()
    def initialise(self, tree: DocidTree, checkpoint: Any, numbers: Ints | None) -> None:
        """Take the rows of the tree's tokens over from the checkpoint."""
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

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of nodes: those of their words."""
        return super().embed(self.rows[tokens])

    def child_tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the children [batch, beams, fan_out]; any of them for one that was added after training."""
        return self.children_of(parents.clamp(max=len(self.first_child) - 1), digits)

    def score_children(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        """Return the logits [batch, beams, fan_out] of the words of a level below nodes [batch, beams]."""
        children = self.child_tokens(tokens, torch.arange(self.config.fan_out[level], device=tokens.device), level)
        return self.head(hidden).gather(2, self.rows[children])

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Compute the logits of the children of several inner nodes, which `tokens` are; see `DocidGenerator.forward`."""
        digits = torch.arange(max(self.config.fan_out), device=tokens.device)
        hidden = self.hidden(token_states, states_mask, tokens, depths, sees)
        logits = self.head(hidden).gather(2, self.rows[self.children_of(tokens, digits)])  # [batch, n, largest fan-out]
        return {"logits": logits.masked_fill(digits >= self.num_children[tokens][..., None], -torch.inf)}


def node_numbers(tree: DocidTree, numbers: Ints) -> Ints:
    """Return [nodes] the number with which the way to each node ends; -1 for the root and nodes that have none.

    `numbers`: [N, longest] of each docid in docid order, -1 past the end.
    """
    parents, digits = tree.paths(np.arange(tree.num_places))
    by_node = np.full(tree.num_inner + tree.num_places, -1, dtype=np.int32)
    for level in range(min(tree.depth, numbers.shape[1])):
        here = digits[:, level] >= 0
        by_node[tree.first_child[parents[here, level]] + digits[here, level]] = numbers[here, level]
    return by_node
