"""Scores of documents that are sums over the terms of a query: of all documents, or of the top ones without scoring the rest.

A term adds its factor in the query times its weight in the document, value / (value + the document's damping).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from dsi.docids.types import Bools, Floats, Ints, Rows
from dsi.docids.words.postings import Postings

_BUDGET = 1 << 15
"""Postings that are read per query, roughly: the shortest lists whole, and the highest weights of the others."""
_PER_DOCUMENT = 4
"""Read at least this many postings per requested document; if no more documents are allowed, all of them are scored."""
_DEPTHS = (0, *(1 << n for n in range(8, 15)))
"""How many postings may be read of a list that is not read whole."""
_ROUNDING = np.float32(1 + 1e-5)
"""Covers the rounding of float32 sums in another order."""
_NO_ROWS, _NO_FLOATS = np.empty(0, np.int64), np.empty(0, np.float32)


@dataclass(frozen=True)
class Damping:
    """What BM25 adds to the count of a term: k1 * (1 - b + b * length / mean length)."""

    k1: float
    b: float
    mean: float

    def for_lengths(self, lengths: Ints) -> Floats:
        """Return [documents] the damping of documents of these lengths."""
        return (self.k1 * (1 - self.b + self.b * lengths / self.mean)).astype(np.float32)


class TopList(NamedTuple):
    """The documents of a long list with the highest weights."""

    rows: Rows  # ascending
    weights: Floats  # of the term in them
    ranks: Ints  # of the rows by weight
    bounds: Floats  # for each of `_DEPTHS`, the highest weight below that depth; 0 if there is none
    damping: Damping  # of the weights

    @classmethod
    def from_list(cls, rows: Rows, weights: Floats, damping: Damping) -> "TopList":
        """Return the top of a whole list: rows, ascending, and the weights of the term in them under a damping."""
        losses = -weights
        if _DEPTHS[-1] < len(losses):
            top = np.argpartition(losses, _DEPTHS[-1])[: _DEPTHS[-1] + 1]  # and the first that is never read
            top.sort()
            rows, losses = rows[top], losses[top]
        order = np.argsort(losses)
        ranks = np.empty(len(order), dtype=np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        bounds = [-losses[order[depth]] if depth < len(order) else 0.0 for depth in _DEPTHS]
        return cls(rows, -losses, ranks, np.array(bounds, dtype=np.float32), damping)

    def read(self, depth: int) -> tuple[Rows, Floats]:
        """Return the top `_DEPTHS[depth]` rows, ascending, and the weights of the term in them."""
        within = np.flatnonzero(self.ranks < _DEPTHS[depth])
        return self.rows[within], self.weights[within]


class Terms(NamedTuple):
    """A query as terms."""

    numbers: Rows  # [terms] of them; one may repeat
    factors: Floats  # [terms] what multiplies their weights
    best: float = 1.0  # score of a document with all terms of the query, at most; words that no document has count too


class TopByWords(NamedTuple):
    """Roughly the top documents of a query, and a bound of all others."""

    rows: Rows  # [n] of the document table, ascending
    scores: Floats  # [n] their complete scores
    bound: np.float32  # at least the score of every other document, and at least 0
    others: Floats  # [m] complete scores of further documents that were requested


class _Reading(NamedTuple):
    """What is read of a term's list."""

    term: int  # its number
    factor: np.float32  # of the term in the query
    rows: Rows  # of the documents, ascending
    weights: Floats  # of the term in them
    bound: np.float32  # of the weights that are not read
    whole: bool  # True if all is read


class _Scan(NamedTuple):
    """Documents in the lists that were read."""

    rows: Rows  # of the documents, ascending
    sums: Floats  # of their weights less the bounds of the lists
    bounds: Floats  # of their scores
    rest: np.float32  # a bound of the scores of all others
    others: Floats  # sums of the documents that were requested
    # lists that were not read whole, and the rows [n], ascending, that were read of each
    unfinished: list[tuple[_Reading, Rows]]


