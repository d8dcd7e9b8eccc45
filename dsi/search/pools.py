"""The documents that are scored: below the last nodes of a walk, by words, extra scores, memory; or all of them.

Only the best of them get late interaction. One process holds all documents of an index, or a share of them (`dsi.cluster`).
What each source contributes is kept apart until it is merged, so that several shares together give the pool of one process.
Knows no models, and nothing of how a walk chose nodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsi.docids.files.threads import one_thread
from dsi.docids.tree import DocidTree, pad, ranges
from dsi.docids.types import Bools, Floats, Ints
from dsi.search.engine import permitted
from dsi.search.lists import ListedDocuments
from dsi.search.results import EXTRA, MEMORY, WALK, WORDS, SearchResult
from dsi.search.scores import ROUNDING, DocumentScores
from dsi.search.top import best, highest, highest_and_rest, highest_in_rows

_FIRST = 128
"""Places that a scan of all documents scores by late interaction at first; then twice as many each time."""
_MUCH = 0.25
"""Share of the places from which on it is less work to score all of them for the queries of a batch together."""
_BLOCK = 2**24
"""Scores of all documents in memory at a time: 64 MB."""
_NO_NODES = np.zeros(0, dtype=np.int64)
_NO_SCORES = np.zeros(0, dtype=np.float32)


class Pool(NamedTuple):
    """Documents that were scored for one query, in docid order."""

    positions: Ints  # [n] docid positions, each the best place of its document
    parts: Floats  # [parts, n] what adds up to the scores: dense, lexical, the caller's, the memory's; or whole scores
    sources: Ints  # [n] what found them: `WALK`, `WORDS`, `EXTRA`, `MEMORY` or a sum; 0 where all documents were scored
    # [parts] bounds of the documents that are not here: of dense scores, among those below the nodes; -inf if there are none
    cuts: tuple[float, ...] = (-np.inf,)
    read: int = 0  # document vectors that were scored
    compared: int = 0  # documents that were scored by late interaction

    @property
    def scores(self) -> Floats:
        """[n] document scores."""
        return np.asarray(self.parts.sum(axis=0))

    @property
    def bound(self) -> float:
        """Bound of the scores of documents that were reached, and are not here."""
        return -np.inf if -np.inf in self.cuts else sum(self.cuts)

    def put(self, result: SearchResult, query: int, k: int) -> None:
        """Put the k best documents into a result, for one query, and add what was scored for them."""
        scores = self.scores
        order = best(scores, k)
        ranks = slice(0, len(order))
        result.positions[query, ranks], result.scores[query, ranks] = self.positions[order], scores[order]
        result.sources[query, ranks] = self.sources[order]
        result.read[query] += self.read
        result.compared[query] += self.compared


class _Walked(NamedTuple):
    """The best documents below the nodes where a walk ended, by dense score."""

    positions: Ints  # [n] docid positions, in docid order
    dense: Floats  # [n] their scores
    cut: float  # the highest score of a document below that is not among them, -inf if all are
    read: int  # documents that were scored

    @property
    def pool(self) -> Pool:
        """The documents, where no other source has any."""
        sources = np.full(len(self.positions), WALK, dtype=np.uint8)
        return Pool(self.positions, self.dense[None], sources, (self.cut,), self.read)


_NOTHING = _Walked(_NO_NODES, _NO_SCORES, np.inf, 0)
"""Of a query whose walk ended nowhere."""


class Sources(ABC):
    """Finds the documents that are scored for a batch of queries, in this process or in several, and returns their scores."""

    @abstractmethod
    def outright(self, queries: Sequence[int], documents: Ints) -> list[Pool]:
        """Return documents, by row of the document table, for some queries."""

    @abstractmethod
    def gather(self, queries: Sequence[int], nodes: Sequence[Ints]) -> list[Pool]:
        """Return the best below nodes [n] where each query's walk ended, by words, by the caller's scores, and by memory."""

    @abstractmethod
    def rescore(self, queries: Sequence[int], pools: Sequence[tuple[Ints, Floats]]) -> list[tuple[Ints, Floats]]:
        """Return for each query its documents' best places [n] and their scores with late interaction, given those without."""

    @abstractmethod
    def best(self, k: int) -> Iterator[Pool]:
        """Yield for each query at least the k best of all documents that may be returned, each by its best place."""

    def mark(self, result: SearchResult) -> None:  # noqa: B027
        """Note in a result what could not be searched; in one process that is nothing."""


