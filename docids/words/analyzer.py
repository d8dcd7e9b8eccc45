"""The terms of a text, as BM25 counts them: words in lower case, without English stop words, reduced to their stems.

Stems are those of the Snowball stemmers (Porter 2001), by PyStemmer. Knows nothing of documents or scores.
"""

import re
import threading

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
"""English words that are not indexed: Lucene's list."""
_WORD = re.compile(r"(?u)\b\w\w+\b")  # two or more word characters, as in bm25s and scikit-learn
_STEMMERS = threading.local()  # a stemmer serves one thread


def words(text: str, language: str) -> list[str]:
    """Return the words of a text in lower case, in order; of an English one without stop words."""
    found = _WORD.findall(text.lower())
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
