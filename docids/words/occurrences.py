"""Where terms stand in a text as it is written: in any case, form or script. Knows no documents and no scores.

A text is read chunk by chunk between its spaces, as no term but "10 000" has one; the terms of chunks are remembered.
"""

import re
from collections.abc import Iterator, Set
from functools import cache
from typing import NamedTuple

from dsi.docids.words.analyzer import (
    LARGE_NUMBER,
    MARKS,
    UNSPACED,
    Analyzer,
    letter_places,
    single_places,
    token_pattern,
    visible,
)  # fmt: skip

_CLUSTER = re.compile(f".[{MARKS}]*", re.DOTALL)
_REMEMBERED, _LONG = 1 << 18, 24
"""Chunks and their terms that are remembered, at most, and the characters of the longest chunk: 40 MB, whatever is read."""


class Occurrence(NamedTuple):
    """Characters start to end of a text, and the terms that stand there."""

    start: int
    end: int
    terms: tuple[str, ...]


def occurrences(text: str, language: str, wanted: Set[str]) -> list[Occurrence]:
    """Return where terms stand in a text, in order.

    >>> [*map(tuple, occurrences("Rivers of Peru", "english", {"river", "peru"}))]
    [(0, 6, ('river',)), (10, 14, ('peru',))]
    """
    found, known = list[Occurrence](), _chunks(language)
    spaced = LARGE_NUMBER.findall(text) if any(map(str.isdigit, wanted)) else ()
    chunks = [*{*text.split(), *spaced}]
    for chunk, is_other in zip(chunks, map(wanted.isdisjoint, map(known.__getitem__, chunks)), strict=True):
        if not is_other:
            within = list(_in_chunk(chunk, known.analyzer, wanted))
            found += [Occurrence(at + a, at + b, terms) for at in _starts(text, chunk) for a, b, terms in within]
    return sorted(found)


class _Chunks(dict[str, tuple[str, ...]]):
    """{chunk: its terms}, filled as texts are read; without room for more it begins anew."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.analyzer, self._size = Analyzer(language), 0

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        terms = (*self.analyzer.terms(chunk), *self.analyzer.letters(chunk))
        if len(chunk) <= _LONG:
            if self._size > _REMEMBERED:
                self.clear()
                self._size = 0
            self[chunk] = terms
            self._size += 1 + len(terms)
        return terms


@cache
def _chunks(language: str) -> _Chunks:
    return _Chunks(language)


def _starts(text: str, chunk: str) -> Iterator[int]:
    """Yield where a chunk stands in a text between spaces."""
    start = text.find(chunk)
    while start >= 0:
        around = text[max(0, start - 1) : start], text[start + len(chunk) : start + len(chunk) + 1]
        if not "".join(around).strip():
            yield start
        start = text.find(chunk, start + 1)


def _in_chunk(chunk: str, analyzer: Analyzer, wanted: Set[str]) -> Iterator[Occurrence]:
    """Yield where terms stand in a text without spaces."""
    shown = visible(chunk)
    starts, ends = _places(chunk, shown)
    for match in token_pattern(shown).finditer(shown):
        for start, end, term in _in_token(match.group(), analyzer, wanted):
            yield Occurrence(starts[match.start() + start], ends[match.start() + end - 1], term)


def _in_token(token: str, analyzer: Analyzer, wanted: Set[str]) -> Iterator[Occurrence]:
    """Yield where terms stand in a token: groups of letters of scripts without spaces at these letters, others as it does."""
    terms, begin = tuple(term for term in analyzer[token] if term in wanted), 0
    if not UNSPACED.search(token):
        yield from [Occurrence(0, len(token), terms)] if terms else []
        return
    for number, run in enumerate(UNSPACED.split(token)):
        if number % 2:
            spans = dict.fromkeys([*letter_places(run), *single_places(run)])
            places = [(start, end, run[start:end]) for start, end in spans]
        else:
            places = [(0, len(run), term) for term in analyzer.terms(run)]
        yield from (Occurrence(begin + start, begin + end, (term,)) for start, end, term in places if term in wanted)
        begin += len(run)


def _places(chunk: str, shown: str) -> tuple[list[int], list[int]]:
    """Return where each visible character begins and ends in a chunk."""
    if shown == chunk:
        return list(range(len(chunk))), list(range(1, len(chunk) + 1))
    starts, ends = list[int](), list[int]()
    for cluster in _CLUSTER.finditer(chunk):
        size = len(visible(cluster.group()))
        starts += [cluster.start()] * size
        ends += [cluster.end()] * size
    if len(starts) != len(shown):  # letters that are composed across clusters: all of them stand for each
        return [0] * len(shown), [len(chunk)] * len(shown)
    return starts, ends
