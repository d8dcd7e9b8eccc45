"""The parts of documents' scores for the candidates of flat search, and the weights that are best on judged queries.

Knows nothing of nodes or decoders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsi.docids.data.identical import Identical, without_identical
from dsi.docids.tree import DocidTree, document_scores
from dsi.docids.types import Floats, Qrels, Run
from dsi.docids.words.bm25 import BM25
from dsi.eval.fusion import fit_weights
from dsi.search.request import LEXICAL_WEIGHT

DEPTH = 100
"""Candidates per query on which weights are compared."""
NO_PARTS: dict[str, Any] = {"lexical_weight": 0.0, "token_weight": 0.0, "memory_weight": 0.0}
"""Settings of `[search]` without words, tokens and memory."""
_BLOCK = 256
"""Queries whose scores of all documents are in memory at a time."""


@dataclass(frozen=True)
class HybridScores:
    """Dense and lexical scores of the documents of a table.

    Attributes:
        doc_ids: of the documents.
        tree: their docids, rows in the same order; the best place of each counts.
        lexical: the lexical part; None if there is none.
    """

    doc_ids: Sequence[str]
    tree: DocidTree
    lexical: BM25 | None

    def runs(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        texts: Sequence[str],
    ) -> list[Run]:
        """Return the scores of each query's candidates, the first hundred of each score: dense ones and lexical ones.

        Args:
            query_ids: of the queries.
            queries: [queries, dim] embeddings z.
            texts: of the queries.

        Returns:
            Runs of z.e, at the best place of a document, and of the lexical part (zeros without one).
        """
        runs: list[Run] = [{}, {}]
        for start in range(0, len(query_ids), _BLOCK):
            block = slice(start, start + _BLOCK)
            scores = [document_scores(queries[block], self.tree), self._words(texts[block])]
            for row, query_id in enumerate(query_ids[block]):
                tops = [np.argsort(-source[row], kind="stable")[:DEPTH] for source in scores]
                best = np.unique(np.concatenate(tops))
                names = [self.doc_ids[document] for document in best]
                for run, values in zip(runs, scores, strict=True):
                    run[query_id] = dict(zip(names, values[row][best].tolist(), strict=True))
        return runs

    def _words(self, texts: Sequence[str]) -> Floats:
        if self.lexical is None:
            return np.zeros((len(texts), len(self.doc_ids)), dtype=np.float32)
        return self.lexical.shares(texts)

    def best_weight(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        texts: Sequence[str],
        qrels: Qrels,
        identical: Identical | None = None,
    ) -> float:
        """Return the weight of the lexical scores that judged queries support; 0 if there are none.

        Queries that are `identical` to a document leave it out.
        """
        if self.lexical is None or not query_ids:
            return 0.0
        dense, lexical = (without_identical(run, identical or {}) for run in self.runs(query_ids, queries, texts))
        return fit_weights(dense, [lexical], [LEXICAL_WEIGHT], qrels)[0]
