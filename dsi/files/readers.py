"""Reads texts, pages, Office files, mail and source code as documents: a table from the suffix of a file to its reader.

It runs in the process of `dsi.files.worker`, which ends where a file takes too long or too much memory. A file of another
suffix is read if it is text; one that ends in .gz, as its name without that says. A library is imported when a file of its kind
comes. Knows nothing of folders.
"""

import email
import email.policy
import gzip
import io
import itertools
import json
import posixpath
import re
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NamedTuple

from dsi.docids.data.locations import UnreadableError, headings, plain_name

LARGEST_TEXT, LARGEST = 2**24, 2**28
"""Bytes of a text, and of another file, unpacked if its name ends in .gz, at most."""
_SNIFFED = 8_000
"""Bytes of a file of no known suffix that tell whether it is text."""
_CODE = re.compile(
    r"\.(bash|c|cc|cfg|clj|cpp|cs|cu|cxx|dart|el|ex|f90|fs|go|gradle|groovy|h|hpp|hs|ini|java|jl|js|jsx|kt|lisp|lua|m|ml|mjs"
    r"|php|pl|pm|proto|ps1|py|pyi|pyx|r|rb|rs|scala|sh|sql|swift|tcl|tex|toml|ts|tsx|v|vb|vue|yaml|yml|zig)"
)
"""Suffixes of source code and settings."""
_DATA = re.compile(r"\.(css|csv|json|jsonl|lock|map|parquet|svg|tsv)")
"""Suffixes of texts that programs write for programs, and of tables."""
_TELLING, _FEW = 20_000, 40
"""Words that tell the encoding of a text, at most; bytes of other letters than ASCII's that tell only those of the web."""
_NO_FRONT_MATTER = "front matter that is neither YAML nor TOML; it is read as text"


class Part(NamedTuple):
    """A part of a file that is a document: where it begins ("line=1", "page=3"), its title, text and metadata."""

    place: str
    title: str
    text: str
    metadata: Mapping[str, Any] = {}
    odd: str = ""
    """What is odd of its file, as `Oddities.count` takes it."""


Parts = Iterator[Part]


