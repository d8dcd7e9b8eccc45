"""Which pieces of a document's text an answer shows: those that would be found if each piece were a document of its own.

A piece scores z.e_p + u b(p): its vector, and the words of the query that it holds, each by its rarity. u is twice the weight
of words in the document's score, or twice the distance of the document's best and worst vector if that is more: words choose
among the pieces of one document more than among documents, and a code, a number or a name that found the document stands in
its passage. Where several are shown, late interaction of each piece is added. Reads the pieces of answers alone. Knows nothing
of how documents are found.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.occurrences import occurrences
from dsi.search.hits import Piece
from dsi.search.scores import DocumentScores
from dsi.search.top import best

_WORDS = 2
"""How much more words count among the pieces of a document than among documents. Of 700 questions on articles of SQuAD 59.7 %
have the passage with their paragraph by the vector alone, 71.4 % with words as in the document's score, 73.6 % so."""
_COMPARED, _LEAST = 2, 6
"""Pieces of a document that late interaction scores, the best by vectors and words: twice those that are shown, or six."""


class Found(NamedTuple):
    """An answer: the docid position of a piece, the text, None if the index keeps none, and the document's score."""

    position: int
    text: str | None
    score: float


class Words:
    """The words of one query, looked for in pieces; without BM25 or its weight they add nothing."""

    def __init__(self, lexical: BM25 | None, weight: float, query: str) -> None:
        self.lexical, self.weight = lexical if weight else None, weight
        self.factors = self.lexical.term_factors(query) if self.lexical else {}

    def scores(self, dense: Floats, text: str | None, spans: Ints) -> Floats:
        """[pieces] what words add to dense scores [pieces] of the pieces [pieces, 2] of a text, None if it is not kept."""
        return np.asarray(_WORDS * max(self.weight, float(np.ptp(dense))) * self.shares(text or "", spans))

    def shares(self, text: str, spans: Ints) -> Floats:
        """[pieces] the shares of the words that pieces [pieces, 2] of a text have; see `word_shares`."""
        if self.lexical is None or not text or not len(spans):
            return np.zeros(len(spans), dtype=np.float32)
        start, end = int(spans.min()), int(spans.max())
        return word_shares(self.lexical, self.factors, text[start:end], spans - start)


def best_place(tree: DocidTree, words: Words, vector: Floats, position: int, text: str | None) -> int:
    """Return the docid position of the best piece of a document, given that of its piece with the best vector."""
    if words.lexical is None or not text:
        return position
    places, _ = tree.places_of(tree.doc_rows[[position]])
    if len(places) == 1:
        return position
    assert tree.spans is not None
    dense = tree.embeddings[places] @ vector
    added = words.scores(dense, text, tree.spans[places])
    return position if added.max() == added.min() else int(places[np.argmax(dense + added)])


class ScoredPieces(NamedTuple):
    """The best pieces of one document, best first."""

    places: Ints  # [n] docid positions
    spans: Ints  # [n, 2] first character, and one past the last; all of a text that is one piece
    scores: Floats  # [n]


def scored_pieces(scores: DocumentScores, words: Words, found: Sequence[Found], count: int) -> list[ScoredPieces]:
    """Return the best pieces of each document that the one query of `scores` found, twice `count` or 6 at most."""
    tree = scores.tree
    places, counts = tree.places_of(tree.doc_rows[[own.position for own in found]])
    spans = _spans_of(tree, places, counts, found)
    values, edges, compared = scores.dots(np.array([0]), places[None])[0], np.cumsum([0, *counts]), list[Ints]()
    for (start, end), (_, text, _) in zip(pairwise(edges.tolist()), found, strict=True):
        values[start:end] += words.scores(values[start:end], text, spans[start:end])
        compared.append(start + best(values[start:end], max(_LEAST, _COMPARED * count)))
    near = np.concatenate(compared)
    values[near] += scores.late_interaction(0, places[near])
    ranked = [own[best(values[own], len(own))] for own in compared]
    return [ScoredPieces(places[own], spans[own], values[own]) for own in ranked]


def best_pieces(scores: DocumentScores, words: Words, found: Sequence[Found], count: int) -> list[tuple[Piece, ...]]:
    """Return the best pieces of each document, `count` at most, in their order in the text; see `scored_pieces`.

    What two pieces share belongs to the better one. None of a text that is one piece and not kept.
    """
    pieces = []
    for own, (_, _, score) in zip(scored_pieces(scores, words, found, count), found, strict=True):
        values = (score + own.scores[:count] - own.scores[0]).tolist()
        spans = own.spans.tolist()
        pieces.append(_apart(Piece(start, end, value) for (start, end), value in zip(spans, values, strict=False)))
    return pieces


def _spans_of(tree: DocidTree, places: Ints, counts: Ints, found: Sequence[Found]) -> Ints:
    """[places, 2] the pieces at the places of documents, by the number that each has; a document of one is all its text."""
    whole = np.array([[0, len(text or "")] for _, text, _ in found])
    spans = np.repeat(whole, counts, axis=0)
    return spans if tree.spans is None else np.where(np.repeat(counts, counts)[:, None] > 1, tree.spans[places], spans)


def _apart(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Return pieces, best first, in their order in the text; what two of them share belongs to the better one."""
    apart = list[Piece]()
    for start, end, score in pieces:
        begin = max([start, *(own.end for own in apart if own.start <= start < own.end)])
        stop = min([end, *(own.start for own in apart if begin < own.start < end)])
        if begin < stop:
            apart.append(Piece(begin, stop, score))
    return tuple(sorted(apart))


def word_shares(lexical: BM25, factors: dict[str, float], text: str, spans: Ints) -> Floats:
    """[pieces] what the words of a query add to the scores of pieces [pieces, 2] of a text, each of average length.

    Args:
        lexical: of the documents.
        factors: {term of the query: its weight}.
        text: of a document.
        spans: first character of each piece, and one past its last.
    """
    places = {term: list[tuple[int, int]]() for term in factors}
    for start, end, terms in occurrences(text, lexical.language, {*factors}):
        for term in terms:
            places[term].append((start, end))
    shares = np.zeros(len(spans), dtype=np.float32)
    for term, own in places.items():
        starts, ends = np.array(own, dtype=np.int64).reshape(-1, 2).T[:, :, None]  # [2, places, 1]
        counts = ((spans[:, 0] <= starts) & (ends <= spans[:, 1])).sum(axis=0)  # [pieces]
        shares += factors[term] * (counts / (counts + lexical.k1)).astype(np.float32)
    return shares
