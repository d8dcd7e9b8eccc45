"""Where in a file a document and its passages stand: columns of the document table, headings, lines. Reads no files."""

import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

AnyPath = TypeVar("AnyPath", bound=PurePath)
FILE, PLACE, VERSION = "source_file", "source_place", "source_version"
"""Columns of documents that were read from files: the path, where in the file the document begins, and digits of the file's
sha256."""
SOURCE = (FILE, PLACE, VERSION)
WITH_HEADINGS = (".md", ".markdown", ".mdx", ".qmd", ".rmd", ".rst", ".html", ".htm", ".docx", ".ipynb")
"""Kinds of files whose texts have headings."""


class Location(NamedTuple):
    """The place of a passage in a file; as a text it is the address that an editor or a browser opens.

    >>> str(Location("notes/neon.md", "", (12, 18), "Signs")), str(Location("paper.pdf", "page=3"))
    ('notes/neon.md:12', 'paper.pdf#page=3')

    Attributes:
        file: its path.
        place: "page=3", "slide=2", "sheet=Prices", "row=7"; "" for a text, which has lines.
        lines: the first and the last line of the passage, from 1; None if the file has no lines.
        heading: the last heading before the passage or in its first third, else the first one in it; "" if there is none.
    """

    file: str
    place: str = ""
    lines: tuple[int, int] | None = None
    heading: str = ""

    def __str__(self) -> str:
        if self.lines:
            return f"{self.file}:{self.lines[0]}"
        return f"{self.file}#{self.place}" if self.place else self.file

    def as_dict(self) -> dict[str, Any]:
        """Return what is known of the place, for JSON, with its address."""
        known = {name: value for name, value in self._asdict().items() if value}
        return {"address": str(self), **known}


def base_of(doc_id: str, place: str | None) -> str:
    """Return a doc_id without the place of the document in its file."""
    return doc_id.removesuffix(f"#{place}") if place else doc_id


def plain_name(path: AnyPath) -> AnyPath:
    """Return the path of a file without .gz at its end."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def locate(metadata: Mapping[str, Any], text: str | None, span: tuple[int, int] | None) -> Location | None:
    """Return where a passage of a document stands, by default all of its text; None if it was not read from a file."""
    if not (file := metadata.get(FILE)):
        return None
    kind, _, value = (place := metadata.get(PLACE) or "").partition("=")
    if kind == "row" and file.lower().endswith(".jsonl"):
        return Location(file, lines=(int(value), int(value)))
    text = text or ""
    start, end = span or (0, len(text))
    passage = text[start:end]
    start += len(passage) - len(passage.lstrip())
    is_whole = len(passage.strip()) == len(text.strip())
    seen = (
        start if is_whole else start + (end - start) // 3
    )  # a heading soon after its beginning is that of the passage
    heading = heading_at(text, seen, end, plain_name(PurePath(file)).suffix.lower())
    if kind != "line":
        return Location(file, place, None, heading)
    first = int(value) + text.count("\n", 0, start)
    return Location(file, "", (first, first + passage.strip().count("\n")), heading)


def heading_at(text: str, start: int, end: int, suffix: str) -> str:
    """Return the last heading of a text at or before a character, or the first one up to `end`; "" if there is none."""
    found = ""
    for place, heading in headings(text, suffix) if suffix in WITH_HEADINGS else ():
        if place > start and (found or place >= end):
            break
        found = heading
    return found


_MARKDOWN = re.compile(
    r"^ {0,3}(?P<fence>```+|~~~+)[^\n]*\n(?:.*?^ {0,3}(?P=fence)[`~]*[ \t\r]*$|.*)"
    r"|(?:^ {0,3})?<!--(?:[^<]|<(?!!--))*?-->|^ {0,3}<!--.*"
    r"|^ {0,3}#{1,6}(?=[ \t])(?P<marked>[^\n]*)|^ {0,3}<h(?P<level>[1-6])\b[^<>]{0,500}>(?P<html>.{0,500}?)</h(?P=level)>"
    r"|^ {0,3}(?![>|#]|[*+-][ \t]|\d{1,9}[.)][ \t])(?=[^\n]*\w)(?P<over>\S[^\n]*)\n {0,3}(?P<rule>=|-(?=-))(?P=rule)*[ \t\r]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
"""Code in fences and comments up to their ends, and headings: behind #, in tags, or above a line of = or -."""
_RST = re.compile(r"^ {0,3}(?P<over>\S[^\n]*)\n(?P<rule>[=\-~^\"'*+#`:._])(?P=rule)+[ \t\r]*$", re.MULTILINE)
_LONGEST = 1_000
"""Characters of a heading, at most."""
_LINKS = re.compile(r"\[\^[^\[\]]*\]|!?\[([^\[\]]*)\](?:\((?:[^()]|\([^()]*\))*\)|\[[^\[\]]*\])")
_MARKS = re.compile(
    r"\\([^\w\s])|(?::[\w:.-]+:)?(?<!`)(`+)(?!`)\s?(.+?)\s?(?<!`)\2(?!`)_{0,2}|<(\w[\w+.-]*:[^<>\s]+|[^<>\s@]+@[^<>\s]+)>"
    r"|</?[a-zA-Z][^<>]*>|(?<!\s)\*+|\*+(?=\S)|\b_+|_+\b|~~|\{[#.:][^{}]*\}\s*$"
)
"""Marks in the words of a heading: escapes, code and addresses, of which the words stay, tags, emphasis and attributes."""


def plain_words(text: str) -> str:
    r"""Return the words of a heading in Markdown or reStructuredText without its marks.

    >>> plain_words(r"The **bold** `__init__` of [a [![badge](x.svg)](y) link](http://z) &amp; \*more")
    'The bold __init__ of a badge link & *more'
    """
    for _ in range(3):  # links in links
        text = _LINKS.sub(r"\1", text)
    return " ".join(unescape(_MARKS.sub(lambda own: own[1] or own[3] or own[4] or "", text)).split())


def headings(text: str, suffix: str = ".md") -> Iterator[tuple[int, str]]:
    r"""Yield the first character and the words of the headings of a text in Markdown, or in reStructuredText.

    They are found at each hit, for which a parser of all of a long text would be too slow.

    >>> list(headings("```\n# comment\n```\n#hash\n## C# in `short` ##\nwords\n\nNext\n====\n"))
    [(24, 'C# in short'), (51, 'Next')]
    """
    for found in (_RST if suffix == ".rst" else _MARKDOWN).finditer(text):
        own = {name: value for name, value in found.groupdict().items() if value is not None}
        words = (
            re.sub(r"(^|\s)#+$", "", own["marked"].strip()) if "marked" in own else own.get("html", own.get("over", ""))
        )
        is_heading = "rule" not in own or _is_alone(text, found)
        if suffix == ".rst":
            is_heading &= len(text[found.start("rule") : found.end()].strip()) >= len(words.strip())
        if is_heading and (words := plain_words(" ".join(words.split())[:_LONGEST])):
            yield found.start(), words


def _is_alone(text: str, found: re.Match[str]) -> bool:
    """True if a line does not go on with the one before it, which is blank, a rule or a heading."""
    before = text[text.rfind("\n", 0, max(found.start() - 1, 0)) + 1 : found.start()].strip()
    return not before or before.startswith("#") or re.fullmatch(r"([^\w\s])\1+", before) is not None
