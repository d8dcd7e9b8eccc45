"""Scores of documents that are sums over the terms of a query, of all documents or of the best without looking at the others.

A term adds its factor in the query times its weight in the document. A weight is the value in a posting list (learned sparse
vectors), or value / (value + the document's damping) (BM25). Knows nothing of words.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from docids.words.postings import Floats, Ints, Mask, Part, Postings, Rows
from docids.words.top_lists import Damping, Head, levels

_READ = 1 << 15
"""Postings that are read for a query, about: the shortest lists whole, and what weighs most in those that are left."""
_TIMES = 4
"""Of the documents asked for: so many postings are read at least; if no more documents are allowed, all of them are scored."""
_ROUNDING = np.float32(1 + 1e-5)
"""Of sums of float32 in another order."""


_NONE, _EMPTY = np.empty(0, np.int64), np.empty(0, np.float32)


class Terms(NamedTuple):
    """A query: [terms] their numbers, which may repeat, and what multiplies their weights."""

    numbers: Rows
    factors: Floats


class Best(NamedTuple):
    """About the best documents of a query, and a bound of all others.

    Attributes:
        rows: [n] of the document table, ascending.
        scores: [n] their complete scores.
        rest: at least the score of every other document, and at least 0.
        others: [m] the complete scores of the documents that were asked for.
    """

    rows: Rows
    scores: Floats
    rest: np.float32
    others: Floats


class _List(NamedTuple):
    """A term's list in a part, as far as it is read.

    Attributes:
        part: where the list is.
        number: of the term.
        factor: of the query.
        documents: of the part, ascending.
        values: of the term in them.
        bound: the weights that are not read are at most this.
        whole: whether all is read.
    """

    part: Part
    number: int
    factor: np.float32
    documents: Ints
    values: Floats
    bound: np.float32
    whole: bool


class _Seen(NamedTuple):
    """What reading lists gives.

    Attributes:
        rows: documents, which may repeat.
        sums: of what was read of them, above the bounds of their lists; where one repeats, the largest one counts.
        bounds: of their scores; the highest one of a document counts.
        rest: a bound of the scores of all others.
        others: the sums of the documents that are asked for.
        left: lists that are not read to the end, and the rows [n] that were read of each, ascending.
    """

    rows: Rows
    sums: Floats
    bounds: Floats
    rest: np.float32
    others: Floats
    left: list[tuple[_List, Rows]]


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
            values = np.sum([self.postings.values(part, int(number), wanted) for part in self.postings.parts], axis=0)
            held = np.flatnonzero(values)
            own[held] = factor * self.of(values[held], wanted[held])
        return found

    def best(self, terms: Terms, count: int, allowed: Mask | None = None, others: Rows = _NONE) -> Best:
        """Up to `count` documents, about the best, and other ones that are asked for.

        If lists are long, only their highest weights are read. A document's score is at most the sum of the weights that were
        read and, for lists in which it was not seen, of the weights at which reading ended (Fagin's threshold algorithm). Those
        with the highest bounds are scored completely.

        Args:
            terms: the query.
            count: at most so many documents.
            allowed: [documents] True at those that count; all by default.
            others: rows of allowed documents whose scores are wanted too.
        """
        terms, budget = _distinct(terms), max(_READ, _TIMES * count)
        if allowed is not None:
            many = np.count_nonzero(allowed)
            if many <= _TIMES * count:
                rows = np.flatnonzero(allowed)
                scores = self.parts(terms, rows).sum(axis=0)
                places, limit = _highest(scores, count)
                places.sort()
                return Best(rows[places], scores[places], limit * _ROUNDING, self.parts(terms, others).sum(axis=0))
            budget = int(budget * len(allowed) / many)
        seen = self._seen([list(self._read(part, terms, budget)) for part in self.postings.parts], allowed, others)
        places, limit = _highest(seen.bounds, count)
        places = places[np.argsort(seen.rows[places])]
        rows, rest = seen.rows[places], max(seen.rest, limit) * _ROUNDING
        scores = self._completed(seen.sums[places], rows, seen.left)
        return Best(rows, scores, rest, self._completed(seen.others, others, seen.left))

    def _seen(self, parts: Sequence[Sequence[_List]], allowed: Mask | None, others: Rows) -> _Seen:
        """Documents that are high in some list of the parts, and the sums of all that is read of them."""
        sums, read, left, rest = self._zeros(), [], [], [np.float32(0)]
        for part in parts:
            rest.append(np.float32(sum(own.factor * own.bound for own in part)))
            for own in part:
                rows, values = self.postings.living(own.part, own.documents, own.values, allowed)
                sums[rows] += own.factor * (self.of(values, rows) - own.bound)  # no document comes twice
                read.append((rows, rest[-1]))
                left += [] if own.whole else [(own, rows)]
        found, gains = sums[others], [_EMPTY]
        for rows, _ in read:
            gains.append(sums[rows])
            sums[rows] = -np.inf  # a document counts where it comes first
        for rows, _ in read:
            sums[rows] = 0
        self._idle.append(sums)
        bounds = [own + bound for own, (_, bound) in zip(gains[1:], read, strict=True)]
        rows = np.concatenate([_NONE, *(rows for rows, _ in read)])
        return _Seen(rows, np.concatenate(gains), np.concatenate([_EMPTY, *bounds]), max(rest), found, left)

    def _completed(self, sums: Floats, rows: Rows, left: Sequence[tuple[_List, Rows]]) -> Floats:
        """[n] the scores of documents in some rows, from the sums of what was read of them."""
        for own, read in left:
            seen = _among(rows, read)
            sums[seen] += own.factor * own.bound  # the rest is in the sum
            missed = np.flatnonzero(~seen)
            values = self.postings.values(own.part, own.number, rows[missed].astype(np.int32))
            held = np.flatnonzero(values)
            places = missed[held]
            sums[places] += own.factor * self.of(values[held], rows[places])
        return sums

    def _zeros(self) -> Floats:
        """[documents] made once for each query of a moment; it is given back to `_idle` as it was."""
        try:
            return self._idle.pop()
        except IndexError:
            return np.zeros(self.postings.documents, dtype=np.float32)

    def _read(self, part: Part, terms: Terms, budget: int) -> Iterator[_List]:
        """The lists of terms in a part, as far as they are read; nothing of those that lower scores."""
        heads, bound = [], np.float32(0)
        asked = [(part.span(number), int(number), factor) for number, factor in zip(*terms, strict=True)]
        for span, number, factor in sorted(asked, key=lambda own: own[0].stop - own[0].start):
            if factor <= 0:
                yield _List(part, number, factor, part.lists.indices[:0], _EMPTY, bound, whole=False)
            elif span.stop - span.start <= budget:
                yield _List(part, number, factor, part.lists.indices[span], part.lists.data[span], bound, whole=True)
                budget -= span.stop - span.start
            else:
                heads.append((number, factor, self._head(part, number, span)))
        bounds = [head.bounds_with(self.damping) for *_, head in heads]
        losses = [factor * own for (_, factor, _), own in zip(heads, bounds, strict=True)]
        for (number, factor, head), own, level in zip(heads, bounds, levels(losses, budget), strict=True):
            yield _List(part, number, factor, *head.best(level), own[level], whole=False)

    def _head(self, part: Part, term: int, span: slice) -> Head:
        """The head of a list, kept for the next query."""
        head: Head | None = part.heads.get(term)
        if head is None or not (self.damping is None or self.damping.is_near(head.damping)):
            head = part.heads[term] = self._make_head(part, span)
        return head

    def _make_head(self, part: Part, span: slice) -> Head:
        documents, values = part.lists.indices[span], part.lists.data[span]
        slots = documents + np.int32(part.first)
        if self.postings.rows is not None:
            alive = self.postings.rows[slots] >= 0
            documents, values, slots = documents[alive], values[alive], self.postings.rows[slots[alive]]
        return Head.of(documents, values, self.of(values, slots), self.damping)


def _among(rows: Rows, ascending: Rows) -> Mask:
    """[n] True at the rows that are in the other array."""
    if not len(ascending):
        return np.zeros(len(rows), dtype=bool)
    found: Mask = ascending[np.searchsorted(ascending, rows).clip(max=len(ascending) - 1)] == rows
    return found


def _highest(values: Floats, count: int) -> tuple[Rows, np.float32]:
    """The places of the `count` highest values above 0, and a bound of the others."""
    if len(values) <= count:
        return np.flatnonzero(values > 0), np.float32(0)
    limit = max(-np.partition(-values, count)[count], np.float32(0))
    above = np.flatnonzero(values > limit)
    ties = np.flatnonzero(values == limit)[: count - len(above)] if limit else above[:0]
    return np.concatenate([above, ties]), limit


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
    def query_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Queries as terms that documents have, and what multiplies their weights."""

    def scores(self, queries: Sequence[str]) -> Floats:
        """[queries, documents] the scores of all documents."""
        found = np.zeros((len(queries), self.weights.postings.documents), dtype=np.float32)
        for own, terms in zip(found, self.query_terms(queries), strict=True):
            own[:] = self.weights.scores(terms)
        return found