@dataclass(frozen=True, eq=False)
class TermScorer:
    """Scores documents by the weights of a query's terms in them."""

    postings: Postings  # the lists
    damping: Damping  # of their values
    lengths: Ints  # [documents] what the damping depends on

    def select(self, rows: Rows) -> "TermScorer":
        """Return a scorer of the documents in some rows, ascending; a weight is what it is among all documents."""
        keep = np.zeros(len(self.lengths), dtype=bool)
        keep[rows] = True
        return TermScorer(self.postings.select(keep), self.damping, self.lengths[rows])

    @cached_property
    def _damping(self) -> Floats:
        return self.damping.for_lengths(self.lengths)

    def weigh(self, values: Floats, rows: Rows | Ints) -> Floats:
        """Return the weights of values above 0 in the documents of some rows."""
        return np.asarray(values / (values + self._damping[rows]))

    def scores(self, terms: Terms) -> Floats:
        """Return [documents] the scores of all."""
        scores = np.zeros(self.postings.num_documents, dtype=np.float32)
        for number, factor in zip(terms.numbers, terms.factors, strict=True):
            rows, values = self.postings.read(int(number))
            scores[rows] += factor * self.weigh(values, rows)  # no row repeats
        return scores

    def contributions(self, terms: Terms, rows: Ints) -> Floats:
        """Return [terms, rows] what each term adds to the scores of some documents."""
        documents: Ints = np.asarray(rows, dtype=np.int32)
        added = np.zeros((len(terms.numbers), len(rows)), dtype=np.float32)
        for line, term, factor in zip(added, terms.numbers, terms.factors, strict=True):
            values = self.postings.values_in(int(term), documents)
            at = np.flatnonzero(values)
            line[at] = factor * self.weigh(values[at], documents[at])
        return added

    def gains(self, terms: Terms, rows: Rows, counts: Floats) -> Floats:
        """Return [terms, rows] what the scores of some documents would gain if they had each term as often again.

        `terms`: the query; a number of -1 is a term that no document has; `counts`: [terms, rows] how often.
        """
        documents, gains = rows.astype(np.int32), np.zeros(counts.shape, dtype=np.float32)
        for line, term, factor, more in zip(gains, terms.numbers, terms.factors, counts, strict=True):
            at = np.flatnonzero(more)
            subset = documents[at]
            values = self.postings.values_in(int(term), subset) if term >= 0 else np.zeros(len(at), dtype=np.float32)
            line[at] = factor * (self.weigh(values + more[at], subset) - self.weigh(values, subset))
        return gains

    def top(self, terms: Terms, count: int, allowed: Bools | None = None, others: Rows = _NO_ROWS) -> TopByWords:
        """Return roughly the top `count` documents, and the scores of `others`.

        Of long lists only the highest weights are read. A document's score is at most the sum of the weights that were read of
        it and, for lists in which it was not found, of the weights at which reading ended (Fagin's threshold algorithm). The
        documents with the highest bounds, of those `allowed` [documents], are scored completely.
        """
        terms, budget = _merge_repeats(terms), max(_BUDGET, _PER_DOCUMENT * count)
        if allowed is not None:
            num_allowed = np.count_nonzero(allowed)
            if num_allowed <= _PER_DOCUMENT * count:
                rows = np.flatnonzero(allowed)
                scores = self.contributions(terms, rows).sum(axis=0)
                top, bound = highest_positive(scores, count)
                top.sort()
                other_scores = self.contributions(terms, others).sum(axis=0)
                return TopByWords(rows[top], scores[top], bound * _ROUNDING, other_scores)
            budget = int(budget * len(allowed) / num_allowed)
        scan = _scan(list(self._read(terms, budget)), allowed, others)
        top, bound = highest_positive(scan.bounds, count)
        top.sort()
        rows, bound = scan.rows[top], max(scan.rest, bound) * _ROUNDING
        scores = self._complete(scan.sums[top], rows, scan.unfinished)
        return TopByWords(rows, scores, bound, self._complete(scan.others, others, scan.unfinished))

    def _complete(self, sums: Floats, rows: Rows, unfinished: Sequence[tuple[_Reading, Rows]]) -> Floats:
        """Turn the sums [n] of documents in some rows into their scores, by looking up what was not read."""
        for reading, read in unfinished:
            was_read = _is_in(rows, read)
            sums[was_read] += reading.factor * reading.bound  # the rest is in the sum
            missed = np.flatnonzero(~was_read)
            values = self.postings.values_in(reading.term, rows[missed].astype(np.int32))
            at = np.flatnonzero(values)
            missed = missed[at]
            sums[missed] += reading.factor * self.weigh(values[at], rows[missed])
        return sums

    def _read(self, terms: Terms, budget: int) -> Iterator[_Reading]:
        """Read the lists of terms: shortest first, then the tops of long ones; nothing of terms that lower scores."""
        long, zero, lengths = [], np.float32(0), self.postings.frequencies
        lists = zip(terms.numbers.tolist(), terms.factors, strict=True)
        for term, factor in sorted(lists, key=lambda entry: int(lengths[entry[0]])):
            if factor <= 0:
                yield _Reading(term, factor, _NO_ROWS, _NO_FLOATS, zero, whole=False)
            elif lengths[term] <= budget:
                rows, values = self.postings.read(term)
                yield _Reading(term, factor, rows, self.weigh(values, rows), zero, whole=True)
                budget -= len(rows)
            else:
                long.append((term, factor, self._top_list(term)))
        depths = _choose_depths([factor * top_list.bounds for _, factor, top_list in long], budget)
        for (term, factor, top_list), depth in zip(long, depths, strict=True):
            yield _Reading(term, factor, *top_list.read(depth), top_list.bounds[depth], whole=False)

    def _top_list(self, term: int) -> TopList:
        """Return the top of a list, cached for the next query with this damping."""
        cached: TopList | None = self.postings.top_lists.get(term)
        if cached is None or cached.damping != self.damping:
            rows, values = self.postings.read(term)
            cached = self.postings.top_lists[term] = TopList.from_list(rows, self.weigh(values, rows), self.damping)
        return cached


