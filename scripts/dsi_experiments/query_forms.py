"""Forms in which train queries can join a document's score: each gives a query and a document a number, 0 if nothing is known.

A form yields variants, by name, of which dev queries choose one. Knows nothing of how they are weighted or judged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from sklearn.feature_extraction.text import TfidfVectorizer

from dsi.docids.query_memory import normalised
from dsi.docids.types import Floats, Ints
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.bm25 import K1, B

Variants: TypeAlias = Iterator[tuple[str, Floats]]
"""Names of variants, and their scores [queries, documents]."""
NEAREST, EDGE, LEAST = 50, 1e-6, 1e-4
_BEGINNING = 600
"""Characters of a document that are an example of it."""


@dataclass(frozen=True)
class Lesson:
    """Documents, and the train queries that they have answered.

    Attributes:
        texts: of the documents.
        places: [n, dim] embeddings of their pieces, of length 1.
        rows: [n] the document of each piece, ascending.
        costs: [n] what is taken from the score of each piece.
        queries: the train queries.
        vectors: [queries, dim] their embeddings, of length 1.
        pairs: [m, 2] number of a query, and row of a document that answered it; each pair once.
        times: [m] how often it was seen.
        cosine: mean one of two documents.
        language: of the texts.
    """

    texts: Sequence[str]
    places: Floats
    rows: Ints
    costs: Floats
    queries: Sequence[str]
    vectors: Floats
    pairs: Ints
    times: Ints
    cosine: float
    language: str

    @property
    def documents(self) -> int:
        """Their number."""
        return len(self.texts)

    @cached_property
    def counts(self) -> Ints:
        """[documents] how many train queries each has answered."""
        return np.bincount(self.pairs[:, 1], minlength=self.documents)

    def dense(self, queries: Floats, places: Floats | None = None) -> Floats:
        """[queries, documents] the product with each document's best piece."""
        products = queries @ (self.places if places is None else places).T - self.costs
        return np.maximum.reduceat(products, np.flatnonzero(np.diff(self.rows, prepend=-1)), axis=1)

    @cached_property
    def labels(self) -> sparse.csr_array:
        """[queries + documents, documents] 1 at a train query's documents, and at that of a text."""
        rows = np.concatenate([self.pairs[:, 0], len(self.queries) + np.arange(self.documents)])
        columns = np.concatenate([self.pairs[:, 1], np.arange(self.documents)])
        shape = len(self.queries) + self.documents, self.documents
        return sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)


@dataclass(frozen=True)
class Asked:
    """Queries that are answered: their texts, and embeddings of length 1."""

    texts: Sequence[str]
    vectors: Floats


def memory(lesson: Lesson, asked: Asked) -> Variants:
    """Today's memory and its kin: what share of the nearest train queries a document has answered, by their cosines."""
    cosines, dense = asked.vectors @ lesson.vectors[lesson.pairs[:, 0]].T, lesson.dense(asked.vectors)
    unit = 1 - lesson.cosine
    for temperature in (0.2, 0.1, 0.4):
        shares, highest = _shares(cosines / unit, lesson, temperature)
        taken = np.where(shares > 0, dense, -np.inf).max(axis=1)
        margin = np.maximum(highest * unit - taken, 0)[:, None] / unit
        yield f"(g s)^2, temperature {temperature}", unit * (margin * shares) ** 2
        yield f"g s, temperature {temperature}", margin * shares
        yield f"share, temperature {temperature}", shares
        yield f"share x cosine^8, temperature {temperature}", shares * (highest[:, None] * unit) ** 8


def _shares(near: Floats, lesson: Lesson, temperature: float, *, total: bool = True) -> tuple[Floats, Floats]:
    """Return documents' shares [queries, documents] of the nearest pairs, and how near the nearest one is [queries]."""
    count = min(NEAREST + 1, near.shape[1])
    places = np.argpartition(-near, count - 1, axis=1)[:, :count]
    values = np.take_along_axis(near, places, axis=1).astype(np.float64)
    highest = values.max(axis=1, keepdims=True)
    weights = np.exp((values - (highest if total else 3.0)) / temperature)
    if count > NEAREST and total:
        weights -= (1 - EDGE) * weights.min(axis=1, keepdims=True)
    weights *= np.log2(1 + lesson.times[places])
    if total:
        weights /= weights.sum(axis=1, keepdims=True)
    shares = np.zeros((len(near), lesson.documents), dtype=np.float32)
    np.add.at(shares, (np.arange(len(near))[:, None], lesson.pairs[places, 1]), weights.astype(np.float32))
    return shares, highest[:, 0].astype(np.float32)


