"""Which pieces of a document's text an answer shows: those that would be found if each piece were a document of its own.

A piece scores z.e_p + u b(p) + v tok(p): its vector, the words of the query that it holds, each by its rarity, and, of the
best pieces alone, its tokens. u is twice the weight of words in the document's score, or twice the distance of the document's
best and worst vector if that is more: words choose among the pieces of one document more than among documents, and a code, a
number or a name that found the document stands in its passage. Reads the pieces of answers alone. Knows nothing of how
documents are found.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from dsi.docids.files.threads import one_thread
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.occurrences import occurrences
from dsi.search.hits import Piece
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchRequest
from dsi.search.scores import DocumentScores
from dsi.search.top import best

_WORDS = 2
"""How much more words count among the pieces of a document than among documents. Of 700 questions on articles of SQuAD 59.7 %
have the passage with their paragraph by the vector alone, 71.4 % with words as in the document's score, 73.6 % so."""
_SPARE = 3
"""Late interaction scores that many more pieces of a document than are shown, the best by vectors and words."""
Shown: TypeAlias = tuple[tuple[int, int] | None, tuple[Piece, ...]]
"""The ends of the best piece of a text, None if it is one piece, and the pieces that are shown."""


class ScoredText(NamedTuple):
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
        return np.asarray(_WORDS * max(self.weight, float(np.ptp(dense))) * self.shares(text, spans))

    def shares(self, text: str | None, spans: Ints) -> Floats:
        """[pieces] what the words add to scores of pieces [pieces, 2] of a text, each as of a document of average length."""
        shares = np.zeros(len(spans), dtype=np.float32)
        if self.lexical is None or not text or not len(spans):
            return shares
        first, places = int(spans.min()), {term: list[tuple[int, int]]() for term in self.factors}
        for start, end, terms in occurrences(text[first : spans.max()], self.lexical.language, {*places}):
            for term in terms:
                places[term].append((first + start, first + end))
        for term, pairs in places.items():
            starts, ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T[:, :, None]  # [2, places, 1]
            counts = ((spans[:, 0] <= starts) & (ends <= spans[:, 1])).sum(axis=0)  # [pieces]
            shares += self.factors[term] * (counts / (counts + self.lexical.k1)).astype(np.float32)
        return shares


class ScoredPiece(NamedTuple):
    """A piece of a document: its score, its characters start to end, and its docid position."""

    score: float
    start: int
    end: int
    place: int


def shown_pieces(
    tree: DocidTree, lexical: BM25 | None, batch: QueryBatch, request: SearchRequest, found: Sequence[ScoredText]
) -> list[Shown]:
    """Return what each answer of a query shows of its text: the best piece, and if the request asks for several, those too."""
    several = request.passages > 1
    shown: list[Shown] = [(None, (Piece(0, len(text), score),) if several and text else ()) for _, text, score in found]
    cut = [number for number, span in enumerate(tree.spans_at(np.array([hit.position for hit in found]))) if span]
    if cut:
        scores = DocumentScores.from_request(tree, lexical, batch, request)
        words = Words(lexical, request.config.lexical_weight, batch.texts[0])
        ranked = scored_pieces(scores, words, [found[number] for number in cut], request.passages + _SPARE)
        for number, pieces in zip(cut, ranked, strict=True):
            _, start, end, _ = pieces[0]
            shown[number] = (start, end), _apart(pieces, found[number], request.passages) if several else ()
    return shown


def scored_pieces(
    scores: DocumentScores, words: Words, found: Sequence[ScoredText], count: int
) -> list[list[ScoredPiece]]:
    """Return the best pieces, `count` at most, of each document that the one query of `scores` found, best first."""
    tree, candidates = scores.tree, list[tuple[Ints, Ints, Floats]]()
    places, counts = tree.places_of(tree.doc_rows[[hit.position for hit in found]])
    edges = np.cumsum(counts)[:-1]
    with one_thread():
        dense = scores.dots(np.array([0]), places[None])[0]
        for (_, text, _), at, values in zip(found, np.split(places, edges), np.split(dense, edges), strict=True):
            whole = np.full((len(at), 2), [0, len(text or "")])
            spans = whole if tree.spans is None or len(at) == 1 else tree.spans[at]
            values = values + words.scores(values, text, spans)
            near = best(values, count)
            candidates.append((at[near], spans[near], values[near]))
        late = scores.late_interaction(0, np.concatenate([at for at, _, _ in candidates]))
    ranked = list[list[ScoredPiece]]()
    for (at, spans, values), more in zip(
        candidates, np.split(late, np.cumsum([len(at) for at, _, _ in candidates])[:-1]), strict=True
    ):
        pieces = map(ScoredPiece, (values + more).tolist(), *spans.T.tolist(), at.tolist())
        ranked.append(sorted(pieces, key=lambda piece: -piece.score))
    return ranked


def _apart(pieces: Sequence[ScoredPiece], hit: ScoredText, count: int) -> tuple[Piece, ...]:
    """Return the best `count` pieces, in their order in the text; what two of them share belongs to the better one."""
    apart = list[Piece]()
    for score, start, end, _ in pieces:
        for piece in sorted(apart):
            if piece.start <= start:
                start = max(start, piece.end)
            else:
                end = min(end, piece.start)
        has_words = hit.text is None or any(map(str.isalnum, hit.text[start:end]))
        if start < end and has_words and len(apart) < count:
            apart.append(Piece(start, end, hit.score + score - pieces[0].score))
    return tuple(sorted(apart))
