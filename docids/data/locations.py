"""Where in a file a document and its passages stand: columns of the document table, headings, lines. Reads no files."""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

AnyPath = TypeVar("AnyPath", bound=PurePath)
FILE, PLACE, VERSION = "source_file", "source_place", "source_version"
"""Columns of documents that were read from files: the path, where in the file the document begins, and digits of the file's
sha256."""
SOURCE = (FILE, PLACE, VERSION)
WITH_HEADINGS = (".md", ".markdown", ".rst", ".html", ".htm", ".docx", ".ipynb")
"""Kinds of files whose texts have headings."""
_RULES = {".rst": "=-~^\"'*+#`:._"}
"""{suffix: characters that underline a heading}; of others = and -."""


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


def plain_name(path: AnyPath) -> AnyPath:
    """Return the path of a file without .gz at its end."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def locate(metadata: Mapping[str, Any], text: str | None, span: tuple[int, int] | None) -> Location | None:
    """Return where a passage of a document stands; None if the document was not read from a file.

    Args:
        metadata: of the document.
        text: of the document, None if it is not kept.
        span: the first character of the passage, and one past the last; None for all of the text.
    """
    if not (file := metadata.get(FILE)):
        return None
    kind, _, value = (place := metadata.get(PLACE) or "").partition("=")
    if kind == "row" and file.lower().endswith(".jsonl"):
        return Location(file, lines=(int(value), int(value)))
    start, end = span or (0, len(text or ""))
    passage = (text or "")[start:end]
    start += len(passage) - len(passage.lstrip())
    seen = start + (end - start) // 3 if span else start  # a heading soon after its beginning is that of the passage
    heading = heading_at(text or "", seen, end, plain_name(PurePath(file)).suffix.lower())
    if kind != "line":
        return Location(file, place, None, heading)
    first = int(value) + (text or "").count("\n", 0, start)
    return Location(file, "", (first, first + passage.strip().count("\n")), heading)


def heading_at(text: str, start: int, end: int, suffix: str) -> str:
    """Return the last heading of a text at or before a character, or the first one up to `end`; "" if there is none."""
    found = ""
    for place, heading in headings(text, suffix) if suffix in WITH_HEADINGS else ():
        if place > start and (found or place >= end):
            break
        found = heading
    return found


def headings(text: str, suffix: str = ".md") -> Iterator[tuple[int, str]]:
    r"""Yield the first character and the words of the headings of a text in Markdown, or in reStructuredText.

    Those of Markdown begin with # or stand above a line of = or -; a comment in a fence of code is none.

    >>> list(headings("```\n# comment\n```\n#hash\n## C# in short ##\nwords\n\nNext\n====\n"))
    [(24, 'C# in short'), (48, 'Next')]
    """
    fence, place, before, blank = "", 0, "", True
    rules = _RULES.get(suffix, "=-")
    for line in io.StringIO(text, newline="\n"):
        stripped = line.strip()
        if suffix == ".rst":
            words = ""
        else:
            fence = _fence(line, fence)
            words = "" if fence else _marked(line)
        if words:
            yield place, words
        elif not fence and blank and _underlines(stripped, before, rules):
            yield place - len(before), before.strip()
        blank = not before.strip() or _is_rule(before.strip(), rules)
        before = "" if words or fence else line
        place += len(line)


def _fence(line: str, fence: str) -> str:
    """Return the marks of the fence of code that is open after a line; `fence` was open before it."""
    mark = re.match(r" {0,3}(```+|~~~+)", line)
    if mark and not fence:
        return mark[1]
    closes = mark and mark[1].startswith(fence) and not line[mark.end() :].strip()
    return "" if closes else fence


def _marked(line: str) -> str:
    """Return the words of a heading that begins with #, "" for another line."""
    rest = line.lstrip("#")
    if rest == line or not rest[:1].isspace():
        return ""
    words = rest.split()
    closed = len(words) > 1 and not words[-1].strip("#")
    return " ".join(words[:-1] if closed else words)


def _is_rule(line: str, rules: str) -> bool:
    """True for a line of one character, at least twice, of `rules`."""
    return len(line) > 1 and line[0] in rules and not line.strip(line[0])


def _underlines(line: str, before: str, rules: str) -> bool:
    """True if a line underlines the heading before it: in reStructuredText as long as that, in Markdown no item of a list."""
    words = before.strip()
    if not words or words != before.rstrip() or _is_rule(words, rules) or not _is_rule(line, rules):
        return False
    return words[0] not in "-*+>|" if rules == "=-" else len(line) >= len(words)
