"""Which words of a query a document matches, and where: by terms, and by late interaction over the codes as stored.

Knows nothing of how documents are found.
"""

import re
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import NamedTuple

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.types import Floats, Ints
from dsi.docids.words.analyzer import JOINED_WORDS, WORD_CHARACTERS
from dsi.docids.words.common import COMMON_WORDS
from dsi.docids.words.occurrences import occurrences
from dsi.search.engine import Engine
from dsi.search.hits import Match, Span
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest

_JOINED = re.compile(f"[{JOINED_WORDS}]+")
"""Words without spaces between them: each token is taken for one."""
_WORD = re.compile(rf"(?:(?![{JOINED_WORDS}])[{WORD_CHARACTERS}])+")
_PIECE = re.compile(rf"{_JOINED.pattern}|{_WORD.pattern}|[^{WORD_CHARACTERS}\s]")
_CLEAR = 0.5
"""Least mean product of a word's tokens for the words that it found to be marked."""


class StoredText(NamedTuple):
    """What an index holds of a document: the docid position that was scored, its title, and its text, "" if it keeps none."""

    position: int
    title: str
    text: str


def matched_words(
    engine: Engine, encoder: TextEncoder, query: EncodedQueries, request: SearchRequest, documents: Sequence[StoredText]
) -> list[list[Match]]:
    """Return for each of some documents what each word of a query adds to its score, and which words it found there.

    The shares, with those of the prompt and special tokens, which are left out, add up to the parts of words and of late
    interaction in the score. Without both parts there are no matches.
    """
    (batch,) = query.batches
    text, config = batch.texts[0], request.config
    words = _words(engine, text, config.lexical_weight, documents)
    token_shares = engine.token_shares(batch, request, [document.position for document in documents])
    if token_shares is None:
        return [_by_name(matches) for matches in words]
    tokens = QueryTokens.from_query(encoder, text, config.token_weight)
    return [
        _joined(_by_tokens(engine, encoder, tokens, document, *pair), by_words)
        for document, pair, by_words in zip(documents, token_shares, words, strict=True)
    ]


class _WordMatch(NamedTuple):
    """A match, and the characters start to end of its word in the query."""

    start: int
    end: int
    match: Match


def _words(engine: Engine, query: str, weight: float, documents: Sequence[StoredText]) -> list[list[_WordMatch]]:
    """Return for each document the words of a query that its text or title holds, with what they add to its score."""
    if engine.lexical is None or not weight:
        return [[] for _ in documents]
    lexical, rows = engine.lexical, engine.tree.doc_rows[[document.position for document in documents]]
    (terms,), known = lexical.share_terms([query]), lexical.known_terms(query)
    added = weight * lexical.scorer.contributions(terms, rows)  # [terms, documents]
    asked = occurrences(query, lexical.language, set(known))
    matches = list[list[_WordMatch]]()
    for document, column in zip(documents, added.T.tolist(), strict=True):
        shares, places = dict(zip(known, column, strict=True)), _term_places(document, lexical.language, set(known))
        matches.append([])
        for start, end, stems in asked:
            spans, word = dict.fromkeys(chain.from_iterable(places.get(term, ()) for term in stems)), query[start:end]
            if share := sum(shares[term] for term in stems):
                matches[-1].append(_WordMatch(start, end, Match(word, share, tuple(sorted(spans)), not is_weak(word))))
    return matches


def _term_places(document: StoredText, language: str, terms: Set[str]) -> dict[str, list[Span]]:
    """Return where terms stand in the title and the text of a document."""
    places: dict[str, list[Span]] = {}
    for field, text in (("title", document.title), ("text", document.text)):
        for start, end, stems in occurrences(text, language, terms):
            for term in stems:
                places.setdefault(term, []).append(Span(field, start, end, text[start:end]))
    return places


def _by_name(found: Sequence[_WordMatch]) -> list[Match]:
    """Return the matches of words; those of a word that a query repeats are put together."""
    matches: dict[str, Match] = {}
    for *_, match in found:
        before = matches.get(word := match.word.lower())
        matches[word] = match._replace(word=word, share=match.share + (before.share if before else 0.0))
    return [*matches.values()]


def _joined(tokens: Sequence[_WordMatch], words: Sequence[_WordMatch]) -> list[Match]:
    """Return the matches of tokens, each with that of the words which begin there; words of no token follow."""
    matches, others = [token.match for token in tokens], []
    for start, end, word in words:
        at = next((n for n, token in enumerate(tokens) if token.start < end and start < token.end), None)
        if at is None:
            others.append(word)
            continue
        match = matches[at]
        marked = match.spans if match.is_clear or not word.is_clear else ()
        spans = tuple(dict.fromkeys([*marked, *word.spans])) if word.is_clear else marked
        matches[at] = match._replace(
            share=match.share + word.share, spans=spans, is_clear=match.is_clear or word.is_clear
        )
    return [*matches, *others]


