"""Posting lists: for each term the documents that contain it, and a value for each. Knows nothing of words and queries."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.types import Bools, Floats, Ints, Numbers, Rows


@dataclass(frozen=True, eq=False)
class Postings:
    """A list for each term: the documents that contain it, ascending, and a value above 0 for each."""

    starts: Ints  # [terms + 1] where each list begins, and the number of all postings
    documents: Ints  # [postings] rows of the document table
    values: Floats  # [postings]
    num_documents: int
    top_lists: dict[int, Any] = field(default_factory=dict)  # {term: what a reader caches of its list}

    @classmethod
    def from_keys(cls, keys: Rows, values: Floats, terms: int, documents: int) -> "Postings":
        """Return the lists of postings [n], each given once, in any order, by term * documents + document."""
        order = np.argsort(keys, kind="stable")  # which merges what ascends already
        numbers, rows = np.divmod(keys[order], max(1, documents))
        starts = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=terms))])
        return cls(starts, rows.astype(np.int32), values[order], documents)

    def __len__(self) -> int:
        """Number of terms."""
        return len(self.starts) - 1

    @cached_property
    def frequencies(self) -> Ints:
        """[terms] how many documents contain each."""
        return np.diff(self.starts).astype(np.int32)

    def span(self, term: int) -> slice:
        """Return the slice of `documents` and `values` that is the list of a term."""
        return slice(int(self.starts[term]), int(self.starts[term + 1]))

    def read(self, term: int) -> tuple[Rows, Floats]:
        """Return the rows that contain a term, ascending, and its values there."""
        span = self.span(term)
        return self.documents[span].astype(np.int64), self.values[span]

    def values_in(self, term: int, rows: Ints) -> Floats:
        """Return [rows] the values of a term in documents; 0 where a document lacks it."""
        span = self.span(term)
        if span.start == span.stop:
            return np.zeros(len(rows), dtype=np.float32)
        # Documents ascend within a list, so a binary search finds each; `at` is any place where it is missing.
        documents = self.documents[span]
        at = np.searchsorted(documents, rows).clip(max=len(documents) - 1)
        return np.where(documents[at] == rows, self.values[span][at], np.float32(0))

    def select(self, keep: Bools) -> "Postings":
        """Return the lists of the documents with True in `keep` [documents], which move up."""
        if keep.all():
            return self
        mask, rows = keep[self.documents], np.cumsum(keep, dtype=np.int32) - np.int32(1)
        # [postings + 1] how many are kept before each: where a list began among all, it begins among those that are kept.
        before = np.concatenate([[0], np.cumsum(mask)])
        return Postings(before[self.starts], rows[self.documents[mask]], self.values[mask], int(np.count_nonzero(keep)))

    def append(self, new: "Postings") -> "Postings":
        """Return these lists with those of further documents at their ends, perhaps of further terms."""
        more = np.full(len(new) - len(self), self.starts[-1], dtype=self.starts.dtype)
        starts = np.concatenate([self.starts, more])
        ends = np.repeat(starts[1:], new.frequencies)  # [postings of the new documents]
        documents = np.insert(self.documents, ends, new.documents + np.int32(self.num_documents))
        values = np.insert(self.values, ends, new.values)
        return Postings(starts + new.starts, documents, values, self.num_documents + new.num_documents)

    def is_sound(self) -> bool:
        """True if the lists are in order, with values above 0; searches follow them without a check."""
        starts, documents, values = self.starts, self.documents, self.values
        if starts[0] or not starts[-1] == len(documents) == len(values) or (starts[1:] < starts[:-1]).any():
            return False
        ascends = documents[1:] > documents[:-1]
        ascends[starts[(starts > 0) & (starts < len(documents))] - 1] = True  # the next term starts over
        known = documents.min(initial=0) >= 0 and documents.max(initial=-1) < self.num_documents
        return bool(known and ascends.all() and values.min(initial=1) > 0 and is_finite(values))


def postings_arrays(postings: Postings) -> dict[str, Numbers]:
    """Return the arrays of a safetensors file with all lists."""
    if len(postings.values) > np.iinfo(np.int32).max:
        raise ValueError(f"An index holds at most 2^31 - 1 words of documents, got {len(postings.values)}. Split it.")
    shape = np.array([len(postings), postings.num_documents])
    integers = {"indices": postings.documents, "indptr": postings.starts, "shape": shape}
    return {"data": postings.values, **{name: array.astype(np.int32, copy=False) for name, array in integers.items()}}


def read_postings(path: Path, documents: int) -> tuple[Postings, Ints]:
    """Return the lists in a file with `postings_arrays`, memory-mapped, and [documents] the lengths of texts beside them."""
    names = ("indices", "indptr", "shape", "lengths")
    arrays = read_tensors(path, {"data": (np.float32, 1), **dict.fromkeys(names, (np.int32, 1))})
    terms, covered = arrays["shape"].tolist()
    if covered != documents:
        raise ValueError(f"{path} covers {covered} documents, the document table has {documents}; {RESTORE}.")
    if len(arrays["indptr"]) != terms + 1:
        raise ValueError(f"{path} has {len(arrays['indptr'])} edges of the lists of {terms} words; {RESTORE}.")
    return Postings(arrays["indptr"], arrays["indices"], arrays["data"], covered), arrays["lengths"]
