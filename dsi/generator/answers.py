"""The best documents of a batch of queries so far, on a device. Knows nothing of how they are scored."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class BestDocuments:
    """The top k documents so far, [batch, k], best first; a document with several places has its best one."""

    positions: Tensor
    scores: Tensor

    @classmethod
    def empty(cls, batch: int, k: int, device: torch.device) -> "BestDocuments":
        """Return no documents yet."""
        nothing = torch.full((batch, k), -torch.inf, device=device)
        return cls(torch.full((batch, k), -1, device=device), nothing)

    def merge(self, positions: Tensor, scores: Tensor, doc_rows: Tensor | None = None) -> "BestDocuments":
        """Return the best of these documents and others [batch, n]; ties break in docid order.

        `doc_rows`: [places] the document at each position, if some documents have several places.
        """
        positions, scores = torch.cat([self.positions, positions], dim=1), torch.cat([self.scores, scores], dim=1)
        best = _best_first(positions, scores)
        if doc_rows is not None:
            scores = scores.masked_fill(_is_worse(best, doc_rows[positions.clamp(0, len(doc_rows) - 1)]), -torch.inf)
            best = _best_first(positions, scores)
        best = best[:, : self.scores.shape[1]]
        scores = scores.gather(1, best)
        return BestDocuments(positions.gather(1, best).masked_fill(scores == -torch.inf, -1), scores)


def _best_first(positions: Tensor, scores: Tensor) -> Tensor:
    """[batch, n] the columns, best first: two stable sorts, by docid and then by score, break ties in docid order."""
    in_docid_order = positions.argsort(dim=1, stable=True)
    by_score = scores.gather(1, in_docid_order).argsort(dim=1, descending=True, stable=True)
    return in_docid_order.gather(1, by_score)


def _is_worse(best: Tensor, rows: Tensor) -> Tensor:
    """[batch, n] True at the columns of documents [batch, n] `rows` that come earlier in the order `best`."""
    # [batch, n] columns, best first in each row
    by_row = best.gather(1, rows.gather(1, best).argsort(dim=1, stable=True))
    rows = rows.gather(1, by_row)
    again = F.pad(rows[:, 1:] == rows[:, :-1], (1, 0))
    return torch.zeros_like(again).scatter(1, by_row, again)
