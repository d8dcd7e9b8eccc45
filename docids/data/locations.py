"""Where in a file a document and its passages stand: columns of the document table, headings, lines. Reads no files."""

from collections.abc import Mapping
from importlib.util import find_spec
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
    if suffix not in WITH_HEADINGS or not find_spec("dsi.files"):
        return ""
    from dsi.files.headings import headings

    found = ""
    for place, heading in headings(text, suffix):
        if place > start and (found or place >= end):
            break
        found = heading
    return found
