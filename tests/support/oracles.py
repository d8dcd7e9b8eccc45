"""Slow, literal implementations that tests compare the library with: one query, one document, one node at a time."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dsi.docids.tree import DocidTree


def chain_logits(
    tree: DocidTree, generator: torch.nn.Module, states: torch.Tensor, mask: torch.Tensor, digits: torch.Tensor
) -> torch.Tensor:
    """[n, depth, largest fan-out] logits along n sequences of digits, by T5's own stack; states [n, length, width]."""
    pad, offsets = torch.nn.functional.pad, torch.from_numpy(tree.token_offsets).long()
    tokens = pad((offsets + digits.clamp(min=0))[:, :-1], (1, 0))  # [n, depth], shifted right by the start token
    attended = {"encoder_hidden_states": states, "encoder_attention_mask": mask.float(), "use_cache": False}
    with torch.no_grad():
        logits = generator.head(generator.decoder(input_ids=tokens, **attended).last_hidden_state)
    own = [logits[:, level, first : first + tree.fan_out[level]] for level, first in enumerate(offsets.tolist())]
    widest = max(tree.fan_out)
    return torch.stack([pad(each, (0, widest - each.shape[1]), value=-torch.inf) for each in own], dim=1)


def level_log_p(tree: DocidTree, generator: torch.nn.Module, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[batch, documents, depth] the decoder's score of each node on the path to each document, 0 past the end.

    By the definition of its objective's score, one query and one document at a time.
    """
    states, mask = torch.as_tensor(states), torch.as_tensor(mask)
    parents, digits = (torch.from_numpy(each).long() for each in tree.paths(np.arange(tree.num_places)))
    score, n = generator.config.score, tree.num_places
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
    tree: DocidTree, generator: torch.nn.Module, states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[batch, documents] the decoder's score of every document: the sum along its path, or its own."""
    return along_paths(tree, generator, level_log_p(tree, generator, states, mask))


def along_paths(tree: DocidTree, generator: torch.nn.Module, levels: torch.Tensor) -> torch.Tensor:
    """[batch, documents] the sum of scores [batch, documents, depth] along each path; of "node" scores, the document's own."""
    if generator.config.score != "node":
        return levels.sum(dim=2)
    last = torch.from_numpy((tree.paths(np.arange(tree.num_places))[1] >= 0).sum(axis=1) - 1)
    return levels.gather(2, last.expand(len(levels), -1)[:, :, None]).squeeze(2)


def ann_log_p(tree: DocidTree, embeddings: torch.Tensor, temperature: float, beta: float) -> torch.Tensor:
    """[batch, documents] the sum of log P_ANN over the first beta levels, one document and one level at a time (eq. 10)."""
    embeddings, total = torch.as_tensor(embeddings), torch.zeros(len(embeddings), tree.num_places)
    for position in range(tree.num_places):
        path = tree.digits(position)
        for level in range(int(min(len(path), beta))):
            vectors = np.stack([vector_of(tree, child) for child in children_of(tree, tree.node(path[:level]))])
            scores = embeddings @ torch.from_numpy(vectors).T / temperature
            total[:, position] += scores.log_softmax(dim=1)[:, path[level]]
    return total


def vector_of(tree: DocidTree, node: int) -> np.ndarray:
    """[dim] the centroid of an inner node, the embedding of a document."""
    return tree.centroids[node] if node < tree.num_inner else tree.embeddings[node - tree.num_inner]


def path_scores(
    tree: DocidTree, generator: torch.nn.Module, states: torch.Tensor, mask: torch.Tensor, embeddings: torch.Tensor,
    alpha: float, beta: float, temperature: float,
) -> torch.Tensor:  # fmt: skip
    """[batch, documents] the fused scores of all paths (eq. 11, 12): weight alpha up to level beta, the decoder alone below."""
    if beta == 0:
        return document_log_p(tree, generator, states, mask)
    weights = torch.tensor([alpha if level < beta else 1.0 for level in range(tree.depth)])
    generative = along_paths(tree, generator, level_log_p(tree, generator, states, mask) * weights)
    return generative + (1 - alpha) * ann_log_p(tree, embeddings, temperature, beta)


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
        node: whose target is wanted.
    """
    if node >= tree.num_inner:
        return float(relevant[node - tree.num_inner])
    best = max(scores[child] for child in children_of(tree, node))
    tied = [child for child in children_of(tree, node) if scores[child] == best]
    return max(estimated_target(tree, scores, relevant, child) for child in tied)


def bm25_scores(documents: Sequence[list[str]], query: Sequence[str], k1: float, b: float) -> list[float]:
    """BM25 (Lucene's) of documents that are lists of words, for the words of a query; no stop words are dropped."""
    mean, scores = sum(map(len, documents)) / len(documents), []
    for own in documents:
        score = 0.0
        for word in query:
            having = sum(word in other for other in documents)
            rarity = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            if word in own:
                damping = k1 * (1 - b + b * len(own) / mean)
                score += rarity * own.count(word) / (own.count(word) + damping)
        scores.append(score)
    return scores


def bm25_shares(documents: Sequence[list[str]], query: Sequence[str], k1: float, b: float) -> list[float]:
    """`bm25_scores` as shares of what a document with endlessly many of each word of the query would score."""
    best = 0.0
    for word in query:
        having = sum(word in other for other in documents)
        best += math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
    return [score / (best or 1.0) for score in bm25_scores(documents, query, k1, b)]


def bonus(tree: DocidTree, node: int) -> float:
    """spread times sqrt(2 ln size) of the documents below an inner node that were not removed (`dsi.search.walk.bonuses`)."""
    positions = range(int(tree.doc_start[node]), int(tree.doc_end[node]))
    own = tree.embeddings[[position for position in positions if tree.doc_rows[position] >= 0]].astype(np.float64)
    if not len(own):
        return 0.0
    variance = max(0.0, float((own**2).sum(axis=1).mean() - (tree.centroids[node].astype(np.float64) ** 2).sum()))
    return math.sqrt(variance * 2 * math.log(len(own)))


def walk(
    tree: DocidTree,
    scores: Callable[[int, int], float],
    beam_width: int,
    allowed: Sequence[bool],
    ends: Callable[[int], bool] | None = None,
) -> tuple[list[int], bool]:
    """The nodes where a walk ends, and whether it pruned any, one node at a time.

    Args:
        tree: the docids.
        scores: of a node that is chosen at a level.
        beam_width: nodes kept per level.
        allowed: [places] True at documents that may be returned.
        ends: whether a walk ends at a node; by default at those whose children are documents.
    """
    ends = ends or (lambda node: int(tree.first_child[node]) >= tree.num_inner)
    beam, last, pruned, level = [0], [], False, 0
    while beam:
        last += [node for node in beam if ends(node)]
        children = [child for node in beam if not ends(node) for child in children_of(tree, node)]
        alive = [child for child in children if any(allowed[tree.doc_start[child] : tree.doc_end[child]])]
        beam = sorted(sorted(alive, key=lambda node: -scores(level, node))[:beam_width])
        pruned |= len(beam) < len(alive)
        level += 1
    return last, pruned


def lloyd(points: np.ndarray, centroids: np.ndarray, steps: int) -> np.ndarray:
    """Lloyd's algorithm, point by point: each centroid becomes the mean of the points that are nearest to it."""
    for _ in range(steps):
        own: list[list[np.ndarray]] = [[] for _ in centroids]
        for point in points:
            own[int(np.argmin(((centroids - point) ** 2).sum(axis=1)))].append(point)
        centroids = np.array([np.mean(near, axis=0) if near else c for near, c in zip(own, centroids, strict=True)])
    return centroids


def legal_tokens(
    identifiers: Sequence[Sequence[int]],
    closing: Sequence[int],
    opening: Sequence[int],
    vocabulary: int,
    written: Sequence[int],
) -> set[int]:
    """The tokens that may follow what a row has written: free text, and identifiers between marks."""
    ended = {(*own, *closing) for own in identifiers}
    free: list[int] = []
    inside: list[int] | None = None if opening else []
    for token in written:
        if inside is None:
            free.append(token)
            if opening and free[-len(opening) :] == list(opening):
                inside, free = [], []
        elif tuple(inside) not in ended:
            inside.append(token)
            if opening and tuple(inside) in ended:
                inside = None
    if inside is None:
        return set(range(vocabulary))
    begun = {own[len(inside)] for own in ended if len(own) > len(inside) and own[: len(inside)] == tuple(inside)}
    return begun or {closing[-1]}


def memory_margin(
    query: np.ndarray, vectors: np.ndarray, rows: np.ndarray, counts: np.ndarray, dense: dict[int, float],
    documents: np.ndarray,
) -> tuple[dict[int, tuple[float, float]], float, float, float]:  # fmt: skip
    """The `memory_shares` of a query, its margin, the dense score of a cosine of 1, and the mean cosine of documents."""
    lengths = np.linalg.norm(documents, axis=1)
    units = documents / lengths[:, None]
    every = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    mean = float(np.clip(every.mean(), 0, 0.9)) if len(every) else 0.0
    own = float(np.linalg.norm(query))
    cosines, length = vectors @ query / own, own * float(lengths.mean())
    shares = memory_shares(cosines, rows, counts, mean)
    margin = max(0.0, float(cosines.max()) * length - max(dense[row] for row in shares)) / (length * (1 - mean))
    return shares, margin, length, mean


def moved_score(
    score: float,
    query: np.ndarray,
    vectors: np.ndarray,
    counts: np.ndarray,
    margin: float,
    length: float,
    weight: float,
) -> float:
    """A dense score moved towards those of a document's own earlier queries [pairs, dim] of length 1."""
    times = np.log2(1 + counts)
    mean = float(times @ (vectors @ query)) / times.sum() / np.linalg.norm(query) * length
    share = min(0.9, weight * margin * 0.5 * times.sum() / (times.sum() + 16))
    return (1 - share) * score + share * mean


def memory_shares(
    cosines: np.ndarray, rows: np.ndarray, counts: np.ndarray, mean: float = 0.0
) -> dict[int, tuple[float, float]]:
    """{row: (share, nearest)} of the documents of the 50 nearest earlier queries, by their cosines [pairs], from a mean.

    `nearest` is the weight of the nearest earlier query of a document, 1 for the nearest of all. The next earlier query has a
    millionth of its weight, and its document counts among them.
    """
    order = np.argsort(-cosines, kind="stable")
    near = cosines[order].astype(np.float64) / (1 - mean)
    floor = (1 - 1e-6) * np.exp((near[50] - near[0]) / 0.2) if len(near) > 50 else 0.0
    weights: dict[int, float] = {}
    nearest: dict[int, float] = {}
    for cosine, pair in list(zip(near, order.tolist(), strict=True))[:51]:
        row, own = int(rows[pair]), np.exp((cosine - near[0]) / 0.2) - floor
        weights[row] = weights.get(row, 0.0) + own * np.log2(1 + counts[pair])
        nearest[row] = max(nearest.get(row, 0.0), own)
    return {row: (weight / sum(weights.values()), nearest[row]) for row, weight in weights.items()}


def learned_words(
    query: list[str], text: list[str], earlier: list[tuple[list[str], int]], texts: list[list[str]],
    k1: float = 0.9, b: float = 0.4,
) -> float:  # fmt: skip
    """What BM25 of a text, as a share of the best score, gains if the terms of earlier queries stood in it.

    Args:
        query: its terms.
        text: the terms of the document.
        earlier: the terms of each of its earlier queries, and how often the pair was learned.
        texts: the terms of all documents.
        k1: of BM25.
        b: of BM25.
    """
    damping = k1 * (1 - b + b * len(text) / max(1.0, float(np.mean([len(own) for own in texts]))))

    def rarity(term: str) -> float:
        found = sum(term in own for own in texts)
        return float(np.log1p((len(texts) - found + 0.5) / (found + 0.5)))

    gain = 0.0
    for term in query:
        before = text.count(term)
        after = before + sum(np.log2(1 + times) for own, times in earlier if term in own)
        gain += rarity(term) * (after / (after + damping) - before / (before + damping))
    return gain / (sum(map(rarity, query)) or 1.0)


def memory_scores(
    query: np.ndarray, vectors: np.ndarray, rows: np.ndarray, counts: np.ndarray, dense: dict[int, float],
    documents: np.ndarray, words: dict[int, float],
) -> dict[int, float]:  # fmt: skip
    """{row: what earlier queries [pairs, dim] of length 1 say of it}, given dense scores and the vectors of all documents.

    Args:
        words: {row: `learned_words`}; 0 of documents that it lacks.
    """
    shares, margin, length, mean = memory_margin(query, vectors, rows, counts, dense, documents)
    unit = length * (1 - mean)
    return {
        row: unit * ((margin * share) ** 2 + 0.25 * margin * min(1, 50 * nearest) * words.get(row, 0.0))
        for row, (share, nearest) in shares.items()
    }
