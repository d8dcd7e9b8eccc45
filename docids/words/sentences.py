"""Where sentences end in texts of any script. Knows nothing of words."""

import re
from itertools import pairwise

SENTENCE_END = re.compile(r"""[.!?…؟۔][.!?…"'”’»)\]]*\s+|[。！？｡．।॥။។።։][。！？"'”’」』）)\]]*\s*|\n\s*""")
"""Matches the end of a sentence with the space behind it; line breaks end one too."""


def sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the first character, and one past the last, of each sentence between two characters of a text.

    >>> sentences("It glows. Why? Neon", 0, 19)
    [(0, 10), (10, 15), (15, 19)]
    """
    ends = [found.end() for found in SENTENCE_END.finditer(text, start, end)]
    cuts = sorted({start, *ends, end})
    return list(pairwise(cuts))
