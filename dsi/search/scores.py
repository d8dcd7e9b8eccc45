"""The score of a document: s(d) = z.e_d + w b(d) + v tok(d) + u m(d), of indexes without a generator.

z is the query's embedding, e_d the document's, w the lexical weight, v the token weight, u the memory weight; b(d) is BM25(d)
as a share of what a document with all of the query's words could have, so that w holds for queries of any length;
tok(d) is the mean over the query's tokens of the best product with a token of the document; m(d) is what users took for earlier
queries like this one (`dsi.docids.query_memory`), 0 without earlier queries. With u, z.e_d also moves towards the mean score
of the document's earlier queries. The caller's scores are added. Of a document in pieces,
z.e_d is that of its best piece less `DocidTree.piece_cost` for each doubling of their number, since many pieces have many
chances; tok(d) reads that piece, and all else the whole document. Beside words, z.e_d and tok(d) count by the square of the
share of the query that the encoder reads, so that words rank what it does not. All methods of search rank by this one score.
Knows nothing of nodes.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.threads import one_thread
from dsi.docids.tree import DocidTree, first_of_highest
from dsi.docids.types import Bools, Floats, Ints, Rows
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.term_scores import Terms, TermScorer
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchRequest

_NONE = np.zeros(0, dtype=np.int64)


class Recalled(NamedTuple):
    """What earlier queries say of documents, for a batch of queries.

    A document's dense score moves by a share towards the mean score that its earlier queries' vectors have; others are added.
    """

    # of each query, the rows [n], ascending, of the documents that the memory has, and what is added to their scores [n]
    remembered: Sequence[tuple[Rows, Floats]]
    rows: Rows  # [taken] of the documents whose dense score moves, ascending
    by: Floats  # [batch, taken] the shares, from 0 to below 1, so that the order of a document's pieces stays
    means: Floats  # [batch, taken] mean dense scores of their earlier queries


LEAST_READ = 0.01
"""Least weight of a query's vectors: between documents with equal words the better vector decides."""
ROUNDING = 1e-5
"""Scores that differ by less than this share of them may change places (batch size and threads change the last bits)."""


def read_weights(shares: Floats) -> Floats:
    """[n] weights of queries' vectors beside words: the squares of the shares that are read, since half a query misleads."""
    return np.maximum(shares**2, np.float32(LEAST_READ))


def vector_weights(batch: QueryBatch, words: object) -> Floats | None:
    """[batch] weights of queries' vectors, and of what was learned by them, beside words; None if all are 1."""
    shares = batch.shares_read if words is not None else None
    return None if shares is None or shares.min() >= 1 else read_weights(shares)


