"""Constrained beam search over the docid tree with fused scores (DR-SCL section 3.5, and our "bound" fusion).

Two scores add up to rank a node:

* generative: alpha times the decoder's log-probability. Objectives with a path score sum log P_T5 along the path (a softmax
  over a node's children, or a sigmoid per child); objectives with score "node" use the node's own log sigmoid;
* dense: with fusion "paper", (1 - alpha) times the sum of log P_ANN along the path (eq. 10-12); with fusion "bound",
  (1 - alpha) times the largest document score below the node.

Below level beta a node keeps the dense score of its ancestor at level beta; beta = 0 uses the decoder only. Path sums and
dense scores never increase from a node to its children, so a node's score bounds every document below it. This gives a
certificate: if no pruned node scores above the k-th document, the result is the exact top k. "Node" scores are no bounds;
there a result is certified only if nothing was pruned.

A document joins the top k as soon as it is reached. The beam holds inner nodes only, and drops those that cannot beat the
k-th document. Ties break in docid order. Knows nothing of texts or folders.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from docids.tree import DocidTree
from dsi.search.decoder import DecoderCache, FastDecoder
from dsi.search.queries import QueryBatch
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from dsi.trees.dense import DenseScores, KnownScores, NodeScores
from dsi.trees.objectives import log_prior


@dataclass(frozen=True)
class SearchResult:
    """The top k documents of a batch of queries, best first.

    Attributes:
        positions: [batch, k] docid positions; -1 if fewer documents may be returned.
        scores: [batch, k] fused scores; -inf at position -1.
        exact: [batch] True if the result is provably the top k of all documents that may be returned.
        generative: [batch, k] the weighted generative part of the scores; the rest is dense.
    """

    positions: Tensor
    scores: Tensor
    exact: Tensor
    generative: Tensor

    @classmethod
    def empty(cls, queries: int, k: int) -> "SearchResult":
        """Return a result without documents, to be filled by `put`; with k = 0 it is complete, and exact."""
        scores = torch.full((queries, k), -torch.inf)
        exact = torch.ones(queries, dtype=torch.bool)
        return cls(torch.full((queries, k), -1), scores, exact, torch.zeros(queries, k))

    def put(self, rows: Tensor, other: "SearchResult") -> None:
        """Replace some rows by those of `other`."""
        for name in ("positions", "scores", "exact", "generative"):
            own = getattr(self, name)
            own[rows.to(own.device)] = getattr(other, name).to(own.device)


@dataclass(frozen=True)
class LevelTrace:
    """The candidates of one level of a search; all tensors [batch, candidates].

    Attributes:
        nodes: candidate nodes, -1 at padding.
        generative: weighted generative scores.
        dense: weighted dense scores.
        kept: True if the candidate entered the beam or the top k so far.
    """

    nodes: Tensor
    generative: Tensor
    dense: Tensor
    kept: Tensor


class TreeSearcher:
    """Beam search over one tree with one decoder.

    Args:
        tree: the docids.
        decoder: the generator, laid out for search.
        device: of tree and decoder.
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
        """Run every level even if the beam is empty, as a recorded search must (`dsi.search.graphs`)."""
        self._holds_documents = [bool((tree.first_child[level] >= tree.num_inner).any()) for level in tree.levels]

    def node_scores(
        self,
        query_embeddings: Tensor,
        config: SearchConfig,
        alive: Tensor | None = None,
        extra_scores: Tensor | None = None,
    ) -> NodeScores | None:
        """Return the dense scores of all nodes; None if they are not used (beta = 0).

        Fusion "paper" scores a node by its centroid, "bound" by the best document below it.

        Args:
            query_embeddings: [batch, dim].
            config: how nodes are scored; ann_temperature divides the dot products.
            alive: [nodes] as in `SearchRequest`. With "bound" and beta = inf, other documents are left out of the maxima, which
                tightens the bounds. With a finite beta the maxima are part of the documents' scores and must not change.
            extra_scores: [batch, documents] in docid order, added to the documents' dot products ("bound" only).

        Raises:
            ValueError: extra_scores with fusion "paper".
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

    def score(self, batch: QueryBatch, request: SearchRequest) -> ScoredQueries:
        """Return the queries of a batch with the dense scores of the nodes."""
        node_scores = self.node_scores(batch.embeddings, request.config, request.alive, batch.extra_scores)
        return ScoredQueries(batch.states, batch.mask, node_scores)

    def search(
        self, queries: ScoredQueries, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        """Return the top k documents of a batch of queries.

        Args:
            queries: their token states and node scores.
            request: k, scoring, beam width, filter.
            trace: if given, receives one `LevelTrace` per level.
        """
        return self.levels(queries, dataclasses.replace(request, k=self.most_answers(request)), trace)

    def most_answers(self, request: SearchRequest) -> int:
        """Return k, or the number of documents that may be returned if that is less."""
        if request.alive is None:
            return min(request.k, self.tree.num_documents - self.tree.num_removed)
        return min(request.k, int(request.alive[self.tree.num_inner :].sum()))

    @torch.no_grad()
    def levels(
        self, queries: ScoredQueries, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        """Run `search` with k capped by `most_answers`; with `fixed_shape`, no step depends on a tensor's value."""
        # Start at the root.
        if request.alive is None:
            request = dataclasses.replace(request, alive=self.occupied)
        config, batch, k = request.config, len(queries.states), request.k
        root = _Beam.root(batch, self.device)
        beam: _Beam | None = root
        answers = _Answers.empty(batch, k, root.score)
        pruned = torch.full((batch,), -torch.inf, device=self.device)  # [batch] best score pruned so far
        cache = self.decoder.start(queries.states, queries.mask) if config.uses_decoder else None
        bounds = cache is None or self.decoder.score != "node"  # does a node's score bound those below it?

        # Descend level by level: expand the beam, then keep the best candidates.
        for level in range(self.tree.depth):
            if beam is None or not (self.fixed_shape or (beam.score > -torch.inf).any()):
                break
            if cache is not None and level > 0 and cache.ahead is None:
                cache.select(beam.parent)
            candidates = self._expand(beam, level, queries.node_scores, request, cache)
            answers, beam, lost = self._select(candidates, level, answers, config.beam_width, bounds)
            pruned = torch.maximum(pruned, lost)
            if trace is not None:
                trace.append(_trace(candidates, beam, answers, self.tree.num_inner))

        # Certify: nothing pruned scores above the k-th document.
        exact = pruned <= (answers.scores[:, -1] if bounds else -torch.inf)
        return SearchResult(answers.positions, answers.scores, exact, answers.generative)

    @torch.no_grad()
    def follow(
        self,
        queries: ScoredQueries,
        request: SearchRequest,
        positions: Tensor,
        trace: list[LevelTrace] | None = None,
        levels: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of the nodes on the paths to given documents, whether or not a search reaches them.

        Args:
            queries: as in `search`.
            request: how nodes are scored; a filter changes no score.
            positions: [batch, m] docid positions.
            trace: if given, receives one `LevelTrace` per level: all children of the nodes on the paths, [batch, m * fan_out].
            levels: how many levels to score; all by default.

        Returns:
            generative, dense: [batch, m, depth] scores of the node at each level; past the end of a docid, the document's.
        """
        batch, m = positions.shape
        digits = torch.from_numpy(self.tree.paths(positions.flatten().numpy(force=True))[1]).long().to(self.device)
        digits = digits.view(batch, m, self.tree.depth)
        # Beam width 1 avoids `first_step`, which expects one beam at the root; here there are m.
        config = dataclasses.replace(request.config, beam_width=1)
        request = SearchRequest(1, config)
        root = _Beam.root(batch, self.device)
        beam = root.take(torch.zeros_like(positions), root.score)
        cache = self.decoder.start(queries.states, queries.mask) if config.uses_decoder else None
        generative: list[Tensor] = []
        dense: list[Tensor] = []
        for level, fan_out in enumerate(self.tree.fan_out[:levels]):
            candidates = self._expand(beam, level, queries.node_scores, request, cache)
            # [batch, m] where each path's next node is among the candidates [batch, m * fan_out]
            columns = torch.arange(m, device=self.device) * fan_out + digits[:, :, level].clamp(min=0)
            if trace is not None:
                kept = torch.zeros_like(candidates.nodes, dtype=torch.bool).scatter(1, columns, True)
                trace.append(LevelTrace(candidates.nodes, candidates.generative, candidates.dense, kept))
            is_document = candidates.nodes >= self.tree.num_inner
            beam = candidates.take(columns, candidates.score.masked_fill(is_document, -torch.inf))
            ended = digits[:, :, level] < 0  # [batch, m]
            for found, own in ((generative, beam.generative), (dense, beam.dense)):
                found.append(torch.where(ended, found[-1], own) if found else own)
        return torch.stack(generative, dim=2), torch.stack(dense, dim=2)

    def _expand(
        self,
        beam: "_Beam",
        level: int,
        node_scores: NodeScores | None,
        request: SearchRequest,
        cache: DecoderCache | None,
    ) -> "_Beam":
        """Return all children of the beam with their scores, [batch, beams * fan_out], in docid order."""
        # The children, [batch, beams, fan_out]; `valid` is False past a node's last child.
        config = request.config
        digits = torch.arange(self.tree.fan_out[level], device=self.device)  # [fan_out]
        parents = beam.nodes.clamp(min=0)  # [batch, beams]
        valid = (digits < self.num_children[parents][:, :, None]) & (beam.score > -torch.inf)[:, :, None]
        nodes = (self.first_child[parents][:, :, None] + digits).masked_fill(~valid, 0)
        weighs = level < config.beta  # is the dense score used at this level (m <= beta in eq. 12)?

        # The generative score: alpha log P_T5 along the path (DR-SCL eq. 9, 11).
        generative = beam.generative[:, :, None].expand_as(nodes)
        if cache is not None:
            ahead = level == 0 and self.tree.depth > 1 and self.tree.fan_out[0] <= config.beam_width
            logits = self.decoder.first_step(cache) if ahead else self.decoder.step(beam.tokens, level, cache)
            weight = config.alpha if weighs or (config.fusion == "bound" and config.beta > 0) else 1.0
            log_p, adds_up = self._log_probabilities(logits.float(), nodes, valid, level)
            generative = generative.masked_fill(~adds_up, 0.0) + weight * log_p
            # A digit added after training has no embedding; any serves, as no logits below it are used.
            digits = digits.clamp(max=self.decoder.fan_out[level] - 1)

        # The dense score: a sum along the path ("paper"), or the node's own ("bound").
        dense = beam.dense[:, :, None].expand_as(nodes)
        if weighs and node_scores is not None:
            values = node_scores.of(nodes)
            if config.fusion == "paper":
                dense = dense + (1 - config.alpha) * _log_softmax(values, valid)  # DR-SCL eq. 10, 11
            else:
                dense = (1 - config.alpha) * values

        # A filter excludes nodes after the softmaxes, so it changes no score.
        if request.alive is not None:
            valid = valid & request.alive[nodes]
        return _Beam(
            nodes=nodes.masked_fill(~valid, -1).flatten(1),
            tokens=(self.decoder.token_offsets[level] + digits).expand_as(nodes).flatten(1),
            generative=generative.flatten(1),
            dense=dense.flatten(1),
            score=(generative + dense).masked_fill(~valid, -torch.inf).flatten(1),  # DR-SCL eq. 12, in log space
            parent=torch.arange(beam.nodes.shape[1], device=self.device)[:, None].expand(nodes.shape).flatten(1),
        )

    def _log_probabilities(self, logits: Tensor, nodes: Tensor, valid: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """Return decoder scores [batch, beams, fan_out], and True where they add to the parent's score.

        A node added after training gets the mean probability of its trained siblings; without any, it shares its parent's
        probability equally with its siblings. It is excluded from the softmax if no document below it remains.
        """
        score, counted = self.decoder.score, valid
        if score != "softmax path":
            level_size = torch.full_like(logits[..., :1], float(self.tree.level_sizes[level]))  # [batch, beams, 1]
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
        """Return the updated top k, the next beam (None after the last level), and the best score pruned [batch].

        If scores are bounds, nodes that cannot beat the k-th document are dropped.
        """
        # Documents join the top k.
        is_document = candidates.nodes >= self.tree.num_inner
        if self._holds_documents[level]:
            scores = candidates.score.masked_fill(~is_document, -torch.inf)
            answers = answers.merge(candidates.nodes - self.tree.num_inner, scores, candidates.generative)
        lost = torch.full_like(answers.scores[:, 0], -torch.inf)
        if level + 1 == self.tree.depth:
            return answers, None, lost

        # The best inner nodes are the next beam.
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
    """Nodes and scores, [batch, n], in docid order; padding has node -1, score -inf. `parent` indexes the previous beam."""

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
    """The top k documents so far, [batch, k], best first."""

    positions: Tensor
    scores: Tensor
    generative: Tensor

    @classmethod
    def empty(cls, batch: int, k: int, like: Tensor) -> "_Answers":
        nothing = like.new_full((batch, k), -torch.inf)
        return cls(torch.full((batch, k), -1, device=like.device), nothing, nothing)

    def merge(self, positions: Tensor, scores: Tensor, generative: Tensor) -> "_Answers":
        positions, scores = torch.cat([self.positions, positions], dim=1), torch.cat([self.scores, scores], dim=1)
        # Two stable sorts, by docid and then by score, break ties in docid order.
        in_docid_order = positions.argsort(dim=1, stable=True)
        by_score = scores.gather(1, in_docid_order).argsort(dim=1, descending=True, stable=True)
        best = in_docid_order.gather(1, by_score[:, : self.scores.shape[1]])
        scores = scores.gather(1, best)
        generative = torch.cat([self.generative, generative], dim=1).gather(1, best)
        return _Answers(positions.gather(1, best).masked_fill(scores == -torch.inf, -1), scores, generative)


def _log_softmax(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the log-softmax over the valid entries of the last dimension, at most 0; other entries are 0."""
    log_p = logits.masked_fill(~valid, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    return log_p.masked_fill(~valid, 0.0).clamp(max=0.0)


def _trace(candidates: _Beam, beam: _Beam | None, answers: _Answers, num_inner: int) -> LevelTrace:
    # [batch, k + beam_width] nodes in the top k or the next beam
    alive = torch.cat([answers.positions + num_inner, *([] if beam is None else [beam.nodes])], dim=1)
    kept = (candidates.nodes[:, :, None] == alive[:, None, :]).any(dim=2) & (candidates.nodes >= 0)
    return LevelTrace(candidates.nodes, candidates.generative, candidates.dense, kept)
