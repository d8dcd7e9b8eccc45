"""Where sentences end in texts of any script, and where a text may be cut. Knows nothing of words."""

import re
import unicodedata
from itertools import pairwise

SENTENCE_END = re.compile(r"""[.!?…؟۔][.!?…"'”’»)\]]*\s+|[。！？｡．।॥။។።։][。！？"'”’」』）)\]]*\s*|\n\s*""")
"""Matches the end of a sentence with the space behind it; line breaks end one too."""


def sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the first character, and one past the last, of each sentence between two characters of a text.

    >>> sentences("It glows. Why? Neon", 0, 19)
    [(0, 10), (10, 15), (15, 19)]
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text, start, end)]
    cuts = sorted({start, *ends, end})
    return list(pairwise(cuts))


def joined_sentences(text: str, least: int) -> list[tuple[int, int]]:
    """Return the ends of all sentences of a text, of which those shorter than `least` bytes of UTF-8 are joined with the next.

    >>> joined_sentences("Neon. It glows red. Why? Nobody", 9)
    [(0, 20), (20, 31)]
    """
    joined, start = list[tuple[int, int]](), 0
    for _, end in sentences(text, 0, len(text)):
        if end == len(text) or len(text[start:end].strip().encode()) >= least:
            joined.append((start, end))
            start = end
    return joined


def cut_before(text: str, end: int, most: int) -> int:
    """Return where to cut a text at a character or up to `most` before it: at a space, else not before a combining mark."""
    least = max(0, end - most)
    space = text.rfind(" ", least, end + 1)
    letters = (at for at in range(end, least, -1) if not unicodedata.category(text[at]).startswith("M"))
    return next(letters, end) if space < 0 else space


def shortened(text: str, width: int) -> str:
    """Return a text on one line of at most `width` characters, with dots where it is cut: at a space in the last fifth, if any.

    >>> shortened("the danube flows", 12), shortened("長江是亞洲最長的河流", 8)
    ('the danube …', '長江是亞洲最 …')
    """
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: cut_before(line, width - 2, width // 5)]} …"
