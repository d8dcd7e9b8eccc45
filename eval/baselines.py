"""The systems to beat: BM25 over words, and flat dense search over embeddings. Both return runs."""

from collections.abc import Mapping, Sequence
from itertools import product

import bm25s
import faiss
import numpy as np
from numpy.typing import NDArray

from eval.measures import Judgements, evaluate, mean

BM25_GRID = tuple(product((0.6, 0.9, 1.2, 1.6, 2.0), (0.2, 0.4, 0.6, 0.75, 0.9)))
"""(k1, b) pairs that `tuned_bm25` chooses from."""


class BM25:
    """BM25 (Lucene's variant) by bm25s, English stop words removed.

    Args:
        doc_ids: key of each document.
        texts: what is searched of each document.
        k1: saturation of term frequency.
        b: strength of length normalisation.
    """

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        self.doc_ids, self.k1, self.b = list(doc_ids), k1, b
        self._tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=False)
        self._index = self._build(k1, b)

    def _build(self, k1: float, b: float) -> bm25s.BM25:
        index = bm25s.BM25(method="lucene", k1=k1, b=b)
        index.index(self._tokens, show_progress=False)
        return index

    def tune(self, queries: Mapping[str, str], qrels: Judgements) -> None:
        """Set k1 and b to the best RR@10 of `BM25_GRID` on dev queries."""
        results = []
        for k1, b in BM25_GRID:
            self._index = self._build(k1, b)
            results.append((mean(evaluate(self.run(queries, 10), qrels, ["RR@10"])["RR@10"]), k1, b))
        _, self.k1, self.b = max(results, key=lambda result: result[0])
        self._index = self._build(self.k1, self.b)

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[queries, documents] of every document."""
        none = np.zeros(len(self.doc_ids), dtype=np.float32)
        return np.stack([self._index.get_scores(words) if words else none for words in _words(queries)])

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; documents that share no word with it are left out."""
        k = min(k, len(self.doc_ids))
        documents, scores = self._index.retrieve(_words(list(queries.values())), k=k, show_progress=False)
        return {
            query_id: {self.doc_ids[d]: float(s) for d, s in zip(row, row_scores, strict=True) if s > 0}
            for query_id, row, row_scores in zip(queries, documents, scores, strict=True)
        }


def _words(queries: Sequence[str]) -> list[list[str]]:
    """What BM25 reads of queries, English stop words removed."""
    return bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)  # type: ignore[return-value]


def dense_run(
    query_ids: Sequence[str],
    query_embeddings: NDArray[np.float32],
    doc_ids: Sequence[str],
    doc_embeddings: NDArray[np.float32],
    k: int,
) -> dict[str, dict[str, float]]:
    """Exact search by dot product (faiss, flat): the k best documents of each query.

    Args:
        query_ids: keys of the queries.
        query_embeddings: [queries, dim].
        doc_ids: keys of the documents.
        doc_embeddings: [documents, dim].
        k: documents a query.
    """
    index = faiss.IndexFlatIP(doc_embeddings.shape[1])
    index.add(np.ascontiguousarray(doc_embeddings, dtype=np.float32))
    scores, rows = index.search(np.ascontiguousarray(query_embeddings, dtype=np.float32), min(k, len(doc_ids)))
    return {
        query_id: {doc_ids[int(d)]: float(s) for d, s in zip(row, row_scores, strict=True)}
        for query_id, row, row_scores in zip(query_ids, rows, scores, strict=True)
    }
