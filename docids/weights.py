"""Scores of documents that are sums over the terms of a query, of all documents or of the best without looking at the others.

A term adds its factor in the query times its weight in the document. A weight is the value in a posting list (learned sparse
vectors), or value / (value + the document's damping) (BM25). Knows nothing of words.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from docids.postings import Floats, Ints, Mask, Part, Postings, Rows

_READ = 1 << 17
"""Postings that are read for a query, about: the shortest lists whole, and what weighs most in those that are left."""
_DEPTHS = (0, *(1 << n for n in range(8, 15)))
"""How many postings may be read of a list that is left."""
_TIMES = 4
"""Of the documents asked for: so many postings are read at least; if no more documents are allowed, all of them are scored."""
_DRIFT = 0.01
"""The best of a list are found anew when the documents' mean length has changed by this share."""
_ROUNDING = np.float32(1 + 1e-5)
"""Of sums of float32 in another order."""


class Terms(NamedTuple):
    """A query: [terms] their numbers, which may repeat, and what multiplies their weights."""

    numbers: Rows
    factors: Floats


class LexicalCandidates(NamedTuple):
    """About the best documents of each query, and a bound of all others.

    Attributes:
        rows: for each query, rows of the document table, ascending.
        scores: for each query, the complete scores of these documents.
        rest: [queries] at least the score of every other document, and at least 0.
    """

    rows: list[Rows]
    scores: list[Floats]
    rest: Floats


@dataclass(frozen=True)
class Damping:
    """What BM25 adds to the count of a term: k1 * (1 - b + b * length / mean length)."""

    k1: float
    b: float
    mean: float

    def of(self, lengths: Ints) -> Floats:
        """[documents] from their lengths."""
        return (self.k1 * (1 - self.b + self.b * lengths / self.mean)).astype(np.float32)

    def is_near(self, other: "Damping | None") -> bool:
        """Whether an order by weight with one is good enough for the other."""
        if other is None or (self.k1, self.b) != (other.k1, other.b):
            return False
        return abs(self.mean - other.mean) <= _DRIFT * other.mean

    def bound(self, weight: float, before: "Damping") -> float:
        """A bound of weights that were at most `weight` with the damping `before`, where only the mean was another.

        A document's damping is at least min(1, ratio of the means) times what it was.
        """
        ratio = min(1.0, before.mean / self.mean)
        return weight / (weight + (1 - weight) * ratio)


class _Head(NamedTuple):
    """The documents of a long list with the highest weights.

    Attributes:
        documents: ascending.
        values: of the term in them.
        ranks: their order by weight.
        bounds: for each of `_DEPTHS`, the highest weight that is not read then; 0 if there is none.
        damping: of these weights.
    """

    documents: Ints
    values: Floats
    ranks: Ints
    bounds: list[float]
    damping: Damping | None


