"""Reads texts, pages, mail and source code as documents: a table from the suffix of a file to the function that reads it.

A file of another suffix is read if it is text; one that ends in .gz, as its name without that says. What is read with a library
of the extra "files" imports it when a file of that kind comes. Knows nothing of folders.
"""

import codecs
import email
import email.policy
import gzip
import json
import logging
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dsi.docids.data.locations import headings, plain_name
from dsi.docids.data.sources import RECORDS, reason
from dsi.docids.files.temporary import temporary_folder

logger = logging.getLogger(__name__)

LARGEST_TEXT, LARGEST = 2**24, 2**28
"""Bytes of a text, and of another file with all that is packed in it, at most."""
_FRONT = 2**16
"""Characters of front matter, and of a header of a mail, at most."""
_DEEPEST = 20
"""Lists and mappings in each other in front matter, at most."""
_ROWS = 2**20
"""Of a sheet, at most, as the office programs have it."""
_SNIFFED = 8_000
"""Bytes of a file of no known suffix that tell whether it is text."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that no text has."""
_CODE = re.compile(
    r"\.(bash|c|cc|cfg|clj|cpp|cs|cu|cxx|dart|el|ex|f90|fs|go|gradle|groovy|h|hpp|hs|ini|java|jl|js|jsx|kt|lisp|lua|m|ml|mjs"
    r"|php|pl|pm|proto|ps1|py|pyi|pyx|r|rb|rs|scala|sh|sql|swift|tcl|tex|toml|ts|tsx|v|vb|vue|yaml|yml|zig)"
)
"""Suffixes of source code and settings."""
_DATA = re.compile(r"\.(css|json|lock|map|svg)")
"""Suffixes of texts that programs write for programs."""
_DROPPED = ("script", "style", "nav", "aside", "footer", "noscript", "template", "svg", "iframe", "button", "select")
_DROPPED_ROLES = ("navigation", "banner", "contentinfo", "search", "complementary")
"""Elements of a page, and roles of elements, that are not its text."""
_LINES = re.compile(
    "address|article|blockquote|br|caption|dd|div|dl|dt|figcaption|figure|h[1-6]|header|hr|li|main|ol|p|pre|section|table|tbody"
    "|td|th|thead|tr|ul"
)
"""Elements of a page that stand on lines of their own."""
_OLD_OFFICE = b"\xd0\xcf\x11\xe0"
"""How files of the old office programs begin, and encrypted ones of the new."""


class Part(NamedTuple):
    """A part of a file that is a document: where it begins ("line=1", "page=3"), its title, text and metadata."""

    place: str
    title: str
    text: str
    metadata: Mapping[str, Any] = {}


class UnreadableError(ValueError):
    """A file cannot be read; the message says what it is, such as "encrypted"."""


Parts = Iterator[Part]


def reader_of(path: Path) -> Callable[[Path], Parts] | None:
    """Return the function that reads a file as documents, None for files of other kinds.

    Raises:
        OSError: it cannot be opened.
        UnreadableError: its compressed data are damaged.
    """
    suffix = plain_name(path).suffix.lower()
    if _CODE.fullmatch(suffix):
        return _code
    if suffix in READERS:
        return READERS[suffix]
    return _code if suffix not in RECORDS and not _DATA.fullmatch(suffix) and _is_text(path) else None


def parts_of(path: Path) -> Parts:
    """Yield the documents of a file: one, or a page, a slide or a sheet each.

    Raises:
        UnreadableError: encrypted, broken, too large or without text.
        ModuleNotFoundError: the library that reads it is not installed.
    """
    reader = reader_of(path)
    if reader is None:
        kinds = f"{', '.join(READERS)}, source code, other texts and tables"
        raise UnreadableError(f"of a kind that is not read (they are {kinds})")
    most = LARGEST_TEXT if reader in _TEXTS else LARGEST
    with _unzipped(path, most) as plain:
        size, is_empty = plain.stat().st_size, True
        if size > most:
            raise UnreadableError(f"larger than {most >> 20} MB")
        for part in reader(plain) if size else ():
            if not part.text.isspace() and part.text:
                is_empty = False
                yield part
    if is_empty:
        raise UnreadableError("without text, as scans are" if size and reader is _pdf else "empty")


# Compressed files.


@contextmanager
def _unzipped(path: Path, most: int) -> Iterator[Path]:
    """Give the path of a file; of one that ends in .gz, that of a file with its contents, up to one byte more than `most`."""
    name = plain_name(path)
    if name == path:
        yield path
        return
    with temporary_folder() as folder:
        plain = Path(folder) / name.name
        with plain.open("wb") as target:
            target.writelines(_blocks(path, most + 1))
        yield plain


def _blocks(path: Path, most: int) -> Iterator[bytes]:
    """Yield the first `most` bytes of a file, unzipped if its name ends in .gz, a block at a time.

    Raises:
        UnreadableError: the compressed data are damaged.
    """
    try:
        with path.open("rb") if plain_name(path) == path else gzip.open(path) as file:
            while most and (block := file.read(min(most, 2**20))):
                most -= len(block)
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UnreadableError("broken") from None


