"""Posting lists: for each term the documents that contain it, and a value for each.

Documents are added and removed without copying the remaining lists: documents that were added together form a part, small parts
are merged, and removed documents are skipped when a list is read. Knows nothing of words, weights and queries.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.types import Bools, Floats, Ints, Numbers, Rows

_RATIO = 8
"""A part has at most an eighth of the postings of the one before it; otherwise the two are merged. This keeps parts few."""
_BLOCK = 1 << 18
"""Postings that are searched for removed documents at a time."""
_FEW = 10
"""Up to this many removed documents, comparing every posting with each is faster than a lookup table."""


@dataclass(frozen=True, eq=False)
class Lists:
    """A list for each term: the documents that contain it, ascending, and a value above 0 for each."""

    starts: Ints  # [terms + 1] where each list begins, and the number of all postings
    documents: Ints  # [postings]
    values: Floats  # [postings]
    width: int  # number of documents

    @classmethod
    def from_keys(cls, keys: Rows, values: Floats, terms: int, width: int) -> "Lists":
        """Return the lists of postings [n], each given once, in any order, by term * width + document."""
        order = np.argsort(keys, kind="stable")  # which merges what ascends already
        numbers, documents = np.divmod(keys[order], max(1, width))
        starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=terms))])
        return cls(starts, documents.astype(np.int32), values[order], width)

    def __len__(self) -> int:
        """Number of terms."""
        return len(self.starts) - 1

    def pad(self, terms: int) -> "Lists":
        """Return the lists with empty ones appended, `terms` in all."""
        more = np.full(terms - len(self), self.starts[-1], dtype=self.starts.dtype)
        return replace(self, starts=np.concatenate([self.starts, more])) if len(more) else self

    def renumber(self, numbers: Ints, width: int) -> "Lists":
        """Return the lists of documents by their new numbers [documents], in the same order, without those of number -1."""
        documents = numbers[self.documents]
        keep = documents >= 0
        # [postings + 1] how many are kept before each: where a list began among all, it begins among those that are kept.
        before = np.concatenate([[0], np.cumsum(keep)])
        return Lists(before[self.starts], documents[keep].astype(np.int32, copy=False), self.values[keep], width)


@dataclass(frozen=True, eq=False)
class PostingsPart:
    """The lists of documents that were added together."""

    lists: Lists  # there may be fewer terms than in later parts
    first: int  # slot of the first document
    top_lists: dict[int, Any] = field(default_factory=dict)  # {term: what a reader caches of its list}

    @property
    def end(self) -> int:
        """One past the slot of the last document."""
        return self.first + self.lists.width

    def span(self, term: int) -> slice:
        """Return the slice of `lists.documents` and `lists.values` that is the list of a term."""
        starts = self.lists.starts
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
    def from_lists(cls, lists: Lists) -> "Postings":
        """Return the postings of lists."""
        return cls((PostingsPart(lists, 0),), np.diff(lists.starts).astype(np.int32), lists.width)

    def update(self, removed: Collection[int], new: Lists) -> "Postings":
        """Return postings without the documents in some rows, and with the lists of new ones, perhaps of new terms."""
        postings = self._remove(removed) if len(removed) else self
        if new.width:
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

    def _append(self, new: Lists) -> "Postings":
        count, first = new.width, self.parts[-1].end
        frequencies = np.diff(new.starts).astype(np.int32)
        frequencies[: len(self.frequencies)] += self.frequencies
        rows, slots = self.rows, self.slots
        if rows is not None and slots is not None:
            numbers = np.arange(count, dtype=np.int32)
            rows = np.concatenate([rows, np.int32(self.num_documents) + numbers])
            slots = np.concatenate([slots, np.int32(first) + numbers])
        parts = [*self.parts, PostingsPart(new, first)]
        # A part joins the one before that is not far larger: so there are few, and each posting is copied few times.
        while len(parts) > 1 and _RATIO * len(parts[-1].lists.values) >= len(parts[-2].lists.values):
            parts[-2:] = [_join(parts[-2:])]
        return Postings(tuple(parts), frequencies, self.num_documents + count, rows, slots)

    def merge(self) -> Lists:
        """Return the lists of all documents by row of the document table; no copy if they are stored like that."""
        lists = _join(self.parts).lists.pad(len(self.frequencies))
        return lists if self.rows is None else lists.renumber(self.rows, self.num_documents)

    def read(self, term: int) -> Iterator[tuple[Rows, Floats]]:
        """Yield the rows that contain a term, ascending, and its values there, part by part."""
        for part in self.parts:
            span = part.span(term)
            yield self.to_rows(part, part.lists.documents[span], part.lists.values[span])

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
        documents, slots = part.lists.documents[span], rows if self.slots is None else self.slots[rows]
        slots = slots - np.int32(part.first)
        # Documents ascend within a list, so a binary search finds each; `at` is any place where it is missing.
        at = np.searchsorted(documents, slots).clip(max=len(documents) - 1)
        return np.where(documents[at] == slots, part.lists.values[span][at], np.float32(0))


def _count_removed(part: PostingsPart, gone: Bools) -> Rows:
    """Return [terms] how many postings of removed documents each list has."""
    documents, starts = part.lists.documents, part.lists.starts
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


def _join(parts: Sequence[PostingsPart]) -> PostingsPart:
    if len(parts) == 1:
        return parts[0]
    rest = _join(parts[1:])  # the first part, the largest, is copied once
    terms = max(len(parts[0].lists), len(rest.lists))
    old, new = (part.lists.pad(terms) for part in (parts[0], rest))
    # Slots of the second part are higher, so its postings go to the end of each list.
    ends = np.repeat(old.starts[1:], np.diff(new.starts))  # [postings of the second part]
    documents = np.insert(old.documents, ends, new.documents + np.int32(old.width))
    values = np.insert(old.values, ends, new.values)
    return PostingsPart(Lists(old.starts + new.starts, documents, values, old.width + new.width), parts[0].first)


def postings_arrays(postings: Postings) -> dict[str, Numbers]:
    """Return the arrays of a safetensors file with all lists."""
    lists = postings.merge()
    if len(lists.values) > np.iinfo(np.int32).max:
        raise ValueError(
            f"An index can hold 2^31 - 1 words of documents, got {len(lists.values)}; split the collection."
        )
    shape = np.array([len(lists), lists.width])
    integers = {"indices": lists.documents, "indptr": lists.starts, "shape": shape}
    return {"data": lists.values, **{name: array.astype(np.int32, copy=False) for name, array in integers.items()}}


def read_postings(path: Path, documents: int) -> tuple[Postings, Ints]:
    """Return the lists in a file with `postings_arrays`, memory-mapped, and [documents] the lengths of texts beside them."""
    names = ("indices", "indptr", "shape", "lengths")
    arrays = read_tensors(path, {"data": (np.float32, 1), **dict.fromkeys(names, (np.int32, 1))})
    terms, covered = arrays["shape"].tolist()
    if covered != documents:
        raise ValueError(f"{path} covers {covered} documents, the document table has {documents}; {RESTORE}.")
    if len(arrays["indptr"]) != terms + 1:
        raise ValueError(f"{path} has {len(arrays['indptr'])} edges of the lists of {terms} words; {RESTORE}.")
    lists = Lists(arrays["indptr"], arrays["indices"], arrays["data"], covered)
    return Postings.from_lists(lists), arrays["lengths"]


def are_lists(lists: Lists) -> bool:
    """True if arrays are lists in order, with values above 0; searches follow them without a check."""
    starts, documents, values = lists.starts, lists.documents, lists.values
    if starts[0] or starts[-1] != len(documents) or (starts[1:] < starts[:-1]).any() or len(documents) != len(values):
        return False
    ascends = documents[1:] > documents[:-1]
    ascends[starts[(starts > 0) & (starts < len(documents))] - 1] = True  # the next term starts over
    known = documents.min(initial=0) >= 0 and documents.max(initial=-1) < lists.width
    return bool(known and ascends.all() and values.min(initial=1) > 0 and is_finite(values))