class _Seen(NamedTuple):
    """What reading lists gives: documents, which may repeat, bounds of their scores, and a bound of the scores of all others.

    The highest bound of a document is one of its score. If `rest` is 0 and no factor is below 0, it is the score.
    """

    rows: Rows
    bounds: Floats
    rest: np.float32


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of terms in documents, and the scores they add up to.

    Attributes:
        postings: the lists.
        damping: what damps their values; None if they are the weights.
        lengths: [documents] what the damping depends on.
    """

    postings: Postings
    damping: Damping | None = None
    lengths: Ints | None = None
    _idle: list[Floats] = field(default_factory=list)  # [documents] zeros, for one query at a time each

    @cached_property
    def _damping(self) -> Floats | None:
        return None if self.damping is None or self.lengths is None else self.damping.of(self.lengths)

    def of(self, values: Floats, rows: Rows | Ints) -> Floats:
        """The weights of some values above 0 in these rows."""
        return values if self._damping is None else values / (values + self._damping[rows])

    def scores(self, terms: Terms) -> Floats:
        """[documents] the scores of all."""
        found = np.zeros(self.postings.documents, dtype=np.float32)
        for number, factor in zip(*terms, strict=True):
            for rows, values in self.postings.read(int(number)):
                found[rows] += factor * self.of(values, rows)  # no document comes twice
        return found

    def parts(self, terms: Terms, rows: NDArray[np.integer]) -> Floats:
        """[terms, rows] what each term adds to the scores of some documents."""
        wanted, found = np.asarray(rows, dtype=np.int32), np.zeros((len(terms.numbers), len(rows)), dtype=np.float32)
        for own, number, factor in zip(found, *terms, strict=True):
            values = self.postings.values(int(number), wanted)
            held = np.flatnonzero(values)
            own[held] = factor * self.of(values[held], wanted[held])
        return found

    def best(self, terms: Terms, count: int, allowed: Mask | None = None) -> tuple[Rows, Floats, np.float32]:
        """Up to `count` documents, about the best: their rows, ascending, and scores; and a bound of all others (`rest`).

        If lists are long, only their highest weights are read. A document's score is at most the sum of the weights that were
        read and, for lists in which it was not seen, of the weights at which reading ended (Fagin's threshold algorithm). Those
        with the highest bounds are scored completely.
        """
        terms = _distinct(terms)
        seen = self._seen(terms, count, allowed)
        places, limit = _highest(seen.bounds, count)
        rest = max(seen.rest, limit) * _ROUNDING
        if seen.rest == 0 and (terms.factors > 0).all():
            places = places[np.argsort(seen.rows[places])]
            return seen.rows[places], seen.bounds[places], rest
        rows = np.unique(seen.rows[places])
        return rows, self.parts(terms, rows).sum(axis=0), rest

    def _seen(self, terms: Terms, count: int, allowed: Mask | None) -> _Seen:
        """Documents that are high in some list."""
        budget = max(_READ, _TIMES * count)
        if allowed is not None:
            many = np.count_nonzero(allowed)
            if many <= _TIMES * count:
                rows = np.flatnonzero(allowed)
                return _Seen(rows, self.parts(terms, rows).sum(axis=0), np.float32(0))
            budget = int(budget * len(allowed) / many)
        found = [self._seen_in(part, terms, budget, allowed) for part in self.postings.parts]
        rows, bounds = (np.concatenate(own) for own in ([each[n] for each in found] for n in range(2)))
        return _Seen(rows, bounds, max(each.rest for each in found))

    def _seen_in(self, part: Part, terms: Terms, budget: int, allowed: Mask | None) -> _Seen:
        """The same for one part."""
        sums = self._zeros()
        lists, rest = [np.empty(0, np.int64)], np.float32(0)
        for factor, documents, values, bound in self._read(part, terms, budget):
            rows, values = self.postings.living(part, documents, values, allowed)
            sums[rows] += factor * (self.of(values, rows) - bound)  # no document comes twice
            lists.append(rows)
            rest += factor * bound
        gains = []
        for rows in lists:
            gains.append(sums[rows])
            sums[rows] = 0  # a document counts where it comes first
        self._idle.append(sums)
        return _Seen(np.concatenate(lists), np.concatenate(gains) + rest, rest)

    def _zeros(self) -> Floats:
        """[documents] made once for each query of a moment; it is given back to `_idle` as it was."""
        try:
            return self._idle.pop()
        except IndexError:
            return np.zeros(self.postings.documents, dtype=np.float32)

    def _read(self, part: Part, terms: Terms, budget: int) -> Iterator[tuple[np.float32, Ints, Floats, np.float32]]:
        """For each term its factor, documents of a part, their values, and a bound of the weights that are not read."""
        heads = []
        asked = [(part.span(number), number, factor) for number, factor in zip(*terms, strict=True) if factor > 0]
        for span, number, factor in sorted(asked, key=lambda own: own[0].stop - own[0].start):
            if span.stop - span.start <= budget:
                yield factor, part.lists.indices[span], part.lists.data[span], np.float32(0)
                budget -= span.stop - span.start
            else:
                heads.append((factor, self._head(part, int(number), span)))
        bounds = [self._bounds(head) for _, head in heads]
        losses = [factor * own for (factor, _), own in zip(heads, bounds, strict=True)]
        for (factor, head), own, level in zip(heads, bounds, _levels(losses, budget), strict=True):
            read = head.ranks < _DEPTHS[level]
            yield factor, head.documents[read], head.values[read], own[level]

    def _bounds(self, head: _Head) -> Floats:
        """[depths] the bounds of a head with the damping of now."""
        if self.damping is None or head.damping is None:
            return np.array(head.bounds, dtype=np.float32)
        return np.array([self.damping.bound(own, head.damping) for own in head.bounds], dtype=np.float32)

    def _head(self, part: Part, term: int, span: slice) -> _Head:
        """The head of a list, kept for the next query."""
        head: _Head | None = part.heads.get(term)
        if head is None or not (self.damping is None or self.damping.is_near(head.damping)):
            head = part.heads[term] = self._make_head(part, span)
        return head

    def _make_head(self, part: Part, span: slice) -> _Head:
        documents, values = part.lists.indices[span], part.lists.data[span]
        slots = documents + np.int32(part.first)
        if self.postings.rows is not None:
            alive = self.postings.rows[slots] >= 0
            documents, values, slots = documents[alive], values[alive], self.postings.rows[slots[alive]]
        losses = -self.of(values, slots)
        if _DEPTHS[-1] < len(losses):
            places = np.argpartition(losses, _DEPTHS[-1])[: _DEPTHS[-1] + 1]  # and the first that is not read
            places.sort()
            documents, values, losses = documents[places], values[places], losses[places]
        order = np.argsort(losses)
        ranks = np.empty(len(order), dtype=np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        bounds = [float(-losses[order[depth]]) if depth < len(order) else 0.0 for depth in _DEPTHS]
        return _Head(documents, values, ranks, bounds, self.damping)


def _highest(values: Floats, count: int) -> tuple[Rows, np.float32]:
    """The places of the `count` highest values above 0, and a bound of the others."""
    if len(values) <= count:
        return np.flatnonzero(values > 0), np.float32(0)
    limit = max(-np.partition(-values, count)[count], np.float32(0))
    above = np.flatnonzero(values > limit)
    ties = np.flatnonzero(values == limit)[: count - len(above)] if limit else above[:0]
    return np.concatenate([above, ties]), limit


def _levels(bounds: Sequence[Floats], budget: int) -> list[int]:
    """How deep to read each list, as a place in `_DEPTHS`: always further where what is not read weighs most."""
    levels, queue = [0] * len(bounds), [(-float(own[0]), n) for n, own in enumerate(bounds)]
    heapify(queue)
    while queue:
        _, n = heappop(queue)
        level = levels[n] + 1
        if level < len(_DEPTHS) and (more := _DEPTHS[level] - _DEPTHS[level - 1]) <= budget:
            budget -= more
            levels[n] = level
            heappush(queue, (-float(bounds[n][level]), n))
    return levels


def _distinct(terms: Terms) -> Terms:
    """The same query without repeats."""
    numbers, places = np.unique(terms.numbers, return_inverse=True)
    return Terms(numbers, np.bincount(places, terms.factors, len(numbers)).astype(np.float32))


class TermIndex(ABC):
    """The scores of queries that are weighted terms."""

    @property
    @abstractmethod
    def weights(self) -> Weights:
        """Of the documents' terms."""

    @abstractmethod
    def query_terms(self, queries: Sequence[str], factors: Sequence[NDArray[np.floating]] | None) -> list[Terms]:
        """Queries as terms that documents have; each term's own factor multiplied by the given one."""

    def scores(self, queries: Sequence[str], factors: Sequence[NDArray[np.floating]] | None = None) -> Floats:
        """[queries, documents] the scores of all documents.

        Args:
            queries: their texts.
            factors: for each query, one factor for each of its terms, which multiplies that term's part of the score; 1 by
                default.

        Raises:
            ValueError: not one array a query, or not one factor a term.
        """
        found = np.zeros((len(queries), self.weights.postings.documents), dtype=np.float32)
        for own, terms in zip(found, self.query_terms(queries, factors), strict=True):
            own[:] = self.weights.scores(terms)
        return found

    def best(
        self,
        queries: Sequence[str],
        count: int,
        factors: Sequence[NDArray[np.floating]] | None = None,
        allowed: Mask | None = None,
    ) -> LexicalCandidates:
        """About the `count` best documents of each query, none without a term of it, and a bound of all others.

        Looks at no more documents than it needs.

        Args:
            queries: their texts.
            count: at most so many documents for each.
            factors: as in `scores`.
            allowed: [documents] True at those that count; all by default.

        Raises:
            ValueError: as in `scores`.
        """
        found = [self.weights.best(terms, count, allowed) for terms in self.query_terms(queries, factors)]
        rows, scores, rest = (list(own) for own in zip(*found, strict=True)) if found else ([], [], [])
        return LexicalCandidates(rows, scores, np.array(rest, dtype=np.float32))

    def of(self, query: str, rows: NDArray[np.integer], factors: NDArray[np.floating] | None = None) -> Floats:
        """[rows] the scores of some documents.

        Args:
            query: its text.
            rows: of the document table, in any order.
            factors: one for each of its terms; 1 by default.

        Raises:
            ValueError: not one factor a term.
        """
        (terms,) = self.query_terms([query], None if factors is None else [factors])
        return self.weights.parts(terms, rows).sum(axis=0)
