"""The records of a beam search: results, traces, beams, and the documents found so far. Knows no scores of nodes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class SearchResult:
    """The top k documents of a batch of queries, best first.

    Attributes:
        positions: [batch, k] docid positions, of a document with several places its best one; -1 if fewer documents may be
            returned, or if the beam held too many places of too few documents.
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

    @property
    def score(self) -> Tensor:
        """What the candidates are ranked by."""
        return self.generative + self.dense


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


@dataclass(frozen=True)
class Answers:
    """The top k documents so far, [batch, k], best first; a document with several places has its best one."""

    positions: Tensor
    scores: Tensor
    generative: Tensor

    @classmethod
    def empty(cls, batch: int, k: int, like: Tensor) -> "Answers":
        """Return no documents yet, on the device of a tensor."""
        nothing = like.new_full((batch, k), -torch.inf)
        return cls(torch.full((batch, k), -1, device=like.device), nothing, nothing)

    def merge(self, positions: Tensor, scores: Tensor, generative: Tensor, doc_rows: Tensor | None = None) -> "Answers":
        """Return the best of these documents and others; ties break in docid order.

        Args:
            positions: [batch, n] of the others.
            scores: [batch, n].
            generative: [batch, n].
            doc_rows: [places] the document at each position, if some documents have several places.
        """
        positions, scores = torch.cat([self.positions, positions], dim=1), torch.cat([self.scores, scores], dim=1)
        best = _best_first(positions, scores)
        if doc_rows is not None:
            scores = scores.masked_fill(_is_worse(best, doc_rows[positions.clamp(0, len(doc_rows) - 1)]), -torch.inf)
            best = _best_first(positions, scores)
        best = best[:, : self.scores.shape[1]]
        scores = scores.gather(1, best)
        generative = torch.cat([self.generative, generative], dim=1).gather(1, best)
        return Answers(positions.gather(1, best).masked_fill(scores == -torch.inf, -1), scores, generative)


def _best_first(positions: Tensor, scores: Tensor) -> Tensor:
    """[batch, n] the columns, best first: two stable sorts, by docid and then by score, break ties in docid order."""
    in_docid_order = positions.argsort(dim=1, stable=True)
    by_score = scores.gather(1, in_docid_order).argsort(dim=1, descending=True, stable=True)
    return in_docid_order.gather(1, by_score)


def _is_worse(best: Tensor, rows: Tensor) -> Tensor:
    """[batch, n] True at the columns of documents [batch, n] `rows` that come earlier in the order `best`."""
    by_row = best.gather(
        1, rows.gather(1, best).argsort(dim=1, stable=True)
    )  # [batch, n] columns, best first in each row
    rows = rows.gather(1, by_row)
    again = F.pad(rows[:, 1:] == rows[:, :-1], (1, 0))
    return torch.zeros_like(again).scatter(1, by_row, again)


def valid_log_softmax(logits: Tensor, valid: Tensor) -> Tensor:
    """Return the log-softmax over the valid entries of the last dimension, at most 0; other entries are 0."""
    log_p = logits.masked_fill(~valid, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    return log_p.masked_fill(~valid, 0.0).clamp(max=0.0)


def level_trace(candidates: Beam, beam: Beam | None, answers: Answers, num_inner: int) -> LevelTrace:
    """Return the candidates of a level, and which of them went into the next beam or the answers."""
    # [batch, k + beam_width] nodes in the top k or the next beam
    alive = torch.cat([answers.positions + num_inner, *([] if beam is None else [beam.nodes])], dim=1)
    kept = (candidates.nodes[:, :, None] == alive[:, None, :]).any(dim=2) & (candidates.nodes >= 0)
    return LevelTrace(candidates.nodes, candidates.generative, candidates.dense, kept)
