"""Office files as documents: the whole tree of each part, but what is deleted or hidden.

Each library that we tried loses some of their text (CONTRIBUTING.md).
"""

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from dsi.files.texts import Part, Parts, UnreadableError, heading, name_of

_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
"""{element: the text that it stands for}; as a child of a run."""
_WORDS = ("t", "v", "text", "pt")
"""Elements whose text is read, if no elements are in them; field codes and deleted text are in others."""
_DESCRIBED = {"docPr": ("title", "descr"), "cNvPr": ("title", "descr"), "shape": ("alt",), "textpath": ("string",)}
"""{element: attributes of it that are the text of a picture}."""
_UNREAD = ("del", "moveFrom", "fld", "rt")
"""Elements that are deleted, computed or tell how letters are read."""
_DELETED = {"tr": "{*}trPr/{*}del", "tc": "{*}tcPr/{*}cellDel"}
"""{element: what is in it if it is deleted}."""
_HIDING = {"tr": "{*}trPr/{*}hidden", "r": "{*}rPr/{*}vanish"}
"""{element: the switch in it that hides it}."""
_RELATED = (
    "header", "footer", "footnotes", "endnotes", "comments", "threadedComment", "chart", "chartEx", "diagramData", "drawing",
)  # fmt: skip
"""Parts of a file, beside its main ones, that hold text."""
_HIDDEN = -1
"""Level of a style of hidden text."""
_STARTS, _ENDS = {"txbxContent": "\n"}, dict.fromkeys(("p", "ser", "comment", "cm", "threadedComment"), "\n")
"""{element: what stands before or behind its text}."""
_TOKENS = re.compile(
    r"\"([^\"]*)\"|\\(.)|\[\$([^\]-]*)[^\]]*\]|(\[[^\]]*\]|[_*].)|([#0?][#0?,]*(?:\.[#0?]+)?,*)|(.)", re.DOTALL
)
"""A literal of a format of numbers in three forms, what shows nothing, the digits, and a sign."""


def _text(node: Any, levels: Mapping[str, int]) -> str:
    """Return the text of an element: a line a paragraph or row of a table; `levels` are those of the styles of headings."""
    name = str(node.tag).rpartition("}")[2]
    if name in _DESCRIBED:
        described = "".join(f" {node.get(key)} " for key in _DESCRIBED[name] if node.get(key))
        return described + "".join(_text(child, levels) for child in node)
    if name in _UNREAD or (name.endswith("Pr") and not name.startswith("nv")) or _is_gone(node, name, levels):
        return ""
    if name in _SIGNS:
        return _SIGNS[name]
    if name == "sym":  # of letters of its font alone nobody knows the meaning
        codes = (value for key, value in node.items() if key.endswith("}char"))
        return "".join(chr(int(code, 16)) for code in codes if re.fullmatch("[0-9A-Da-d][0-9A-Fa-f]{3}", code))
    if name in _WORDS and not len(node):
        return f"{node.text or ''}{'' if name == 't' else ' '}"
    if name == "AlternateContent":  # the same, for newer and older programs
        return next(filter(str.strip, (_text(child, levels) for child in node)), "")
    inside = [_text(child, levels) for child in node]
    if name == "tr":
        return " | ".join(filter(None, (" ".join(cell.split()) for cell in inside))) + "\n"
    line, marks = "".join(inside), "#" * _level(node, name, levels)
    return _STARTS.get(name, "") + (f"{marks} {line}" if marks and line.strip() else line) + _ENDS.get(name, "")


def _level(node: Any, name: str, levels: Mapping[str, int]) -> int:
    """Return the level of the style of a paragraph or a run."""
    styles = node.iterfind(f"{{*}}{name}Pr/{{*}}{name}Style") if name in ("p", "r") else ()
    return next((levels.get(style.values()[0], 0) for style in styles if style.values()), 0)


def _is_gone(node: Any, name: str, levels: Mapping[str, int]) -> bool:
    """True if an element is deleted or hidden."""
    if name in _DELETED and node.find(_DELETED[name]) is not None:
        return True
    if name in _HIDING and (switch := node.find(_HIDING[name])) is not None:
        return _is_on(switch)
    if name in ("sp", "pic", "grpSp", "graphicFrame", "inline", "anchor"):
        return node.find("*/{*}cNvPr[@hidden='1']") is not None or node.find("{*}docPr[@hidden='1']") is not None
    return _level(node, name, levels) == _HIDDEN


