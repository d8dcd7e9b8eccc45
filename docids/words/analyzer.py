"""The terms of a text, as BM25 counts them: words of every script, folded, without English stop words, reduced to stems.

A term is what a document and a query have in common when they say the same:

- Letters in any form: NFKC, case folding ("ＡＢＣ" is "abc", "Straße" is "strasse"), no accents ("Łódź" is "lodz"), no
  invisible characters; digits of every script; the letters that Arabic, Persian and Urdu write in two ways, without vowel
  signs, as those of Hebrew; the nasals that Hindi writes as a dot, and its dots below; I and İ as Turkish has them.
- A word is a run of letters, digits and underscores, and of the marks that belong to letters, as the vowels of Devanagari. One
  letter or digit is a word too ("C", "R"), unless an apostrophe ties it to another ("Planck's").
- Scripts without spaces (Han, Kana, Hangul; Thai, Lao, Khmer, Burmese) become overlapping pairs of letters, as in Lucene's
  CJKAnalyzer, and alphabets triples too; a single letter stays. Documents have their single letters beside these
  (`Analyzer.letters`), so that a query of one letter finds the words that hold it.
- Identifiers are found whole and in parts: max_seq_length, HTTPServerFactory, Node.js, also as nodejs; "U.S.A." is "usa"; C++,
  C#, .NET. So are short first parts, "e-mail" as email, R&D as rd; "10,000", "10.000", "10'000" and "10 000" are also 10000. A
  stop word in capitals is a name: "IT", "IT-Support", "US".

Stems are those of the Snowball stemmers (Porter 2001), by PyStemmer. Knows nothing of documents or scores.
"""

import re
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import Stemmer

FOUND, ENGLISH, NO_STEMS = "auto", "english", "none"
LANGUAGES = tuple(name for name in Stemmer.algorithms() if not name.endswith("porter"))
"""Languages that have a stemmer."""
STOP_WORDS = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of", "on",
        "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
    }
)  # fmt: skip
"""English words that BM25 does not index: Lucene's list. Where a word has to name a topic or to be marked, the longer list of
`dsi.docids.words.common` counts."""
MARKS = "".join(char for char in map(chr, range(0x10000)) if unicodedata.category(char).startswith("M"))
_DIGITS = {code: str(unicodedata.decimal(chr(code))) for code in range(0x80, 0x10000) if chr(code).isdecimal()}
_SIGNS = str.maketrans(
    {"٬": ",", "٫": ".", **dict.fromkeys("\u2010\u2011", "-"), **dict.fromkeys("\u2018\u2019\u02bb\u02bc\u055a", "'")}
) | _DIGITS  # fmt: skip
"""Signs within words and numbers, and digits, as a keyboard has them."""
_POINTS = [*range(0x591, 0x5C8), *range(0x610, 0x61B), *range(0x64B, 0x660), *range(0x670, 0x671), *range(0x6D6, 0x6EE)]
_POINTS += range(0x8D3, 0x900)
_WRITTEN_ALIKE = str.maketrans(
    {"ى": "ي", "ی": "ي", "ے": "ي", "ئ": "ي", "ک": "ك", "ة": "ه", "ہ": "ه", "ۀ": "ه", "ؤ": "و", "أ": "ا", "إ": "ا", "آ": "ا",
     "ٱ": "ا", "ـ": "", "ँ": "ं", "़": "", "ऩ": "न", "ऱ": "र", "ऴ": "ळ",
     **{chr(code): "" for code in _POINTS if unicodedata.category(chr(code)) == "Mn"}}
) | _DIGITS  # fmt: skip
"""Letters of Arabic, Persian and Urdu as Lucene's normalizers have them, and of Hindi; no vowel signs; all digits."""
_NASAL = re.compile("[ङञणनम]्(?=[क-ह])")
_TURKISH = str.maketrans({"I": "ı", "İ": "i"})
_LETTERS = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i", "ŋ": "n", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""Letters that are no letter with an accent, as those write them who lack them."""
_SPELT_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
"""Letters that English texts spell in a second way, as in "Mueller"; where they are frequent it would count them twice."""
WORD_CHARACTERS = rf"\w{MARKS}"
"""What words consist of, for a class of a regular expression."""
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]|(?<=[lL])·(?=[lL])")
_HAN_AND_KANA = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003134f"
_SYLLABIC = f"{_HAN_AND_KANA}\u1100-\u11ff\uac00-\ud7af"  # and Hangul
_ALPHABETIC = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
JOINED_WORDS = f"{_HAN_AND_KANA}{_ALPHABETIC}"
"""Letters of the scripts that write no spaces between words, unlike Hangul, for a class of a regular expression."""
UNSPACED_LETTERS = f"{_SYLLABIC}{_ALPHABETIC}"
"""Letters of the scripts that become groups of letters, Hangul among them, for a class of a regular expression."""
UNSPACED = re.compile(f"([{_SYLLABIC}]+|[{_ALPHABETIC}]+)")
"""Runs of scripts without spaces; `split` leaves them at odd numbers."""
_ALPHABETS = re.compile(f"[{_ALPHABETIC}]")
_LETTER = re.compile(f".[{MARKS}]*")
_ACCENT = re.compile("[\u0300-\u036f]")
_THOUSANDS = (
    r"(?<![\w.,])[1-9]\d{0,2}(?:(?:,\d{2,3})*,\d{3}|(?:\.\d{3})+|(?:'\d{3})+|(?:[ \xa0\u2009\u202f]\d{3})+)(?!\w)"
)
LARGE_NUMBER, _GAP = re.compile(_THOUSANDS), re.compile("[,.' ]")
"""A number with signs or spaces before its thousands, in India before its lakhs."""
_INNER, _SEVERAL = re.compile("[&-]"), re.compile(r"[\d_.]")
_PART = re.compile(r"[^\W\d_]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")