def _scan(readings: Sequence[_Reading], allowed: Bools | None, others: Rows) -> _Scan:
    """Sum all that is read, and bound the scores of the documents found there."""
    rows, gains, unfinished = [_NO_ROWS], [_NO_FLOATS], []
    for reading in readings:
        list_rows, weights = reading.rows, reading.weights
        if allowed is not None:
            list_rows, weights = list_rows[allowed[list_rows]], weights[allowed[list_rows]]
        rows.append(list_rows)
        gains.append(reading.factor * (weights - reading.bound))
        unfinished += [] if reading.whole else [(reading, list_rows)]
    documents, order, starts = _group(np.concatenate(rows))
    sums = np.add.reduceat(np.concatenate(gains)[order], starts) if len(documents) else _NO_FLOATS
    rest = np.float32(sum(reading.factor * reading.bound for reading in readings))
    is_found = _is_in(others, documents)
    other_sums = np.zeros(len(others), dtype=np.float32)
    other_sums[is_found] = sums[np.searchsorted(documents, others)[is_found]]
    return _Scan(documents, sums, sums + rest, rest, other_sums, unfinished)


def _choose_depths(unread: Sequence[Floats], budget: int) -> list[int]:
    """Choose how deep to read lists, as indices of `_DEPTHS`, from what is unread below each: deeper where that weighs most."""
    depths, queue = [0] * len(unread), [(-float(bounds[0]), n) for n, bounds in enumerate(unread)]
    heapify(queue)
    while queue:
        _, n = heappop(queue)
        depth = depths[n] + 1
        if depth < len(_DEPTHS) and (more := _DEPTHS[depth] - _DEPTHS[depth - 1]) <= budget:
            budget -= more
            depths[n] = depth
            heappush(queue, (-float(unread[n][depth]), n))
    return depths


def highest_positive(values: Floats, count: int) -> tuple[Rows, np.float32]:
    """Return the indices of the `count` highest values above 0, and a bound of all other values.

    Of equal values the first ones are taken.
    """
    if len(values) <= count:
        return np.flatnonzero(values > 0), np.float32(0)
    limit = max(np.partition(values, len(values) - count - 1)[len(values) - count - 1], np.float32(0))
    above = np.flatnonzero(values > limit)
    ties = np.flatnonzero(values == limit) if limit else above[:0]
    return np.concatenate([above, ties[: count - len(above)]]), limit


def _group(rows: Rows) -> tuple[Rows, Rows, Rows]:
    """Return the different rows, ascending, an order [n] in which equal ones follow each other, and where each begins in it."""
    keys = (rows << 32) | np.arange(len(rows))  # NumPy sorts integers faster than it finds their order
    keys.sort(kind="stable")  # which merges the lists, as each of them ascends
    order, ascending = keys & 0xFFFFFFFF, keys >> 32
    begins = np.ones(len(rows), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    return ascending[starts], order, starts


def _is_in(rows: Rows, ascending: Rows) -> Bools:
    """Return [n] True at the rows that are in the other array."""
    if not len(ascending):
        return np.zeros(len(rows), dtype=bool)
    is_in: Bools = ascending[np.searchsorted(ascending, rows).clip(max=len(ascending) - 1)] == rows
    return is_in


def _merge_repeats(terms: Terms) -> Terms:
    """Return the query with each term once, its factors summed."""
    numbers, places = np.unique(terms.numbers, return_inverse=True)
    return Terms(numbers, np.bincount(places, terms.factors, len(numbers)).astype(np.float32))