def joined_texts(lesson: Lesson, asked: Asked) -> Variants:
    """BM25 over documents with their train queries as further text, that counts more or less; or over train queries alone."""
    analyzer, number = Analyzer(lesson.language), dict[str, int]()

    def count(texts: Sequence[str]) -> sparse.csr_array:
        found = [[number.setdefault(term, len(number)) for term in analyzer.terms(text)] for text in texts]
        starts = np.concatenate([[0], np.cumsum([len(own) for own in found])])
        columns = np.concatenate([np.array(own, np.int64) for own in found])
        counts = sparse.csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(len(texts), 1 << 24))
        counts.sum_duplicates()
        return counts

    texts, train, queries = count(lesson.texts), count(lesson.queries), count(asked.texts)
    texts, train, queries = (own[:, : len(number)] for own in (texts, train, queries))
    answered = sparse.csr_array(
        (lesson.times.astype(np.float32), (lesson.pairs[:, 1], lesson.pairs[:, 0])),
        shape=(lesson.documents, len(lesson.queries)),
    )
    added = (answered @ train).tocsr()
    for weight in (1.0, 0.25, 3.0):
        yield f"joined, weight {weight}", _bm25(texts + weight * added, queries)
    yield "train queries alone", _bm25(added, queries)
    once = added.copy()
    once.data = np.log1p(once.data)
    yield "joined, logarithm", _bm25(texts + once, queries)
    yield "train queries alone, logarithm", _bm25(once, queries)


