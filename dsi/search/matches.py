"""Which words of a document late interaction matched with which words of a query, and what each contributes to the score."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from contrastive.encoder import Encoder
from docids.token_vectors import Floats, TokenVectors

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Match:
    """A word of a query and the word of a document that matches it best.

    Attributes:
        query_word: as it stands in the query.
        word: as it stands in the document's title or text; "" for a place without a word, such as a special token.
        start: of the word, counted in characters of title, a space, and text.
        share: what the match contributes to the document's score.
    """

    query_word: str
    word: str
    start: int
    share: float


def match_words(
    encoder: Encoder, vectors: TokenVectors, query: str, states: Floats, place: int, text: str, weight: float
) -> list[Match]:
    """Return the matches of a query's words in one document, in the order of the query; their shares add up to v tok(d).

    A word of several tokens contributes their sum, and its match is that of the token that contributes most.

    Args:
        encoder: of the index.
        vectors: of the index.
        query: its text.
        states: [words, state_dim] of the query's tokens that are not special ones.
        place: docid position of the document.
        text: of the document as the encoder read it; no matches if it has other tokens now.
        weight: v, of late interaction.
    """
    spans, special = encoder.token_spans(query, "query")
    query_spans = [span for span, is_special in zip(spans, special, strict=True) if not is_special]
    text_spans, _ = encoder.token_spans(text, "document")
    if len(query_spans) != len(states) or not query_spans or len(text_spans) != vectors.gather_count(place):
        return []
    best, which = vectors.best_matches(vectors.project(states), place)
    shares = weight * best / len(states)
    found: dict[tuple[int, int], list[int]] = {}
    for token, span in enumerate(query_spans):
        found.setdefault(_word_around(query, span), []).append(token)
    matches = []
    for (start, end), tokens in found.items():
        strongest = max(tokens, key=lambda token: shares[token])
        first, last = _word_around(text, text_spans[which[strongest]])
        matches.append(Match(query[start:end], text[first:last], first, float(sum(shares[tokens]))))
    return matches


def _word_around(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return the span of the word that a token belongs to, or the token's own where it is no part of a word."""
    start, end = span
    if start == end or not _WORD.fullmatch(text[start:end]):
        return span
    while start > 0 and _WORD.fullmatch(text[start - 1]):
        start -= 1
    while end < len(text) and _WORD.fullmatch(text[end]):
        end += 1
    return start, end


def mark(text: str, spans: Sequence[tuple[int, int]], before: str = "[", after: str = "]") -> str:
    """Return a text with some spans marked.

    >>> mark("the danube flows", [(4, 10)])
    'the [danube] flows'
    """
    parts, end = [], 0
    for start, stop in sorted(set(spans)):
        parts += [text[end:start], before, text[start:stop], after]
        end = stop
    return "".join([*parts, text[end:]])
