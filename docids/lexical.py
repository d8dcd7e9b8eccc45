"""BM25 over the documents' words: a baseline, and the lexical part of an index. Knows nothing of trees or models."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path

import bm25s
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from docids.storage import map_tensors, save_tensors

Ints = NDArray[np.int32]

_BLOCK = 16_384
"""Texts whose words are in memory at a time."""


@dataclass(frozen=True)
class LexicalConfig:
    """The lexical part of an index."""

    enabled: bool = True
    """Whether the index has one; without it `lexical_weight` must be 0."""
    k1: float = 0.9
    """Saturation of term frequency."""
    b: float = 0.4
    """Strength of length normalisation, in [0, 1]."""

    def __post_init__(self) -> None:
        if not self.k1 >= 0:
            raise ValueError(f"lexical.k1 must be 0 or more, got {self.k1}.")
        if not 0 <= self.b <= 1:
            raise ValueError(f"lexical.b must be in [0, 1], got {self.b}.")


class BM25:
    """BM25 (Lucene's variant) without English stop words; bm25s tokenises and searches.

    The weights are computed here, from all documents' terms at once, because an update changes the weight of every term (they
    equal bm25s's own and take a fourteenth of the time on 10,000 passages).

    Args:
        doc_ids: key of each document: a list, or a column of a table.
        texts: the searched text of each document.
        k1: saturation of term frequency.
        b: strength of length normalisation.

    Attributes:
        lengths: [documents] number of terms of each, without stop words.
    """

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        self.doc_ids = doc_ids
        self._vocabulary: dict[str, int] = {}
        self._terms, self.lengths = _read(texts, self._vocabulary)
        self.weigh(k1, b)

    def weigh(self, k1: float, b: float) -> None:
        """Recompute all term weights."""
        self.k1, self.b = k1, b
        documents, counts = len(self.lengths), self._counts
        frequencies = np.bincount(counts.indices, minlength=len(self._vocabulary))
        rarity = np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        damping = (k1 * (1 - b + b * self.lengths / max(self.lengths.mean(), 1))).astype(np.float32)
        weights = counts.data / (counts.data + np.repeat(damping, np.diff(counts.indptr))) * rarity[counts.indices]
        by_term = sparse.csr_array((weights, counts.indices, counts.indptr), shape=counts.shape).tocsc()
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.scores = {
            "data": by_term.data, "indices": by_term.indices, "indptr": by_term.indptr, "num_docs": documents
        }  # fmt: skip
        self._index.vocab_dict, self._index.nonoccurrence_array = self._vocabulary, None

    @cached_property
    def _counts(self) -> sparse.csr_array:
        """[documents, vocabulary] how often each term occurs."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        ones = np.ones(len(self._terms), dtype=np.float32)
        counts = sparse.csr_array(
            (ones, self._terms, starts), shape=(len(self.lengths), len(self._vocabulary)), copy=True
        )
        counts.sum_duplicates()
        return counts

    def changed(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "BM25":
        """BM25 without the documents of some rows and with new ones at the end, as if built from these texts."""
        other, keep = BM25.__new__(BM25), np.ones(len(self.lengths), dtype=bool)
        keep[list(removed)] = False
        other.doc_ids = [*compress(self.doc_ids[:], keep), *doc_ids]
        other._vocabulary = dict(self._vocabulary)
        terms, lengths = _read(texts, other._vocabulary)
        other._terms = np.concatenate([self._terms[np.repeat(keep, self.lengths)], terms])
        other.lengths = np.concatenate([self.lengths[keep], lengths])
        other.weigh(self.k1, self.b)
        return other

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[queries, documents] the scores of all documents."""
        none = np.zeros(len(self.doc_ids), dtype=np.float32)
        return np.stack([self._index.get_scores(words) if words else none for words in _words(queries)])

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; those that share no word with it are left out."""
        doc_ids, k = self.doc_ids[:], min(k, len(self.doc_ids))
        documents, scores = self._index.retrieve(_words(list(queries.values())), k=k, show_progress=False)
        return {
            query_id: {doc_ids[d]: float(s) for d, s in zip(row, row_scores, strict=True) if s > 0}
            for query_id, row, row_scores in zip(queries, documents, scores, strict=True)
        }

    def save(self, folder: Path) -> None:
        """Write the term weights (bm25s: plain arrays and JSON) and the documents' terms, from which weights are recomputed."""
        self._index.save(str(folder))
        save_tensors({"terms": self._terms, "lengths": self.lengths}, folder / "terms.safetensors")

    @classmethod
    def load(cls, folder: Path, doc_ids: Sequence[str]) -> "BM25":
        """What `save` wrote, mapped into memory; the folder may be replaced or deleted afterwards.

        Raises:
            ValueError: it covers another number of documents.
        """
        loaded = cls.__new__(cls)
        loaded.doc_ids = doc_ids
        loaded._index = bm25s.BM25.load(str(folder), mmap=True)
        found = loaded._index.scores["num_docs"]
        if found != len(loaded.doc_ids):
            raise ValueError(f"{folder} covers {found} documents, the document table has {len(loaded.doc_ids)}.")
        loaded.k1, loaded.b, loaded._vocabulary = loaded._index.k1, loaded._index.b, loaded._index.vocab_dict
        stored = map_tensors(folder / "terms.safetensors")
        loaded._terms, loaded.lengths = stored["terms"], stored["lengths"]
        return loaded


def _read(texts: Sequence[str], vocabulary: dict[str, int]) -> tuple[Ints, Ints]:
    """The terms of all texts, concatenated, and the number of each; adds new words to the vocabulary."""
    terms, lengths = [np.empty(0, dtype=np.int32)], []
    for start in range(0, len(texts), _BLOCK):
        found = bm25s.tokenize(list(texts[start : start + _BLOCK]), stopwords="en", show_progress=False)
        numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in found.vocab]
        terms.append(np.array(numbers, dtype=np.int32)[np.fromiter(chain.from_iterable(found.ids), dtype=np.int64)])
        lengths += [len(own) for own in found.ids]
    return np.concatenate(terms), np.array(lengths, dtype=np.int32)


def _words(queries: Sequence[str]) -> list[list[str]]:
    """The words of each query, without English stop words."""
    return bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)  # type: ignore[return-value]
