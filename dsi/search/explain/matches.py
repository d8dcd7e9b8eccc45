"""Which words of a query a document matches, and where: by late interaction over the codes as stored, else by terms.

Knows nothing of how documents are found.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsi.contrastive.encoder import Encoder
from dsi.docids.types import Floats, Ints
from dsi.docids.words.analyzer import JOINED_WORDS, WORD_CHARACTERS
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
    engine: Engine, encoder: Encoder, query: EncodedQueries, request: SearchRequest, documents: Sequence[StoredText]
) -> list[list[Match]]:
    """Return for each document what each word of a query adds to its score, and which words of the document it found.

    With late interaction the shares and those of the prompt and special tokens, which are left out, add up to its part of the
    score; without it, the shares add up to the lexical part. None of either: no words.
    """
    (batch,) = query.batches
    found = engine.token_shares(batch, request, [document.position for document in documents])
    if found is not None:
        tokens = _QueryTokens.from_query(encoder, batch.texts[0], request.config.token_weight)
        return [
            _by_tokens(engine, encoder, tokens, document, *own) for document, own in zip(documents, found, strict=True)
        ]
    if engine.lexical is None or not request.config.lexical_weight:
        return [[] for _ in documents]
    (terms,), names = engine.lexical.share_terms(batch.texts), engine.lexical.term_names(batch.texts[0])
    rows = engine.tree.doc_rows[[document.position for document in documents]]
    added = request.config.lexical_weight * engine.lexical.scorer.contributions(terms, rows).T  # [documents, terms]
    stem = engine.lexical.stem
    return [
        _by_terms(names, shares, document, stem) for document, shares in zip(documents, added.tolist(), strict=True)
    ]


def _by_terms(
    names: Sequence[str], shares: Sequence[float], document: StoredText, stem: Callable[[str], str]
) -> list[Match]:
    """Return the matches of terms; those that have the same name are put together."""
    matches: dict[str, float] = {}
    for word, share in zip(names, shares, strict=True):
        matches[word] = matches.get(word, 0.0) + share
    return [
        Match(word, share, tuple(_occurrences(word, document, stem)), not _is_weak(word))
        for word, share in matches.items()
        if share
    ]


def _occurrences(word: str, document: StoredText, stem: Callable[[str], str] = str) -> Iterator[Span]:
    """Yield the words of a document that have the stem of a word."""
    wanted, words = stem(word), re.compile(re.escape(word)) if _JOINED.fullmatch(word) else _WORD
    for field, text in (("title", document.title), ("text", document.text)):
        for found in words.finditer(text):
            if stem(found.group().lower()) == wanted:
                yield Span(field, found.start(), found.end(), found.group())


class _QueryTokens(NamedTuple):
    """The tokens of a query that late interaction compares.

    Attributes:
        text: the query, as the tokens' model reads it.
        words: characters start to end of the word of each token.
        least: share of a token from which on what it found is marked.
    """

    text: str
    words: list[tuple[int, int]]
    least: float

    @classmethod
    def from_query(cls, encoder: Encoder, query: str, weight: float) -> "_QueryTokens":
        """Return those of a query, with the weight of late interaction."""
        if encoder.token_model:
            text, spans = query, encoder.token_model.spans(query, "query")
        else:
            (text,) = encoder.query_texts([query])
            spans = [span for span in encoder.spans(text, "query") if not span.is_special]
        words = [_whole_word(text, span.start, span.end) for span in spans]
        return cls(text, words, _CLEAR * weight / max(1, len(spans)))


def _by_tokens(
    engine: Engine, encoder: Encoder, query: _QueryTokens, document: StoredText, found: Ints, shares: Floats
) -> list[Match]:
    """Return the matches of late interaction; tokens that are pieces of one word are put together."""
    places = _token_places(engine, encoder, document)
    words: dict[tuple[int, int], list[tuple[Span | None, float]]] = {}
    for word, token, share in zip(query.words, found.tolist(), shares.tolist(), strict=True):
        place = places[token] if 0 <= token < len(places) else None
        words.setdefault(word, []).append((place, share))
    matches = []
    for (start, end), pairs in words.items():
        if start == end:  # the prompt, or a special token
            continue
        ends, share = dict.fromkeys(place for place, _ in pairs if place), sum(share for _, share in pairs)
        texts = [query.text[start:end], *(place.text for place in ends)]
        is_clear = share >= query.least * len(pairs) and not any(_is_weak(text) for text in texts)
        if is_clear:  # other places of the same words are marked too
            ends |= dict.fromkeys(other for text in texts[1:] for other in _occurrences(text.lower(), document))
        matches.append(Match(texts[0], share, tuple(ends), is_clear))
    return matches


def _is_weak(word: str) -> bool:
    """Return whether a word says little: a stop word or a punctuation mark."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # takes long

    return word.lower() in ENGLISH_STOP_WORDS or not any(map(str.isalnum, word))


def _token_places(engine: Engine, encoder: Encoder, document: StoredText) -> list[Span | None]:
    """Return the word that each stored token of a document belongs to; None for special tokens and the prompt's."""
    title, body, start = _piece_at(engine, encoder, document)
    whole = f"{title} {body}"
    stripped = len(whole) - len(whole.lstrip())
    places: list[Span | None] = []
    for span in (encoder.token_model or encoder).spans(whole.strip(), "document"):
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


def _piece_at(engine: Engine, encoder: Encoder, document: StoredText) -> tuple[str, str, int]:
    """Return what is read at a docid position: the title, the piece of the text, and the character at which that begins."""
    tree = engine.tree
    if encoder.token_model and tree.pieces == 1:
        return document.title, document.text, 0
    (cut,) = encoder.cut([document.title], [document.text], tree.pieces)
    (span,) = tree.spans_at(np.array([document.position]))
    start, end = span or cut.spans[0]
    return document.title[: cut.title_end], document.text[start:end], start


def _whole_word(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the ends of the word that the characters of a token belong to; (start, start) if they are none.

    In scripts without spaces that is the token itself.
    """
    piece = text[start:end]
    first, last = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
    if not piece.strip():
        return start, start
    for word in _PIECE.finditer(text, max(0, text.rfind(" ", 0, first))):
        if word.start() <= first < word.end():
            return (first, min(last, word.end())) if _JOINED.match(word.group()) else word.span()
    return first, end
