"""BM25 over the documents' words: a baseline, and the lexical part of an index. Knows nothing of trees or models.

What an index needs of its lexical part is `Lexical`; `contrastive.sparse` has another one.
"""

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from numpy.typing import NDArray
from scipy import sparse

from docids.files.checks import check_name
from docids.files.declarations import settings
from docids.files.storage import save_tensors, write_json
from docids.files.untrusted import RESTORE, read_json, reading
from docids.words.postings import Floats, Ints, Postings, postings_arrays, read_postings
from docids.words.term_scores import TermIndex, Terms, Weights
from docids.words.top_lists import Damping

BM25_MODEL = "bm25"
"""Names BM25 in a configuration."""
NO_MODEL = "none"
"""Names an index without a lexical part there."""
K1, B = 0.9, 0.4
"""Saturation of term frequency and strength of length normalisation: those of Anserini (Yang et al. 2017)."""
_WORD = re.compile(r"(?u)\b\w\w+\b")  # as bm25s and scikit-learn split
_STOP_WORDS = frozenset(STOPWORDS_EN)
_BLOCK = 16_384
"""Texts whose words are in memory at a time."""
_NUMBERING = threading.Lock()
"""Held while words get numbers: an index and what updates make of it share a vocabulary, which only grows."""
_SETTINGS, _VOCABULARY, _TERMS = "params.index.json", "vocab.index.json", "terms.safetensors"


@settings("lexical")
class LexicalConfig:
    """The lexical part of an index (section `[lexical]`)."""

    model: str = BM25_MODEL
    """What scores words: "bm25", a sentence-transformers SparseEncoder (Hub name or local folder) such as SPLADE or an
    inference-free model, or "none" for no lexical part; then `lexical_weight` must be 0."""

    def __post_init__(self) -> None:
        check_name("lexical.model", self.model, '"bm25", "none" or a sentence-transformers SparseEncoder')


class Lexical(Protocol):
    """The lexical part of an index: a score per document that is a sum over terms of the query."""

    @property
    def name(self) -> str:
        """What the scores are, for tables and features."""

    @property
    def lengths(self) -> Ints:
        """[documents] number of terms of each."""

    @property
    def weights(self) -> Weights:
        """The weights of terms in documents."""

    def query_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Queries as terms that documents have, and what multiplies their weights."""

    def scores(self, queries: Sequence[str]) -> Floats:
        """[queries, documents] the scores of all documents."""

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; those that share no term with it are left out."""

    def changed(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "Lexical":
        """The same without the documents of some rows and with new ones at the end; `doc_ids` are those of all afterwards."""

    def save(self, folder: Path) -> None:
        """Write it into a folder."""


class BM25(TermIndex):
    """BM25 (Lucene's variant) without English stop words; bm25s tokenises, and ranks all documents in `run`.

    The lists of documents hold how often each has the term. Weights follow from these counts and from the collection's
    statistics when a list is read, because an update changes the weight of every term (they equal bm25s's own).

    Args:
        doc_ids: key of each document: a list, or a column of a table.
        texts: the searched text of each document.
        k1: saturation of term frequency.
        b: strength of length normalisation.

    Attributes:
        lengths: [documents] number of terms of each, without stop words.
    """

    name: ClassVar[str] = "BM25"
    lengths: Ints

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str], k1: float = K1, b: float = B) -> None:
        self._vocabulary: dict[str, int] = {}
        counts, self.lengths = _read(texts, self._vocabulary)
        self.doc_ids, self._postings = doc_ids, Postings.of(counts)
        self.weigh(k1, b)

    def weigh(self, k1: float, b: float) -> None:
        """Set k1 and b, on which all term weights depend."""
        self.k1, self.b = k1, b
        damping = Damping(k1, b, max(float(self.lengths.mean()), 1.0))
        self._weights = Weights(self._postings, damping, self.lengths)
        self.__dict__.pop("_library", None)

    @property
    def weights(self) -> Weights:
        """Of the documents' words, without their rarity."""
        return self._weights

    def changed(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "BM25":
        """BM25 without the documents of some rows and with new ones at the end, as if built from these texts.

        Args:
            removed: rows of the document table.
            doc_ids: keys of all documents afterwards.
            texts: of the new ones.
        """
        other, keep = BM25.__new__(BM25), np.ones(len(self.lengths), dtype=bool)
        keep[list(removed)] = False
        other._vocabulary = self._vocabulary
        counts, lengths = _read(texts, self._vocabulary)
        other.doc_ids, other._postings = doc_ids, self._postings.changed(removed, counts)
        other.lengths = np.concatenate([self.lengths[keep], lengths])
        other.weigh(self.k1, self.b)
        return other

    def query_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Queries as the numbers of their words, each with its rarity: no stop words, and none that no document has."""
        numbers = [self._numbers(query) for query in queries]
        return [Terms(own, self._rarity(own)) for own in numbers]

    def _numbers(self, query: str) -> NDArray[np.int64]:
        """[terms] the numbers of a query's words that documents have, in order, repeats included."""
        # 0 for words of removed documents, which the vocabulary keeps; words of later documents are beyond the end.
        frequencies = self._postings.frequencies
        numbers = (self._vocabulary.get(word, len(frequencies)) for word in _words(query))
        own = [number for number in numbers if number < len(frequencies) and frequencies[number]]
        return np.array(own, dtype=np.int64)

    def _own_words(self) -> dict[str, int]:
        """{word: number} without the words of later updates."""
        words = len(self._postings.frequencies)
        return {word: number for word, number in self._vocabulary.items() if number < words}

    def _rarity(self, numbers: NDArray[np.int64] | slice) -> Floats:
        """The inverse document frequency of some terms (Lucene's)."""
        frequencies, documents = self._postings.frequencies[numbers], len(self.lengths)
        return np.asarray(np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)), dtype=np.float32)

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; those that share no word with it are left out."""
        doc_ids, k = self.doc_ids[:], min(k, len(self.doc_ids))
        words = [list(_words(query)) for query in queries.values()]
        documents, scores = self._library.retrieve(words, k=k, show_progress=False)
        return {
            query_id: {doc_ids[d]: float(s) for d, s in zip(row, row_scores, strict=True) if s > 0}
            for query_id, row, row_scores in zip(queries, documents, scores, strict=True)
        }

    @cached_property
    def _library(self) -> bm25s.BM25:
        """The index of bm25s with the weights of all words."""
        counts = self._postings.merged()
        rarity = np.repeat(self._rarity(slice(None)), np.diff(counts.indptr))
        weights = self.weights.of(counts.data, counts.indices) * rarity
        index = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        lists = {"data": weights, "indices": counts.indices, "indptr": counts.indptr}
        index.scores = {**lists, "num_docs": len(self.lengths)}
        index.vocab_dict, index.nonoccurrence_array = self._own_words(), None
        return index

    def save(self, folder: Path) -> None:
        """Write the words, how often each document has them, and the settings."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _SETTINGS, {"k1": self.k1, "b": self.b, "num_docs": len(self.lengths)})
        write_json(folder / _VOCABULARY, self._own_words())
        save_tensors({**postings_arrays(self._postings), "lengths": self.lengths}, folder / _TERMS)

    @classmethod
    def load(cls, folder: Path, doc_ids: Sequence[str]) -> "BM25":
        """What `save` wrote, mapped into memory; the folder may be replaced or deleted afterwards.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: it covers another number of documents, or a file was altered.
        """
        loaded = cls.__new__(cls)
        k1, b, found = _read_settings(folder / _SETTINGS)
        if found != len(doc_ids):
            raise ValueError(f"{folder} covers {found} documents, the document table has {len(doc_ids)}.")
        loaded.doc_ids, loaded._vocabulary = doc_ids, read_json(folder / _VOCABULARY)
        words = len(loaded._vocabulary)
        if not _are_numbered(loaded._vocabulary):
            raise ValueError(f"{folder / _VOCABULARY} does not number its words from 0 to {words - 1}; {RESTORE}.")
        loaded._postings, others = read_postings(folder / _TERMS, found, ["lengths"])
        loaded.lengths, lists = others["lengths"], len(loaded._postings.frequencies)
        if lists != words:
            raise ValueError(f"{folder / _TERMS} holds {lists} words, the vocabulary has {words}; {RESTORE}.")
        if len(loaded.lengths) != found or loaded.lengths.min(initial=0) < 0:
            raise ValueError(f"{folder / _TERMS} does not hold the lengths of {found} documents; {RESTORE}.")
        loaded.weigh(k1, b)
        return loaded