def _bm25(counts: sparse.csr_array, queries: sparse.csr_array) -> Floats:
    """[queries, documents] BM25 as a share of what a document with all terms of the query could have."""
    lengths = np.maximum(counts.sum(axis=1), 0)
    frequencies = np.bincount(counts.indices, minlength=counts.shape[1])
    rarity = np.log1p((counts.shape[0] - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    damping = K1 * (1 - B + B * lengths / max(1.0, lengths.mean()))
    weights = counts.copy()
    weights.data = counts.data / (counts.data + np.repeat(damping, np.diff(counts.indptr)).astype(np.float32))
    weighted = queries @ sparse.diags_array(rarity)
    best = np.maximum(weighted.sum(axis=1), EDGE)[:, None]
    return np.asarray((weighted.tocsr() @ weights.T.tocsr()).toarray() / best, dtype=np.float32)


def averaged(lesson: Lesson, asked: Asked) -> Variants:
    """What a document's score gains if its vector is averaged with those of its queries, fewer of them counting less."""
    plain = lesson.dense(asked.vectors)
    for strength, doubt, centred in product((1.0, 0.5, 2.0), (2.0, 0.0, 8.0), (True, False)):
        name = f"strength {strength}, doubt {doubt}{', centred' if centred else ''}"
        yield name, lesson.dense(asked.vectors, averaged_places(lesson, strength, doubt, centred=centred)) - plain
    for doubt, centred in product((2.0, 0.0, 8.0), (True, False)):
        own = query_means(lesson, doubt, centred=centred)
        yield f"added, doubt {doubt}{', centred' if centred else ''}", _best_of(lesson, asked.vectors @ own.T)


def averaged_places(lesson: Lesson, strength: float, doubt: float, *, centred: bool) -> Floats:
    """[n, dim] vectors of pieces with those of the train queries that they are nearest to among their document's pieces."""
    return normalised(lesson.places + strength * query_means(lesson, doubt, centred=centred))


def query_means(lesson: Lesson, doubt: float, *, centred: bool) -> Floats:
    """[n, dim] mean of each piece's train queries, times count / (count + doubt); 0 without any."""
    starts = np.flatnonzero(np.diff(lesson.rows, prepend=-1))
    ends = np.append(starts[1:], len(lesson.rows))
    vectors = lesson.vectors - lesson.vectors.mean(axis=0) if centred else lesson.vectors
    sums, counts = np.zeros_like(lesson.places), np.zeros(len(lesson.places))
    for (query, row), times in zip(lesson.pairs.tolist(), lesson.times.tolist(), strict=True):
        own = slice(starts[row], ends[row])
        best = starts[row] + int(np.argmax(lesson.places[own] @ lesson.vectors[query]))
        sums[best] += np.log2(1 + times) * vectors[query]
        counts[best] += np.log2(1 + times)
    return np.asarray(sums / np.maximum(counts + doubt, 1)[:, None], dtype=np.float32)


def _best_of(lesson: Lesson, products: Floats) -> Floats:
    """[queries, documents] the highest of their pieces' products."""
    return np.maximum.reduceat(products, np.flatnonzero(np.diff(lesson.rows, prepend=-1)), axis=1)


# Features of texts: words, characters and the embedding.


@dataclass(frozen=True)
class Features:
    """What linear models read: tf-idf of terms and of pairs of terms, of characters, and the embedding; each of length 1.

    Attributes:
        words: [train queries + documents, features], and those of the queries that are asked: terms and characters.
        vectors: [train queries + documents, dim], and those of the queries that are asked.
    """

    words: tuple[sparse.csr_array, sparse.csr_array]
    vectors: tuple[Floats, Floats]

    @classmethod
    def of(cls, lesson: Lesson, asked: Asked) -> "Features":
        """Return the features of train queries and documents, and of the queries that are asked."""
        texts, own = [*lesson.queries, *(text[:_BEGINNING] for text in lesson.texts)], list[list[Any]]([[], []])
        for words in _vectorizers(lesson.language):
            own[0].append(words.fit_transform(texts))
            own[1].append(words.transform(asked.texts))
        examples, queries = (sparse.csr_array(sparse.hstack(each, format="csr", dtype=np.float32)) for each in own)
        starts = np.flatnonzero(np.diff(lesson.rows, prepend=-1))
        means = normalised(np.add.reduceat(lesson.places, starts, axis=0))
        return cls((examples, queries), (np.concatenate([lesson.vectors, means]), asked.vectors))

    def joined(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Return all features as one matrix, of examples and of queries."""
        both = zip(self.words, self.vectors, strict=True)
        examples, asked = (
            sparse.csr_array(sparse.hstack([own, sparse.csr_array(dense)], "csr")) for own, dense in both
        )
        return examples, asked

    def products(self, *, asked: bool, count: int | None = None) -> Floats:
        """[queries or examples, examples] sum of the three cosines; `count`: of the first examples."""
        words, vectors = self.words[asked], self.vectors[asked]
        right = self.words[0][:count].T.tocsr()
        blocks = [(words[start : start + 500] @ right).toarray() for start in range(0, words.shape[0], 500)]
        return np.asarray(np.concatenate(blocks) + vectors @ self.vectors[0][:count].T, dtype=np.float32)


def _vectorizers(language: str) -> list[Any]:
    analyzer = Analyzer(language)

    def terms(text: str) -> list[str]:
        own = analyzer.terms(text)
        return [*own, *map(" ".join, pairwise(own))]

    characters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=2, max_features=200_000
    )
    return [TfidfVectorizer(analyzer=terms, sublinear_tf=True), characters]


def nearest(lesson: Lesson, features: Features) -> Variants:
    """Which documents the nearest train queries have, by words, characters and embedding together."""
    near = features.products(asked=True, count=len(lesson.queries))[:, lesson.pairs[:, 0]]
    for temperature in (0.2, 0.1, 0.5):
        chances, _ = _shares(near, lesson, temperature, total=False)
        yield f"log of the sum, temperature {temperature}", np.log(chances + LEAST) - np.float32(np.log(LEAST))
        shares, _ = _shares(near, lesson, temperature)
        yield f"share, temperature {temperature}", shares
        yield f"share squared, temperature {temperature}", shares**2
    highest = np.zeros((len(near), lesson.documents), dtype=np.float32)
    np.maximum.at(highest.T, lesson.pairs[:, 1], near.T)
    yield "nearest", highest
    yield "nearest squared", highest**2


def flat(lesson: Lesson, features: Features) -> Variants:
    """One linear classifier over all documents: ridge regression to 1 at a query's answers and 0 at all others."""
    kernel, asked = features.products(asked=False), features.products(asked=True)
    labels = lesson.labels.toarray().astype(np.float32)
    for penalty in (1.0,):
        own = kernel + penalty * np.eye(len(kernel), dtype=np.float32)
        scores = asked @ cho_solve(cho_factor(own, lower=True, overwrite_a=True, check_finite=False), labels)
        yield f"penalty {penalty}", scores
        yield f"above 0, penalty {penalty}", np.maximum(scores, 0)
        yield f"log, penalty {penalty}", np.log(np.maximum(scores, 0.01) / 0.01)


FORMS: Mapping[str, Callable[[Lesson, Asked], Variants]] = {
    "memory": memory,
    "joined texts": joined_texts,
    "averaged vectors": averaged,
}
ON_FEATURES: Mapping[str, Callable[[Lesson, Features], Variants]] = {
    "nearest queries": nearest,
    "flat classifier": flat,
}
