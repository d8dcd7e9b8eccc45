"""BM25 over the documents' words: a baseline, and the lexical part of an index. Knows nothing of trees or models.

What an index needs of its lexical part is `Lexical`; `contrastive.sparse` has another one.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from numpy.typing import NDArray
from scipy import sparse

from docids.checks import between, plain_fields
from docids.storage import save_tensors
from docids.untrusted import RESTORE, lists_problem, read_array, read_json, read_tensors, reading

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

BM25_MODEL = "bm25"
"""Names BM25 in a configuration."""
_WORD = re.compile(r"(?u)\b\w\w+\b")  # as bm25s and scikit-learn split
_STOP_WORDS = frozenset(STOPWORDS_EN)
_BLOCK = 16_384
"""Texts whose words are in memory at a time."""


@dataclass(frozen=True)
class LexicalConfig:
    """The lexical part of an index."""

    enabled: bool = True
    """Whether the index has one; without it `lexical_weight` must be 0."""
    model: str = BM25_MODEL
    """What scores words: "bm25", or a sentence-transformers SparseEncoder (Hub name or local folder) such as SPLADE or an
    inference-free model."""
    k1: float = 0.9
    """Of BM25: saturation of term frequency."""
    b: float = 0.4
    """Of BM25: strength of length normalisation, in [0, 1]."""

    def __post_init__(self) -> None:
        plain_fields(self, "lexical.")
        if not self.model.strip():
            raise ValueError('lexical.model must be "bm25" or name a sentence-transformers SparseEncoder, got a blank.')
        if not self.is_bm25 and (self.k1, self.b) != (LexicalConfig.k1, LexicalConfig.b):
            raise ValueError(
                f"lexical.k1 and lexical.b belong to BM25, got {self.k1} and {self.b} with lexical.model {self.model!r}; leave "
                "them out."
            )
        between(self, "lexical.", k1=(0, 1e6))
        if not 0 <= self.b <= 1:
            raise ValueError(f"lexical.b must be in [0, 1], got {self.b}.")

    @property
    def is_bm25(self) -> bool:
        """True unless a sparse encoder is named."""
        return self.model == BM25_MODEL


class Lexical(Protocol):
    """The lexical part of an index: a score per document that is a sum over terms of the query."""

    @property
    def name(self) -> str:
        """What the scores are, for tables and features."""

    @property
    def lengths(self) -> Ints:
        """[documents] number of terms of each."""

    def scores(self, queries: Sequence[str]) -> Floats:
        """[queries, documents] the scores of all documents."""

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; those that share no term with it are left out."""

    def changed(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "Lexical":
        """The same without the documents of some rows and with new ones at the end."""

    def save(self, folder: Path) -> None:
        """Write it into a folder."""


class QueryTerm(NamedTuple):
    """A word of a query that BM25 scores.

    Attributes:
        word: in lower case.
        start: its first character in the query.
        end: the character after its last one.
        rarity: its inverse document frequency, log(1 + (N - n + 0.5) / (n + 0.5)) for a word in n of N documents.
    """

    word: str
    start: int
    end: int
    rarity: float


class BM25:
    """BM25 (Lucene's variant) without English stop words; bm25s tokenises documents and finds the best.

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

    name: ClassVar[str] = "BM25"
    lengths: Ints

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
        rarity = _rarity(frequencies, documents)
        damping = (k1 * (1 - b + b * self.lengths / max(self.lengths.mean(), 1))).astype(np.float32)
        weights = counts.data / (counts.data + np.repeat(damping, np.diff(counts.indptr))) * rarity[counts.indices]
        by_term = sparse.csr_array((weights, counts.indices, counts.indptr), shape=counts.shape).tocsc()
        postings = by_term.data, by_term.indices, by_term.indptr
        self._index = _bm25s_index(postings, k1, b, documents, self._vocabulary)

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

    def terms(self, query: str) -> list[QueryTerm]:
        """The words of a query that are scored, in order, repeats included: no stop words, and none that no document has.

        >>> bm25 = BM25(["a", "b"], ["rivers of Europe", "noble gases"])
        >>> [(term.word, term.start, term.end) for term in bm25.terms("Rivers, and rivers of Asia")]
        [('rivers', 0, 6), ('rivers', 12, 18)]
        """
        words, numbers = self._scored_words(query)
        # Of each character in lower case, its place in the query: "İ" becomes two characters.
        origin = [place for place, character in enumerate(query) for _ in character.lower()]
        rarity = _rarity(self._frequencies(numbers), len(self.lengths)).tolist()
        places = [(word[0], origin[word.start()], origin[word.end() - 1] + 1) for word in words]
        return [QueryTerm(*place, own) for place, own in zip(places, rarity, strict=True)]

    def scores(self, queries: Sequence[str], weights: Sequence[NDArray[np.floating]] | None = None) -> Floats:
        """[queries, documents] the scores of all documents.

        Args:
            queries: their texts.
            weights: for each query, one factor for each of its `terms`, which multiplies that term's part of the score; 1 by
                default.

        Raises:
            ValueError: not one array a query, or not one factor a term.
        """
        if weights is not None and len(weights) != len(queries):
            raise ValueError(f"weights must be one array a query, got {len(weights)} for {len(queries)} queries.")
        index, found = self._index.scores, np.zeros((len(queries), len(self.lengths)), dtype=np.float32)
        data, documents, starts = (np.asarray(index[name]) for name in ("data", "indices", "indptr"))
        for row, query in enumerate(queries):
            _, numbers = self._scored_words(query)
            factors = np.ones(len(numbers)) if weights is None else np.asarray(weights[row])
            if factors.shape != numbers.shape:
                raise ValueError(
                    f"weights of query {row} must be [{len(numbers)}], one factor for each of its `terms`, got "
                    f"{list(factors.shape)}."
                )
            for number, factor in zip(numbers, factors.astype(np.float32), strict=True):
                own = slice(starts[number], starts[number + 1])
                found[row, documents[own]] += factor * data[own]  # no document comes twice
        return found

    def parts(self, query: str, documents: NDArray[np.integer]) -> Floats:
        """[terms, documents] the part of the score of some documents that each of a query's `terms` contributes."""
        index, (_, numbers) = self._index.scores, self._scored_words(query)
        found = np.zeros((len(numbers), len(documents)), dtype=np.float32)
        for own, number in zip(found, numbers, strict=True):
            term = slice(index["indptr"][number], index["indptr"][number + 1])
            holders = np.asarray(index["indices"][term])  # ascending
            places = np.searchsorted(holders, documents).clip(max=len(holders) - 1)
            own[:] = np.where(holders[places] == documents, np.asarray(index["data"][term])[places], 0)
        return found

    def _scored_words(self, query: str) -> tuple[list[re.Match[str]], NDArray[np.int64]]:
        """The words of a query that documents have, in its lower-cased text, and their terms' numbers."""
        words = [word for word in _words(query) if word[0] in self._vocabulary]
        numbers = np.array([self._vocabulary[word[0]] for word in words], dtype=np.int64)
        some = self._frequencies(numbers) > 0  # the vocabulary keeps the words of removed documents
        return list(compress(words, some)), numbers[some]

    def _frequencies(self, numbers: NDArray[np.int64]) -> NDArray[np.integer]:
        """In how many documents each of some terms occurs."""
        starts = self._index.scores["indptr"]
        return np.asarray(starts[numbers + 1] - starts[numbers])

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; those that share no word with it are left out."""
        doc_ids, k = self.doc_ids[:], min(k, len(self.doc_ids))
        words = [[word[0] for word in _words(query)] for query in queries.values()]
        documents, scores = self._index.retrieve(words, k=k, show_progress=False)
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
            FileNotFoundError: a file is missing.
            ValueError: it covers another number of documents, or a file was altered.
        """
        loaded, settings, vocabulary = cls.__new__(cls), folder / "params.index.json", folder / "vocab.index.json"
        config, found = _read_settings(settings)
        if found != len(doc_ids):
            raise ValueError(f"{folder} covers {found} documents, the document table has {len(doc_ids)}.")
        loaded.doc_ids, loaded.k1, loaded.b = doc_ids, config.k1, config.b
        loaded._vocabulary = read_json(vocabulary)
        words = len(loaded._vocabulary)
        if not _are_numbered(loaded._vocabulary):
            raise ValueError(f"{vocabulary} does not number its words from 0 to {words - 1}; {RESTORE}.")
        loaded._index = _bm25s_index(
            _read_postings(folder, words, found), config.k1, config.b, found, loaded._vocabulary
        )
        loaded._terms, loaded.lengths = _read_terms(folder / "terms.safetensors", words, found)
        return loaded


def _bm25s_index(
    postings: tuple[NDArray[Any], ...], k1: float, b: float, documents: int, vocabulary: dict[str, int]
) -> bm25s.BM25:
    """The index of bm25s with these postings: weights, documents, and where each word's start."""
    index = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.scores = {**dict(zip(("data", "indices", "indptr"), postings, strict=True)), "num_docs": documents}
    index.vocab_dict, index.nonoccurrence_array = vocabulary, None
    return index


def _read_settings(path: Path) -> tuple[LexicalConfig, int]:
    """k1 and b as a config, and the number of documents."""
    record = read_json(path)
    with reading(path):
        k1, b, documents = (record[name] for name in ("k1", "b", "num_docs"))
        if type(documents) is not int or {type(k1), type(b)} - {int, float} or not math.isfinite(k1 + b):
            raise ValueError("k1 and b must be finite numbers, and num_docs a whole one")
        return LexicalConfig(k1=k1, b=b), documents


def _are_numbered(vocabulary: Mapping[str, Any]) -> bool:
    numbers = list(vocabulary.values())
    return set(map(type, numbers)) <= {int} and sorted(numbers) == list(range(len(numbers)))


def _read_postings(folder: Path, words: int, documents: int) -> tuple[NDArray[Any], ...]:
    """The weights, the documents and the starts of all words' lists."""
    integers = (np.int32, np.int64)
    data = read_array(folder / "data.csc.index.npy", [np.float32])
    holders = read_array(folder / "indices.csc.index.npy", integers)
    starts = read_array(folder / "indptr.csc.index.npy", integers)
    problem = lists_problem(starts, holders, data, documents)
    if len(starts) != words + 1:
        problem = f"they are of {len(starts) - 1} words, the vocabulary has {words}"
    if not problem:
        ascend = np.diff(holders) > 0
        ascend[starts[(starts > 0) & (starts < len(holders))] - 1] = True  # the next word starts anew
        problem = "" if ascend.all() else "the documents of a word are not in order"
    if problem:
        raise ValueError(f"{folder}/*.csc.index.npy do not hold the weights of words ({problem}); {RESTORE}.")
    return data, holders, starts


def _read_terms(path: Path, words: int, documents: int) -> tuple[Ints, Ints]:
    """The documents' terms, and how many each has."""
    stored = read_tensors(path, {"terms": (np.int32, 1), "lengths": (np.int32, 1)})
    terms, lengths = stored["terms"], stored["lengths"]
    fits = len(lengths) == documents and lengths.min(initial=0) >= 0 and lengths.sum(dtype=np.int64) == len(terms)
    if not fits or terms.min(initial=0) < 0 or terms.max(initial=-1) >= words:
        raise ValueError(f"{path} does not hold the terms of {documents} documents; {RESTORE}.")
    return terms, lengths


def weighted_scores(lexical: Lexical, queries: Sequence[str], weights: Sequence[NDArray[np.floating]] | None) -> Floats:
    """[queries, documents] the scores of any lexical part; `weights` of terms count for BM25 only."""
    if weights is None or not isinstance(lexical, BM25):
        return lexical.scores(queries)
    return lexical.scores(queries, weights)


def _read(texts: Sequence[str], vocabulary: dict[str, int]) -> tuple[Ints, Ints]:
    """The terms of all texts, concatenated, and the number of each; adds new words to the vocabulary."""
    terms, lengths = [np.empty(0, dtype=np.int32)], []
    for start in range(0, len(texts), _BLOCK):
        block = list(texts[start : start + _BLOCK])
        found = bm25s.tokenize(block, token_pattern=_WORD.pattern, stopwords=_STOP_WORDS, show_progress=False)
        numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in found.vocab]
        terms.append(np.array(numbers, dtype=np.int32)[np.fromiter(chain.from_iterable(found.ids), dtype=np.int64)])
        lengths += [len(own) for own in found.ids]
    return np.concatenate(terms), np.array(lengths, dtype=np.int32)


def _words(text: str) -> Iterator[re.Match[str]]:
    """The words of a text in lower case, as bm25s reads them, without English stop words."""
    return (word for word in _WORD.finditer(text.lower()) if word[0] not in _STOP_WORDS)


def _rarity(frequencies: NDArray[np.integer], documents: int) -> Floats:
    """The inverse document frequency of terms that occur in so many of all documents (Lucene's)."""
    return np.asarray(np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)), dtype=np.float32)