def _is_on(switch: Any) -> bool:
    """True if a property that is there does not say that it is off."""
    return next(iter(switch.values()), "1") not in ("0", "false", "off")


class _Package:
    """The parts of an Office file, and which belongs to which."""

    def __init__(self, content: bytes) -> None:
        if content.startswith(b"\xd0\xcf\x11\xe0"):
            raise UnreadableError("encrypted, or of an old office program")
        self._packed = zipfile.ZipFile(io.BytesIO(content))
        self.main = next(name for _, kind, name in self.related("") if kind == "officeDocument")

    def tree(self, name: str) -> Any:
        """Return the XML of a part; entities of it are not read."""
        from lxml import etree

        return etree.fromstring(self.read(name), etree.XMLParser(resolve_entities=False, no_network=True))

    def read(self, name: str) -> bytes:
        """Return the content of a part."""
        return self._packed.read(name)

    def has_formulas(self) -> bool:
        """True if a sheet of a workbook has a formula."""
        sheets = (name for _, kind, name in self.related(self.main) if kind == "worksheet")
        return any(re.search(rb"<(?:\w+:)?f[\s/>]", self.read(name)) for name in sheets)

    def related(self, name: str) -> Iterator[tuple[str, str, str]]:
        """Yield the parts that belong to one: id, kind and name."""
        rels = posixpath.join(posixpath.dirname(name), "_rels", f"{posixpath.basename(name)}.rels")
        for link in self.tree(rels) if rels in self._packed.namelist() else ():
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(name), link.get("Target", "")))[1:]
            if link.get("TargetMode") != "External" and target in self._packed.namelist():
                yield link.get("Id"), link.get("Type", "").rpartition("/")[2], target

    def listed(self, entries: str) -> Iterator[tuple[Any, str, str]]:
        """Yield the slides or sheets that the main part lists: the entry, and the kind and name of the part."""
        parts = {part_id: (kind, name) for part_id, kind, name in self.related(self.main)}
        for entry in self.tree(self.main).iterfind(entries):
            part_id = next((value for key, value in entry.items() if key.endswith("}id")), "")
            if part_id in parts:
                yield entry, *parts[part_id]

    def text(self, name: str, levels: Mapping[str, int] = {}, kinds: Iterable[str] = _RELATED) -> str:
        """Return the text of a part, and of those of some kinds that belong to it."""
        others = dict.fromkeys(part for _, kind, part in self.related(name) if kind in kinds and part != name)
        texts = [_text(self.tree(name), levels), *(self.text(part, levels, kinds) for part in others)]
        return "\n".join(text.strip("\n") for text in texts if text.strip())

    def title(self) -> str:
        """Return the title in the properties of a file."""
        elements = (self.tree(name).find("{*}title") for _, kind, name in self.related("") if kind == "core-properties")
        return next((" ".join((title.text or "").split()) for title in elements if title is not None), "")


def document(path: Path, content: bytes, readers: Mapping[str, Callable[[Path, bytes], Parts]]) -> Parts:
    """Yield a document of Word, and behind it the files that it includes; `readers`: {suffix: function that reads them}."""
    package = _Package(content)
    texts = [package.text(package.main, _levels(package))]
    for _, kind, name in package.related(package.main):
        if kind == "aFChunk" and (reader := readers.get(posixpath.splitext(name)[1].lower())):
            texts += [part.text for part in reader(Path(name), package.read(name))]
    text = "\n".join(texts)
    yield Part("", package.title() or heading(text, path), text)


def _levels(package: _Package) -> dict[str, int]:
    """Return {id of a style: its level as a heading}; a style takes it from the one on which it is based."""
    parts = [name for _, kind, name in package.related(package.main) if kind == "styles"]
    styles = [style for name in parts for style in package.tree(name)]
    levels = {"Title": 1}
    for style in [*styles, *styles]:  # those on which one is based may stand behind it
        style_id = next((value for key, value in style.items() if key.endswith("}styleId")), "")
        name, base = (
            "".join(node.values()[0] for node in style.iterfind(f"{{*}}{key}")) for key in ("name", "basedOn")
        )
        if match := re.fullmatch(r"[Hh]eading ([1-9])|[Tt]itle", name):
            levels[style_id] = int(match[1] or 1)
        elif (switch := style.find("{*}rPr/{*}vanish")) is not None:
            levels[style_id] = _HIDDEN if _is_on(switch) else 0
        elif base in levels:
            levels[style_id] = levels[base]
    return levels


