"""Posting lists: for each term the documents that hold it, and a value for each.

Documents join and leave without a copy of the lists that stay: those that join together are one part, small parts are merged,
and a document that left is skipped when a list is read. Knows nothing of words, weights and queries.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from docids.files.untrusted import RESTORE, lists_problem, read_tensors

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SMALLER = 8
"""A part has less than an eighth of the postings of the one before it, or the two are merged: so there are few parts."""
_BLOCK = 1 << 18
"""Postings that are looked through at a time for those of documents that leave."""
_FEW = 10
"""So many documents are compared with each posting sooner than looked up for it."""


@dataclass(frozen=True, eq=False)
class Part:
    """The lists of documents that joined together, which are counted from `first` on."""

    lists: sparse.csr_array  # [terms, documents], ascending in each list; terms may be fewer than there are now
    first: int
    heads: dict[int, Any] = field(default_factory=dict)  # {term: what a reader keeps of its list}

    @property
    def end(self) -> int:
        """One after its last document."""
        return self.first + int(self.lists.shape[1])

    def span(self, term: int) -> slice:
        """Where the list of a term lies."""
        starts = self.lists.indptr
        return slice(int(starts[term]), int(starts[term + 1])) if term < len(starts) - 1 else slice(0, 0)


@dataclass(frozen=True, eq=False)
class Postings:
    """The lists of all documents.

    A document keeps its slot, the number with which it joined; its row in the document table falls when others before it leave.

    Attributes:
        parts: in the order of their slots.
        frequencies: [terms] in how many documents each is.
        documents: how many there are.
        rows: [slots] the row of each, -1 if it left; None if no document left.
        slots: [documents] the slot of each row; None if no document left.
    """

    parts: tuple[Part, ...]
    frequencies: Ints
    documents: int
    rows: Ints | None = None
    slots: Ints | None = None

    @classmethod
    def of(cls, lists: sparse.csr_array) -> "Postings":
        """From [terms, documents] values above 0; those of a term in the order of the documents."""
        return cls((Part(lists, 0),), np.diff(lists.indptr).astype(np.int32), int(lists.shape[1]))

    def changed(self, removed: Collection[int], new: sparse.csr_array) -> "Postings":
        """Without the documents of some rows, and with new ones [terms, documents] at the end; there may be new terms."""
        rest = self._without(removed) if len(removed) else self
        if new.shape[1]:
            rest = rest._with(new)
        many_left = rest.rows is not None and len(rest.rows) > 2 * rest.documents
        return Postings.of(rest.merged()) if many_left else rest

    def _without(self, removed: Collection[int]) -> "Postings":
        rows = np.arange(self.documents, dtype=np.int32) if self.rows is None else self.rows
        gone, leaving = np.zeros(len(rows), dtype=bool), np.fromiter(removed, dtype=np.int32)
        gone[leaving if self.slots is None else self.slots[leaving]] = True
        lost = [_terms_of(part, gone[part.first : part.end]) for part in self.parts]
        parts = [
            Part(part.lists, part.first, {term: head for term, head in part.heads.copy().items() if not own[term]})
            for part, own in zip(self.parts, lost, strict=True)
        ]
        frequencies = self.frequencies.copy()
        for own in lost:
            frequencies[: len(own)] -= own
        stays = (rows >= 0) & ~gone
        moved = np.where(stays, np.cumsum(stays, dtype=np.int32) - np.int32(1), np.int32(-1))
        slots = np.flatnonzero(stays).astype(np.int32)
        return Postings(tuple(parts), frequencies, len(slots), moved, slots)

    def _with(self, new: sparse.csr_array) -> "Postings":
        count, first = int(new.shape[1]), self.parts[-1].end
        frequencies = np.diff(new.indptr).astype(np.int32)
        frequencies[: len(self.frequencies)] += self.frequencies
        rows, slots = self.rows, self.slots
        if rows is not None and slots is not None:
            added = np.arange(count, dtype=np.int32)
            rows = np.concatenate([rows, np.int32(self.documents) + added])
            slots = np.concatenate([slots, np.int32(first) + added])
        parts = [*self.parts, Part(new, first)]
        while len(parts) > 1 and _SMALLER * parts[-1].lists.nnz >= parts[-2].lists.nnz:
            parts[-2:] = [_joined(parts[-2:])]
        return Postings(tuple(parts), frequencies, self.documents + count, rows, slots)

    def merged(self) -> sparse.csr_array:
        """[terms, documents] of the document table, all in one; not copied if they are that already."""
        lists = _padded(_joined(self.parts).lists, len(self.frequencies))
        if self.rows is None:
            return lists
        rows = self.rows[lists.indices]
        keep = rows >= 0
        before = np.concatenate([[0], np.cumsum(keep, dtype=lists.indptr.dtype)], dtype=lists.indptr.dtype)
        shape = lists.shape[0], self.documents
        return sparse.csr_array((lists.data[keep], rows[keep], before[lists.indptr]), shape=shape)

    def read(self, term: int) -> Iterator[tuple[Rows, Floats]]:
        """The rows that hold a term, and its values there, part by part; ascending."""
        for part in self.parts:
            span = part.span(term)
            yield self.living(part, part.lists.indices[span], part.lists.data[span])

    def living(self, part: Part, documents: Ints, values: Floats, allowed: Mask | None = None) -> tuple[Rows, Floats]:
        """The rows of some documents of a part that have not left and are allowed, and their values."""
        rows, keep = documents.astype(np.int64), None  # NumPy looks up by int64
        rows += part.first
        if self.rows is not None:
            rows = self.rows[rows].astype(np.int64)
            keep = rows >= 0
        if allowed is not None:
            keep = allowed[rows] if keep is None else keep & allowed[rows]
        return (rows, values) if keep is None else (rows[keep], values[keep])

    def values(self, part: Part, term: int, rows: Ints) -> Floats:
        """[rows] the values that a term has in some documents; 0 where it is not, or where they are in another part."""
        span = part.span(term)
        if span.start == span.stop:
            return np.zeros(len(rows), dtype=np.float32)
        documents, wanted = part.lists.indices[span], rows if self.slots is None else self.slots[rows]
        wanted = wanted - np.int32(part.first)
        places = np.searchsorted(documents, wanted).clip(max=len(documents) - 1)
        return np.where(documents[places] == wanted, part.lists.data[span][places], np.float32(0))


def _terms_of(part: Part, gone: Mask) -> NDArray[np.int64]:
    """[terms] how many postings of documents that leave each has."""
    documents, starts = part.lists.indices, part.lists.indptr
    few = np.flatnonzero(gone)
    if not len(few):
        return np.zeros(len(starts) - 1, dtype=np.int64)
    places = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(documents), _BLOCK):
        block = documents[start : start + _BLOCK]
        found = (
            gone[block] if len(few) > _FEW else np.logical_or.reduce([block == each for each in few.astype(np.int32)])
        )
        places.append(start + np.flatnonzero(found))
    terms = np.searchsorted(starts, np.concatenate(places), side="right") - 1
    return np.bincount(terms, minlength=len(starts) - 1)


def _padded(lists: sparse.csr_array, terms: int) -> sparse.csr_array:
    """The same lists, and empty ones of further terms."""
    if (more := terms - lists.shape[0]) == 0:
        return lists
    starts = np.append(lists.indptr, np.full(more, lists.indptr[-1]))
    return sparse.csr_array((lists.data, lists.indices, starts), shape=(terms, lists.shape[1]))


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    rest = _joined(parts[1:])  # the first part, the largest, is copied once
    terms = max(parts[0].lists.shape[0], rest.lists.shape[0])
    old, new = (_padded(part.lists, terms) for part in (parts[0], rest))
    ends = np.repeat(old.indptr[1:], np.diff(new.indptr))
    documents = np.insert(old.indices, ends, new.indices + np.int32(old.shape[1]))
    values = np.insert(old.data, ends, new.data)
    shape = terms, old.shape[1] + new.shape[1]
    return Part(sparse.csr_array((values, documents, old.indptr + new.indptr), shape=shape), parts[0].first)


def postings_arrays(postings: Postings) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file with all lists.

    Raises:
        ValueError: there are more postings than such a file can number.
    """
    lists = postings.merged()
    if lists.nnz > np.iinfo(np.int32).max:
        raise ValueError(f"An index can hold 2^31 - 1 words of documents, got {lists.nnz}; split the collection.")
    integers = {"indices": lists.indices, "indptr": lists.indptr, "shape": np.array(lists.shape)}
    return {"data": lists.data, **{name: array.astype(np.int32, copy=False) for name, array in integers.items()}}


