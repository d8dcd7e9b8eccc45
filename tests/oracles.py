"""Slow, literal implementations that tests compare the library with: one query, one document, one node at a time."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator
from dsi.generator.reference import transformers_logits
from dsi.generator.tied import LevelQueries


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


def margin_of_paths(tree: DocidTree, margins: str, log_p: torch.Tensor, right: int, candidates: Sequence[int]) -> float:
    """What the path to one document lacks of a margin of 1 before those to other nodes, at each level or for documents only.

    Args:
        tree: the docids.
        margins: "prefixes" or "documents".
        log_p: [documents, depth] of each step, 0 past the end.
        right: position of the relevant document.
        candidates: the nodes that are compared.
    """
    digits, hinges = tree.digits(right), {}
    for node in candidates:
        document, length = prefix(tree, node)
        if tree.digits(document)[:length] == digits[:length] or (margins == "documents" and node < tree.num_inner):
            continue
        own = len(digits) if margins == "documents" else length
        behind = float(log_p[document, :length].sum() - log_p[right, :own].sum())
        hinges.setdefault(length, []).append(max(0.0, 1 + behind))
    if margins == "documents":
        return max([0.0, *(hinge for same in hinges.values() for hinge in same)])
    return sum(sum(same) / len(same) for length, same in hinges.items() if length <= len(digits))


def prefix(tree: DocidTree, node: int) -> tuple[int, int]:
    """A document whose path leads through a node, and the number of digits up to the node."""
    if node >= tree.num_inner:
        return node - tree.num_inner, len(tree.digits(node - tree.num_inner))
    return int(tree.doc_start[node]), next(depth for depth, level in enumerate(tree.levels) if node < level.stop)


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


def bm25_scores(documents: Sequence[list[str]], asked: Sequence[tuple[str, float]], k1: float, b: float) -> list[float]:
    """BM25 (Lucene's) of documents that are lists of words, for words with a factor each; no stop words are dropped."""
    mean, scores = sum(map(len, documents)) / len(documents), []
    for own in documents:
        score = 0.0
        for word, factor in asked:
            having = sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            if word in own:
                damping = k1 * (1 - b + b * len(own) / mean)
                score += factor * rarity * own.count(word) / (own.count(word) + damping)
        scores.append(score)
    return scores


def estimate(
    tree: DocidTree,
    query: torch.Tensor,
    node: int,
    look_ahead: int,
    scale: float,
    size_weight: float,
    largest: bool = True,
) -> torch.Tensor:
    """`scale` times the estimate of one node, by its definition (`dsi.trees.estimates`); `largest` as in `NodeEstimates`."""
    if node >= tree.num_inner:
        return scale * (query @ torch.from_numpy(tree.embeddings[node - tree.num_inner]))
    if look_ahead:
        below = [
            estimate(tree, query, child, look_ahead - 1, scale, size_weight, largest)
            for child in children_of(tree, node)
        ]
        return torch.stack(below).amax() if largest else torch.stack(below).logsumexp(0)
    positions = range(int(tree.doc_start[node]), int(tree.doc_end[node]))
    own = tree.embeddings[[position for position in positions if tree.doc_rows[position] >= 0]].astype(np.float64)
    center, count = tree.centroids[node].astype(np.float64), max(len(own), 1)
    variance = max(0.0, float((own**2).sum(axis=1).mean() - (center**2).sum())) if len(own) else 0.0
    size = np.sqrt(variance * 2 * np.log(count)) * scale if largest else np.log(count)
    return scale * (query @ torch.from_numpy(tree.centroids[node])) + size_weight * size


def estimate_log_p(tree: DocidTree, said: LevelQueries, look_ahead: int) -> torch.Tensor:
    """[batch, documents] the log-probability of each document under softmaxes of tied tokens over children, node by node."""
    result = torch.zeros(len(said.queries), tree.num_documents)
    parents, digits = tree.paths(np.arange(tree.num_documents))
    for query in range(len(result)):
        for document in range(tree.num_documents):
            for level in range(int((digits[document] >= 0).sum())):
                scale, weight = float(said.scales[level]), float(said.size_weights[level])
                own = [
                    estimate(tree, said.queries[query, level], child, look_ahead, scale, weight, largest=False)
                    for child in children_of(tree, int(parents[document, level]))
                ]
                result[query, document] += torch.stack(own).log_softmax(0)[digits[document, level]]
    return result


def estimate_beam(
    tree: DocidTree, said: LevelQueries, query: int, documents: torch.Tensor, look_ahead: int, beam_width: int, k: int
) -> list[int]:
    """The docid positions of one query's answers by a beam search on estimates, one node at a time; documents: [documents]
    scores."""
    beam, reached = [0], []
    for level in range(tree.depth):
        children = [child for node in beam for child in children_of(tree, node)]
        reached += [child - tree.num_inner for child in children if child >= tree.num_inner]
        weight = float(said.size_weights[level])
        scores = {
            child: float(estimate(tree, said.queries[query, level], child, look_ahead, 1.0, weight))
            for child in children
            if child < tree.num_inner
        }
        beam = sorted(sorted(scores, key=lambda node: -scores[node])[:beam_width])
    return sorted(sorted(reached), key=lambda position: -float(documents[position]))[:k]
