"""BM25 over the documents' words: a baseline, and the lexical part of an index. Knows nothing of trees or models."""

import json
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from dsi.docids.files.declarations import settings
from dsi.docids.files.storage import save_tensors, write_json
from dsi.docids.types import Floats, Ints, Rows, Run
from dsi.docids.words.analyzer import FOUND, LANGUAGES, NO_STEMS, Analyzer
from dsi.docids.words.languages import find_language
from dsi.docids.words.postings import Postings, postings_arrays, read_postings
from dsi.docids.words.term_scores import Damping, Terms, TermScorer, highest_positive

K1, B = 0.9, 0.4
"""Saturation of term frequency and strength of length normalisation: those of Anserini (Yang et al. 2017)."""
LONG = 8_192
"""Words of a text from which on it counts as its average part of at most that length: a rare word would count for nothing in a
whole book."""
_MOST_LENGTH = 4
"""Times the mean length that a text counts at most for a word that it alone has: it competes with no other one for the word."""
_BLOCK = 16_384
"""Texts whose words are in memory at a time."""
_NUMBERING = threading.Lock()
"""Held while words get numbers: an index and its updates share one vocabulary, which grows until half of it is unused."""
_UNUSED = 2
"""An update leaves unused words behind if the vocabulary has more than this many times the used ones."""
_SETTINGS, _VOCABULARY, _TERMS = "params.index.json", "vocab.index.json", "terms.safetensors"


@settings("lexical")
class LexicalConfig:
    """The lexical part of an index (section `[lexical]`)."""

    model: Literal["bm25", "none"] = "bm25"
    """What scores words: "bm25", or "none" for no lexical part; then `lexical_weight` must be 0."""

    language: str = FOUND
    """Of the documents. BM25 compares stems of words: "auto" finds the language that most documents are in;
    "english", "german", "spanish" and others that Snowball has stemmers for; "none" compares whole words. Stop words are left
    out of English."""

    def __post_init__(self) -> None:
        if self.language not in (FOUND, NO_STEMS, *LANGUAGES):
            names = f'"{FOUND}", "{NO_STEMS}" or one of {", ".join(LANGUAGES)}'
            raise ValueError(f"lexical.language must be {names}, got {self.language!r}.")


class Counted(NamedTuple):
    """What is counted in texts: the number of each term, its posting list, and [texts] how many terms each has."""

    vocabulary: dict[str, int]
    postings: Postings
    lengths: Ints


