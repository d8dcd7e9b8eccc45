"""Constrained beam search over the docid tree, for any kind of docid tokens (DR-SCL section 3.5).

Two scores add up to rank a node:

* generative: alpha times the decoder's log-probability. Objectives with a path score sum log P_T5 along the path (a softmax
  over a node's children, or a sigmoid per child); objectives with score "node" use the node's own log sigmoid;
* dense: (1 - alpha) times the sum of log P_ANN along the path (eq. 10-12), a softmax over a node's children. Under another
  fusion (`dsi.generator.fusion`) this is what it adds to the generative part.

Beyond beta levels only the decoder counts, with weight 1; beta = 0 uses the decoder alone. The score of the path to a document
is the document's score. Path sums never increase from a node to its children, so a node's score bounds every document below it:
if no pruned node scores above the k-th document, the result is the exact top k. "Node" scores are not bounds; there a result is
certified only if nothing was pruned.

A document joins the top k as soon as it is reached. The beam holds inner nodes only, and drops those that cannot beat the
k-th document. Ties break in docid order. A document with several places scores as its best one. Knows nothing of texts.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree, padded_places
from dsi.docids.types import Bools, Ints
from dsi.docids.words.bm25 import BM25
from dsi.generator.answers import BestDocuments
from dsi.generator.dense import DenseScores
from dsi.generator.fusion import BUILT_IN, PRODUCT, fuse
from dsi.generator.objectives import log_prior
from dsi.search.engine import Engine, Followed, Method, count_documents, nodes_above
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import WALK, LevelTrace, SearchResult, Trace

_MOST_PLACES = 100
"""Places of a document for which the first beam has room; those of more places widen it only if too few are found."""
_ROUNDING = 1e-4
"""A path's score may differ by this much between batches of different shapes, relative to the score plus one."""


