"""BM25 over the words of the documents: the baseline, and the lexical part of an index. Knows nothing of trees or models."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import bm25s
import numpy as np
from bm25s.tokenization import Tokenized
from numpy.typing import NDArray
from safetensors.numpy import save_file

from docids.storage import map_tensors, write_json


@dataclass(frozen=True)
class LexicalConfig:
    """The lexical part of an index.

    Attributes:
        enabled: whether the index has one; without it `lexical_weight` must be 0.
        k1: saturation of term frequency.
        b: strength of length normalisation, in [0, 1].
    """

    enabled: bool = True
    k1: float = 0.9
    b: float = 0.4

    def __post_init__(self) -> None:
        if not self.k1 >= 0:
            raise ValueError(f"lexical.k1 must be 0 or more, got {self.k1}.")
        if not 0 <= self.b <= 1:
            raise ValueError(f"lexical.b must be in [0, 1], got {self.b}.")


class BM25:
    """BM25 (Lucene's variant) by bm25s, English stop words removed.

    Args:
        doc_ids: key of each document.
        texts: what is searched of each document.
        k1: saturation of term frequency.
        b: strength of length normalisation.
    """

    # Of one that was loaded: its files, mapped at once, for its folder may be replaced or gone when they are first read.
    _terms: dict[str, NDArray[np.int32]]
    _vocabulary: NDArray[np.uint8]

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        self.doc_ids = list(doc_ids)
        self._tokens = bm25s.tokenize(list(texts), stopwords="en", show_progress=False)
        self.weigh(k1, b)

    def weigh(self, k1: float, b: float) -> None:
        """Compute all term weights anew."""
        self.k1, self.b = k1, b
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.index(self._tokens, show_progress=False)

    def changed(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "BM25":
        """BM25 without the documents of some rows and with new ones at the end, as if made of these texts."""
        vocabulary, kept = dict(self._tokens.vocab), set(range(len(self.doc_ids))) - set(removed)
        ids = [own for row, own in enumerate(self._tokens.ids) if row in kept]
        ids += (
            [[vocabulary.setdefault(word, len(vocabulary)) for word in own] for own in _words(texts)] if texts else []
        )
        other = BM25.__new__(BM25)
        other.doc_ids = [doc_id for row, doc_id in enumerate(self.doc_ids) if row in kept] + list(doc_ids)
        other._tokens = Tokenized(ids, vocabulary)
        other.weigh(self.k1, self.b)
        return other

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """[documents] how many terms each has, stop words left out."""
        if "_tokens" in self.__dict__:
            return np.array([len(own) for own in self._tokens.ids], dtype=np.int32)
        return self._terms["lengths"]

    def scores(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """[queries, documents] of every document."""
        none = np.zeros(len(self.doc_ids), dtype=np.float32)
        return np.stack([self._index.get_scores(words) if words else none for words in _words(queries)])

    def run(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        """The k best documents of each query; documents that share no word with it are left out."""
        k = min(k, len(self.doc_ids))
        documents, scores = self._index.retrieve(_words(list(queries.values())), k=k, show_progress=False)
        return {
            query_id: {self.doc_ids[d]: float(s) for d, s in zip(row, row_scores, strict=True) if s > 0}
            for query_id, row, row_scores in zip(queries, documents, scores, strict=True)
        }

    def save(self, folder: Path) -> None:
        """Write the term weights (bm25s: plain arrays and JSON) and the documents' terms, from which they can be made anew."""
        self._index.save(str(folder))
        ids, tokens = self._tokens.ids, {}
        tokens["terms"] = np.array([term for own in ids for term in own], dtype=np.int32)
        tokens["lengths"] = np.array([len(own) for own in ids], dtype=np.int32)
        save_file(tokens, folder / "terms.safetensors")
        write_json(folder / "terms.json", self._tokens.vocab)

    @classmethod
    def load(cls, folder: Path, doc_ids: Sequence[str]) -> "BM25":
        """Map what `save` wrote into memory.

        Raises:
            ValueError: it was made of another number of documents.
        """
        loaded = cls.__new__(cls)
        loaded.doc_ids = list(doc_ids)
        loaded._index = bm25s.BM25.load(str(folder), mmap=True)
        found = loaded._index.scores["num_docs"]
        if found != len(loaded.doc_ids):
            raise ValueError(f"{folder} covers {found} documents, the document table has {len(loaded.doc_ids)}.")
        loaded.k1, loaded.b = loaded._index.k1, loaded._index.b
        loaded._terms = map_tensors(folder / "terms.safetensors")
        loaded._vocabulary = np.memmap(folder / "terms.json", dtype=np.uint8, mode="r")
        return loaded

    @cached_property
    def _tokens(self) -> Tokenized:
        """Each document's terms; read when they are first asked for."""
        ids = np.split(self._terms["terms"], np.cumsum(self._terms["lengths"])[:-1])
        return Tokenized([own.tolist() for own in ids], json.loads(self._vocabulary.tobytes()))


def _words(queries: Sequence[str]) -> list[list[str]]:
    """What BM25 reads of queries, English stop words removed."""
    return bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)  # type: ignore[return-value]
