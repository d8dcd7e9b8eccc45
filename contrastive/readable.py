"""How much of a text a tokenizer reads: the share of its letters in words that it has pieces of, and does not spell.

A tokenizer has pieces of the words that its model learned from. All others it spells letter by letter, byte by byte, or as
unknown, and the model makes noise of them. A word is read the more, the more letters a token has of it, from 1.25 to 1.75,
whatever the kind of tokenizer; tokens that are unknown have none, and neither has what the tokenizer drops. A Han character and
a Hangul syllable say as much as 2.5 letters. Words of one letter, digits and signs say nothing.

Most words of the languages that a model knows best are single tokens. So a text is read at most 1.5 times as much as its
letters are in such words, eight more letters of them supposed, as a short query says little of its language; in scripts
without spaces, which have no such words, in words that are read. Knows nothing of languages and models.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dsi.docids.types import Floats
from dsi.docids.words.analyzer import MARKS, UNSPACED, UNSPACED_LETTERS

if TYPE_CHECKING:
    from tokenizers import Encoding

Piece: TypeAlias = tuple[int, int, bool]
"""A token: the first character of the text that it stands for, one past the last, and whether the tokenizer knows it."""
_FEWEST = 5_000
"""Tokens of a vocabulary, at least: smaller ones consist of letters or bytes, and spell every language."""
LEAST_SHARE = 0.2
"""Share of a text from which on it counts as read, where that is a question of yes or no."""
_SPELT, _READ = 1.25, 1.75
"""Letters a token up to which a word is not read, and from which on it is read whole."""
_SUPPOSED, _ENOUGH = 8, 1.5
"""Letters in words of one token that each text is supposed to have more, and what multiplies the share of these."""
_SPACED, _MARKS = rf"[^\W\d_{UNSPACED_LETTERS}]", UNSPACED.sub("", MARKS)
_WORD = re.compile(f"{_SPACED}+(?:[{_MARKS}]+{_SPACED}*)*|{UNSPACED.pattern}")
_ASCII_WORD = re.compile("[A-Za-z]+")
_DENSE = re.compile("[\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003134f]")


def shares_read(texts: Sequence[str], encoded: "Sequence[Encoding]", unknown: int | None, vocabulary: int) -> Floats:
    """[n] how much of each text a tokenizer reads; 1 for small vocabularies. `unknown`: the token for what it does not know."""
    if vocabulary < _FEWEST:
        return np.ones(len(texts), dtype=np.float32)
    shares = list[float]()
    for text, encoding in zip(texts, encoded, strict=True):
        pieces = [(a, b, n != unknown) for n, (a, b) in zip(encoding.ids, encoding.offsets, strict=True) if a < b]
        shares.append(share_read(text[: pieces[-1][1]] if pieces else text, pieces))
    return np.array(shares, dtype=np.float32)


def share_read(text: str, pieces: Sequence[Piece]) -> float:
    """Return how much of a text is read, between 0 and 1; 1 for a text without words."""
    before, count = _letters_before(text), len(pieces)
    letters, read, whole, first = 0.0, 0.0, 0.0, 0
    for word in (_ASCII_WORD if text.isascii() else _WORD).finditer(text):
        start, end = word.span()
        size = before[end] - before[start]
        if size <= 1:
            continue
        letters += size
        # 1) its tokens
        while first < count and pieces[first][1] <= start:
            first += 1
        last = first
        while last < count and pieces[last][0] < end:
            last += 1
        if size <= _SPELT * (last - first):
            continue
        # 2) its letters in tokens that are known; bytes of one letter have it once
        known, at, tokens = 0.0, start, pieces[first:last]
        for begin, stop, is_known in tokens:
            reach = min(end, stop)
            if is_known and at < reach:
                known += before[reach] - before[max(at, begin)]
                at = reach
        # 3) how much of it is read
        part = size * min(1.0, max(0.0, (known / max(1, len(tokens)) - _SPELT) / (_READ - _SPELT)))
        read += part
        if len(tokens) == 1 or UNSPACED.match(text, start):
            whole += part
    return min(read / letters, _ENOUGH * (whole + _SUPPOSED) / (letters + _SUPPOSED)) if letters else 1.0


def _letters_before(text: str) -> Sequence[float]:
    """[characters + 1] how many letters stand before each character of a text."""
    if text.isascii() or not _DENSE.search(text):
        return range(len(text) + 1)
    return [0.0, *accumulate(2.5 if _DENSE.match(char) else 1.0 for char in text)]
