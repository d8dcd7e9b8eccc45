"""What joins the dense scores of documents: weighted lexical scores, and the caller's own. Knows nothing of nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from docids.lexical import Lexical
from docids.tree import DocidTree


class BestAdded(NamedTuple):
    """Documents to which most is added.

    Attributes:
        positions: [batch, n]; the number of documents is padding.
        scores: [batch, n] what is added to these.
        others: [batch, m] what is added to the documents that were asked for.
    """

    positions: Tensor
    scores: Tensor
    others: Tensor


@dataclass(frozen=True, eq=False)
class AddedScores:
    """Scores of a batch of queries that are added to the dense ones, by docid position.

    Attributes:
        texts: the queries.
        tree: the docids.
        lexical: BM25 or learned sparse vectors of the document table; None if they take no part.
        weight: of the lexical scores.
        factors: of each query's words, if anything weighs them.
        given: [batch, documents] the caller's own scores, in the order of the document table; None if there are none.
    """

    texts: Sequence[str]
    tree: DocidTree
    lexical: Lexical | None = None
    weight: float = 0.0
    factors: Sequence[NDArray[np.floating]] | None = None
    given: NDArray[np.floating] | None = None

    def select(self, which: Tensor) -> "AddedScores":
        """Of the queries at the indices `which`."""
        rows = which.tolist()
        factors = None if self.factors is None else [self.factors[row] for row in rows]
        given = None if self.given is None else self.given[rows]
        return replace(self, texts=[self.texts[row] for row in rows], factors=factors, given=given)

    def of_all(self) -> Tensor:
        """[batch, documents] the scores of all documents."""
        parts = [] if self.given is None else [np.asarray(self.given, dtype=np.float32)]
        if self.lexical is not None:
            parts.append(np.float32(self.weight) * self.lexical.scores(self.texts, self.factors))
        return torch.from_numpy(np.sum(parts, axis=0)[:, self.tree.doc_rows])

    def of(self, positions: Tensor) -> Tensor:
        """[batch, n] the scores of documents [batch, n]."""
        rows = self.tree.doc_rows[positions.numpy(force=True)]
        found = np.zeros(rows.shape, dtype=np.float32)
        if self.given is not None:
            found += np.take_along_axis(np.asarray(self.given, dtype=np.float32), rows.astype(np.int64), axis=1)
        if self.lexical is not None:
            found += np.stack([self._lexical(n, own) for n, own in enumerate(rows)])
        return torch.from_numpy(found).to(positions.device)

    def best(self, count: int, allowed: NDArray[np.bool_] | None, others: Tensor) -> BestAdded:
        """About the documents with the best lexical scores, and the scores of other ones.

        Args:
            count: at most so many for each.
            allowed: [documents] by docid position, True at those that count.
            others: [batch, m] docid positions.
        """
        if self.lexical is None:
            nothing = torch.empty(len(self.texts), 0)
            return BestAdded(nothing.long(), nothing, torch.zeros(others.shape))
        of_rows = None if allowed is None else np.asarray(allowed[self.tree.places].any(axis=1))
        rows = self.tree.doc_rows[others.numpy()].astype(np.int64)
        found = self.lexical.best(self.texts, count, self.factors, of_rows, rows)
        positions = [torch.from_numpy(self.tree.places[rows].ravel()).long() for rows in found.rows]
        gains = [
            torch.from_numpy((np.float32(self.weight) * own).repeat(self.tree.most_places)) for own in found.scores
        ]
        documents = pad_sequence(positions, batch_first=True, padding_value=self.tree.num_documents)
        known = np.float32(self.weight) * np.stack(found.others)
        return BestAdded(documents, pad_sequence(gains, batch_first=True), torch.from_numpy(known))

    def _lexical(self, n: int, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """[m] what query n adds to the documents in some rows of the table."""
        assert self.lexical is not None
        factors = None if self.factors is None else self.factors[n]
        return np.float32(self.weight) * self.lexical.of(self.texts[n], rows, factors)
