"""Slow, literal implementations that tests compare the library with: one query, one document, one node at a time."""

from collections.abc import Sequence

import numpy as np
import torch

from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator
from dsi.generator.reference import transformers_logits


def chain_logits(
    tree: DocidTree, generator: DocidGenerator, states: torch.Tensor, mask: torch.Tensor, digits: torch.Tensor
) -> torch.Tensor:
    """[n, depth, largest fan-out] logits along n sequences of digits, by T5's own stack; states [n, length, width]."""
    with torch.no_grad():
        return transformers_logits(generator, tree, states, mask, digits)


def level_log_p(tree: DocidTree, generator: DocidGenerator, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[batch, documents, depth] the decoder's score of each node on the path to each document, 0 past the end.

    By the definition of its objective's score, one query and one document at a time.
    """
    parents, digits = (torch.from_numpy(each).long() for each in tree.paths(np.arange(tree.num_documents)))
    score, n = generator.objective.score, tree.num_documents
    result = torch.zeros(len(states), n, tree.depth)
    for query in range(len(states)):
        logits = chain_logits(tree, generator, states[query].expand(n, -1, -1), mask[query].expand(n, -1), digits)
        for document in range(n):
            for level in range(int((digits[document] >= 0).sum())):
                children = int(tree.num_children[parents[document, level]])
                own, digit = logits[document, level, :children], digits[document, level]
                if score == "softmax path":
                    result[query, document, level] = own.log_softmax(0)[digit]
                else:
                    prior = children if score == "sigmoid path" else int(tree.num_children[tree.levels[level]].sum())
                    result[query, document, level] = torch.nn.functional.logsigmoid(own[digit] - np.log(prior))
    return result


def document_log_p(
    tree: DocidTree, generator: DocidGenerator, states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[batch, documents] the decoder's score of every document: the sum along its path, or its own."""
    levels = level_log_p(tree, generator, states, mask)
    if generator.objective.score != "node":
        return levels.sum(dim=2)
    last = torch.from_numpy((tree.paths(np.arange(tree.num_documents))[1] >= 0).sum(axis=1) - 1)
    return levels.gather(2, last.expand(len(levels), -1)[:, :, None]).squeeze(2)


def children_of(tree: DocidTree, node: int) -> range:
    """The children of an inner node."""
    return range(int(tree.first_child[node]), int(tree.first_child[node]) + int(tree.num_children[node]))


def estimated_target(tree: DocidTree, scores: Sequence[float], relevant: Sequence[float], node: int) -> float:
    """zhat of a node (Zhuo et al. 2020, eq. 15), by its recursion; among children that tie for the best a positive one counts.

    Args:
        tree: the docids.
        scores: of all nodes.
        relevant: of all documents in docid order.
        node: whose target is asked for.
    """
    if node >= tree.num_inner:
        return float(relevant[node - tree.num_inner])
    best = max(scores[child] for child in children_of(tree, node))
    tied = [child for child in children_of(tree, node) if scores[child] == best]
    return max(estimated_target(tree, scores, relevant, child) for child in tied)