def slides(path: Path, content: bytes) -> Parts:
    """Yield the slides of a presentation that are not hidden, with their notes."""
    package = _Package(content)
    for number, (_, _, name) in enumerate(package.listed("{*}sldIdLst/{*}sldId"), start=1):
        slide = package.tree(name)
        if slide.get("show") in ("0", "false"):
            continue
        titles = (
            _text(shape, {})
            for shape in slide.iter("{*}sp")
            for place in shape.iterfind("{*}nvSpPr/{*}nvPr/{*}ph")
            if place.get("type") in ("title", "ctrTitle")
        )
        title = " ".join(next(titles, "").split())
        yield Part(f"slide={number}", title or name_of(path), package.text(name, kinds=(*_RELATED, "notesSlide")))


def sheets(path: Path, content: bytes) -> Parts:
    """Yield the sheets of a workbook that are not hidden: a row a line, and the texts of charts and comments."""
    import openpyxl

    package = _Package(content)
    modes = (True, False) if package.has_formulas() else (True,)
    books = [openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=known) for known in modes]
    for entry, kind, name in package.listed("{*}sheets/{*}sheet"):
        if entry.get("state", "visible") != "visible":
            continue
        title, lines = entry.get("name"), list[str]()
        if kind == "worksheet":
            pages = [book[title] for book in books]
            for page in pages:
                page.reset_dimensions()  # which may say more than there is
            rows = (map(_cell, *cells) for cells in zip(*(page.iter_rows() for page in pages), strict=True))
            lines = [" | ".join(filter(None, row)) for row in rows]
        beside = _beside(package, name)
        yield Part(f"sheet={title}", f"{name_of(path)}: {title}", "\n".join(filter(None, [*lines, *beside])))


def _beside(package: _Package, name: str) -> Iterator[str]:
    """Yield the texts of charts and comments of a sheet; comments that repeat threaded ones for old programs are left out."""
    related = [(kind, part) for _, kind, part in package.related(name) if kind in _RELATED]
    for kind, part in related:
        if kind == "comments" and "threadedComment" in dict(related):
            comments = package.tree(part)
            threads = {str(n) for n, by in enumerate(comments.iter("{*}author")) if (by.text or "").startswith("tc=")}
            kept = (comment for comment in comments.iter("{*}comment") if comment.get("authorId") not in threads)
            yield "".join(_text(comment, {}) for comment in kept)
        else:
            yield package.text(part)


def _cell(known: Any, formula: Any = None) -> str:
    """Return a cell as it is shown, or its formula if the file does not say what it comes to."""
    from openpyxl.utils.escape import unescape

    value = formula.value if known.value is None and formula is not None else known.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, known.number_format)
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        value = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    value = getattr(value, "text", "" if hasattr(value, "ref") else value)  # of a formula of several cells
    return "" if value is None else " ".join(unescape(str(value)).removesuffix(" 00:00:00").split())


def _number(value: float, code: str) -> str:
    """Return a number as a format shows it, with its signs and units; as it is, if the format is of another kind."""
    if re.search(r"\[[<>=]", code):  # a section for each range of values
        return f"{value:.15g}"
    sections = code.split(";")
    section = 1 if value < 0 and len(sections) > 1 else 2 if value == 0 and len(sections) > 2 else 0
    tokens = [match.groups("") for match in _TOKENS.finditer(sections[section])]
    digits = [number for *_, number, _ in tokens if number]
    if len(digits) != 1 or any(sign in "EeDdMmYyHhSsGg@/" for *_, sign in tokens if sign):
        return f"{value:.15g}"
    whole, _, decimals = digits[0].rstrip(",").partition(".")
    is_percent = any(sign == "%" for *_, sign in tokens)
    shown = abs(value) * (100 if is_percent else 1) / 1000 ** (len(digits[0]) - len(digits[0].rstrip(",")))
    written = f"{shown:{',' if ',' in whole else ''}.{len(decimals)}f}"
    if optional := len(decimals) - decimals.count("0"):
        written = re.sub(rf"\.?0{{1,{optional}}}$", "", written)
    written = written.zfill(whole.count("0") + (len(written) - written.find(".") if "." in written else 0))
    parts = (written if number else "".join(literals) + sign for *literals, _, number, sign in tokens)
    return ("-" if value < 0 and section == 0 else "") + "".join(parts).strip()