class BM25:
    """BM25 (Lucene's variant) over stems of words, in English without stop words.

    Posting lists hold term counts. Weights are computed from counts and collection statistics when a list is read, because an
    update changes the weight of every term.

    Args:
        doc_ids: key of each document: a list, or a column of a table.
        texts: the searched text of each document.
        k1: saturation of term frequency.
        b: strength of length normalisation.
        language: of the texts, as in `LexicalConfig`.
        counted: what was counted in the texts before, which are not read then.

    Attributes:
        lengths: [documents] number of terms of each, without stop words.
        scorer: the documents' words and their weights, without inverse document frequency.
    """

    name = "BM25"

    def __init__(
        self, doc_ids: Sequence[str], texts: Sequence[str], k1: float = K1, b: float = B, language: str = FOUND,
        counted: Counted | None = None,
    ) -> None:  # fmt: skip
        self.doc_ids = doc_ids
        self.language = find_language(texts) if language == FOUND else language
        self.analyzer = Analyzer(self.language)
        self._vocabulary, self._postings, self.lengths = counted or _count(texts, self.analyzer, {})
        self.weigh(k1, b)

    def weigh(self, k1: float, b: float) -> None:
        """Set k1 and b, on which all term weights depend."""
        self.k1, self.b = k1, b
        damping = Damping(k1, b, max(float(self.lengths.mean()), 1.0))
        self.scorer = TermScorer(self._postings, damping, self.lengths)

    def update(self, removed: Collection[int], doc_ids: Sequence[str], texts: Sequence[str]) -> "BM25":
        """Return BM25 less some rows and with new texts at the end, as if built anew; `doc_ids` are of the result."""
        keep = np.ones(len(self.lengths), dtype=bool)
        keep[list(removed)] = False
        vocabulary, counts, lengths = _count(texts, self.analyzer, self._vocabulary)
        postings = self._postings.select(keep).append(counts)
        if len(vocabulary) > _UNUSED * int(np.count_nonzero(postings.frequencies)):
            vocabulary, postings = _used_words(vocabulary, postings)
        counted = Counted(vocabulary, postings, np.concatenate([self.lengths[keep], lengths]))
        return BM25(doc_ids, (), self.k1, self.b, self.language, counted)

    def query_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Return the known words of queries by number, with Lucene's inverse document frequencies as factors.

        That of a word that one document has, which is long, makes up for most of the length: it would leave a whole book below
        short texts without the word.
        """
        return [self._terms(self._words(query)) for query in queries]

    def _terms(self, words: Sequence[tuple[str, str, int]]) -> Terms:
        numbers = np.array([number for _, _, number in words if number >= 0], dtype=np.int64)
        frequencies = self._postings.frequencies[numbers]
        factors, (rarest,) = self._rarity(frequencies), self._rarity(np.zeros(1, dtype=np.int32))
        best = float(factors.sum() + (len(words) - len(numbers)) * rarest)
        for place in np.flatnonzero(frequencies == 1):
            factors[place] *= self._lift(int(numbers[place]))
        return Terms(numbers, factors, best)

    def _lift(self, number: int) -> float:
        """Return what multiplies the weight of a word that one document has, so that its length counts at most so much."""
        ((row,), (value,)) = self._postings.read(number)
        length, damping = self.lengths[row], self.scorer.damping
        most = np.minimum(length, _MOST_LENGTH * damping.mean)
        return float((value + damping.for_lengths(length)) / (value + damping.for_lengths(most)))

    def share_terms(self, queries: Sequence[str]) -> list[Terms]:
        """Return the terms of `query_terms` with factors that give scores as shares of the best one, 0 to 1."""
        return [Terms(numbers, factors / np.float32(best or 1)) for numbers, factors, best in self.query_terms(queries)]

    def all_terms(self, query: str) -> tuple[list[str], Terms]:
        """Return each term of a query once, those that no document has too, with number -1, and factors as in `share_terms`."""
        words = self._words(query)
        numbers, counts = {term: number for _, term, number in words}, Counter(term for _, term, _ in words)
        rows = np.array(list(numbers.values()), dtype=np.int64)
        frequencies = np.where(rows < 0, 0, self._postings.frequencies[np.maximum(rows, 0)]) if len(rows) else rows
        factors = self._rarity(frequencies) * np.array([counts[term] for term in numbers], dtype=np.float32)
        return list(numbers), Terms(rows, factors / np.float32(self._terms(words).best or 1.0))

    def _rarity(self, frequencies: Ints) -> Floats:
        """Return Lucene's inverse document frequencies of terms that each occur in this number of documents."""
        return np.log1p((len(self.lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)

    def known_terms(self, query: str) -> list[str]:
        """Return the terms of `query_terms` for one query as texts."""
        return [term for _, term, number in self._words(query) if number >= 0]

    def term_factors(self, query: str) -> dict[str, float]:
        """Return the terms of a query that documents contain, each with its factor in `share_terms`."""
        (terms,), factors = self.share_terms([query]), dict[str, float]()
        for term, factor in zip(self.known_terms(query), terms.factors.tolist(), strict=True):
            factors[term] = factors.get(term, 0.0) + factor
        return factors

    def telling_words(self, text: str, rows: Rows, most: int) -> list[str]:
        """Return the words that count most in some documents, of their joined text, and that others have too, best first."""
        words = {number: word for word, _, number in reversed(self._words(text)) if number >= 0}
        numbers = np.array([*words], dtype=np.int64)
        frequencies = self._postings.frequencies[numbers]
        added = self.scorer.contributions(Terms(numbers, self._rarity(frequencies)), rows).sum(axis=1)
        added[frequencies < 2] = 0  # a word of one document finds no other
        best = np.argsort(-added, kind="stable")[:most]
        return [words[number] for number in numbers[best[added[best] > 0]].tolist()]

    def _words(self, query: str) -> list[tuple[str, str, int]]:
        """Return the words of a query, their terms, and the numbers of these; -1 of a term that no document has."""
        frequencies, words = self._postings.frequencies, list[tuple[str, str, int]]()
        for token in self.analyzer.tokens(query):
            terms = self.analyzer[token]
            for term in terms:
                number = self._vocabulary.get(term, -1)
                # The vocabulary also has terms of removed documents (frequency 0) and of later updates (beyond the end).
                is_known = 0 <= number < len(frequencies) and frequencies[number] > 0
                words.append((token.lower() if len(terms) == 1 else term, term, number if is_known else -1))
        return words

    def scores(self, queries: Sequence[str]) -> Floats:
        """Return [queries, documents] the scores of all documents."""
        return self._scores(self.query_terms(queries))

    def shares(self, queries: Sequence[str]) -> Floats:
        """Return [queries, documents] the scores of all documents, as shares of the best one."""
        return self._scores(self.share_terms(queries))

    def _scores(self, queries: Sequence[Terms]) -> Floats:
        scores = np.zeros((len(queries), self.scorer.postings.num_documents), dtype=np.float32)
        for line, terms in zip(scores, queries, strict=True):
            line[:] = self.scorer.scores(terms)
        return scores

    def run(self, queries: Mapping[str, str], k: int) -> Run:
        """Return the top k documents of each query, best first (equals in document order), without those that score 0."""
        doc_ids, run = self.doc_ids[:], Run()
        for query_id, query in queries.items():
            (scores,) = self.scores([query])
            rows, _ = highest_positive(scores, k)
            rows = rows[np.lexsort((rows, -scores[rows]))]
            run[query_id] = {doc_ids[row]: float(scores[row]) for row in rows}
        return run

    def save(self, folder: Path) -> None:
        """Write the stems of the documents' words, term counts and settings; no stem that only removed documents have."""
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary, postings = _used_words(self._vocabulary, self._postings)
        settings = {"k1": self.k1, "b": self.b, "language": self.language, "num_docs": len(self.lengths)}
        write_json(folder / _SETTINGS, settings)
        write_json(folder / _VOCABULARY, vocabulary)
        save_tensors({**postings_arrays(postings), "lengths": self.lengths}, folder / _TERMS)

    @classmethod
    def load(cls, folder: Path, doc_ids: Sequence[str]) -> "BM25":
        """Return what `save` wrote, memory-mapped; the folder may be replaced or deleted afterwards."""
        settings = json.loads((folder / _SETTINGS).read_text())
        vocabulary = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        postings, lengths = read_postings(folder / _TERMS, len(doc_ids))
        counted = Counted(vocabulary, postings, lengths)
        return cls(doc_ids, (), settings["k1"], settings["b"], settings["language"], counted)

    def is_sound(self) -> bool:
        """True if the lists of words fit the vocabulary and the documents."""
        words, postings = len(self._vocabulary), self._postings
        return bool(
            sorted(self._vocabulary.values()) == list(range(words))
            and (len(postings), postings.num_documents) == (words, len(self.lengths))
            and self.lengths.min(initial=0) >= 0
            and postings.is_sound()
        )


def load_lexical(folder: Path, doc_ids: Sequence[str]) -> BM25 | None:
    """Load the lexical part from a folder; None if the folder is missing."""
    return BM25.load(folder, doc_ids) if folder.exists() else None


def _used_words(vocabulary: dict[str, int], postings: Postings) -> tuple[dict[str, int], Postings]:
    """Return a new vocabulary of the words that documents have, and the postings by its numbers."""
    used = np.flatnonzero(postings.frequencies)
    words = {number: word for word, number in vocabulary.copy().items()}
    chosen = {words[number]: place for place, number in enumerate(used.tolist())}
    starts = np.append(postings.starts[used], postings.starts[-1])  # the others are empty
    return chosen, Postings(starts, postings.documents, postings.values, postings.num_documents)


def _count(texts: Sequence[str], analyzer: Analyzer, vocabulary: dict[str, int]) -> Counted:
    """Count the terms of texts; new words are added to the vocabulary.

    Letters that groups of letters hold are counted too, but not in the numbers of terms, which weigh all other words.
    """
    keys, counts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.float32)], [np.empty(0, np.int32)]
    for start in range(0, len(texts), _BLOCK):
        block = texts[start : start + _BLOCK]
        terms = [analyzer.terms(text) for text in block]
        sizes = np.array([*map(len, terms)], dtype=np.int32)
        terms = [[*words, *analyzer.letters(text)] for words, text in zip(terms, block, strict=True)]
        with _NUMBERING:
            numbers = [vocabulary.setdefault(term, len(vocabulary)) for words in terms for term in words]
        rows, parts = np.arange(start, start + len(sizes)), np.maximum(1, -(-sizes // LONG))
        rows = rows.repeat([*map(len, terms)])
        unique, times = np.unique(np.array(numbers, np.int64) * len(texts) + rows, return_counts=True)
        keys.append(unique)
        counts.append(np.ceil(times / parts[unique % len(texts) - start]).astype(np.float32))
        lengths.append(-(-sizes // parts))
    postings = Postings.from_keys(np.concatenate(keys), np.concatenate(counts), len(vocabulary), len(texts))
    return Counted(vocabulary, postings, np.concatenate(lengths))
