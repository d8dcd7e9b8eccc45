"""Queries with a typo, made by rule. Knows nothing of search."""

import re
from collections.abc import Mapping
from random import Random

_WORD = re.compile(r"[^\W\d_]{4,}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def with_typos(queries: Mapping[str, str], seed: int = 0) -> dict[str, str]:
    """{query_id: text} with one typo each.

    In a word of four letters or more, one letter is swapped with the next, dropped, doubled or replaced. A query without such a
    word stays as it is.

    >>> with_typos({"q1": "rivers of bosnia", "q2": "ox"})
    {'q1': 'rivers of bosna', 'q2': 'ox'}
    """
    return {query_id: _with_typo(text, Random(f"{seed} {query_id}")) for query_id, text in queries.items()}


def _with_typo(text: str, chance: Random) -> str:
    if not (words := list(_WORD.finditer(text))):
        return text
    word = chance.choice(words)
    wrong = word.group()
    while wrong == word.group():
        wrong = _misspelt(word.group(), chance)
    return text[: word.start()] + wrong + text[word.end() :]


def _misspelt(word: str, chance: Random) -> str:
    place = chance.randrange(len(word) - 1)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    kinds = (
        before + after[0] + letter + after[1:],
        before + after,
        before + letter + letter + after,
        before + chance.choice(_LETTERS) + after,
    )
    return chance.choice(kinds)