def is_read(path: Path) -> bool:
    """True for a file that is read as documents.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return _reader_of(path) is not None
    except UnreadableError:
        return True  # reading it tells


def _reader_of(path: Path) -> Callable[[Path, bytes], Parts] | None:
    suffix = plain_name(path).suffix.lower()
    if _CODE.fullmatch(suffix):
        return _code
    if suffix in READERS:
        return READERS[suffix]
    is_text = not _DATA.fullmatch(suffix) and not re.search(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]", _head(path))
    return _code if is_text else None


def _head(path: Path) -> bytes:
    head = _content(path, _SNIFFED)
    return head[2:].replace(b"\0", b"") if head.startswith((b"\xff\xfe", b"\xfe\xff")) else head


def parts_of(path: Path) -> Parts:
    """Yield the documents of a file: one, or a page, a slide or a sheet each.

    Raises:
        UnreadableError: encrypted, broken, too large or without text.
        ModuleNotFoundError: the library that reads it is not installed.
    """
    reader = _reader_of(path)
    if reader is None:
        kinds = f"{', '.join(READERS)}, source code, other texts and tables"
        raise UnreadableError(f"of a kind that is not read (they are {kinds})")
    most = LARGEST_TEXT if reader in (_text, _markup, _code) else LARGEST
    content, is_empty = _content(path, most + 1), True
    if len(content) > most:
        raise UnreadableError(f"larger than {most >> 20} MB")
    for part in reader(plain_name(path), content) if content else ():
        if part.text.strip():
            is_empty = False
            yield part
    if is_empty:
        raise UnreadableError("without text, as scans are" if content and reader is _pdf else "empty")


def _content(path: Path, most: int) -> bytes:
    """Return the first bytes of a file, unzipped if its name ends in .gz."""
    try:
        with path.open("rb") if plain_name(path) == path else gzip.open(path) as file:
            return file.read(most)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UnreadableError("broken") from None


# Texts.

_GUESSED = "texts in other encodings than UTF-8; they are read as Windows-1252 (dr-scl[files] finds the encoding)"


def decoded(content: bytes) -> tuple[str, str]:
    """Return a text, and what is odd of it if it is not UTF-8; a wrong byte or two do not make it something else.

    Raises:
        UnreadableError: it is not text.
    """
    is_wide = b"\0" in content or b"\x1b$" in content  # as UTF-16 and ISO-2022 are
    text = content.decode("utf-8-sig", errors="replace")
    wrong = text.count("\ufffd")
    if not (is_wide or wrong):
        return text, ""
    letters = len(content) - len(content.decode("ascii", errors="ignore"))
    if not is_wide and wrong * 4 <= letters:
        return text, ""
    try:
        import chardet
    except ModuleNotFoundError:
        if is_wide:
            raise
        return content.decode("cp1252", errors="replace"), _GUESSED

    words = [b"", *content.split(), b""]
    around = (
        word for near in zip(words, words[1:], words[2:], strict=False) for word in near if not b"".join(near).isascii()
    )
    is_whole = is_wide or letters < _FEW
    told = content if is_whole else b" ".join(itertools.islice(around, _TELLING))
    web, all_of_them = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO, chardet.EncodingEra.ALL
    name = chardet.detect(told, encoding_era=web if letters < _FEW and not is_wide else all_of_them)["encoding"]
    text = content.decode(name, errors="replace") if name else "\0"
    if "\0" in text:
        raise UnreadableError("not text")
    return text, "texts in other encodings than UTF-8; they are read in those that their letters tell"


def _title(path: Path) -> str:
    """Return the name of a file as a title."""
    return re.sub(r"[-_]+", " ", path.stem)


def _heading(text: str, path: Path) -> str:
    """Return the first heading of a text, or the name of its file."""
    return next((words for _, words in headings(text, path.suffix.lower()) if words), "") or _title(path)


def _text(path: Path, content: bytes) -> Parts:
    text, odd = decoded(content)
    yield Part("line=1", _title(path), text, odd=odd)


def _code(path: Path, content: bytes) -> Parts:
    text, odd = decoded(content)
    yield Part("line=1", path.name, text, odd=odd)


def _markup(path: Path, content: bytes) -> Parts:
    """Yield a text in Markdown or reStructuredText; its title is that of the front matter, else its first heading."""
    text, odd = decoded(content)
    found = re.match(r"(---|\+\+\+)[ \t]*\r?\n(.*?\n)(?:\1|\.\.\.)[ \t]*(?:\r?\n|$)", text[: 2**16], re.DOTALL)
    front, start = {}, 0
    if found and path.suffix.lower() != ".rst":
        try:
            front, start = _front_matter(found[2], is_toml=found[1] == "+++"), found.end()
        except (ValueError, RecursionError):  # it may be a text between two rules
            odd = odd or _NO_FRONT_MATTER
    title = front.pop("title", "")
    words = (
        ", ".join(map(str, title)) if isinstance(title, list) else "" if isinstance(title, dict) else str(title or "")
    )
    body = text[found.end() if found else 0 :]
    yield Part(f"line={1 + text.count(chr(10), 0, start)}", words or _heading(body, path), text[start:], front, odd)


def _front_matter(text: str, *, is_toml: bool) -> dict[str, Any]:
    """Return the keys at the head of a text.

    Raises:
        ValueError: it is not of that language, or no keys.
    """
    import yaml

    try:
        front = tomllib.loads(text) if is_toml else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(front, dict):
        raise ValueError("no keys")
    return {str(key): value for key, value in front.items()}


def _notebook(path: Path, content: bytes) -> Parts:
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(content)["cells"]]
    text = "\n".join(f"```\n{source}\n```\n" if kind == "code" else f"{source}\n" for kind, source in cells)
    yield Part("", _heading(text, path), text)


# Pages.


def _pdf(path: Path, content: bytes) -> Parts:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        raise UnreadableError("encrypted" if "password" in str(error).lower() else "broken") from None
    title = pdf.get_metadata_value("Title").strip()
    for number, page in enumerate(pdf, start=1):
        text = _joined(page.get_textpage().get_text_bounded())
        page.close()
        yield Part(f"page={number}", title if " " in title else _title(path), text)


def _joined(text: str) -> str:
    """Return the text of a page with words whole that are divided at the end of a line: pdfium marks these hyphens."""
    text = re.sub(r"(?:[\x02\ufffe]|\u00ad)\s*\n?(?=[^\W\d_])(?![A-Z])|\u00ad", "", text.replace("\r\n", "\n"))
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", re.sub("[\x02\ufffe]", "-", text))


_DROPPED = ("script", "style", "nav", "aside", "footer", "noscript", "template", "svg", "iframe", "button", "select")
_DROPPED_ROLES = ("navigation", "contentinfo", "search", "complementary")
"""Elements of a page, and roles of elements, that are not its text; a button in a heading is."""
_MARKS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
"""{heading of a page: what it begins with}."""
_LINES = {
    *re.findall(
        r"\w+",
        "address article blockquote br caption dd details div dl dt fieldset figcaption figure form header hr legend li main "
        "ol option p pre section summary table tbody td textarea th thead tr ul",
    ),
    *_MARKS,
}
"""Elements of a page that stand on lines of their own."""
_SPACES = re.compile(r"\s+")
_MAIN = "//main | //*[@role='main']"
_BESIDE_MAIN = " | //header[.//h1 | .//h2 | .//h3] | //h1"
"""Where the title of a page with a main part may stand."""


def _html(path: Path, content: bytes) -> Parts:
    from lxml import html

    declared = re.search(rb"<(?:\?xml|meta)[^>]*(?:charset|encoding)\s*=\s*[\"']?([\w.:-]+)", content[:4096])
    try:
        text, odd = content.decode(declared[1].decode() if declared else "utf-8-sig"), ""
    except (LookupError, UnicodeDecodeError):  # or it is not what it says
        text, odd = decoded(content)
    if text.strip():
        page = html.fromstring(text.encode("utf-8", "replace"), parser=html.HTMLParser(encoding="utf-8"))
        title = " ".join((page.findtext(".//title") or "").split())
        yield Part("", title or _title(path), page_text(page), odd=odd)


def page_text(page: Any) -> str:
    """Return the text of a page of lxml without its navigation: its main part, if it names one; headings begin with #.

    Of the libraries that we tried, those that leave out the navigation lose headings with it.
    """
    for node in [*page.iter()]:
        if node is not page and _is_dropped(node):
            node.drop_tree()
    main = page.xpath(_MAIN) or page.xpath("//article[count(//article) = 1]")
    roots = page.xpath(_MAIN + _BESIDE_MAIN + " | //article[count(//article) = 1]") if main else page.xpath("//body")
    roots = [root for root in roots or [page] if not any(up in roots for up in root.iterancestors())]
    for node in itertools.chain.from_iterable(root.iter() for root in roots):
        end = "\n```\n" if node.tag == "pre" else "\n" if node.tag in _LINES else ""
        node.text = (end if node.tag != "br" else "") + _MARKS.get(node.tag, "") + _spaced(node, node.text)
        node.tail = end + _spaced(node.getparent(), node.tail) if node not in roots else ""
    text = "\n".join("".join(root.itertext()) for root in roots)
    text = re.sub(r"(?<![ \t])[ \t]+\n|\n (?=\S)", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"^(#+)\s+", r"\1 ", text, flags=re.MULTILINE)).strip()


def _is_dropped(node: Any) -> bool:
    if node.tag == "button":
        return not any(above.tag in _MARKS for above in node.iterancestors())
    if not isinstance(node.tag, str) or node.tag in _DROPPED:
        return True
    own = node.attrib
    is_hidden = "hidden" in own or ("style" in own and re.search(r"display\s*:\s*none", own["style"]))
    return bool(is_hidden) or own.get("role") in _DROPPED_ROLES


def _spaced(node: Any, text: str | None) -> str:
    """Return a text in an element, on one line unless it is set as it is written."""
    if not text or (node is not None and node.tag == "pre"):
        return text or ""
    return _SPACES.sub(" ", text)


# Office files. Each library that we tried loses some of their text (CONTRIBUTING.md); this reads the whole tree of
# each part but what is deleted or hidden.

_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
"""{element: the text that it stands for}; as a child of a run."""
_UNREAD = ("del", "moveFrom", "fld")
"""Elements that are deleted or computed; others that are no text, such as field codes, have theirs in elements not named t."""
_RELATED = ("header", "footer", "footnotes", "endnotes", "comments", "chart", "chartEx", "diagramData", "drawing")
"""Parts of a file, beside its main ones, that hold text."""


def _name(node: Any) -> str:
    """Return the name of an element without its namespace."""
    return str(node.tag).rpartition("}")[2]


def _office_text(node: Any, levels: Mapping[str, int]) -> str:
    """Return the text of an element: a line a paragraph or row of a table; `levels` are those of the styles of headings."""
    name = _name(node)
    if name in _UNREAD or name.endswith("Pr") or _is_left_out(node):
        return ""
    if name in ("t", "v"):
        return f"{node.text or ''}{' ' if name == 'v' else ''}"
    if name in _SIGNS:
        return _SIGNS[name]
    if name == "AlternateContent":  # the same, for newer and older programs
        return next(filter(str.strip, (_office_text(child, levels) for child in node)), "")
    inside = [_office_text(child, levels) for child in node]
    if name == "tr":
        return " | ".join(filter(None, (" ".join(cell.split()) for cell in inside))) + "\n"
    styles = node.iterfind("{*}pPr/{*}pStyle") if name == "p" else ()
    marks = "#" * next((levels.get(style.values()[0], 0) for style in styles), 0)
    line = "".join(inside)
    line = f"{marks} {line}" if marks and line.strip() else line
    return f"{line}\n" if name in ("p", "ser", "comment") else line


def _is_left_out(node: Any) -> bool:
    """True for a run of hidden text, and a row of a table that is deleted."""
    hidden = node.find("{*}rPr/{*}vanish") if _name(node) == "r" else None
    is_off = hidden is not None and [*hidden.values(), "1"][0] in ("0", "false", "off")
    return (hidden is not None and not is_off) or (_name(node) == "tr" and node.find("{*}trPr/{*}del") is not None)


class _Package:
    """The parts of an Office file, and which belongs to which."""

    def __init__(self, content: bytes) -> None:
        if content.startswith(b"\xd0\xcf\x11\xe0"):
            raise UnreadableError("encrypted, or of an old office program")
        self._packed = zipfile.ZipFile(io.BytesIO(content))

    def tree(self, name: str) -> Any:
        """Return the XML of a part; entities of it are not read."""
        from lxml import etree

        return etree.fromstring(self._packed.read(name), etree.XMLParser(resolve_entities=False, no_network=True))

    def related(self, name: str) -> Iterator[tuple[str, str, str]]:
        """Yield the parts that belong to one: id, kind and name."""
        rels = posixpath.join(posixpath.dirname(name), "_rels", f"{posixpath.basename(name)}.rels")
        for own in self.tree(rels) if rels in self._packed.namelist() else ():
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), own.get("Target", "")))[1:]
            if own.get("TargetMode") != "External" and target in self._packed.namelist():
                yield own.get("Id"), own.get("Type", "").rpartition("/")[2], target

    def main(self) -> str:
        """Return the name of the part with which a file begins."""
        return next(name for _, kind, name in self.related("") if kind == "officeDocument")

    def text(self, name: str, levels: Mapping[str, int], kinds: Iterable[str] = _RELATED) -> str:
        """Return the text of a part, and of those of some kinds that belong to it."""
        others = dict.fromkeys(own for _, kind, own in self.related(name) if kind in kinds and own != name)
        texts = [_office_text(self.tree(name), levels), *(self.text(own, levels, kinds) for own in others)]
        return "\n".join(text.strip("\n") for text in texts if text.strip())

    def title(self) -> str:
        """Return the title in the properties of a file."""
        found = (self.tree(name).find("{*}title") for _, kind, name in self.related("") if kind == "core-properties")
        return next((" ".join((title.text or "").split()) for title in found if title is not None), "")


def _docx(path: Path, content: bytes) -> Parts:
    package = _Package(content)
    main, levels = package.main(), {"Title": 1}
    for style in [style for _, kind, name in package.related(main) if kind == "styles" for style in package.tree(name)]:
        words = next((name.values()[0] for name in style.iterfind("{*}name")), "")
        if number := re.fullmatch(r"[Hh]eading ([1-9])|[Tt]itle", words):
            levels[style.get(style.tag.replace("}style", "}styleId"), "")] = int(number[1] or 1)
    text = package.text(main, levels)
    yield Part("", package.title() or _heading(text, path), text)


def _pptx(path: Path, content: bytes) -> Parts:
    package = _Package(content)
    main = package.main()
    names = {own: name for own, _, name in package.related(main)}
    for number, entry in enumerate(package.tree(main).iterfind("{*}sldIdLst/{*}sldId"), start=1):
        name = names[entry.values()[-1]]
        slide = package.tree(name)
        if slide.get("show") in ("0", "false"):
            continue
        kinds = (
            (shape, place.get("type", ""))
            for shape in slide.iter("{*}sp")
            for place in shape.iterfind("{*}nvSpPr/{*}nvPr/{*}ph")
        )
        titles = (_office_text(shape, {}) for shape, kind in kinds if kind in ("title", "ctrTitle"))
        title = " ".join(next(titles, "").split())
        yield Part(f"slide={number}", title or _title(path), package.text(name, {}, (*_RELATED, "notesSlide")))


def _xlsx(path: Path, content: bytes) -> Parts:
    import openpyxl

    package = _Package(content)
    books = [openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=known) for known in (True, False)]
    for values in books[0].worksheets:
        if values.sheet_state == "visible":
            values.reset_dimensions()  # which may say more than there is
            formulas = books[1][values.title]
            formulas.reset_dimensions()
            rows = (map(_cell, *pair) for pair in zip(values.iter_rows(), formulas.iter_rows(), strict=True))
            lines = [" | ".join(filter(None, row)) for row in rows]
            beside = [
                package.text(name, {}) for _, kind, name in package.related(values._worksheet_path) if kind in _RELATED
            ]
            text = "\n".join([*filter(None, lines), *beside])
            yield Part(f"sheet={values.title}", f"{_title(path)}: {values.title}", text)


def _cell(known: Any, formula: Any) -> str:
    """Return a cell as it is shown, or its formula if the file does not say what it comes to."""
    value = formula.value if known.value is None else known.value
    if isinstance(value, int | float) and "%" in known.number_format:
        return f"{value:.{len(known.number_format.partition('.')[2].rstrip('%'))}%}"
    if isinstance(value, float):
        return f"{value:.15g}"
    return "" if value is None else " ".join(str(value).removesuffix(" 00:00:00").split())


# Mail.


def _mail(path: Path, content: bytes) -> Parts:
    message: Any = email.message_from_bytes(content, policy=email.policy.default)
    subject, text = _header(message, "Subject"), _message_text(message)
    yield Part("", subject or _title(path), text if subject or _body(message).strip() else "")


def _message_text(message: EmailMessage) -> str:
    heads = [f"{name}: {value}" for name in ("From", "To", "Date") if (value := _header(message, name))]
    return "\n".join([*heads, "", _body(message)])


def _header(message: EmailMessage, name: str) -> str:
    """Return a header; one that is not encoded, as its letters tell."""
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if raw.isprintable() or raw.isascii():
        return str(message[name] or "").strip()
    return decoded(raw.encode("utf-8", "surrogateescape"))[0].strip()


def _body(part: Any) -> str:
    """Return the text of a part of a mail: of several alternatives the first with text, and mails in mails; no attachments."""
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload(0)
        return f"Subject: {_header(inner, 'Subject')}\n{_message_text(inner)}"
    if part.is_multipart():
        texts = filter(str.strip, map(_body, part.iter_parts()))
        return next(texts, "") if part.get_content_subtype() == "alternative" else "\n\n".join(texts)
    if part.get_content_maintype() != "text" or part.is_attachment():
        return ""
    content = part.get_payload(decode=True) or b""
    try:
        text = content.decode(part.get_content_charset("utf-8"))
    except (LookupError, UnicodeDecodeError):
        text = decoded(content)[0]
    if part.get_content_subtype() == "html" and text.strip():
        from lxml import html

        return page_text(html.fromstring(text))
    return text.replace("\r\n", "\n")


READERS: dict[str, Callable[[Path, bytes], Parts]] = {
    ".txt": _text, ".text": _text, ".log": _text, ".md": _markup, ".markdown": _markup, ".rst": _markup, ".html": _html,
    ".htm": _html, ".xhtml": _html, ".pdf": _pdf, ".docx": _docx, ".pptx": _pptx, ".xlsx": _xlsx, ".ipynb": _notebook,
    ".eml": _mail,
}  # fmt: skip
"""{suffix: the function that reads such a file as documents}."""