# Texts.


def decoded(content: bytes) -> tuple[str, bool]:
    """Return the text of a file, and whether it is UTF-8; UTF-16 is known by its mark, all else is Windows-1252.

    Raises:
        UnreadableError: it is not text.
    """
    if content.startswith(_UTF_16):
        return content.decode("utf-16", errors="replace"), False
    if b"\0" in content:
        raise UnreadableError("not text")
    try:
        return content.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace"), False


def is_other_encoding(path: Path) -> bool:
    """True if a text that was read is not UTF-8."""
    return reader_of(path) in _TEXTS and not decoded(b"".join(_blocks(path, LARGEST_TEXT)))[1]


def _is_text(path: Path) -> bool:
    head = b"".join(_blocks(path, _SNIFFED))
    return head.startswith(_UTF_16) or not _BINARY.search(head)


def _title(path: Path) -> str:
    """Return the name of a file as a title."""
    return re.sub(r"[-_]+", " ", path.stem)


def _heading(text: str, path: Path) -> str:
    """Return the first heading of a text, or the name of its file."""
    return next((words for _, words in headings(text, path.suffix.lower())), "") or _title(path)


def _text(path: Path) -> Parts:
    yield Part("line=1", _title(path), decoded(path.read_bytes())[0])


def _code(path: Path) -> Parts:
    yield Part("line=1", path.name, decoded(path.read_bytes())[0])


def _markup(path: Path) -> Parts:
    """Yield a text in Markdown or reStructuredText; its title is that of the front matter, else its first heading."""
    whole = decoded(path.read_bytes())[0]
    front, start, body = ({}, 0, 0) if path.suffix.lower() == ".rst" else _front_matter(whole, path)
    title = front.pop("title", None) or _heading(whole[body:], path)
    yield Part(f"line={1 + whole.count(chr(10), 0, start)}", str(title), whole[start:], front)