class Scorer(ABC):
    """Scores the children of nodes for a batch of queries, one level after the other: what a beam asks of a generator."""

    device: torch.device  # of its tensors
    # has `score`, how nodes are ranked, one of `dsi.generator.objectives.SCORES`, and `training_beam`, beyond which no
    # node was trained, or 0
    config: Any
    # an exact search runs it over about this many nodes at a time: each has keys and values in every layer
    most_nodes: ClassVar[int] = 1_024

    @abstractmethod
    def start(self, batch: QueryBatch) -> Any:
        """Read a batch of queries, and the root of the docids; return the cache of both."""

    @abstractmethod
    def child_logits(self, tokens: Tensor, level: int, cache: Any) -> Tensor:
        """Return the logits [batch, beams, fan_out] of a level, given the tokens [batch, beams] chosen at level - 1.

        At level 0 the tokens are 0, the root. `cache.select(beams)` gives new beams [batch, n] the past of old ones.
        """

    @abstractmethod
    def child_tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the docid tokens of digits of a level, below nodes with the tokens `parents` [batch, beams].

        A digit added after training has no embedding; any serves, as no logits below it are used.
        """


@dataclass(frozen=True)
class Beam:
    """Nodes and scores, [batch, n], in docid order; padding has node -1, score -inf. `parent` indexes the previous beam."""

    nodes: Tensor
    tokens: Tensor
    generative: Tensor
    dense: Tensor
    score: Tensor
    parent: Tensor

    @classmethod
    def root(cls, batch: int, device: torch.device) -> "Beam":
        """Return the beam before the first level."""
        zeros, scores = (torch.zeros(batch, 1, dtype=kind, device=device) for kind in (torch.long, torch.float32))
        return cls(zeros, zeros, scores, scores, scores, zeros)

    def take(self, columns: Tensor, score: Tensor) -> "Beam":
        """Return the entries at columns [batch, m], with other scores; -inf makes padding of an entry."""
        nodes = self.nodes.masked_fill(score == -torch.inf, -1)
        fields = (nodes, self.tokens, self.generative, self.dense, score, self.parent)
        return Beam(*(field.gather(1, columns) for field in fields))


def valid_log_softmax(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the log-softmax over the valid entries of the last dimension, at most 0; other entries are 0."""
    log_p = logits.masked_fill(~valid, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    return log_p.masked_fill(~valid, 0.0).clamp(max=0.0)


class PathScores(NamedTuple):
    """Scores of the nodes on the paths to given documents, [batch, documents, depth]; past a docid's end, the document's."""

    generative: Tensor  # weighted
    dense: Tensor  # weighted
    siblings: list[tuple[Tensor, Tensor]]
    """Per level, all children of the nodes on the paths: nodes and generative scores [batch, documents * fan_out], -1 and -inf
    where there is none."""


class Descent(NamedTuple):
    """The outcome of a descent through the levels."""

    answers: BestDocuments
    pruned: Tensor  # [batch] the best score of a node that was pruned; -inf if none was
    read: Tensor  # [batch] how many nodes were scored


@dataclass(frozen=True)
class _Queries:
    """A batch of queries for one descent."""

    batch: QueryBatch
    config: SearchConfig
    alive: Tensor | None  # [nodes] True at documents that may be returned and at nodes above them; None if all may


class PathEngine(Engine):
    """Search over one tree with one generator, on its device: "generate" by a beam, "exact" over all paths.

    BM25 and memory of the index take no part.
    """

    has_generator = True

    def __init__(
        self, tree: DocidTree, generator: Scorer, lexical: BM25 | None = None, memory: QueryMemory | None = None
    ) -> None:
        super().__init__(tree, lexical, memory)
        self.generator, self.device, self.score = generator, generator.device, generator.config.score
        self.dense = DenseScores(tree, self.device)
        self.doc_rows = None
        """[places] the document at each docid position, if some have several places."""
        if tree.most_places > 1:
            self.doc_rows = torch.from_numpy(tree.doc_rows).long().to(self.device)
        self._trained = None if tree.trained.all() else torch.from_numpy(tree.trained).to(self.device)

    def with_content(self, tree: DocidTree, lexical: BM25 | None, memory: QueryMemory) -> Self:
        """Return an engine with the same generator over updated documents."""
        return type(self)(tree, self.generator, lexical, memory)

    def check(self, call: str, given: Mapping[str, Any], config: SearchConfig) -> None:
        """Raise ValueError if a call sets an option that paths do not use; warn if its beam is wider than trained."""
        super().check(call, given, config)
        for name in ("candidates", "token_weight", "lexical_weight", "memory_weight", "extra_scores"):
            if name in given and np.any(given[name]):
                raise ValueError(f"{call}() does not use {name}: its generator scores paths of docids; leave it out.")
        trained = self.generator.config.training_beam
        if config.alpha and 0 < trained < config.beam_width:
            warnings.warn(
                f"The decoder was trained with objective {self.generator.config.objective!r} and a beam of {trained}; nodes "
                f"outside that beam were never trained, and a beam of {config.beam_width} may find worse answers than "
                f"{trained}.",
                stacklevel=4,
            )

    def meaning(self, config: SearchConfig) -> str:
        """Return what the scores of nodes and documents are."""
        return "score = generator along the path + centroids along the path"

    @cached_property
    def _occupied(self) -> Tensor | None:
        """[nodes] True at documents that were not removed and at nodes above them; None if none was removed."""
        return self._alive(self.tree.doc_rows >= 0) if self.tree.num_removed else None

    def _alive(self, allowed: Bools) -> Tensor:
        """[nodes] True at allowed documents, [places] True, and at nodes above them."""
        return torch.from_numpy(np.concatenate([nodes_above(self.tree, allowed), allowed])).to(self.device)

    def reads_generator(self, config: SearchConfig) -> bool:
        """Whether the generator has a part in the scores: another package's fusion may read it at any alpha."""
        return config.alpha != 0 or config.beta < self.tree.depth or config.fusion not in BUILT_IN

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods of search."""
        return {"generate": BestPaths(self), "exact": BestPaths(self, proves=True)}

    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored; a filter changes no score."""
        places = padded_places(self.tree, rows.ravel()).reshape(*rows.shape, -1)  # [batch, n, places]
        shape, places = (*places.shape, -1), places.reshape(len(rows), -1)  # [batch, n * places]
        paths = self.follow_paths(batch, request, torch.from_numpy(places).long().to(self.device))
        generative, dense = (scores.numpy(force=True).reshape(shape) for scores in paths[:2])
        best = (generative + dense)[:, :, :, -1].argmax(axis=2)[:, :, None, None]
        generative, dense = (np.take_along_axis(scores, best, axis=2)[:, :, 0] for scores in (generative, dense))
        positions = np.take_along_axis(places.reshape(shape[:-1]), best[:, :, :, 0], axis=2)[:, :, 0]
        _, digits = self.tree.paths(positions.ravel())
        nodes = np.where(digits.reshape(generative.shape) >= 0, generative + dense, np.nan)
        return Followed(positions, nodes, {"generator": generative[:, :, -1], "encoder": dense[:, :, -1]})

    def result(self, descent: Descent) -> SearchResult:
        """Return the documents of a descent, with a certificate if nothing that was pruned could be better."""
        answers = descent.answers
        bounds = self.score != "node"
        exact = descent.pruned <= (answers.scores[:, -1] if bounds else -torch.inf)
        positions = answers.positions.numpy(force=True)
        sources = np.where(positions >= 0, np.uint8(WALK), np.uint8(0))
        return replace(
            SearchResult.empty(*positions.shape),
            positions=positions,
            scores=answers.scores.numpy(force=True),
            exact=exact.numpy(force=True),
            read=descent.read.numpy(force=True),
            sources=sources,
        )

    def queries(self, batch: QueryBatch, request: SearchRequest) -> _Queries:
        """Return a batch with all that scores and filters nodes."""
        alive = self._occupied if request.allowed is None else self._alive(request.allowed)
        return _Queries(batch, request.config, alive)

    def descend(
        self, queries: _Queries, k: int, beam_width: int, reached: Tensor | None, trace: Trace | None = None
    ) -> Descent:
        """Run through all levels: expand the beam, then keep the best candidates.

        Nodes below a score that k documents are known to have `reached` [batch] are dropped, if scores are bounds.
        """
        batch, bounds = len(queries.batch.texts), self.score != "node"
        beam: Beam | None = Beam.root(batch, self.device)
        answers = BestDocuments.empty(batch, k, self.device)
        pruned = torch.full((batch,), -torch.inf, device=self.device)  # best score pruned so far
        scored = torch.zeros(batch, dtype=torch.long, device=self.device)
        cache = self._start(queries)
        for level in range(self.tree.depth):
            if beam is None or not (beam.score > -torch.inf).any():
                break
            if cache is not None and level > 0:
                cache.select(beam.parent)
            candidates = self._expand(beam, level, queries, cache)
            scored += (candidates.nodes >= 0).sum(dim=1)
            answers, beam, lost = self._select(candidates, level, answers, beam_width, reached if bounds else None)
            pruned = torch.maximum(pruned, lost)
            if trace is not None:
                trace.levels.append(_level_trace(candidates, beam, answers, self.tree.num_inner))
        return Descent(answers, pruned, scored)

    @torch.no_grad()
    def follow_paths(self, batch: QueryBatch, request: SearchRequest, positions: Tensor) -> PathScores:
        """Return the scores of the nodes on the paths to docid positions [batch, m], whether or not a search reaches them."""
        digits = torch.from_numpy(self.tree.paths(positions.flatten().numpy(force=True))[1]).long().to(self.device)
        digits = digits.view(*positions.shape, self.tree.depth)
        queries = _Queries(batch, request.config, None)
        root = Beam.root(len(positions), self.device)
        beam = root.take(torch.zeros_like(positions), root.score)
        cache = self._start(queries)
        generative: list[Tensor] = []
        dense: list[Tensor] = []
        siblings = []
        for level, fan_out in enumerate(self.tree.fan_out):
            candidates = self._expand(beam, level, queries, cache)
            # [batch, m] where each path's next node is among the candidates [batch, m * fan_out]
            columns = torch.arange(positions.shape[1], device=self.device) * fan_out + digits[:, :, level].clamp(min=0)
            siblings.append((candidates.nodes, candidates.generative))
            is_document = candidates.nodes >= self.tree.num_inner
            beam = candidates.take(columns, candidates.score.masked_fill(is_document, -torch.inf))
            ended = digits[:, :, level] < 0  # [batch, m]
            for by_level, scores in ((generative, beam.generative), (dense, beam.dense)):
                by_level.append(torch.where(ended, by_level[-1], scores) if by_level else scores)
        return PathScores(torch.stack(generative, dim=2), torch.stack(dense, dim=2), siblings)

    def _expand(self, beam: Beam, level: int, queries: _Queries, cache: Any) -> Beam:
        """Return all children of the beam with their scores, [batch, beams * fan_out], in docid order."""
        # The children, [batch, beams, fan_out]; `valid` is False past a node's last child.
        config = queries.config
        digits = torch.arange(self.tree.fan_out[level], device=self.device)  # [fan_out]
        parents = beam.nodes.clamp(min=0)  # [batch, beams]
        valid = (digits < self.dense.num_children[parents][:, :, None]) & (beam.score > -torch.inf)[:, :, None]
        nodes = (self.dense.first_child[parents][:, :, None] + digits).masked_fill(~valid, 0)
        shares = self._in_softmax(nodes, valid)
        fused = level < config.beta  # is the dense score used at this level (m <= beta in eq. 12)?

        # The generative score: alpha log P_T5 along the path (DR-SCL eq. 9, 11).
        generative, log_p = beam.generative[:, :, None].expand_as(nodes), torch.zeros((), device=self.device)
        if cache is not None:
            logits = self.generator.child_logits(beam.tokens, level, cache)
            weight = config.alpha if fused else 1.0
            log_p, adds_up = self._log_probabilities(logits.float(), nodes, valid, shares, level)
            generative = generative.masked_fill(~adds_up, 0.0) + weight * log_p

        # The dense score: (1 - alpha) log P_ANN along the path (DR-SCL eq. 10, 11), or what another fusion adds.
        dense = beam.dense[:, :, None].expand_as(nodes)
        if fused:
            vectors = torch.from_numpy(queries.batch.embeddings).to(self.device)
            log_q = valid_log_softmax(self.dense.dot(vectors / config.ann_temperature, nodes), shares)
            if config.fusion == PRODUCT:
                dense = dense + (1 - config.alpha) * log_q
            else:
                fusion = fuse(config.fusion, log_p.expand_as(log_q), log_q, config.alpha, shares)
                dense = dense + (fusion - config.alpha * log_p).masked_fill(~valid, 0.0)

        # A filter excludes nodes after the softmaxes, so it changes no score.
        if queries.alive is not None:
            valid = valid & queries.alive[nodes]
        return Beam(
            nodes=nodes.masked_fill(~valid, -1).flatten(1),
            tokens=self.generator.child_tokens(beam.tokens, digits, level).expand_as(nodes).flatten(1),
            generative=generative.flatten(1),
            dense=dense.flatten(1),
            score=(generative + dense).masked_fill(~valid, -torch.inf).flatten(1),  # DR-SCL eq. 12, in log space
            parent=torch.arange(beam.nodes.shape[1], device=self.device)[:, None].expand(nodes.shape).flatten(1),
        )

    def _start(self, queries: _Queries) -> Any:
        """Return the decoder's cache of the queries; None if the decoder has no weight."""
        return self.generator.start(queries.batch) if self.reads_generator(queries.config) else None

    def _in_softmax(self, nodes: Tensor, valid: Tensor) -> Tensor:
        """True at children that share their parent's probability: not at those that came after training and were removed."""
        if self._trained is None or self._occupied is None:
            return valid
        return valid & (self._trained[nodes] | self._occupied[nodes])

    def _log_probabilities(
        self, logits: Tensor, nodes: Tensor, valid: Tensor, in_softmax: Tensor, level: int
    ) -> tuple[Tensor, Tensor]:
        """Return decoder scores [batch, beams, fan_out], and True where they add to the parent's score.

        A node added after training gets the mean probability of its trained siblings; without any, it shares its parent's
        probability equally with its siblings.
        """
        score = self.score
        if score != "softmax path":
            level_size = torch.full_like(logits[..., :1], float(self.tree.level_sizes[level]))  # [batch, beams, 1]
            logits = F.logsigmoid(logits + log_prior(score, valid.sum(2, keepdim=True), level_size))
        adds_up = torch.full((), score != "node", device=self.device)
        if self._trained is not None:
            logits = F.pad(logits, (0, nodes.shape[2] - logits.shape[2]))
            known = valid & self._trained[nodes]
            mean = (
                logits.masked_fill(~known, -torch.inf).logsumexp(dim=2, keepdim=True) - known.sum(2, keepdim=True).log()
            )
            some = known.any(dim=2, keepdim=True)
            logits = torch.where(known, logits, torch.where(some, mean, -valid.sum(2, keepdim=True).clamp(min=1).log()))
            adds_up = adds_up | ~some
        if score == "softmax path":
            return valid_log_softmax(logits, in_softmax), adds_up
        return logits.masked_fill(~valid, 0.0), adds_up

    def _select(
        self, candidates: Beam, level: int, answers: BestDocuments, beam_width: int, reached: Tensor | None
    ) -> tuple[BestDocuments, Beam | None, Tensor]:
        """Return the updated top k, the next beam (None after the last level), and the best score pruned [batch].

        If scores are bounds, nodes that cannot beat the k-th document are dropped.
        """
        # Documents join the top k.
        is_document = candidates.nodes >= self.tree.num_inner
        if self.tree.holds_documents[level]:
            scores = candidates.score.masked_fill(~is_document, -torch.inf)
            answers = answers.merge(candidates.nodes - self.tree.num_inner, scores, self.doc_rows)
        lost = torch.full_like(answers.scores[:, 0], -torch.inf)
        if level + 1 == self.tree.depth:
            return answers, None, lost

        # The best inner nodes are the next beam.
        score = candidates.score.masked_fill(is_document, -torch.inf)
        if self.score != "node":
            needed = answers.scores[:, -1] if reached is None else torch.maximum(answers.scores[:, -1], reached)
            score = score.masked_fill(score < needed[:, None], -torch.inf)
        order = score.argsort(dim=1, descending=True, stable=True)
        width = min(beam_width, max(1, int((score > -torch.inf).sum(dim=1).max())))
        if order.shape[1] > width:
            lost = score.gather(1, order[:, width : width + 1])[:, 0]
        survivors = order[:, :width].sort(dim=1).values  # back to docid order
        return answers, candidates.take(survivors, score), lost


class BestPaths(Method):
    """The documents at the end of the best paths that a beam finds; with `proves`, of all paths.

    A query for which too few are found has its beam doubled, until there are enough or nothing is pruned; with `proves` also as
    long as a better document may be below a node that was pruned.
    """

    def __init__(self, search: PathEngine, *, proves: bool = False) -> None:
        self.search, self.proves = search, proves

    @torch.no_grad()
    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k documents of a batch of queries."""
        search = self.search
        k = min(request.k, count_documents(search.tree, request.allowed))
        result = SearchResult.empty(len(batch.texts), k)
        width = max(request.config.beam_width, k * min(search.tree.most_places, _MOST_PLACES))
        rows, levels = np.arange(len(batch.texts) if k else 0), None if self.proves else trace
        while len(rows):
            step = max(1, search.generator.most_nodes // width) if self.proves else len(rows)
            parts = np.split(rows, range(step, len(rows), step))
            rows = np.concatenate([self._descend(batch, request, result, part, width, levels) for part in parts])
            width *= 2
        if search.doc_rows is not None:
            self._score_best_places(batch, request, result)
        if self.proves and trace is not None:
            trace.add_documents(result.positions, result.scores, result.sources)
        return result

    def _descend(
        self, batch: QueryBatch, request: SearchRequest, result: SearchResult, rows: Ints, width: int,
        trace: Trace | None,
    ) -> Ints:  # fmt: skip
        """Put what a beam finds for some queries into a result, and return the queries for which it is too narrow."""
        search = self.search
        if trace is not None:
            trace.levels, trace.beam_width = [], width
        reached = torch.from_numpy(result.scores[rows, -1]).to(search.device)  # by a narrower beam, up to rounding
        reached = reached - _ROUNDING * (1 + reached.abs())
        queries = search.queries(batch.select(rows), request)
        descent = search.descend(queries, result.positions.shape[1], width, reached, trace)
        part, pruned = search.result(descent), descent.pruned.numpy(force=True)
        result.put(rows, part)
        narrow = part.counts < part.positions.shape[1]
        if self.proves:
            narrow |= (search.score == "node") | (pruned >= part.scores[:, -1])
        return rows[narrow & (pruned > -np.inf)]

    def _score_best_places(self, batch: QueryBatch, request: SearchRequest, result: SearchResult) -> None:
        """Score each answer as its document's best place, which the beam may have pruned; certified answers have it."""
        search, rows = self.search, np.flatnonzero(~result.exact & (result.counts > 0))
        if not len(rows):
            return
        positions = result.positions[rows]
        followed = search.follow(batch.select(rows), request, search.rows_at(positions))
        scores = np.where(positions < 0, -np.float32(np.inf), followed.scores)
        order = np.lexsort((followed.positions, -scores))
        places = np.where(positions < 0, -1, followed.positions)
        result.scores[rows] = np.take_along_axis(scores, order, axis=1)
        result.positions[rows] = np.take_along_axis(places, order, axis=1)


def _level_trace(candidates: Beam, beam: Beam | None, answers: BestDocuments, num_inner: int) -> LevelTrace:
    """Return the candidates of a level, and which of them went into the next beam or the answers."""
    # [batch, k + beam_width] nodes in the top k or the next beam
    alive = torch.cat([answers.positions + num_inner, *([] if beam is None else [beam.nodes])], dim=1)
    is_kept = (candidates.nodes[:, :, None] == alive[:, None, :]).any(dim=2) & (candidates.nodes >= 0)
    fields = (candidates.nodes, candidates.score, is_kept)
    return LevelTrace(*(field.numpy(force=True) for field in fields))