class PoolSources(Sources):
    """Gathers the documents of pools, `count` from each source, from the documents of a tree that this process holds.

    `listed`: returns the inverted lists of a large index, None if documents are read below nodes; an exact search does not
    build them. `allowed`: [places] True at those that a filter lets through, None without one; `occupied`: [places] True at
    those that were not removed, None if none was.
    """

    def __init__(
        self, tree: DocidTree, listed: Callable[[], ListedDocuments | None], scores: DocumentScores, count: int,
        allowed: Bools | None, occupied: Bools | None,
    ) -> None:  # fmt: skip
        self.tree, self.listed, self.scores, self.count = tree, listed, scores, count
        self._filter, self._allowed = allowed, occupied if allowed is None else allowed

    @cached_property
    def _allowed_rows(self) -> Bools | None:
        """[documents] True at those that a filter lets through; None without one."""
        return None if self._filter is None else permitted(self._filter, self.tree)

    def outright(self, queries: Sequence[int], documents: Ints) -> list[Pool]:
        """As in `Sources`."""
        return [self._outright(query, documents) for query in queries]

    def _outright(self, query: int, rows: Ints) -> Pool:
        positions, dense = self.scores.dense(query, rows)
        order = np.argsort(positions)
        parts = np.stack([dense, *self._others(query, rows, self.scores.lexical_scores(query, rows))])
        return Pool(positions[order], parts[:, order], np.zeros(len(order), dtype=np.uint8), read=len(order))

    def gather(self, queries: Sequence[int], nodes: Sequence[Ints]) -> list[Pool]:
        """As in `Sources`."""
        listed, tree = self.listed(), self.tree
        below: Sequence[Ints]
        if listed is None:
            below = [ranges(tree.doc_start[ends], tree.doc_end[ends] - tree.doc_start[ends]) for ends in nodes]
        else:
            pieces = -(-tree.num_places // tree.num_rows)  # of a document, on average
            candidates = listed.oversampling * self.count * pieces
            below = listed.below(self.scores.queries[list(queries)], nodes, candidates, self._allowed)
        walked = self._best_below(queries, nodes, below)
        scores = self.scores
        if scores.lexical is None and scores.extra is None and scores.recalled is None:
            return [documents.pool for documents in walked]
        return [self._gather(*pair) for pair in zip(queries, walked, strict=True)]

    def rescore(self, queries: Sequence[int], pools: Sequence[tuple[Ints, Floats]]) -> list[tuple[Ints, Floats]]:
        """As in `Sources`."""
        late = self.scores.late_interactions(queries, [positions for positions, _ in pools])
        return [(positions, plain + more) for (positions, plain), more in zip(pools, late, strict=True)]

    def best(self, k: int) -> Iterator[Pool]:
        """As in `Sources`."""
        return AllDocuments(self.tree, self.scores, self._filter).best(k)

    def _gather(self, query: int, walked: "_Walked") -> Pool:
        """Return what the sources contribute for one query, given the best documents below the nodes where its walk ended."""
        scores, count, tree, allowed = self.scores, self.count, self.tree, self._allowed_rows
        # 1) What each source finds, by row of the document table.
        walk_rows = tree.doc_rows[walked.positions]
        extra_rows, extra_cut = scores.best_by_extra(query, count, allowed)
        memory_rows = scores.remembered(query, allowed)
        word_rows, word_scores, word_cut, lexical = scores.best_by_words(
            query, count, allowed, np.concatenate([walk_rows, extra_rows, memory_rows])
        )
        others = np.concatenate([word_rows, extra_rows, memory_rows])
        rows = np.concatenate([walk_rows, others])
        bits = np.repeat([WALK, WORDS, EXTRA, MEMORY], [*map(len, (walk_rows, word_rows, extra_rows, memory_rows))])
        # 2) Their places, dense scores and scores by words, in the same order.
        other_positions, other_dense = scores.dense(query, others)
        positions = np.concatenate([walked.positions, other_positions])
        dense = np.concatenate([walked.dense, other_dense])
        lexical = np.concatenate([lexical[: len(walk_rows)], word_scores, lexical[len(walk_rows) :]])
        # 3) Each document once, in docid order: not each place, as rounding may have chosen another of two equal places.
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        sources = np.bincount(inverse, bits).astype(np.uint8)  # no source has a document twice
        order = np.argsort(positions[first])
        chosen = first[order]
        parts = np.stack([dense[chosen], *self._others(query, rows[chosen], lexical[chosen])])
        read = walked.read + len(chosen) - len(walk_rows)
        return Pool(positions[chosen], parts, sources[order], (walked.cut, word_cut, extra_cut, 0.0), read)

    def _others(self, query: int, rows: Ints, lexical: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the parts of the scores beside the dense one, each [n], of documents [n] for one query."""
        return lexical, self.scores.extra_scores(query, rows), self.scores.memory_scores(query, rows)

    def _best_below(self, queries: Sequence[int], nodes: Sequence[Ints], below: Sequence[Ints]) -> "list[_Walked]":
        """Return the best documents of each query by dense score, below nodes [n] where its walk ended.

        `below`: for each query, [m] docid positions of documents below these nodes, or of the best by their codes.
        """
        if self._allowed is not None:
            below = [places[self._allowed[places]] for places in below]
        best = self._best_places(queries, below) if self.tree.most_places == 1 else self._best_documents(queries, below)
        return [self._bound(*pair) if len(pair[1]) else _NOTHING for pair in zip(best, nodes, strict=True)]

    def _best_places(self, queries: Sequence[int], below: Sequence[Ints]) -> "Iterator[_Walked]":
        """Yield the best of docid positions [m] of each query, where each document has one."""
        counts = np.array([len(places) for places in below])
        positions = pad(np.concatenate(below), counts)  # [queries, most]
        dense = self.scores.dots(np.asarray(queries), positions)
        chosen, cuts = highest_in_rows(dense, self.count)
        for mask, places, scores, *rest in zip(chosen, positions, dense, cuts.tolist(), counts.tolist(), strict=True):
            yield _Walked(places[mask], scores[mask], *rest)

    def _best_documents(self, queries: Sequence[int], below: Sequence[Ints]) -> "Iterator[_Walked]":
        """Yield the best documents of each query, of those with a place at docid positions [m].

        Each by its best place anywhere, so that shards, which hold all places of a document, choose as one process does.
        """
        for query, places in zip(queries, below, strict=True):
            positions, dense = self.scores.dense(query, np.unique(self.tree.doc_rows[places]))
            order = np.argsort(positions)
            positions, dense = positions[order], dense[order]
            top, cut = highest_and_rest(dense, self.count)
            yield _Walked(positions[top], dense[top], cut, len(places))

    def _bound(self, walked: "_Walked", nodes: Ints) -> "_Walked":
        """Return the documents with the bound of the others and what was read, where those below nodes have codes."""
        if self.listed() is None:
            return walked
        size = int((self.tree.doc_end[nodes] - self.tree.doc_start[nodes]).sum())
        if walked.read < size:  # the others were scored by their codes only
            return walked._replace(cut=np.inf, read=size)
        return walked


class AllDocuments:
    """Scores all documents of a tree for a batch of queries; `allowed`: [places] True at those that may be returned."""

    def __init__(self, tree: DocidTree, scores: DocumentScores, allowed: Bools | None) -> None:
        self.tree, self.scores, self._allowed = tree, scores, allowed

    def best(self, k: int) -> Iterator[Pool]:
        """Yield for each query the best place of at least the k best documents."""
        batch = len(self.scores.queries)
        step = max(1, _BLOCK // self.tree.num_places)
        for start in range(0, batch if k else 0, step):
            all_scores = self.scores.all(slice(start, start + step))
            if self._allowed is not None:
                all_scores[:, ~self._allowed] = -np.inf
            all_scores = best_places(self.tree, all_scores)
            with one_thread():  # what follows has small products
                pools = list(self._pools(start, all_scores, k))
            yield from pools

    def _pools(self, first: int, plain: Floats, k: int) -> Iterator[Pool]:
        """Yield the best place of at least the k best documents of queries from `first` on.

        If late interaction has to read much for one query, it reads all documents once for those after it.

        `plain`: [queries, places] scores without late interaction, -inf at all but the best place of a document.
        """
        together, end = None, first + len(plain)
        for query, row in enumerate(plain, start=first):
            scores, compared = row, 0
            if together is not None:
                scores, compared = row + together[query - end], int((row > -np.inf).sum())
            elif self.scores.has_tokens:
                scores, compared = self._with_tokens(query, row, k)
                if compared > _MUCH * len(row) and query + 1 < end:
                    together = self.scores.late_interaction_of_all(slice(query + 1, end))
            positions, best_scores = self._best(scores, k)
            sources = np.zeros(len(positions), dtype=np.uint8)
            yield Pool(positions, best_scores[None], sources, read=self.tree.num_places, compared=compared)

    def _with_tokens(self, query: int, plain: Floats, k: int) -> tuple[Floats, int]:
        """Return scores with late interaction [places], -inf for those that cannot reach the top k, and how many have them.

        Places are scored in the order of their scores without it, `plain` [places], until the next one could not reach the top
        k.
        """
        order = np.argsort(-plain, kind="stable")
        order = order[: int((plain > -np.inf).sum())]
        most = self.scores.most_by_tokens(query)
        total, end = np.full_like(plain, -np.inf), 0
        while end < len(order):
            start, end = end, min(len(order), max(_FIRST, 2 * end))
            places = order[start:end]
            total[places] = plain[places] + self.scores.late_interaction(query, places)
            _, top = self._best(total, k)
            kth = np.partition(top, len(top) - k)[len(top) - k] if len(top) >= k else -np.inf
            if end < len(order) and plain[order[end]] + most < kth - ROUNDING * abs(kth):
                break
        return total, end

    def _best(self, scores: Floats, k: int) -> tuple[Ints, Floats]:
        """Return the best place of the k best documents, given the scores of all places [places], -inf at the others."""
        positions = highest(scores, k)
        positions = positions[scores[positions] > -np.inf]
        return positions, scores[positions]


def best_places(tree: DocidTree, scores: Floats) -> Floats:
    """Return scores [batch, places] with -inf at all but the best place of each document; of equal ones the first counts."""
    if tree.most_places == 1:
        return scores
    by_document = scores[:, tree.by_row]
    best = np.repeat(np.maximum.reduceat(by_document, tree.first_places, axis=1), tree.place_counts, axis=1)
    query, column = np.nonzero(by_document == best)
    document = query * tree.num_rows + tree.doc_rows[tree.by_row[column]]  # ascending
    first = np.append(True, document[1:] != document[:-1])
    query, position = query[first], tree.by_row[column[first]]
    only = np.full_like(scores, -np.inf)
    only[query, position] = scores[query, position]
    return only
