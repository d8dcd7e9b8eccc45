"""Reads files as documents: a table from the suffix of a file to its reader.

It runs in the process of `dsi.files.worker`, which ends where a file takes too long or too much memory. A file of another
suffix is read if it is text; one that ends in .gz, as its name without that says. A library is imported when a file of its kind
comes. Knows nothing of folders.
"""

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path

from dsi.docids.data.locations import plain_name
from dsi.files import office, pages, texts
from dsi.files.texts import Parts, UnreadableError

LARGEST_TEXT, LARGEST = 2**24, 2**28
"""Bytes of a text, and of another file, unpacked if its name ends in .gz, at most."""
_SNIFFED = 8_000
"""Bytes of a file of no known suffix that tell whether it is text."""


READERS: dict[str, Callable[[Path, bytes], Parts]] = {
    **dict.fromkeys((".txt", ".text", ".log"), texts.text),
    **dict.fromkeys((".md", ".markdown", ".mdx", ".qmd", ".rmd", ".rst"), texts.markup),
    **dict.fromkeys((".html", ".htm", ".xhtml"), pages.page),
    ".pdf": pages.pdf,
    **dict.fromkeys((".docx", ".docm", ".dotx", ".dotm"), lambda path, data: office.document(path, data, READERS)),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), office.slides),
    **dict.fromkeys((".xlsx", ".xlsm", ".xltx", ".xltm"), office.sheets),
    ".ipynb": texts.notebook,
    **dict.fromkeys((".eml", ".mht", ".mhtml"), pages.mail),
    ".rtf": pages.rich_text,
}
"""{suffix: the function that reads such a file as documents}."""
_DATA = re.compile(r"\.(css|csv|json|jsonl|lock|map|parquet|svg|tsv)")
"""Suffixes of texts that programs write for programs, and of tables."""


def is_read(path: Path) -> bool:
    """True for a file that is read as documents."""
    try:
        return _reader_of(path) is not None
    except UnreadableError:
        return True  # reading it tells


def _reader_of(path: Path) -> Callable[[Path, bytes], Parts] | None:
    suffix = plain_name(path).suffix.lower()
    if suffix in READERS:
        return READERS[suffix]
    is_data = _DATA.fullmatch(suffix) or re.search(rb"[\0-\6\x0e-\x1a\x1c-\x1f\x7f]", _head(path))
    return None if is_data else texts.code


def _head(path: Path) -> bytes:
    head = _content(path, _SNIFFED)
    return head[2:].replace(b"\0", b"") if head.startswith((b"\xff\xfe", b"\xfe\xff")) else head


def parts_of(path: Path) -> Parts:
    """Yield the documents of a file: one, or a page, a slide or a sheet each."""
    reader = _reader_of(path)
    if reader is None:
        kinds = f"{', '.join(READERS)}, source code, other texts and tables"
        raise UnreadableError(f"of a kind that is not read (they are {kinds})")
    most = LARGEST_TEXT if reader in (texts.text, texts.markup, texts.code) else LARGEST
    content, is_empty = _content(path, most + 1), True
    if len(content) > most:
        raise UnreadableError(f"larger than {most >> 20} MB")
    for part in reader(plain_name(path), content) if content else ():
        if part.text.strip():
            is_empty = False
            yield part._replace(text=part.text.replace("\xad", "").replace("\0", ""))  # soft hyphens, and zeros
    if is_empty:
        raise UnreadableError("without text, as scans are" if content and reader is pages.pdf else "empty")


def _content(path: Path, most: int) -> bytes:
    """Return the first bytes of a file, unzipped if its name ends in .gz."""
    try:
        with path.open("rb") if plain_name(path) == path else gzip.open(path) as file:
            return file.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UnreadableError("broken") from None