def _tokens(word: str) -> re.Pattern[str]:
    """Return what finds tokens, whose words consist of a class of characters."""
    kinds = (
        _THOUSANDS,
        r"(?<![\w&-])[^\W\d_]{1,3}(?:-[^\W\d_]{2,}|&[^\W\d_]{1,3})(?![\w&-])",  # e-mail, R&D
        rf"{word}{{2,}}(?:\.{word}+)*",
        rf"{word}(?:\.{word}+)+",
        rf"{word}(?:\+\+|#(?!{word}))",  # C++
        rf"(?<!'){word}(?!')",
        rf"(?<!\S)\.{word}{{2,}}",  # .NET
    )
    return re.compile("|".join(kinds))


_TOKEN, _ASCII_TOKEN = _tokens(f"[{WORD_CHARACTERS}]"), _tokens("[A-Za-z0-9_]")
_MOST_BYTES, _MOST_OF_TOKEN = 1 << 26, 1 << 10
"""Memory of the terms that an analyzer remembers, at most, and of those of one token: longer ones rarely come again."""
_SLOT = 128
"""Bytes that a dictionary takes for an entry, at most."""


_STEMMERS = threading.local()


class Analyzer(dict[str, tuple[str, ...]]):
    """Turns texts into terms; a mapping {token: its terms} that fills itself, up to a number of bytes."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language
        self._stop_words = STOP_WORDS if language == ENGLISH else frozenset[str]()
        self._bytes, self._remembering = 0, threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the language alone."""
        return Analyzer, (self.language,)

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        return list(chain.from_iterable(map(self.__getitem__, self.tokens(text))))

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text in order, without invisible characters, nor capitals that say nothing."""
        if self._stop_words and text.isupper() and len(text.split()) > 1:
            text = text.casefold()
        return token_pattern(text).findall(visible(text))

    def letters(self, text: str) -> list[str]:
        """Return the letters that `terms` has in groups only, by which a query of a single one finds them."""
        runs = [] if text.isascii() else map(_LETTER.findall, UNSPACED.findall(visible(text)))
        return [letter for run in runs if len(run) > 1 for letter in run]

    def __missing__(self, token: str) -> tuple[str, ...]:
        """Return the terms of a token, and remember them."""
        terms = tuple(self._terms_of(token))
        size = _SLOT + sum(map(sys.getsizeof, (token, terms, *terms)))
        if size <= _MOST_OF_TOKEN:
            with self._remembering:
                self._remember(token, terms, size)
        return terms

    def _remember(self, token: str, terms: tuple[str, ...], size: int) -> None:
        """Keep the terms of a token; if there is no room, those of all others are forgotten."""
        if self._bytes + size > _MOST_BYTES:
            self.clear()
            self._bytes = 0
        self[token] = terms
        self._bytes += size

    def _terms_of(self, token: str) -> Iterator[str]:
        """Yield the terms of a token: of unspaced scripts pairs of letters, of names the whole and its parts, else one stem."""
        if token.isascii() and token[1:].isalpha() and token[1:].islower():  # most are plain words
            yield from self._stems([token])
            return
        if LARGE_NUMBER.fullmatch(token):
            yield from dict.fromkeys([_GAP.sub("", token), *([] if "," in token else token.split(" "))])
            return
        if self._is_name(token):
            yield fold(token)
            return
        for number, run in enumerate(UNSPACED.split(token)):
            if number % 2:
                yield from letter_groups(run)
            elif any(map(str.isalnum, run)):
                yield from dict.fromkeys(self._name(run))

    def _name(self, name: str) -> Iterator[str]:
        """Yield the terms of a token in a script with spaces."""
        letters = name.split(".")
        if len(letters) > 1 and all(len(letter) == 1 and letter.isalpha() for letter in letters):
            yield fold("".join(letters))  # U.S.A
            return
        if sign := _INNER.search(name):
            parts = name.split(sign[0])
            yield from self._stems(["".join(parts)])
            yield from (fold(part) for part in parts if self._is_name(part))  # IT-Support
            yield from self._stems(parts)
            return
        if "." in name or "_" in name:
            yield fold(name)
            yield from self._stems([name.replace(".", "")] if name.replace(".", "").isalpha() else [])
        else:
            yield from self._stems([name])
        if _SEVERAL.search(name) or (name[1:] != name[1:].lower() and name != name.upper()):
            yield from self._stems(part for part in _PART.findall(name) if len(part) > 1)

    def _is_name(self, word: str) -> bool:
        """Tell whether a word is a stop word in capitals."""
        return word.isupper() and word.casefold() in self._stop_words

    def _stems(self, words: Iterable[str]) -> Iterator[str]:
        if self.language == "turkish":
            words = [word.translate(_TURKISH) for word in words]
        for word in map(_written_alike, words):
            if not word or word in self._stop_words:
                continue
            if self.language == ENGLISH:
                yield from dict.fromkeys(self._stem(fold(form)) for form in (word, word.translate(_SPELT_OUT)))
            else:
                yield fold(self._stem(word))

    def _stem(self, word: str) -> str:
        return word if self.language == NO_STEMS else str(_stemmer(self.language).stemWord(word))


def _stemmer(language: str) -> Any:
    """Return this thread's stemmer of a language; a stemmer serves one thread."""
    stemmers: dict[str, Any] = _STEMMERS.__dict__
    if language not in stemmers:
        # its own cache counts words, however long; the analyzer has one
        stemmers[language] = Stemmer.Stemmer(language, 0)
    return stemmers[language]