class DocumentScores:
    """Scores of documents for a batch of queries."""

    def __init__(
        self,
        tree: DocidTree,
        queries: Floats,  # [batch, dim] embeddings
        lexical: TermScorer | None = None,  # scores terms; None if BM25 has no weight
        terms: Sequence[Terms] = (),  # [batch] of the queries, for `lexical`
        weight: float = 0.0,  # of the lexical scores
        # [batch, documents] the caller's scores, by row of the document table
        extra: NDArray[np.floating] | None = None,
        # [batch] normalised vectors [words, dim] of each query's tokens; None if late interaction has no weight
        tokens: Sequence[Floats] | None = None,
        token_weight: float = 0.0,  # of late interaction
        recalled: Recalled | None = None,  # what earlier queries say, weighted; None if it takes no part
        # [batch] weights of dense scores beside words; those of `tokens` are in their lengths. None if all are 1
        shares: Floats | None = None,
    ) -> None:
        self.tree, self.queries = tree, queries
        self.lexical, self.terms, self.weight = lexical, terms, np.float32(weight)
        self.extra = None if extra is None else np.asarray(extra, dtype=np.float32)
        self._all_dots: Floats | None = None
        self.tokens, self.token_weight = tokens, np.float32(token_weight)
        self.recalled, self.shares = recalled, shares

    @classmethod
    def from_request(
        cls,
        tree: DocidTree,
        lexical: BM25 | None,
        batch: QueryBatch,
        request: SearchRequest,
        recalled: Recalled | None = None,
    ) -> "DocumentScores":
        """Return the scores that a request asks for; parts that the index lacks, or without a weight, are left out."""
        config = request.config
        extra = None if request.extra_scores is None else request.extra_scores[batch.numbers]
        words = lexical if config.lexical_weight else None
        scorer, terms = (None, list[Terms]()) if words is None else (words.scorer, words.share_terms(batch.texts))
        shares, tokens = vector_weights(batch, words), None
        if config.token_weight and tree.tokens is not None:
            with one_thread():
                tokens = [tree.tokens.project(batch.word_states(query)) for query in range(len(batch.texts))]
        if shares is not None and tokens is not None:
            tokens = [share * vectors for share, vectors in zip(shares, tokens, strict=True)]
        weights = config.lexical_weight, extra, tokens, config.token_weight
        return cls(tree, batch.embeddings, scorer, terms, *weights, recalled, shares)

    def memory_scores(self, query: int, rows: Ints) -> Floats:
        """[n] what the memory adds to the scores of documents [n], weighted, for one query."""
        known, scores = (_NONE, _NONE) if self.recalled is None else self.recalled.remembered[query]
        if not len(known):
            return np.zeros(len(rows), dtype=np.float32)
        at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        return np.where(known[at] == rows, scores[at], np.float32(0)).astype(np.float32)

    @property
    def has_tokens(self) -> bool:
        """Whether late interaction is part of the score; the other methods here leave it out."""
        return self.tokens is not None

    def late_interaction(self, query: int, positions: Ints) -> Floats:
        """[n] weighted scores v tok of docid positions [n], for one query."""
        return self.late_interactions([query], [positions])[0]

    def late_interactions(self, queries: Sequence[int], positions: Sequence[Ints]) -> list[Floats]:
        """Return for each of some queries, by their numbers, weighted scores v tok [n] of its docid positions [n]."""
        if self.tokens is None or self.tree.tokens is None:
            return [np.zeros(len(places), dtype=np.float32) for places in positions]
        scores = self.tree.tokens.late_interaction([self.tokens[query] for query in queries], positions)
        return [self.token_weight * values for values in scores]

    def late_interaction_of_all(self, queries: slice) -> Floats:
        """[batch, places] weighted scores v tok of all places, for some of the queries."""
        numbers = range(len(self.queries))[queries]
        return np.stack(self.late_interactions(numbers, [np.arange(len(self.tree.doc_rows))] * len(numbers)))

    def token_shares(self, query: int, position: int) -> tuple[Ints, Floats]:
        """Return for each token of a query the token that it finds at a docid position, and its share of `late_interaction`."""
        assert self.tokens is not None
        assert self.tree.tokens is not None
        tokens, products = self.tree.tokens.best_tokens(self.tokens[query], position)
        return tokens, self.token_weight * products / np.float32(max(1, len(tokens)))

    def token_products(self, query: int, position: int) -> Floats:
        """[tokens there, tokens of the query] weighted products at a docid position; `late_interaction` averages the best."""
        if self.tokens is None or self.tree.tokens is None:
            return np.zeros((0, 1), dtype=np.float32)
        return self.token_weight * self.tree.tokens.products(self.tokens[query], position)

    def most_by_tokens(self, query: int) -> float:
        """Upper bound of v tok of one query: a product is at most as long as the query's token, whose length is its share."""
        if self.tokens is None or not len(self.tokens[query]):
            return 0.0
        return float(self.token_weight * np.linalg.norm(self.tokens[query], axis=1).mean()) * (1 + ROUNDING)

    def all(self, queries: slice) -> Floats:
        """[batch, places] the scores of all places by docid position, for some of the queries; -inf at removed documents."""
        scores = self._products(queries)
        if self.lexical is not None:
            words = np.stack([self.lexical.scores(terms) for terms in self.terms[queries]])
            scores += self.weight * words[:, self.tree.doc_rows]
        if self.extra is not None:
            scores += self.extra[queries][:, self.tree.doc_rows]
        if self.recalled is not None:
            for row, (known, values) in zip(scores, self.recalled.remembered[queries], strict=True):
                places, counts = self.tree.places_of(known)
                row[places] += np.repeat(values, counts)
        if self.tree.num_removed:
            scores[:, self.tree.doc_rows < 0] = -np.inf
        return scores

    def dots(self, queries: Ints, positions: Ints) -> Floats:
        """[queries, n] dense scores of docid positions [queries, n], -inf at -1, for some queries, by their numbers.

        The scores of all documents are computed once for the batch where that is less work.
        """
        if self._all_dots is None and self.tree.embeddings.reads_all(positions.shape[1], len(self.queries)):
            self._all_dots = self._products(slice(None))
        if self._all_dots is not None:
            return np.where(positions < 0, -np.inf, self._all_dots[queries[:, None], positions])
        dots, costs = self.tree.embeddings.dots(self.queries[queries], positions), self.tree.place_costs
        return self._shared(
            self._moved(dots if costs is None else np.asarray(dots - costs[positions]), queries, positions), queries
        )

    def _dots(self, query: int, positions: Ints) -> Floats:
        """[n] dense scores of docid positions [n], for one query."""
        return self.dots(np.array([query]), positions[None])[0]

    def _products(self, queries: slice) -> Floats:
        """[batch, places] dense scores of all places, for some of the queries."""
        products, costs = self.tree.embeddings.products(self.queries[queries]), self.tree.place_costs
        products = products if costs is None else products - costs
        if self.recalled is not None:
            numbers = self._numbers[self.tree.doc_rows]
            places = np.flatnonzero(numbers >= 0)
            by, means = (array[queries][:, numbers[places]] for array in (self.recalled.by, self.recalled.means))
            products[:, places] += by * (means - products[:, places])
        return self._shared(products, queries)

    def _moved(self, scores: Floats, queries: Ints, positions: Ints) -> Floats:
        """[queries, n] scores by text of docid positions [queries, n], moved towards those of their earlier queries."""
        if self.recalled is None:
            return scores
        numbers = np.where(positions < 0, -1, self._numbers[self.tree.doc_rows[positions]])
        at = np.nonzero(numbers >= 0)
        of = queries[at[0]], numbers[at]
        scores[at] += self.recalled.by[of] * (self.recalled.means[of] - scores[at])
        return scores

    @cached_property
    def _numbers(self) -> Ints:
        """[documents + 1] the number of each document, by its row, among those that move; -1 at others and at the last."""
        assert self.recalled is not None
        numbers = np.full(self.tree.num_rows + 1, -1)
        numbers[self.recalled.rows] = np.arange(len(self.recalled.rows))
        return numbers

    def _shared(self, scores: Floats, rows: Ints | slice) -> Floats:
        """[queries, n] dense scores by the shares of the queries in `rows`."""
        return scores if self.shares is None else scores * self.shares[rows, None]

    def dense(self, query: int, rows: Ints) -> tuple[Ints, Floats]:
        """Return the best place of documents, rows [n] of the document table, and its dense score, for one query."""
        if self.tree.most_places == 1:
            positions = self.tree.positions[rows]
            return positions, self._dots(query, positions)
        if not len(rows):
            return _NONE, np.zeros(0, dtype=np.float32)
        places, counts = self.tree.places_of(rows)
        scores = self._dots(query, places)
        best = first_of_highest(scores, counts)
        return places[best], scores[best]

    def best_by_words(
        self, query: int, count: int, allowed: Bools | None, others: Ints
    ) -> tuple[Ints, Floats, float, Floats]:
        """Return roughly the top `count` documents by words, for one query, and the scores of `others` [m].

        That is their rows, their weighted scores, a bound of those of all other documents, and those of `others`. `allowed`:
        [documents] True at those that may be returned; all by default.
        """
        if self.lexical is None:
            return _NONE, np.zeros(0, dtype=np.float32), 0.0, np.zeros(len(others), dtype=np.float32)
        top = self.lexical.top(self.terms[query], count, allowed, others.astype(np.int64, copy=False))
        return top.rows, self.weight * top.scores, float(self.weight * top.bound), self.weight * top.others

    def lexical_scores(self, query: int, rows: Ints) -> Floats:
        """[n] weighted lexical scores of documents [n], for one query."""
        if self.lexical is None:
            return np.zeros(len(rows), dtype=np.float32)
        return self.weight * self.lexical.contributions(self.terms[query], rows).sum(axis=0)

    def best_by_extra(self, query: int, count: int, allowed: Bools | None) -> tuple[Ints, float]:
        """Return the top documents by the caller's scores, and the highest score of all others, for one query."""
        if self.extra is None:
            return _NONE, 0.0
        rows = np.arange(self.extra.shape[1]) if allowed is None else np.flatnonzero(allowed)
        if len(rows) <= count:
            return rows, -np.inf
        values = self.extra[query, rows]
        order = np.argpartition(-values, count)
        return rows[order[:count]], float(values[order[count]])

    def remembered(self, query: int, allowed: Bools | None) -> Ints:
        """Return the rows of the documents that the memory has for one query; all others have 0 there."""
        rows = _NONE if self.recalled is None else self.recalled.remembered[query][0]
        return rows if allowed is None else rows[allowed[rows]]

    def extra_scores(self, query: int, rows: Ints) -> Floats:
        """[n] the caller's scores of documents [n], for one query; 0 without any."""
        return np.zeros(len(rows), dtype=np.float32) if self.extra is None else self.extra[query, rows]
