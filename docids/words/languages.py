"""Which language a collection is written in, by py3langid (Lui and Baldwin 2012), so that its words get the right stems."""

from collections import Counter
from collections.abc import Sequence

from dsi.docids.words.analyzer import ENGLISH, NO_STEMS, UNSPACED

_STEMMED = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": ENGLISH,
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french",
    "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian",
    "lt": "lithuanian", "nb": "norwegian", "ne": "nepali", "nl": "dutch", "nn": "norwegian", "no": "norwegian",
    "pcm": ENGLISH, "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho",
    "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
"""{language code: its Snowball stemmer}; Nigerian Pidgin is what short English texts are taken for."""
_OTHERS = {"bn": "bengali", "he": "hebrew", "ja": "japanese", "ko": "korean", "th": "thai", "zh": "chinese"}
_TEXTS, _CHARACTERS = 200, 500
"""How many texts are compared, evenly spread, and how much of each."""
_MOST = 0.7
"""Share of the texts that must be in one language to take its stems for all."""


def find_language(texts: Sequence[str]) -> str:
    """Return the stemmer of the language that most texts are in; "none" if it has none, or if there are many languages.

    Texts in scripts without spaces do not count: stems never change them.
    """
    spaced = list(filter(_is_spaced, sample(texts)))
    languages = Counter(name if (name := language_of(text)) in _STEMMED.values() else NO_STEMS for text in spaced)
    language, count = languages.most_common(1)[0] if languages else (NO_STEMS, 0)
    return language if count >= _MOST * len(spaced) else NO_STEMS


def sample(texts: Sequence[str]) -> list[str]:
    """Return the beginnings of at most 200 texts, evenly spread."""
    step = max(1, len(texts) // _TEXTS)
    return [text[:_CHARACTERS] for text in texts[: step * _TEXTS : step]]


def language_of(text: str) -> str:
    """Return the stemmer of the language of a text, or if it has none, the language's name or code."""
    from py3langid import classify  # loads its model, which takes a while

    code = classify(text)[0]
    return _STEMMED.get(code) or _OTHERS.get(code, code)


def _is_spaced(text: str) -> bool:
    """True if at least half of the letters are of scripts with spaces."""
    letters = sum(map(str.isalpha, text))
    return letters > 0 and 2 * sum(map(len, UNSPACED.findall(text))) <= letters
