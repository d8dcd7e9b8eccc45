"""Texts in every encoding, Markdown, notebooks and source code as documents."""

import codecs
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

from dsi.files.headings import headings, plain_words

_TAKEN = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis_620": "cp874", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
"""{encoding that a file names: the larger one that browsers take for it}."""
_TELLING, _FEW = 20_000, 40
"""Words that tell the encoding of a text, at most; bytes of other letters than ASCII's that tell only those of the web."""
_CONTROLS = re.compile("[\\0-\\x06\\x0e-\\x1a\\x1c-\\x1f\\x7f-\\x84\\x86-\\x9f]")
"""Characters that no text has."""
_HZ = re.compile(rb"~\{(?:[!-w][!-~])+~\}")
"""Letters of two bytes in HZ."""
_MIXED = re.compile(
    r"[a-zA-Z](?=[\u0370-\u04ff])|[\u0370-\u04ff](?=[a-zA-Z])"
    r"|(?<=[^\W\d_])[\xa1-\xa9\xab-\xb4\xb8\xbb-\xbf\u02c6-\u02dd\u2020-\u2022\u2200-\u22ff\u25ca](?=[^\W\d_])"
    r"|(?<=[a-z])[À-ÖØ-Þ]|(?<![\u2500-\u259f])[\u2552-\u256c](?![\u2500-\u259f])"
)
"""What no word has: letters of two scripts side by side, signs between letters, capitals behind small letters, lone corners."""
_LIKE = {"cp1250": "iso8859-2", "cp437": "cp850", "mac-roman": "cp850"}
"""{encoding: one that is taken for it}; Polish of the first has other places for s, t and z with a caron."""
_SEEN = 10_000
"""Characters of a text that tell whether it is one."""
_TOLD = "texts in other encodings than UTF-8; the encodings were detected from the letters"
_GUESSED = "texts in other encodings than UTF-8; they are read as Windows-1252 (dr-scl[files] finds the encoding)"
_NO_FRONT_MATTER = "front matter that is neither YAML nor TOML; it is read as text"
_FRONT = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?\n)?(?:\1|\.\.\.)[ \t]*(?:\r?\n|$)", re.DOTALL)
_TITLE = re.compile(r"^(title):[ \t]*[\"']?(\S[^\r\n]*?)[\"']?[ \t\r]*$", re.MULTILINE | re.IGNORECASE)


class UnreadableError(ValueError):
    """A file cannot be read; the message says what it is, such as "encrypted"."""


def what_it_is(error: Exception) -> str:
    """Return what a file is that cannot be read, because of an error."""
    if isinstance(error, ModuleNotFoundError):
        return f'of a kind that needs {error.name} (pip install "dr-scl[files]")'
    if isinstance(error, UnreadableError):
        return str(error)
    return "not to be opened" if isinstance(error, OSError) else "broken"


class Part(NamedTuple):
    """A part of a file that is a document: where it begins ("line=1", "page=3"), its title, text and metadata."""

    place: str
    title: str
    text: str
    metadata: Mapping[str, Any] = {}
    odd: str = ""
    """What is odd about its file, as `Oddities.count` takes it."""


Parts = Iterator[Part]


def decoded(content: bytes, declared: str = "") -> tuple[str, str]:
    """Return a text, and what is odd about it if it is not UTF-8 and nothing says so; it may have a wrong byte or two."""
    if not content.isascii():
        with suppress(UnicodeDecodeError):  # what is UTF-8 is nothing else, whatever it says
            return _with_lines(content.decode("utf-8-sig")), ""
    with suppress(LookupError, UnicodeError):  # or it is not what it says
        name = codecs.lookup(declared).name
        text = content.decode(name := _TAKEN.get(name, name))
        if not _is_wrong(text, content, name):
            return _with_lines(text), ""
    name, odd = encoding_of(content)
    return _with_lines(content.decode(name, errors="replace").removeprefix("\ufeff")), odd


def _with_lines(text: str) -> str:
    """Return a text with the ends of lines that old Macs wrote as those of today."""
    return text if "\n" in text else text.replace("\r", "\n")


def _is_wrong(text: str, content: bytes, encoding: str) -> bool:
    """True if a text is hardly what its encoding makes of it: escapes of another one, or signs that stand in no text."""
    if encoding in ("cp1252", "utf-8") and _has_escapes(content):
        return True
    is_foreign = encoding == "cp1252" and len(re.findall(r"[^\W\d_a-zA-Z]", text)) > len(re.findall("[a-zA-Z]", text))
    # Windows-1251 and KOI8-R
    is_swapped = len(re.findall("[а-яё][А-ЯЁ]", text)) > len(re.findall("[А-ЯЁ][а-яё]", text))
    return is_foreign or is_swapped or _odd(text) * 10 > min(len(text), _SEEN)


def _has_escapes(content: bytes) -> bool:
    """True if a text switches to letters of two bytes, as ISO-2022 and HZ do."""
    return b"\x1b$" in content or (b"~{" in content and _HZ.search(content) is not None)


