"""Posting lists: for each term the documents that contain it, and a value for each.

Documents are added and removed without copying the remaining lists: documents that were added together form a part, small parts
are merged, and removed documents are skipped when a list is read. Knows nothing of words, weights and queries.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.types import Bools, Floats, Ints, Numbers, Rows

_RATIO = 8
"""A part has at most an eighth of the postings of the one before it; otherwise the two are merged. This keeps parts few."""
_BLOCK = 1 << 18
"""Postings that are searched for removed documents at a time."""
_FEW = 10
"""Up to this many removed documents, comparing every posting with each is faster than a lookup table."""


@dataclass(frozen=True, eq=False)
class PostingsPart:
    """The lists of documents that were added together."""

    # [terms, documents], documents ascending in each list; there may be fewer terms than in later parts
    lists: sparse.csr_array
    first: int  # slot of the first document
    top_lists: dict[int, Any] = field(default_factory=dict)  # {term: what a reader caches of its list}

    @property
    def end(self) -> int:
        """One past the slot of the last document."""
        return self.first + int(self.lists.shape[1])

    def span(self, term: int) -> slice:
        """Return the slice of `lists.indices` and `lists.data` that is the list of a term."""
        starts = self.lists.indptr
        return slice(int(starts[term]), int(starts[term + 1])) if term < len(starts) - 1 else slice(0, 0)


@dataclass(frozen=True, eq=False)
class Postings:
    """The posting lists of all documents.

    A document keeps its slot, a number in the order of addition; its row in the document table shifts when earlier ones leave.
    """

    parts: tuple[PostingsPart, ...]  # in the order of their slots
    frequencies: Ints  # [terms] document frequency of each
    num_documents: int  # without removed ones
    rows: Ints | None = None  # [slots] row of each, -1 if it was removed; None if no document was removed
    slots: Ints | None = None  # [documents] slot of each row; None if no document was removed

    @classmethod
    def from_lists(cls, lists: sparse.csr_array) -> "Postings":
        """Return the postings of a matrix [terms, documents] of values above 0, documents ascending in each row."""
        return cls((PostingsPart(lists, 0),), np.diff(lists.indptr).astype(np.int32), int(lists.shape[1]))

    def update(self, removed: Collection[int], new: sparse.csr_array) -> "Postings":
        """Return postings without the documents in some rows, and with new ones [terms, documents], perhaps of new terms."""
        postings = self._remove(removed) if len(removed) else self
        if new.shape[1]:
            postings = postings._append(new)
        mostly_removed = postings.rows is not None and len(postings.rows) > 2 * postings.num_documents
        return Postings.from_lists(postings.merge()) if mostly_removed else postings

    def _remove(self, removed: Collection[int]) -> "Postings":
        rows = np.arange(self.num_documents, dtype=np.int32) if self.rows is None else self.rows
        gone, removed_rows = np.zeros(len(rows), dtype=bool), np.fromiter(removed, dtype=np.int32)
        gone[removed_rows if self.slots is None else self.slots[removed_rows]] = True
        parts, frequencies = [], self.frequencies.copy()
        for part in self.parts:
            lost = _count_removed(part, gone[part.first : part.end])
            frequencies[: len(lost)] -= lost
            parts.append(PostingsPart(part.lists, part.first))
        # Lists stay as they are; a removed slot has no row from now on, and the rows of later documents move up.
        stays = (rows >= 0) & ~gone  # [slots]
        new_rows = np.where(stays, np.cumsum(stays, dtype=np.int32) - np.int32(1), np.int32(-1))
        slots = np.flatnonzero(stays).astype(np.int32)
        return Postings(tuple(parts), frequencies, len(slots), new_rows, slots)

    def _append(self, new: sparse.csr_array) -> "Postings":
        count, first = int(new.shape[1]), self.parts[-1].end
        frequencies = np.diff(new.indptr).astype(np.int32)
        frequencies[: len(self.frequencies)] += self.frequencies
        rows, slots = self.rows, self.slots
        if rows is not None and slots is not None:
            numbers = np.arange(count, dtype=np.int32)
            rows = np.concatenate([rows, np.int32(self.num_documents) + numbers])
            slots = np.concatenate([slots, np.int32(first) + numbers])
        parts = [*self.parts, PostingsPart(new, first)]
        # A part joins the one before that is not far larger: so there are few, and each posting is copied few times.
        while len(parts) > 1 and _RATIO * parts[-1].lists.nnz >= parts[-2].lists.nnz:
            parts[-2:] = [_join(parts[-2:])]
        return Postings(tuple(parts), frequencies, self.num_documents + count, rows, slots)

    def merge(self) -> sparse.csr_array:
        """Return one matrix [terms, documents], by row of the document table; no copy if it is stored like that."""
        lists = _pad(_join(self.parts).lists, len(self.frequencies))
        if self.rows is None:
            return lists
        rows = self.rows[lists.indices]
        keep = rows >= 0
        # [postings + 1] how many are kept before each: where a list began among all, it begins among those that are kept.
        before = np.concatenate([[0], np.cumsum(keep, dtype=lists.indptr.dtype)], dtype=lists.indptr.dtype)
        shape = lists.shape[0], self.num_documents
        return sparse.csr_array((lists.data[keep], rows[keep], before[lists.indptr]), shape=shape)

    def read(self, term: int) -> Iterator[tuple[Rows, Floats]]:
        """Yield the rows that contain a term, ascending, and its values there, part by part."""
        for part in self.parts:
            span = part.span(term)
            yield self.to_rows(part, part.lists.indices[span], part.lists.data[span])

    def to_rows(self, part: PostingsPart, documents: Ints, values: Floats) -> tuple[Rows, Floats]:
        """Return the rows and values of those documents of a part that are not removed."""
        rows = documents.astype(np.int64)
        rows += part.first
        if self.rows is None:
            return rows, values
        rows = self.rows[rows].astype(np.int64)
        keep = rows >= 0
        return rows[keep], values[keep]

    def values(self, part: PostingsPart, term: int, rows: Ints) -> Floats:
        """Return [rows] the values of a term in documents; 0 where a document lacks it or is in another part."""
        span = part.span(term)
        if span.start == span.stop:
            return np.zeros(len(rows), dtype=np.float32)
        documents, slots = part.lists.indices[span], rows if self.slots is None else self.slots[rows]
        slots = slots - np.int32(part.first)
        # Documents ascend within a list, so a binary search finds each; `at` is any place where it is missing.
        at = np.searchsorted(documents, slots).clip(max=len(documents) - 1)
        return np.where(documents[at] == slots, part.lists.data[span][at], np.float32(0))


def _count_removed(part: PostingsPart, gone: Bools) -> Rows:
    """Return [terms] how many postings of removed documents each list has."""
    documents, starts = part.lists.indices, part.lists.indptr
    removed = np.flatnonzero(gone)
    if not len(removed):
        return np.zeros(len(starts) - 1, dtype=np.int64)
    positions = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(documents), _BLOCK):
        block = documents[start : start + _BLOCK]
        if len(removed) > _FEW:
            hits = gone[block]
        else:
            hits = np.logical_or.reduce([block == document for document in removed.astype(np.int32)])
        positions.append(start + np.flatnonzero(hits))
    terms = np.searchsorted(starts, np.concatenate(positions), side="right") - 1  # in whose list each posting stands
    return np.bincount(terms, minlength=len(starts) - 1)


def _pad(lists: sparse.csr_array, terms: int) -> sparse.csr_array:
    """Return the lists with empty ones appended, `terms` in all."""
    if (more := terms - lists.shape[0]) == 0:
        return lists
    starts = np.append(lists.indptr, np.full(more, lists.indptr[-1]))
    return sparse.csr_array((lists.data, lists.indices, starts), shape=(terms, lists.shape[1]))


def _join(parts: Sequence[PostingsPart]) -> PostingsPart:
    if len(parts) == 1:
        return parts[0]
    rest = _join(parts[1:])  # the first part, the largest, is copied once
    terms = max(parts[0].lists.shape[0], rest.lists.shape[0])
    old, new = (_pad(part.lists, terms) for part in (parts[0], rest))
    # Slots of the second part are higher, so its postings go to the end of each list.
    ends = np.repeat(old.indptr[1:], np.diff(new.indptr))  # [postings of the second part]
    documents = np.insert(old.indices, ends, new.indices + np.int32(old.shape[1]))
    values = np.insert(old.data, ends, new.data)
    shape = terms, old.shape[1] + new.shape[1]
    return PostingsPart(sparse.csr_array((values, documents, old.indptr + new.indptr), shape=shape), parts[0].first)


def postings_arrays(postings: Postings) -> dict[str, Numbers]:
    """Return the arrays of a safetensors file with all lists."""
    lists = postings.merge()
    if lists.nnz > np.iinfo(np.int32).max:
        raise ValueError(f"An index can hold 2^31 - 1 words of documents, got {lists.nnz}; split the collection.")
    integers = {"indices": lists.indices, "indptr": lists.indptr, "shape": np.array(lists.shape)}
    return {"data": lists.data, **{name: array.astype(np.int32, copy=False) for name, array in integers.items()}}


def read_postings(path: Path, documents: int) -> tuple[Postings, Ints]:
    """Return the lists in a file with `postings_arrays`, memory-mapped, and [documents] the lengths of texts beside them."""
    names = ("indices", "indptr", "shape", "lengths")
    arrays = read_tensors(path, {"data": (np.float32, 1), **dict.fromkeys(names, (np.int32, 1))})
    terms, covered = arrays["shape"].tolist()
    if covered != documents:
        raise ValueError(f"{path} covers {covered} documents, the document table has {documents}; {RESTORE}.")
    lists = sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(terms, covered))
    return Postings.from_lists(lists), arrays["lengths"]


def are_lists(lists: sparse.csr_array) -> bool:
    """True if arrays are lists [terms, documents] in order, with weights above 0; scipy follows them without a check."""
    starts, documents, weights = lists.indptr, lists.indices, lists.data
    if starts[0] or starts[-1] != len(documents) or (starts[1:] < starts[:-1]).any() or len(documents) != len(weights):
        return False
    ascends = documents[1:] > documents[:-1]
    ascends[starts[(starts > 0) & (starts < len(documents))] - 1] = True  # the next term starts over
    known = documents.min(initial=0) >= 0 and documents.max(initial=-1) < lists.shape[1]
    return bool(known and ascends.all() and weights.min(initial=1) > 0 and is_finite(weights))
