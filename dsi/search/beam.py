"""Constrained beam search over the docid tree with fused scores (DR-SCL section 3.5, and our "bound" fusion).

Two scores add up to rank a node:

* generative: alpha times the decoder's log-probability. Objectives with a path score sum log P_T5 along the path (a softmax
  over a node's children, or a sigmoid per child); objectives with score "node" use the node's own log sigmoid;
* dense: with fusion "paper", (1 - alpha) times the sum of log P_ANN along the path (eq. 10-12); with fusion "bound",
  (1 - alpha) times the largest document score below the node.

A generator with objective "estimate" has no part of its own in a node's score. It changes the query vector that scores
documents, with weight alpha; and with fusion "estimate" it estimates the best document below each node that the beam visits, so
that no other document is looked at.

Below level beta a node keeps the dense score of its ancestor at level beta; beta = 0 uses the decoder only. Path sums and
dense scores never increase from a node to its children, so a node's score bounds every document below it. This gives a
certificate: if no pruned node scores above the k-th document, the result is the exact top k. "Node" scores and estimates are no
bounds; there a result is certified only if nothing was pruned.

A document joins the top k as soon as it is reached. The beam holds inner nodes only, and drops those that cannot beat the
k-th document. Ties break in docid order. A document with several places scores as its best one: the best of all places are the
best documents, so bounds and certificate hold for documents too. Knows nothing of texts or folders.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from docids.tree import DocidTree
from dsi.search.beams import Answers, Beam, LevelTrace, SearchResult, level_trace, valid_log_softmax
from dsi.search.decoder import DecoderCache, FastDecoder, TiedCache, TiedDecoder
from dsi.search.queries import QueryBatch
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from dsi.search.scorer import TreeScorer
from dsi.trees.bounds import BestBelow, Nearest
from dsi.trees.dense import NodeScores
from dsi.trees.objectives import log_prior


class TreeSearcher(TreeScorer):
    """Beam search over one tree with one decoder.

    Args:
        tree: the docids.
        decoder: the generator, laid out for search.
        device: of tree and decoder.
    """

    def __init__(self, tree: DocidTree, decoder: FastDecoder | TiedDecoder, device: torch.device) -> None:
        super().__init__(tree, decoder, device)
        self.first_child, self.num_children = self.dense.first_child, self.dense.num_children
        self.doc_rows = None
        """[places] the document at each docid position, if some have several places."""
        if tree.most_places > 1:
            self.doc_rows = torch.from_numpy(tree.doc_rows).long().to(device)
        self._trained = None
        if self.estimates is None and not tree.trained.all():
            self._trained = torch.from_numpy(tree.trained).to(device)

    def alone(self, batch: QueryBatch, ann_temperature: float) -> tuple[ScoredQueries, SearchRequest]:
        """Return the queries and the request of a search that scores nodes by the generator alone.

        Args:
            batch: the queries; what is added to their dense scores is left out.
            ann_temperature: divides estimates; log-probabilities have none.
        """
        config = SearchConfig(alpha=1.0, beta=0.0)
        if self.estimating:
            config = SearchConfig(fusion="estimate", alpha=1.0, ann_temperature=ann_temperature)
        request = SearchRequest(1, config)
        return self.score(batch._replace(added=None), request), request

    def search(
        self, queries: ScoredQueries, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        """Return the top k documents of a batch of queries.

        Args:
            queries: their token states and node scores.
            request: k, scoring, beam width, filter.
            trace: if given, receives one `LevelTrace` per level.
        """
        request = dataclasses.replace(request, k=self.most_answers(request))
        return (trace is None and self._without_descent(queries, request)) or self.levels(queries, request, trace)

    def _without_descent(self, queries: ScoredQueries, request: SearchRequest) -> SearchResult | None:
        """Return the best of the nearest documents, if their scores are all that counts; None if the answer is below nodes."""
        scores = queries.node_scores
        if not isinstance(scores, BestBelow) or (request.config.uses_decoder and not self.estimating):
            return None
        best = self._nearest_documents(scores.nearest, request.k)
        if best is None:
            return None
        exact = torch.full((len(best[1]),), scores.nearest.proven, device=self.device) & best[1].isfinite().all(dim=1)
        return SearchResult(*best, exact, torch.zeros_like(best[1]))

    def _nearest_documents(self, nearest: Nearest, k: int) -> tuple[Tensor, Tensor] | None:
        """Return positions, scores [batch, k] of the best documents; None if others could be among them."""
        if self.doc_rows is None:
            return nearest.top(k)
        nothing = Answers.empty(len(nearest.scores), k, nearest.scores)
        best = nothing.merge(nearest.positions, nearest.scores, torch.zeros_like(nearest.scores), self.doc_rows)
        lowest = torch.finfo(nearest.rest.dtype).min
        known = (best.scores[:, -1] >= nearest.rest.clamp(min=lowest)).all()
        return (best.positions, best.scores) if known else None

    def most_answers(self, request: SearchRequest) -> int:
        """Return k, or the number of documents that may be returned if that is less."""
        if request.alive is None:
            return min(request.k, self.tree.num_rows)
        places = request.alive[self.tree.num_inner :]
        if self.doc_rows is None:
            return min(request.k, int(places.sum()))
        return min(request.k, len(self.doc_rows[places].unique()))

    @torch.no_grad()
    def levels(
        self, queries: ScoredQueries, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        """Run `search` with k capped by `most_answers`; with `fixed_shape`, no step depends on a tensor's value."""
        # Start at the root.
        if request.alive is None:
            request = dataclasses.replace(request, alive=self.occupied)
        config, batch, k = request.config, len(queries.states), request.k
        root = Beam.root(batch, self.device)
        beam: Beam | None = root
        answers = Answers.empty(batch, k, root.score)
        pruned = torch.full((batch,), -torch.inf, device=self.device)  # [batch] best score pruned so far
        cache = self._start(queries, config)
        # Does a node's score bound those below it?
        bounds = config.fusion != "estimate" and (cache is None or self.decoder.score != "node")

        # Descend level by level: expand the beam, then keep the best candidates.
        for level in range(self.tree.depth):
            if beam is None or not (self.fixed_shape or (beam.score > -torch.inf).any()):
                break
            if cache is not None and level > 0:
                cache.select(beam.parent)
            candidates = self._expand(beam, level, queries.node_scores, request, cache)
            answers, beam, lost = self._select(candidates, level, answers, config.beam_width, bounds)
            pruned = torch.maximum(pruned, lost)
            if trace is not None:
                trace.append(level_trace(candidates, beam, answers, self.tree.num_inner))

        # Certify: nothing pruned scores above the k-th document. Scores that overflowed prove nothing.
        exact = pruned <= (answers.scores[:, -1] if bounds else -torch.inf)
        exact &= answers.scores.isfinite().all(dim=1)
        if isinstance(queries.node_scores, BestBelow):
            exact &= queries.node_scores.nearest.proven
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
        request = SearchRequest(1, request.config)
        root = Beam.root(batch, self.device)
        beam = root.take(torch.zeros_like(positions), root.score)
        cache = self._start(queries, request.config)
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
        beam: Beam,
        level: int,
        node_scores: NodeScores | None,
        request: SearchRequest,
        cache: DecoderCache | TiedCache | None,
    ) -> Beam:
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
            logits = self._logits(beam, nodes, level, cache, config.beam_width)
            weight = config.alpha if weighs or (config.fusion == "bound" and config.beta > 0) else 1.0
            log_p, adds_up = self._log_probabilities(logits.float(), nodes, valid, level)
            generative = generative.masked_fill(~adds_up, 0.0) + weight * log_p

        # The dense score: a sum along the path ("paper"), or the node's own ("bound").
        dense = beam.dense[:, :, None].expand_as(nodes)
        if weighs and node_scores is not None:
            values = node_scores.of(nodes, level)
            if config.fusion == "estimate":
                is_document = nodes >= self.tree.num_inner
                generative, dense = values.masked_fill(is_document, 0.0), values.masked_fill(~is_document, 0.0)
            elif config.fusion == "paper":
                dense = dense + (1 - config.alpha) * valid_log_softmax(values, valid)  # DR-SCL eq. 10, 11
            else:
                dense = values if self.estimating else (1 - config.alpha) * values

        # A filter excludes nodes after the softmaxes, so it changes no score.
        if request.alive is not None:
            valid = valid & request.alive[nodes]
        return Beam(
            nodes=nodes.masked_fill(~valid, -1).flatten(1),
            tokens=self.decoder.tokens(beam.tokens, digits, level).expand_as(nodes).flatten(1),
            generative=generative.flatten(1),
            dense=dense.flatten(1),
            score=(generative + dense).masked_fill(~valid, -torch.inf).flatten(1),  # DR-SCL eq. 12, in log space
            parent=torch.arange(beam.nodes.shape[1], device=self.device)[:, None].expand(nodes.shape).flatten(1),
        )

    def _start(self, queries: ScoredQueries, config: SearchConfig) -> DecoderCache | TiedCache | None:
        """Return what the decoder keeps of the queries, None if it does not score nodes step by step."""
        if not config.uses_decoder or self.estimating:
            return None
        if isinstance(self.decoder, TiedDecoder):
            assert queries.embeddings is not None
            return TiedCache(self.decoder.read(queries.embeddings, queries.states, queries.mask))
        return self.decoder.start(queries.states, queries.mask)

    def _logits(
        self, beam: Beam, nodes: Tensor, level: int, cache: DecoderCache | TiedCache, beam_width: int
    ) -> Tensor:
        """Return the decoder's logits [batch, beams, fan_out] of the beam's children."""
        if isinstance(cache, TiedCache):
            assert self.estimates is not None
            return cache.logits(self.estimates, nodes, level)
        assert isinstance(self.decoder, FastDecoder)
        one_beam = level == 0 and nodes.shape[1] == 1
        if one_beam and self.tree.depth > 1 and self.tree.fan_out[0] <= beam_width:
            return self.decoder.first_step(cache)
        return self.decoder.step(beam.tokens, level, cache)

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
            return valid_log_softmax(logits, counted), adds_up
        return logits.masked_fill(~valid, 0.0), adds_up

    def _select(
        self, candidates: Beam, level: int, answers: Answers, beam_width: int, bounds: bool
    ) -> tuple[Answers, Beam | None, Tensor]:
        """Return the updated top k, the next beam (None after the last level), and the best score pruned [batch].

        If scores are bounds, nodes that cannot beat the k-th document are dropped.
        """
        # Documents join the top k.
        is_document = candidates.nodes >= self.tree.num_inner
        if self.tree.holds_documents[level]:
            scores = candidates.score.masked_fill(~is_document, -torch.inf)
            found = candidates.nodes - self.tree.num_inner
            answers = answers.merge(found, scores, candidates.generative, self.doc_rows)
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