def encoding_of(content: bytes) -> tuple[str, str]:
    """Return the encoding of a text, and what is odd about it if that is not UTF-8."""
    text = content.decode("utf-8-sig", errors="replace")
    wrong, letters = text.count("\ufffd"), len(content) - len(content.decode("ascii", errors="ignore"))
    # as UTF-16, ISO-2022 and HZ are; a few zeros are in other texts, too
    controls = len(_CONTROLS.findall(text, 0, _SEEN))
    is_wide = content.count(b"\0") * 10 > len(content) or controls * 5 > min(len(text), _SEEN) or _has_escapes(content)
    if not is_wide and wrong * 4 <= letters:
        return "utf-8-sig", ""
    try:
        import chardet
    except ModuleNotFoundError:
        if is_wide:
            raise
        return "cp1252", _GUESSED

    words = [b"", *content.split(), b""]
    around = (
        word for near in zip(words, words[1:], words[2:], strict=False) for word in near if not b"".join(near).isascii()
    )
    told, eras = content if is_wide else b" ".join(itertools.islice(around, _TELLING)), chardet.EncodingEra
    usual = eras.MODERN_WEB | eras.LEGACY_ISO | eras.LEGACY_MAC
    tries = [(content, usual), (told, eras.ALL), (told, usual), (told, usual)][is_wide or letters >= _FEW :]
    texts = dict[str, str]()
    for sample, era in tries:
        encoding = chardet.detect(sample, encoding_era=era, exclude_encodings=[*texts] or None)["encoding"]
        name = codecs.lookup(encoding or "latin-1").name
        name = _TAKEN.get(name, name)
        texts[name] = content.decode(name, errors="replace")
        if _odd(texts[name]) * 10 <= min(letters, _SEEN):
            break
    for other in [other for like, other in _LIKE.items() if like in texts and _odd(texts[like])]:
        texts[other] = content.decode(other, errors="replace")
    # of the two bytes of a letter, those that come first differ less
    if _odd(texts[name]) * 50 > min(len(content), _SEEN):
        name = f"utf-16-{'be' if len({*content[::2]}) < len({*content[1::2]}) else 'le'}"
        texts[name] = content.decode(name, errors="replace")
    name = min(texts, key=lambda candidate: _odd(texts[candidate]))
    if _odd(texts[name]) * 10 > min(len(texts[name]), _SEEN):
        raise UnreadableError("not text")
    return name, _TOLD


def _odd(text: str) -> int:
    """Return how many of the first characters of a text its encoding does not have, or no text does."""
    head = text[:_SEEN]
    none = sum(sign == "\ufffd" or category(sign) in ("Cn", "Co", "Cs") for sign in head)
    return none + len(_CONTROLS.findall(head)) + len(_MIXED.findall(head))


def name_of(path: Path) -> str:
    """Return the name of a file as a title."""
    return re.sub(r"[-_]+", " ", path.stem)


def heading(text: str, path: Path) -> str:
    """Return the first heading of a text, or the name of its file."""
    return next((words for _, words in headings(text, path.suffix.lower())), "") or name_of(path)


def text(path: Path, content: bytes) -> Parts:
    """Yield a text, whose title is the name of its file."""
    text, odd = decoded(content)
    yield Part("line=1", name_of(path), text, odd=odd)


def code(path: Path, content: bytes) -> Parts:
    """Yield source code or the like."""
    text, odd = decoded(content)
    yield Part("line=1", path.name, text, odd=odd)


def markup(path: Path, content: bytes) -> Parts:
    """Yield a text in Markdown or reStructuredText; its title is that of the front matter, else its first heading."""
    text, odd = decoded(content)
    head = _FRONT.match(text[: 2**16]) if path.suffix.lower() != ".rst" else None
    front, start = {}, 0
    if head:
        try:
            front, start = _front_matter(head[2] or "", is_toml=head[1] == "+++"), head.end()
        except (ValueError, RecursionError):  # it may be a text between two rules
            odd = odd or _NO_FRONT_MATTER
            front = dict(_TITLE.findall(head[2] or ""))
    titles = [front.pop(key) for key in list(front) if key.lower() == "title"]
    title = titles[0] if titles and titles[0] is not None else ""
    words = ", ".join(map(str, title)) if isinstance(title, list) else str(title)
    words = "" if isinstance(title, dict) else plain_words(words)
    body = text[head.end() if head else 0 :]
    yield Part(f"line={1 + text.count(chr(10), 0, start)}", words or heading(body, path), text[start:], front, odd)


def _front_matter(text: str, *, is_toml: bool) -> dict[str, Any]:
    """Return the keys at the head of a text."""
    import yaml

    try:
        front = tomllib.loads(text) if is_toml else yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(front, dict):
        raise ValueError("no keys")
    titles = dict(_TITLE.findall(text))  # as they are written, such as 007, 12:30 or Yes
    return {
        str(key): titles.get(key, read) if isinstance(read, int | float | date) else read for key, read in front.items()
    }


def notebook(path: Path, content: bytes) -> Parts:
    """Yield the cells of a notebook, code in fences."""
    book = json.loads(content.decode("utf-8-sig"))
    sheets = book.get("worksheets", [book])  # of the format before 2015
    text = "\n".join(_cell(cell) for sheet in sheets for cell in sheet["cells"])
    yield Part("", heading(text, path), text)


def _cell(cell: Mapping[str, Any]) -> str:
    """Return a cell of a notebook, code in a fence longer than those in it."""
    source = "".join(cell.get("source", cell.get("input", "")))
    if cell["cell_type"] == "heading":
        return f"{'#' * cell['level']} {source}\n"
    if cell["cell_type"] != "code":
        return f"{source}\n"
    fence = "`" * max(3, *(1 + len(ticks) for ticks in re.findall("`+", source)), 0)
    return f"{fence}\n{source}\n{fence}\n"
