"""Constrained beam search over the docid tree, decoder and dense scores fused (DR-SCL section 3.5, and "bound" fusion).

Every node has two scores, and their sum ranks it:

* generative: alpha times the decoder's log-probability, which is what its objective makes it: the sum of log P_T5 (softmax
  over a node's children, or a sigmoid a child) along the path, or the node's own log sigmoid (objectives with score "node");
* dense: with fusion "paper", (1 - alpha) times the sum of log P_ANN along its path (eq. 10-12); with fusion "bound",
  (1 - alpha) times the largest document score below the node.

Below level beta the dense score of a node is its ancestor's at level beta; with beta = 0 only the decoder speaks. Sums
along paths and dense scores can only fall from a node to its children, so a node's score bounds every document below it.
Hence a certificate: when no pruned node scores above the k-th document returned, the answer is the exact top k. A decoder
whose nodes speak for themselves gives no bounds: then an answer is certified where nothing was pruned.

A document that is reached leaves the beam for the list of answers; the beam holds inner nodes only, and nodes that are
known not to beat the k-th answer are dropped. Equal scores rank in docid order. Knows nothing of texts or folders.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from docids.tree import DocidTree
from dsi.search.decoder import DecoderCache, FastDecoder
from dsi.search.settings import SearchConfig
from dsi.trees.dense import DenseScores, KnownScores, NodeScores
from dsi.trees.objectives import log_prior


@dataclass(frozen=True)
class SearchResult:
    """Answers of a batch of queries, best first.

    Attributes:
        positions: [batch, k] docid positions, -1 where the collection has fewer documents.
        scores: [batch, k] fused scores, -inf there.
        exact: [batch] True where the answer is provably the top k of all documents.
        generative: [batch, k] the decoder's weighted part of the scores; the rest is dense.
    """

    positions: Tensor
    scores: Tensor
    exact: Tensor
    generative: Tensor

    def put(self, rows: Tensor, other: "SearchResult") -> None:
        """Replace the answers of some queries by those of `other`."""
        for name in ("positions", "scores", "exact", "generative"):
            own = getattr(self, name)
            own[rows.to(own.device)] = getattr(other, name).to(own.device)


@dataclass(frozen=True)
class LevelTrace:
    """What one level of a search looked at; all tensors [batch, candidates].

    Attributes:
        nodes: candidate nodes, -1 where there is none.
        generative: their weighted generative scores.
        dense: their weighted dense scores.
        kept: whether the node went on: into the beam, or among the k answers as they stood.
    """

    nodes: Tensor
    generative: Tensor
    dense: Tensor
    kept: Tensor


class TreeSearcher:
    """Searches one tree with one decoder.

    Args:
        tree: the docids.
        decoder: the generator, laid out for search.
        device: where tree and decoder live.
    """

    def __init__(self, tree: DocidTree, decoder: FastDecoder, device: torch.device) -> None:
        self.tree, self.decoder, self.device = tree, decoder, device
        self.dense = DenseScores(tree, device)
        self.first_child, self.num_children = self.dense.first_child, self.dense.num_children
        self._trained = None if tree.trained.all() else torch.from_numpy(tree.trained).to(device)
        self.occupied = None
        if tree.num_removed:
            self.occupied = self.dense.alive(torch.from_numpy(tree.doc_rows >= 0).to(device))
        self.fixed_shape = False
        """Go through all levels even when no node is left, as a recorded search must (`dsi.search.graphs`)."""
        self._holds_documents = [bool((tree.first_child[level] >= tree.num_inner).any()) for level in tree.levels]

    def node_scores(
        self,
        query_embeddings: Tensor,
        config: SearchConfig,
        alive: Tensor | None = None,
        extra_scores: Tensor | None = None,
    ) -> NodeScores | None:
        """The dense scores of nodes for query_embeddings [batch, dim]; None where they take no part (beta = 0).

        With fusion "paper" the dot product with the centroid, with "bound" the largest score of the documents below; both over
        ann_temperature. Where the bound is not part of a document's own score (beta = inf) only documents that are alive
        ([nodes] as in `search`) count, which makes it tighter. extra_scores [batch, documents], in docid order, are added to
        the documents' dot products before that ("bound" only).
        """
        if extra_scores is not None and config.fusion != "bound":
            raise ValueError(f'extra_scores need fusion "bound", got {config.fusion!r}: centroids have none.')
        if config.beta == 0:
            return None
        if config.fusion == "paper":
            return self.dense.centroid_scores(query_embeddings, config.ann_temperature)
        documents = self.dense.document_scores(query_embeddings)
        if extra_scores is not None:
            documents = documents + extra_scores
        if alive is not None and config.beta == math.inf:
            documents = documents.masked_fill(~alive[self.tree.num_inner :], -torch.inf)
        return KnownScores(self.dense.largest(documents / config.ann_temperature))

    def search(
        self,
        token_states: Tensor,
        states_mask: Tensor,
        node_scores: NodeScores | None,
        k: int,
        config: SearchConfig,
        alive: Tensor | None = None,
        trace: list[LevelTrace] | None = None,
    ) -> SearchResult:
        """Top k documents of a batch of queries.

        Args:
            token_states: [batch, length, d_model] encoder states of the queries.
            states_mask: [batch, length], True at real tokens.
            node_scores: from `node_scores`.
            k: documents a query; at most beam_width.
            config: scores and beam.
            alive: [nodes] True at documents that may be returned and the nodes above them; by default all that were not
                removed. Probabilities are over all children, so a filter changes which documents come back, never their
                scores.
            trace: receives one `LevelTrace` a level.

        Raises:
            ValueError: k is not between 1 and beam_width.
        """
        config.check_k(k)
        k = self.most_answers(k, alive)
        return self.levels(token_states, states_mask, node_scores, k, config, alive, trace)

    def most_answers(self, k: int, alive: Tensor | None) -> int:
        """k, or less where fewer documents may be returned."""
        if alive is None:
            return min(k, self.tree.num_documents - self.tree.num_removed)
        return min(k, int(alive[self.tree.num_inner :].sum()))

    @torch.no_grad()
    def levels(
        self,
        token_states: Tensor,
        states_mask: Tensor,
        node_scores: NodeScores | None,
        k: int,
        config: SearchConfig,
        alive: Tensor | None = None,
        trace: list[LevelTrace] | None = None,
    ) -> SearchResult:
        """`search` for k documents that are there; with `fixed_shape`, nothing in it depends on a value of a tensor."""
        alive = self.occupied if alive is None else alive
        batch = len(token_states)
        root = _Beam.root(batch, self.device)
        beam: _Beam | None = root
        answers = _Answers.empty(batch, k, root.score)
        pruned = torch.full((batch,), -torch.inf, device=self.device)
        cache = self.decoder.start(token_states, states_mask) if config.uses_decoder else None
        bounds = cache is None or self.decoder.score != "node"  # is a node's score a bound of those below?
        for level in range(self.tree.depth):
            if beam is None or not (self.fixed_shape or (beam.score > -torch.inf).any()):
                break
            if cache is not None and level > 0 and cache.ahead is None:
                cache.select(beam.parent)
            candidates = self._expand(beam, level, node_scores, config, cache, alive)
            answers, beam, lost = self._select(candidates, level, answers, config.beam_width, bounds)
            pruned = torch.maximum(pruned, lost)
            if trace is not None:
                trace.append(_trace(candidates, beam, answers, self.tree.num_inner))
        exact = pruned <= (answers.scores[:, -1] if bounds else -torch.inf)
        return SearchResult(answers.positions, answers.scores, exact, answers.generative)

    @torch.no_grad()
    def follow(
        self,
        token_states: Tensor,
        states_mask: Tensor,
        node_scores: NodeScores | None,
        positions: Tensor,
        config: SearchConfig,
        trace: list[LevelTrace] | None = None,
        levels: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the nodes on the way to given documents score, whether or not a search would reach them.

        Args:
            token_states: as in `search`.
            states_mask: as in `search`.
            node_scores: as in `search`.
            positions: [batch, m] docid positions.
            config: scores.
            trace: receives one `LevelTrace` a level: all children of the nodes on the way, [batch, m * fan-out].
            levels: how far to go; to the end by default.

        Returns:
            generative, dense: [batch, m, depth] the scores of the node at each level; past a docid's end the document's.
        """
        batch, m = positions.shape
        digits = torch.from_numpy(self.tree.paths(positions.flatten().numpy(force=True))[1]).long().to(self.device)
        digits = digits.view(batch, m, self.tree.depth)
        config = dataclasses.replace(config, beam_width=1)  # several ways start at the root: nothing is computed ahead
        root = _Beam.root(batch, self.device)
        beam = root.take(torch.zeros_like(positions), root.score)
        cache = self.decoder.start(token_states, states_mask) if config.uses_decoder else None
        generative: list[Tensor] = []
        dense: list[Tensor] = []
        for level, fan_out in enumerate(self.tree.fan_out[:levels]):
            candidates = self._expand(beam, level, node_scores, config, cache, None)
            columns = torch.arange(m, device=self.device) * fan_out + digits[:, :, level].clamp(min=0)
            if trace is not None:
                kept = torch.zeros_like(candidates.nodes, dtype=torch.bool).scatter(1, columns, True)
                trace.append(LevelTrace(candidates.nodes, candidates.generative, candidates.dense, kept))
            is_document = candidates.nodes >= self.tree.num_inner
            beam = candidates.take(columns, candidates.score.masked_fill(is_document, -torch.inf))
            ended = digits[:, :, level] < 0
            for found, own in ((generative, beam.generative), (dense, beam.dense)):
                found.append(torch.where(ended, found[-1], own) if found else own)
        return torch.stack(generative, dim=2), torch.stack(dense, dim=2)

    def _expand(
        self,
        beam: "_Beam",
        level: int,
        node_scores: NodeScores | None,
        config: SearchConfig,
        cache: DecoderCache | None,
        alive: Tensor | None,
    ) -> "_Beam":
        """All children of the beam, [batch, beams * fan-out], in docid order."""
        digits = torch.arange(self.tree.fan_out[level], device=self.device)
        parents = beam.nodes.clamp(min=0)
        valid = (digits < self.num_children[parents][:, :, None]) & (beam.score > -torch.inf)[:, :, None]
        nodes = (self.first_child[parents][:, :, None] + digits).masked_fill(~valid, 0)
        weighs = level < config.beta  # does the dense score take part at this level?
        generative = beam.generative[:, :, None].expand_as(nodes)
        if cache is not None:
            ahead = level == 0 and self.tree.depth > 1 and self.tree.fan_out[0] <= config.beam_width
            logits = self.decoder.first_step(cache) if ahead else self.decoder.step(beam.tokens, level, cache)
            weight = config.alpha if weighs or (config.fusion == "bound" and config.beta > 0) else 1.0
            log_p, adds_up = self._log_probabilities(logits.float(), nodes, valid, level)
            generative = generative.masked_fill(~adds_up, 0.0) + weight * log_p
            digits = digits.clamp(
                max=self.decoder.fan_out[level] - 1
            )  # a later digit has no embedding, and no use of one
        dense = beam.dense[:, :, None].expand_as(nodes)
        if weighs and node_scores is not None:
            values = node_scores.of(nodes)
            if config.fusion == "paper":
                dense = dense + (1 - config.alpha) * _log_softmax(values, valid)
            else:
                dense = (1 - config.alpha) * values
        if alive is not None:
            valid = valid & alive[nodes]
        return _Beam(
            nodes=nodes.masked_fill(~valid, -1).flatten(1),
            tokens=(self.decoder.token_offsets[level] + digits).expand_as(nodes).flatten(1),
            generative=generative.flatten(1),
            dense=dense.flatten(1),
            score=(generative + dense).masked_fill(~valid, -torch.inf).flatten(1),
            parent=torch.arange(beam.nodes.shape[1], device=self.device)[:, None].expand(nodes.shape).flatten(1),
        )

    def _log_probabilities(self, logits: Tensor, nodes: Tensor, valid: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """What the decoder says of nodes [batch, beams, fan-out], and where that adds to what it said of their parents.

        A node that came after training gets its siblings' mean probability, or has its parent's in equal parts with them where
        none of them was there either; when all below it is removed it counts no more.
        """
        score, counted = self.decoder.score, valid
        if score != "softmax path":
            level_size = torch.full_like(logits[..., :1], float(self.tree.level_sizes[level]))
            logits = F.logsigmoid(logits + log_prior(score, valid.sum(2, keepdim=True), level_size))
        adds_up = torch.full((), score != "node", device=self.device)
        if self._trained is not None:
            logits = F.pad(logits, (0, nodes.shape[2] - logits.shape[2]))
            known = valid & self._trained[nodes]
            counted = valid if self.occupied is None else known | (valid & self.occupied[nodes])
            mean = (
                logits.masked_fill(~known, -torch.inf).logsumexp(dim=2, keepdim=True) - known.sum(2, keepdim=True).log()
            )
            some = known.any(dim=2, keepdim=True)
            logits = torch.where(known, logits, torch.where(some, mean, -valid.sum(2, keepdim=True).clamp(min=1).log()))
            adds_up = adds_up | ~some
        if score == "softmax path":
            return _log_softmax(logits, counted), adds_up
        return logits.masked_fill(~valid, 0.0), adds_up

    def _select(
        self, candidates: "_Beam", level: int, answers: "_Answers", beam_width: int, bounds: bool
    ) -> tuple["_Answers", "_Beam | None", Tensor]:
        """Documents join the answers, the best inner nodes the next beam; also the best score that was pruned.

        Where scores are bounds, nodes that cannot beat the last answer are dropped.
        """
        is_document = candidates.nodes >= self.tree.num_inner
        if self._holds_documents[level]:
            scores = candidates.score.masked_fill(~is_document, -torch.inf)
            answers = answers.merge(candidates.nodes - self.tree.num_inner, scores, candidates.generative)
        lost = torch.full_like(answers.scores[:, 0], -torch.inf)
        if level + 1 == self.tree.depth:
            return answers, None, lost
        below = self.tree.levels[level + 1]
        score = candidates.score.masked_fill(is_document, -torch.inf)
        if bounds:
            score = score.masked_fill(score < answers.scores[:, -1:], -torch.inf)
        order = score.argsort(dim=1, descending=True, stable=True)
        width = min(beam_width, below.stop - below.start)
        if order.shape[1] > width:
            lost = score.gather(1, order[:, width : width + 1])[:, 0]
        kept = order[:, :width].sort(dim=1).values  # back to docid order
        return answers, candidates.take(kept, score), lost


@dataclass(frozen=True)
class _Beam:
    """Nodes with their scores, [batch, n], in docid order; a dead entry has node -1 and score -inf."""

    nodes: Tensor
    tokens: Tensor
    generative: Tensor
    dense: Tensor
    score: Tensor
    parent: Tensor

    @classmethod
    def root(cls, batch: int, device: torch.device) -> "_Beam":
        zeros, scores = (torch.zeros(batch, 1, dtype=kind, device=device) for kind in (torch.long, torch.float32))
        return cls(zeros, zeros, scores, scores, scores, zeros)

    def take(self, columns: Tensor, score: Tensor) -> "_Beam":
        nodes = self.nodes.masked_fill(score == -torch.inf, -1)
        fields = (nodes, self.tokens, self.generative, self.dense, score, self.parent)
        return _Beam(*(field.gather(1, columns) for field in fields))


@dataclass(frozen=True)
class _Answers:
    """The best k documents so far, [batch, k], best first."""

    positions: Tensor
    scores: Tensor
    generative: Tensor

    @classmethod
    def empty(cls, batch: int, k: int, like: Tensor) -> "_Answers":
        nothing = like.new_full((batch, k), -torch.inf)
        return cls(torch.full((batch, k), -1, device=like.device), nothing, nothing)

    def merge(self, positions: Tensor, scores: Tensor, generative: Tensor) -> "_Answers":
        positions, scores = torch.cat([self.positions, positions], dim=1), torch.cat([self.scores, scores], dim=1)
        in_docid_order = positions.argsort(dim=1, stable=True)
        by_score = scores.gather(1, in_docid_order).argsort(dim=1, descending=True, stable=True)
        best = in_docid_order.gather(1, by_score[:, : self.scores.shape[1]])
        scores = scores.gather(1, best)
        generative = torch.cat([self.generative, generative], dim=1).gather(1, best)
        return _Answers(positions.gather(1, best).masked_fill(scores == -torch.inf, -1), scores, generative)


def _log_softmax(logits: Tensor, valid: Tensor) -> Tensor:
    """Over the valid entries of the last dimension; 0 elsewhere, and never above 0."""
    log_p = logits.masked_fill(~valid, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    return log_p.masked_fill(~valid, 0.0).clamp(max=0.0)


def _trace(candidates: _Beam, beam: _Beam | None, answers: _Answers, num_inner: int) -> LevelTrace:
    alive = torch.cat([answers.positions + num_inner, *([] if beam is None else [beam.nodes])], dim=1)
    kept = (candidates.nodes[:, :, None] == alive[:, None, :]).any(dim=2) & (candidates.nodes >= 0)
    return LevelTrace(candidates.nodes, candidates.generative, candidates.dense, kept)