def token_pattern(text: str) -> re.Pattern[str]:
    """Return what finds the tokens of the visible characters of a text."""
    return _ASCII_TOKEN if text.isascii() else _TOKEN


def visible(text: str) -> str:
    """Return a text in compatible forms of its characters (NFKC), without invisible ones."""
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).translate(_SIGNS))


def letter_groups(run: str) -> list[str]:
    """Return the overlapping pairs of letters, each with its marks, of a run without spaces; of alphabets triples too.

    >>> letter_groups("東京都"), letter_groups("ประเทศ")
    (['東京', '京都'], ['ปร', 'ระ', 'ะเ', 'เท', 'ทศ', 'ประ', 'ระเ', 'ะเท', 'เทศ'])
    """
    return [run[start:end] for start, end in letter_places(run)]


def single_places(run: str) -> list[tuple[int, int]]:
    """Return the first character, and one past the last, of each letter with its marks."""
    return [letter.span() for letter in _LETTER.finditer(run)]


def letter_places(run: str) -> list[tuple[int, int]]:
    """Return the first character, and one past the last, of each of `letter_groups`."""
    ends = [letter.end() for letter in _LETTER.finditer(run)]
    starts, sizes = [0, *ends], (2, 3) if _ALPHABETS.match(run) and len(ends) > 2 else (2,)
    runs = ((at, min(at + size, len(ends))) for size in sizes for at in range(max(1, len(ends) - size + 1)))
    return [(starts[first], ends[stop - 1]) for first, stop in runs]


def fold(word: str) -> str:
    """Return a word without case, accents, and other ways to write its letters and digits.

    >>> fold("Café"), fold("STRASSE") == fold("Straße"), fold("Łódź"), fold("Işık"), fold("٢٠٢٤")
    ('cafe', True, 'lodz', 'isik', '2024')
    """
    word = _written_alike(word)
    if word.isascii():
        return word
    bare = _ACCENT.sub("", unicodedata.normalize("NFD", word)).translate(_LETTERS)
    return unicodedata.normalize("NFC", bare)


def _written_alike(word: str) -> str:
    """Return a word without case, in one of the ways to write its digits, and letters of Arabic and Hindi."""
    word = word.casefold()
    return word if word.isascii() else _NASAL.sub("ं", word.translate(_WRITTEN_ALIKE))