def read_postings(path: Path, documents: int, others: Sequence[str] = ()) -> tuple[Postings, dict[str, NDArray[Any]]]:
    """The lists in a file with `postings_arrays`, mapped into memory, and its other arrays of integers.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it covers another number of documents, or was altered.
    """
    names = ("indices", "indptr", "shape", *others)
    stored = read_tensors(path, {"data": (np.float32, 1), **dict.fromkeys(names, (np.int32, 1))})
    data, indices, starts = (stored[name] for name in ("data", "indices", "indptr"))
    terms, found = stored["shape"].tolist() if len(stored["shape"]) == 2 else (-1, -1)
    if found != documents:
        raise ValueError(f"{path.parent} covers {found} documents, the document table has {documents}.")
    problem = "" if len(starts) == terms + 1 else "there is not one list a term"
    problem = problem or lists_problem(starts, indices, data, documents) or _order_problem(starts, indices, data)
    if problem:
        raise ValueError(f"{path} does not hold the terms of {documents} documents ({problem}); {RESTORE}.")
    lists = sparse.csr_array((data, indices, starts), shape=(terms, documents))
    return Postings.of(lists), {name: stored[name] for name in others}


def _order_problem(starts: Ints, documents: Ints, values: Floats) -> str:
    ascend = documents[1:] > documents[:-1]
    ascend[starts[(starts > 0) & (starts < len(documents))] - 1] = True  # the next term starts anew
    if not ascend.all():
        return "the documents of a term are not in order"
    return "" if values.min(initial=1) > 0 else "some weights are not above 0"
