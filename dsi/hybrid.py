"""Flat dense search with a lexical part beside it: scores of every document, and the best weight on judged queries.

Knows nothing of trees or decoders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docids.lexical import Lexical, weighted_scores
from dsi.trees.places import document_scores
from eval.fusion import best_weights
from eval.measures import Judgements, Run, evaluate

Floats = NDArray[np.float32]
Runs = dict[str, dict[str, float]]
DEPTH = 100
"""Candidates per query on which weights are compared."""
_BLOCK = 256
"""Queries whose scores of all documents are in memory at a time."""


@dataclass(frozen=True)
class HybridScores:
    """Dense and lexical scores of the documents of a table.

    Attributes:
        doc_ids: of the documents.
        embeddings: [documents, places, dim] their vectors in the same order; the best place of each counts.
        lexical: the lexical part; None if there is none.
    """

    doc_ids: Sequence[str]
    embeddings: Floats
    lexical: Lexical | None

    def runs(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        texts: Sequence[str],
        candidates: Mapping[str, Sequence[int]] | None = None,
        factors: Sequence[NDArray[np.floating]] | None = None,
    ) -> tuple[Runs, Runs]:
        """Return the dense and the lexical scores of each query's candidates; no lexical ones without a lexical part.

        Args:
            query_ids: of the queries.
            queries: [queries, dim] embeddings.
            texts: of the queries.
            candidates: {query_id: rows of the table}; by default the first hundred of either score.
            factors: of the words of each query, if the lexical part is BM25; 1 by default.
        """
        dense_run: Runs = {}
        lexical_run: Runs = {}
        for start in range(0, len(query_ids), _BLOCK):
            own = slice(start, start + _BLOCK)
            dense = document_scores(queries[own], self.embeddings)  # [block, documents]
            weights = None if factors is None else factors[own]
            lexical = (
                np.zeros_like(dense) if self.lexical is None else weighted_scores(self.lexical, texts[own], weights)
            )
            for query_id, of_dense, of_words in zip(query_ids[own], dense, lexical, strict=True):
                if candidates is None:
                    best = np.union1d(*(np.argsort(-each, kind="stable")[:DEPTH] for each in (of_dense, of_words)))
                else:
                    best = np.asarray(candidates[query_id])
                names = [self.doc_ids[row] for row in best]
                dense_run[query_id] = dict(zip(names, of_dense[best].tolist(), strict=True))
                lexical_run[query_id] = dict(zip(names, of_words[best].tolist(), strict=True))
        return dense_run, {} if self.lexical is None else lexical_run

    def best_weight(self, query_ids: Sequence[str], queries: Floats, texts: Sequence[str], qrels: Judgements) -> float:
        """Return the weight of the lexical scores with the best RR@10; 0 if none helps, or there is none."""
        if self.lexical is None or not query_ids:
            return 0.0
        dense, lexical = self.runs(query_ids, queries, texts)
        return supported_weights(dense, [lexical], qrels)[0]


def supported_weights(first: Run, others: Sequence[Run], qrels: Judgements) -> list[float]:
    """Return `best_weights`, or zeros if the weighted sum ranks no better than `first`: then nothing speaks for a weight."""
    weights = best_weights(first, others, qrels)
    total = {query_id: dict(found) for query_id, found in first.items()}
    for other, weight in zip(others, weights, strict=True):
        for query_id, found in total.items():
            for doc_id in found:
                found[doc_id] += weight * other[query_id][doc_id]
    before, after = (sum(evaluate(run, qrels, ["RR@10"])["RR@10"].values()) for run in (first, total))
    return weights if after > before else [0.0] * len(others)
