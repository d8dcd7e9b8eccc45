"""Words that must stand in a document, and words that must not: "segmentation fault" -windows. Knows no indexes.

A quote stands for its words as they are written, in any case and with any spaces between them, in every form that Unicode has
for a letter; in scripts with spaces they are whole words. A minus before a word or a quote, at the beginning or after a space,
excludes documents that have it. Quotes without an end, or with nothing in them, and other minuses are plain characters.
"""

import re
import unicodedata
from typing import NamedTuple

from dsi.docids.words.analyzer import JOINED_WORDS, MARKS, UNSPACED, WORD_CHARACTERS

_LONGEST, _MOST = 1000, 20
"""Characters of a quote, and quotes and minuses of a query, at most: each is looked for in all texts."""
_QUOTES = tuple(zip('"“„„”«»‹›「『｢＂', '"”“””»«›‹」』｣＂', strict=True))
_QUOTE = "|".join(f"{begin}[^{begin}{end}]+{end}" for begin, end in _QUOTES)
_MINUS, _ENDS = r"(?<!\S)[-－]", ",.;:!?)、。，．；：！？）"
_PLAIN = "".join(pair[0] for pair in _QUOTES)
_OPERATOR = re.compile(
    rf"(?P<minus>{_MINUS})?(?<![^\W{JOINED_WORDS}])(?P<quote>{_QUOTE})|{_MINUS}(?P<word>[^\s\-－{_PLAIN}]\S*)"
)
_SPACED = re.compile(f"(?!{UNSPACED.pattern})[{WORD_CHARACTERS}]")
"""A character of a word in a script with spaces between words."""
_EDGE = rf"[^\p{{L}}\p{{N}}\p{{M}}_]|{UNSPACED.pattern}"
_SPACES = r"[\s\p{Z}\x0B\x1C-\x1F\x{85}]+"
_LETTER, _SOFT = re.compile(rf"\s+|.[{MARKS}]*"), "\N{SOFT HYPHEN}"


class Asked(NamedTuple):
    """A query: the text to search for, the words that a document must have, and those that it must not have."""

    text: str
    needed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def read_query(query: str) -> Asked:
    """Return what a query asks for.

    >>> read_query('"segmentation fault" in -windows a 3" disk')
    Asked(text='segmentation fault in a 3" disk', needed=('segmentation fault',), excluded=('windows',))

    Raises:
        ValueError: a quote is too long, or there are too many.
    """
    needed, excluded = list[str](), list[str]()

    def read(match: re.Match[str]) -> str:
        words = match["quote"][1:-1] if match["quote"] else match["word"].rstrip(_ENDS)
        words = words.replace(_SOFT, "").strip()
        if not words:
            return match[0]
        if len(words) > _LONGEST:
            raise ValueError(
                f"A quote may have {_LONGEST:,} characters, got {len(words):,}. Search without the quotes."
            )
        is_excluded = match["minus"] or match["word"]
        (excluded if is_excluded else needed).append(words)
        return " " if is_excluded else words

    text = _OPERATOR.sub(read, query)
    if (count := len(needed) + len(excluded)) > _MOST:
        raise ValueError(f"A query may have {_MOST} quotes and words with a minus, got {count}. Leave some out.")
    return Asked(" ".join(text.split()) if excluded else text, tuple(needed), tuple(excluded))


def pattern_of(words: str) -> str:
    """Return the regular expression, of RE2, that matches texts with some words."""
    words = unicodedata.normalize("NFC", words)
    before, after = (_SPACED.match(sign) is not None for sign in (words[0], words[-1]))
    written = f"{_SOFT}*".join(map(_forms, _LETTER.findall(words)))
    return f"(?i){f'(?:^|{_EDGE})' * before}{written}{f'(?:$|{_EDGE})' * after}"


def _forms(letter: str) -> str:
    """Return what matches a letter with its marks however they are composed, or the spaces between words."""
    if letter.isspace():
        return _SPACES
    first, *marks = unicodedata.normalize("NFD", letter)
    partly = [unicodedata.normalize("NFC", first + mark) + "".join(marks).replace(mark, "", 1) for mark in marks]
    forms = [unicodedata.normalize(form, letter) for form in ("NFC", "NFD", "NFKC")] + partly
    return f"(?:{'|'.join(map(re.escape, dict.fromkeys(forms)))})"