def _front_matter(text: str, path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the keys of the YAML between two lines of --- at the head of a text, and where the text and its body begin.

    Lines that are not YAML belong to the text.
    """
    lines = re.match(r"---[ \t]*\r?\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\r?\n|$)", text[:_FRONT], re.DOTALL)
    if not lines:
        return {}, 0, 0
    try:
        _check_yaml(lines[1])
        front = yaml.safe_load(lines[1])
    except (yaml.YAMLError, ValueError) as error:
        logger.warning("%s: its front matter is not YAML (%s), and read as text.", path, reason(error))
        return {}, 0, lines.end()
    if not isinstance(front, dict):
        return {}, 0, 0
    return {str(key): value for key, value in front.items()}, lines.end(), lines.end()


def _check_yaml(text: str) -> None:
    """Raise ValueError if a text in YAML has aliases, which can be larger than any memory, or is nested deeply."""
    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has aliases")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep")


# Pages.


def _pdf(path: Path) -> Parts:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        is_locked = "password" in str(error).lower()
        raise UnreadableError("encrypted" if is_locked else "broken") from None
    with pdf:
        title = pdf.get_metadata_value("Title").strip()
        for number in range(len(pdf)):
            page = pdf[number]
            text = page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\x00", "")
            page.close()
            yield Part(f"page={number + 1}", title if " " in title else _title(path), re.sub("\ufffe\n?", "", text))


def _html(path: Path) -> Parts:
    from lxml import html

    content = path.read_bytes()
    if not content.strip():
        return
    is_plain = b"\0" not in content and decoded(content)[1]  # else its declaration counts
    page = html.fromstring(content, parser=html.HTMLParser(encoding="utf-8" if is_plain else None))
    title = " ".join((page.findtext(".//title") or "").split())
    yield Part("", title or _title(path), page_text(page))


def page_text(page: Any) -> str:
    """Return the text of a page of lxml without its navigation: its main part, if it names one; headings begin with #."""
    roots = page.xpath("//main | //*[@role='main']") or page.xpath("//article") or page.xpath("//body") or [page]
    root = roots[0] if len(roots) == 1 else next(iter(page.xpath("//body")), page)
    for node in [*root.iter()]:
        if not isinstance(node.tag, str) or node.tag in _DROPPED or node.get("role") in _DROPPED_ROLES:
            if node is not root:
                node.drop_tree()
            continue
        end = "\n```\n" if node.tag == "pre" else "\n" if _LINES.fullmatch(node.tag) else ""
        marks = "#" * int(node.tag[1]) + " " if re.fullmatch("h[1-6]", node.tag) else ""
        node.text = (end if node.tag != "br" else "") + marks + _spaced(node, node.text)
        node.tail = end + _spaced(node.getparent(), node.tail)
    text = re.sub(r"(?<![ \t])[ \t]+\n|\n (?=\S)", "\n", "".join(root.itertext()))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _spaced(node: Any, text: str | None) -> str:
    """Return a text in an element, on one line unless it is set as it is written."""
    return text or "" if node is not None and node.tag == "pre" else re.sub(r"\s+", " ", text or "")


def _docx(path: Path) -> Parts:
    import docx

    document = docx.Document(str(_unpacked(path)))
    text = "\n".join(line for item in document.iter_inner_content() for line in _docx_lines(item))
    yield Part("", document.core_properties.title.strip() or _heading(text, path), text)


def _docx_lines(item: Any) -> Iterator[str]:
    """Yield the lines of a paragraph or a table; a heading begins with #, and cells are a line a row."""
    if hasattr(item, "rows"):
        from docx.table import _Cell

        # not `row.cells`, which has a cell for each column that one spans, however many it says
        yield from _rows([_Cell(cell, item).text for cell in row._tr.tc_lst] for row in item.rows)
        return
    style = item.style.name if item.style is not None else ""
    level = re.fullmatch(r"Heading ([1-9])", style)
    yield ("#" * int(level[1]) + " " if level else "# " if style == "Title" else "") + item.text


def _rows(rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield rows of cells as lines, without blank ones."""
    for row in rows:
        line = " | ".join(" ".join(str(cell).split()) for cell in row if cell is not None and str(cell).strip())
        if line:
            yield line


def _pptx(path: Path) -> Parts:
    import pptx

    for number, slide in enumerate(pptx.Presentation(str(_unpacked(path))).slides, start=1):
        lines: list[str] = []
        for shape in slide.shapes:
            if shape.has_text_frame:
                lines.append(shape.text_frame.text)
            elif shape.has_table:
                lines += _rows([cell.text for cell in row.cells] for row in shape.table.rows)
        if slide.has_notes_slide:
            lines.append(slide.notes_slide.notes_text_frame.text)
        title = slide.shapes.title.text_frame.text if slide.shapes.title is not None else ""
        yield Part(f"slide={number}", " ".join(title.split()) or _title(path), "\n".join(lines))


def _xlsx(path: Path) -> Parts:
    import openpyxl

    book = openpyxl.load_workbook(_unpacked(path), read_only=True, data_only=True)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # which may say more than there is
        rows = _rows(_numbered(sheet.iter_rows(values_only=True)))
        yield Part(f"sheet={sheet.title}", f"{_title(path)}: {sheet.title}", "\n".join(rows))
    book.close()


def _numbered(rows: Iterable[Iterable[Any]]) -> Iterator[Iterable[Any]]:
    """Yield the rows of a sheet, with empty ones for numbers that are left out.

    Raises:
        UnreadableError: a row has a number beyond those that a sheet has.
    """
    for number, row in enumerate(rows):
        if number == _ROWS:
            raise UnreadableError(f"with sheets of more than {_ROWS:,} rows")
        yield row


def _unpacked(path: Path) -> Path:
    """Return the path of a file of a new office program, if what is packed in it is not too large.

    Raises:
        UnreadableError: it is, or the file is encrypted.
    """
    with path.open("rb") as file:
        if file.read(4) == _OLD_OFFICE:
            raise UnreadableError("encrypted, or of an old office program")
    with zipfile.ZipFile(path) as packed:
        if sum(entry.file_size for entry in packed.infolist()) > LARGEST:
            raise UnreadableError(f"larger than {LARGEST >> 20} MB")
    return path


def _notebook(path: Path) -> Parts:
    lines: list[str] = []
    for cell in json.loads(path.read_bytes())["cells"]:
        source = "".join(cell["source"])
        lines.append(f"```\n{source}\n```\n" if cell["cell_type"] == "code" else f"{source}\n")
    text = "\n".join(lines)
    yield Part("", _heading(text, path), text)


def _mail(path: Path) -> Parts:
    with path.open("rb") as file:
        message = email.message_from_binary_file(file, policy=email.policy.default)
    if any(len(value) > _FRONT for part in message.walk() for _, value in part.raw_items()):
        raise UnreadableError(f"with headers of more than {_FRONT:,} characters")  # reading one takes its square
    heads = [f"{name}: {message[name]}" for name in ("From", "To", "Date") if message[name]]
    body = message.get_body(("plain", "html"))
    text = str(body.get_content()) if body is not None else ""
    if body is not None and body.get_content_subtype() == "html":
        from lxml import html

        text = page_text(html.fromstring(text)) if text.strip() else ""
    subject = str(message["Subject"] or "").strip()
    yield Part("", subject or _title(path), "\n".join([*heads, "", text]) if subject or text.strip() else "")


_TEXTS = (_text, _markup, _code)
READERS: dict[str, Callable[[Path], Parts]] = {
    ".txt": _text, ".text": _text, ".log": _text, ".md": _markup, ".markdown": _markup, ".rst": _markup, ".html": _html,
    ".htm": _html, ".xhtml": _html, ".pdf": _pdf, ".docx": _docx, ".pptx": _pptx, ".xlsx": _xlsx, ".ipynb": _notebook,
    ".eml": _mail,
}  # fmt: skip
"""{suffix: the function that reads such a file as documents}."""
