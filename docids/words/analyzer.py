"""The terms of a text, as BM25 counts them: words in lower case, without English stop words, reduced to their stems.

A word is a run of letters, digits and underscores, and of the marks that belong to letters, as the vowels of Devanagari.

Stems are those of the Snowball stemmers (Porter 2001), by PyStemmer. Knows nothing of documents or scores.
"""

import re
import threading
import unicodedata

import Stemmer

ENGLISH, NO_STEMS = "english", "none"
LANGUAGES = tuple(name for name in Stemmer.algorithms() if not name.endswith("porter"))
"""Languages that have a stemmer."""
STOP_WORDS = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of", "on",
        "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
    }
)  # fmt: skip
"""English words that BM25 does not index: Lucene's list. Where a word has to name a topic or to be marked, the longer list of
scikit-learn is imported."""
_MARKS = "".join(char for char in map(chr, range(0x10000)) if unicodedata.category(char).startswith("M"))
WORD_CHARACTERS = rf"\w{_MARKS}"
"""What words consist of, for a class of a regular expression."""
_TERM = re.compile(rf"[{WORD_CHARACTERS}]{{2,}}")  # two or more, as in bm25s and scikit-learn
_STEMMERS = threading.local()  # a stemmer serves one thread


def as_compared(text: str) -> str:
    """Return a text in lower case, each letter with its accents one character where there is one (Unicode's NFC)."""
    return unicodedata.normalize("NFC", text.lower())


def words(text: str, language: str) -> list[str]:
    """Return the words of a text in lower case, in order; of an English one without stop words."""
    found = _TERM.findall(as_compared(text))
    return [word for word in found if word not in STOP_WORDS] if language == ENGLISH else found


def stems(words: list[str], language: str) -> list[str]:
    """Return the stem of each word, one of `words`; the word itself if the language is "none"."""
    if language == NO_STEMS:
        return words
    stemmers = _STEMMERS.__dict__
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(language)
    return list(stemmers[language].stemWords(words))


def check_language(name: str, language: str) -> None:
    """Raise ValueError unless there is a stemmer of a language; `name`: of the setting, or of the file that holds it."""
    if language not in (*LANGUAGES, NO_STEMS):
        raise ValueError(f'{name} must be "{NO_STEMS}" or one of {", ".join(LANGUAGES)}, got {language!r}.')