def _read_settings(path: Path) -> tuple[float, float, int]:
    """k1, b and the number of documents."""
    record = read_json(path)
    with reading(path):
        k1, b, documents = (record[name] for name in ("k1", "b", "num_docs"))
        if type(documents) is not int or {type(k1), type(b)} - {int, float} or not (0 <= k1 <= 1e6 and 0 <= b <= 1):
            raise ValueError("k1 must be a number between 0 and 1e6, b one between 0 and 1, and num_docs a whole one")
        return k1, b, documents


def _are_numbered(vocabulary: Mapping[str, Any]) -> bool:
    numbers = list(vocabulary.values())
    return set(map(type, numbers)) <= {int} and sorted(numbers) == list(range(len(numbers)))


def _read(texts: Sequence[str], vocabulary: dict[str, int]) -> tuple[sparse.csr_array, Ints]:
    """How often each term occurs [terms, texts], and the number of terms of each text; adds new words to the vocabulary."""
    terms, lengths = [np.empty(0, dtype=np.int32)], []
    for start in range(0, len(texts), _BLOCK):
        block = list(texts[start : start + _BLOCK])
        found = bm25s.tokenize(block, token_pattern=_WORD.pattern, stopwords=_STOP_WORDS, show_progress=False)
        with _NUMBERING:
            numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in found.vocab]
        terms.append(np.array(numbers, dtype=np.int32)[np.fromiter(chain.from_iterable(found.ids), dtype=np.int64)])
        lengths += [len(own) for own in found.ids]
    starts, every = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), np.concatenate(terms)
    ones = np.ones(len(every), dtype=np.float32)
    counts = sparse.csr_array((ones, every, starts), shape=(len(lengths), len(vocabulary)))
    counts.sum_duplicates()
    return counts.T.tocsr(), np.array(lengths, dtype=np.int32)


def _words(text: str) -> Iterator[str]:
    """The words of a text in lower case, as bm25s reads them, without English stop words."""
    return (word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS)