def _same_words(word: str, document: StoredText) -> Iterator[Span]:
    """Yield the places of a word in a document, in any case."""
    words = re.compile(re.escape(word)) if _JOINED.fullmatch(word) else _WORD
    for field, text in (("title", document.title), ("text", document.text)):
        for match in words.finditer(text):
            if match.group().lower() == word:
                yield Span(field, match.start(), match.end(), match.group())


class QueryTokens(NamedTuple):
    """The tokens of a query that late interaction compares."""

    text: str  # the query, as the encoder reads it
    start: int  # character of the text at which the query itself begins
    words: list[tuple[int, int]]  # characters start to end of the word of each token
    least: float  # share of a token from which on what it found is marked

    @classmethod
    def from_query(cls, encoder: TextEncoder, query: str, weight: float) -> "QueryTokens":
        """Return those of a query, with the weight of late interaction."""
        (text,) = encoder.query_texts([query])
        spans = [span for span in encoder.spans(text, "query") if not span.is_special]
        words = [_whole_word(text, span.start, span.end) for span in spans]
        return cls(text, max(0, text.rfind(query)), words, _CLEAR * weight / max(1, len(spans)))


def _by_tokens(
    engine: Engine, encoder: TextEncoder, query: QueryTokens, document: StoredText, tokens: Ints, shares: Floats
) -> list[_WordMatch]:
    """Return the matches of late interaction; tokens that are pieces of one word are put together."""
    places = _token_places(engine, encoder, document)
    words: dict[tuple[int, int], list[tuple[Span | None, float]]] = {}
    for word, token, share in zip(query.words, tokens.tolist(), shares.tolist(), strict=True):
        place = places[token] if 0 <= token < len(places) else None
        words.setdefault(word, []).append((place, share))
    matches = []
    for (start, end), pairs in words.items():
        if start == end:  # the prompt, or a special token
            continue
        ends, share = dict.fromkeys(place for place, _ in pairs if place), sum(share for _, share in pairs)
        texts = [query.text[start:end], *(place.text for place in ends)]
        is_clear = share >= query.least * len(pairs) and not any(is_weak(text) for text in texts)
        if is_clear:  # other places of the same words are marked too
            ends |= dict.fromkeys(other for text in texts[1:] for other in _same_words(text.lower(), document))
        match = Match(texts[0], share, tuple(ends), is_clear)
        matches.append(_WordMatch(start - query.start, end - query.start, match))
    return matches


def is_weak(word: str) -> bool:
    """Return whether a word says little: a common word or a punctuation mark."""
    return word.lower() in COMMON_WORDS or not any(map(str.isalnum, word))


def _token_places(engine: Engine, encoder: TextEncoder, document: StoredText) -> list[Span | None]:
    """Return the word that each stored token of a document belongs to; None for special tokens and the prompt's."""
    title, body, start = _piece_at(engine, encoder, document)
    whole = f"{title} {body}"
    stripped = len(whole) - len(whole.lstrip())
    places: list[Span | None] = []
    for span in encoder.spans(whole.strip(), "document"):
        first, last = _whole_word(whole, span.start + stripped, span.end + stripped)
        text = len(title) + 1  # where it begins
        if first == last or span.is_special:
            places.append(None)
        elif last < text:
            places.append(Span("title", first, last, whole[first:last]))
        else:
            first = max(first, text)
            places.append(Span("text", first - text + start, last - text + start, whole[first:last]))
    stored = engine.tree.tokens.counts[document.position] if engine.tree.tokens else 0
    return places if not document.text or len(places) == stored else []  # a text of another moment has other tokens


def _piece_at(engine: Engine, encoder: TextEncoder, document: StoredText) -> tuple[str, str, int]:
    """Return what is read at a docid position: the title, the piece of the text, and the character at which that begins."""
    tree = engine.tree
    (cut,) = encoder.cut([document.title], [document.text], tree.pieces)
    (span,) = tree.spans_at(np.array([document.position]))
    start, end = span or cut.spans[0]
    return document.title[: cut.title_end], document.text[start:end], start


def _whole_word(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the ends of the word of a token, in scripts without spaces those of the token; (start, start) if it is none."""
    piece = text[start:end]
    first, last = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
    if not piece.strip():
        return start, start
    for word in _PIECE.finditer(text, max(0, text.rfind(" ", 0, first))):
        if word.start() <= first < word.end():
            return (first, min(last, word.end())) if _JOINED.match(word.group()) else word.span()
    return first, end
