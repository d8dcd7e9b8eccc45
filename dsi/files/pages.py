"""Pages of the web, mail and PDF as documents."""

import base64
import ctypes
import email
import email.errors
import email.header
import email.policy
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from typing import Any

from dsi.files.texts import Part, Parts, UnreadableError, decoded, heading, name_of

_LINES = (
    "address|article|blockquote|caption|dd|details|div|dl|dt|fieldset|figcaption|figure|form|header|hgroup|hr|legend|li|main|ol|option|p"
    "|section|summary|table|tbody|td|textarea|th|thead|tr|ul"
)
"""Elements of a page that stand on lines of their own."""
_HEADINGS = [f"h{level}" for level in range(1, 7)]
_WITHIN, _ABOVE = ("|".join(f"{axis}::{name}" for name in _HEADINGS) for axis in ("descendant", "ancestor"))
_LEFT = "head|script|style|nav|footer|noscript|template|svg|iframe|select|rt|rp"
_DROPPED = (
    "//aside[not(ancestor::main|ancestor::article)]|//dialog[not(@open)]"
    f"|//button[not(@aria-controls or @aria-expanded or {_WITHIN} or {_ABOVE})]"
)
_DROPPED_ROLES, _SHOWN_ROLES = ("navigation", "contentinfo", "search", "complementary"), ("region", "tabpanel")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
"""What is not the text of a page; a button that unfolds some is, and what it unfolds."""
_UNFOLDS = ("aria-controls", "data-bs-target", "data-target")
"""Attributes of buttons that name what they unfold."""
_HEADER = f"//header[{_WITHIN}]"
"""Headers that may hold the title of a page with a main part."""
_BREAK, _MARKED, _ENDED, _SPACE, _TAB = "\U0010ff00\U0010ff01\U0010ff02\U0010ff03\U0010ff04"
"""A line's end; the end of the # before a heading, and of a heading; a space and a tab of a text set as it is written."""
_DECLARED = re.compile(
    rb"<(?:\?xml|meta)[^>]*?(?:charset|encoding)\s*=\s*[\"']?(?!utf-?(?:16|32))([\w.:-]+)", re.IGNORECASE
)
_SHEET = f"""
<x:stylesheet version="1.0" xmlns:x="http://www.w3.org/1999/XSL/Transform">
<x:output method="text"/>
<x:template match="/">
  <x:choose>
    <x:when test="//main[normalize-space()]"><x:apply-templates mode="around"/></x:when>
    <x:otherwise><x:apply-templates select="*"/></x:otherwise>
  </x:choose>
</x:template>
<x:template match="text()" mode="around"/>
<x:template match="main|h1|hgroup" mode="around">{_BREAK}<x:apply-templates select="."/>{_BREAK}</x:template>
<x:template match="{_LINES}">{_BREAK}<x:apply-templates/>{_BREAK}</x:template>
<x:template match="{"|".join(_HEADINGS)}">{_BREAK}<x:value-of select="concat(
  substring('######', 1, substring(name(), 2)), ' {_MARKED}')"/><x:apply-templates/>{_ENDED}{_BREAK}</x:template>
<x:template match="pre">{_BREAK}```{_BREAK}<x:apply-templates/>{_BREAK}```{_BREAK}</x:template>
<x:template match="pre//text()"><x:value-of select="translate(., ' &#9;&#10;', '{_SPACE}{_TAB}{_BREAK}')"/></x:template>
<x:template match="br">{_BREAK}</x:template>
<x:template match="img"><x:value-of select="concat(' ', @alt, ' ')"/></x:template>
<x:template match="{_LEFT}"/>
<x:template match="{_LEFT}" mode="around"/>
</x:stylesheet>"""
"""What of a page is its text: its main part, if it names one, with the headings beside it."""


def page(path: Path, content: bytes) -> Parts:
    """Yield a page of the web."""
    declared = _DECLARED.search(content[:4096])
    text, odd = decoded(content, declared[1].decode().lower().removeprefix("x-") if declared else "utf-8-sig")
    title, words = page_text(text)
    yield Part("", title or heading(words, path), words, odd=odd)


def page_text(text: str) -> tuple[str, str]:
    """Return the title and the text of a page without navigation; headings begin with #.

    Of the libraries that we tried, those that leave out the navigation lose headings with it.
    """
    from lxml import etree

    parser = etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    page = etree.fromstring(text.encode("utf-8", "replace"), parser) if text.strip() else None
    if page is None:
        return "", ""
    _name_parts(page)
    title = " ".join(page.xpath("string(//title[not(ancestor::svg)])").split())
    text = str(_sheet()(page))
    if not re.search(r"\w", text):  # a program makes it, or fills its main part
        for node in page.iter("main", "noscript", "template"):
            node.tag = "div"
        text = str(_sheet()(page))
    text = " ".join(text.split())
    text = re.sub(f"#+ {_MARKED}[ {_BREAK}]*{_ENDED}", "", text)
    text = re.sub(f" ?{_BREAK} ?", "\n", re.sub(f"{_MARKED}[ {_BREAK}]*", "", text))
    return title, re.sub(r"\n{3,}", "\n\n", text).strip("\n ").replace(_SPACE, " ").replace(_TAB, "\t").replace(
        _ENDED, ""
    )


def _name_parts(page: Any) -> None:
    """Give the parts of a page the names by which the stylesheet knows them."""
    toggles = page.xpath(f"//*[{' or '.join(f'@{name}' for name in _UNFOLDS)}]")
    unfolded = {target.lstrip("#") for node in toggles for name in _UNFOLDS for target in node.get(name, "").split()}
    articles, dropped = page.xpath("//article"), page.xpath(_DROPPED)
    for node in page.xpath(_HEADER):
        node.tag = "hgroup"
    for node in page.xpath("//template[@shadowrootmode]"):
        node.tag = "div"
    if len(articles) == 1 and articles[0].xpath("2 * count(.//p) >= count(//p)"):
        articles[0].tag = "main"
    for node in page.xpath("//*[@role or @hidden or @style]"):
        role, is_hidden = node.get("role"), _HIDDEN.search(node.get("style", "")) or "hidden" in node.attrib
        stays = node.get("hidden") == "until-found" or role in _SHOWN_ROLES or node.get("id") in unfolded
        if role in _DROPPED_ROLES or (is_hidden and not stays):
            dropped.append(node)
        elif role == "main":
            node.tag = "main"
    for node in dropped:
        node.tag = "script"


@cache
def _sheet() -> Any:
    from lxml import etree

    return etree.XSLT(etree.fromstring(_SHEET))


# Rich text and mail.

_RICH = ("text/rtf", "application/rtf")
_HIDDEN_RICH = re.compile(r"(?<!\\)\\v(?![a-z\d])(?:\\[\s\S]|[^{}\\])*?(?=\\v0|\\plain\b|\})")
"""Hidden words up to the end of their group, if no other is in it."""
_CHARSETS = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}
_FULLER = 2
"""Times as many characters as another alternative of a mail has one that is read instead."""


def rich_text(path: Path, content: bytes) -> Parts:
    """Yield a file of rich text (RTF)."""
    yield Part("", name_of(path), _words_of_rich_text(content.decode("latin-1")))


def _words_of_rich_text(text: str) -> str:
    from striprtf.striprtf import rtf_to_text

    charset = re.match(r"\s*\{\\rtf\d*\s*\\(mac|pca?)\b", text)
    return str(
        rtf_to_text(_HIDDEN_RICH.sub("", text), _CHARSETS[charset[1]] if charset else "cp1252", errors="replace")
    )


def mail(path: Path, content: bytes) -> Parts:
    """Yield a mail."""
    message: Any = email.message_from_bytes(content.lstrip(b"\xef\xbb\xbf\r\n"), policy=email.policy.default)
    del message["Content-Disposition"]  # no mail is an attachment of itself
    subject, body = _header(message, "Subject"), _body(message)
    yield Part("", subject or name_of(path), f"{_heads(message)}{body}" if body.strip() else subject)


def _heads(message: EmailMessage) -> str:
    heads = [f"{name}: {value}\n" for name in ("From", "To", "Cc", "Date") if (value := _header(message, name))]
    return "".join([*heads, "\n"])


def _header(message: EmailMessage, name: str) -> str:
    """Return a header; what is not encoded in it, as its letters tell."""
    raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
    pairs = [(raw, None)]
    with suppress(email.errors.HeaderParseError):
        pairs = email.header.decode_header("".join(str(raw).splitlines()))
    parts = (part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape") for part, _ in pairs)
    return " ".join("".join(decoded(part, pair[1] or "")[0] for part, pair in zip(parts, pairs, strict=True)).split())


def _body(part: Any) -> str:
    """Return the text of a part of a mail, with mails in mails but no attachments.

    Of several alternatives it is the first with words, unless another has far more: the first may only point to it.
    """
    kind = part.get_content_type()
    if kind == "message/rfc822" and part.is_multipart():
        inner = part.get_payload(0)
        if "base64" in str(part["Content-Transfer-Encoding"]).lower():
            inner = email.message_from_bytes(base64.b64decode(inner.get_payload()), policy=email.policy.default)
        return f"Subject: {_header(inner, 'Subject')}\n{_heads(inner)}{_body(inner)}"
    if kind == "message/delivery-status":  # a block of headers a recipient
        return "\n".join(map(str, part.get_payload()))
    if part.is_multipart():
        inner = sorted(part.iter_parts(), key=lambda child: child.get_content_type() == "text/calendar")
        texts = [(child.get_content_type(), text) for child in inner if re.search(r"\w", text := _body(child))]
        if kind != "multipart/alternative" or not texts:
            return "\n\n".join(text for _, text in texts)
        most = _FULLER * len(first := texts[0][1])
        return next((text for name, text in texts if len(text) > most and name != "text/calendar"), first)
    if part.is_attachment() or not (kind in _RICH or re.match("text/(?!css)|multipart/", kind)):
        return ""
    text = decoded(part.get_payload(decode=True) or b"", part.get_content_charset("utf-8"))[0].replace("\r\n", "\n")
    if kind in _RICH:
        return _words_of_rich_text(text)
    if kind == "text/enriched":  # RFC 1896
        text, kind = re.sub("<param>.*?</param>", "", text.replace("<<", "&lt;")), "text/html"
    return page_text(text)[1] if kind == "text/html" else text


# PDF.

_MOST_NOTES = 1_000
"""Fields of forms and comments of a page, at most."""


def pdf(path: Path, content: bytes) -> Parts:
    """Yield the pages of a PDF file."""
    import pypdfium2

    try:
        book = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        raise UnreadableError("encrypted" if "password" in str(error).lower() else "broken") from None
    title = book.get_metadata_value("Title").strip()
    for number, page in enumerate(book, start=1):
        text = _joined(page.get_textpage().get_text_bounded())
        text = "\n".join(filter(None, (text, *dict.fromkeys(_notes(page)))))
        page.close()
        yield Part(f"page={number}", title if " " in title else name_of(path), text)


def _notes(page: Any) -> Iterator[str]:
    """Yield what was filled into the forms of a page of PDF, and its comments."""
    from pypdfium2 import raw

    for number in range(min(raw.FPDFPage_GetAnnotCount(page), _MOST_NOTES)):
        note = raw.FPDFPage_GetAnnot(page, number)
        for key in (b"V", b"Contents"):
            size = raw.FPDFAnnot_GetStringValue(note, key, None, 0)
            letters = ctypes.create_string_buffer(size)
            raw.FPDFAnnot_GetStringValue(note, key, ctypes.cast(letters, ctypes.POINTER(ctypes.c_ushort)), size)
            yield letters.raw.decode("utf-16-le", errors="replace").rstrip("\0").replace("\r", "\n")
        raw.FPDFPage_CloseAnnot(note)


def _joined(text: str) -> str:
    """Return the text of a page with words whole that are divided at the end of a line: pdfium marks these hyphens.

    A word with a hyphen keeps all of its hyphens, as in state-of-the-art: nobody divides such words elsewhere.
    """
    text = text.replace("\r\n", "\n").replace("\uf001", "fi").replace("\uf002", "fl")  # as Windows' fonts name these
    text = re.sub(r"(\w-\w{1,30})[\x02\ufffe]\s*(?=[^\W\d_])", r"\1-", text)
    text = re.sub(r"(?:[\x02\ufffe]|\u00ad)\s*\n?(?=[^\W\d_])(?![A-Z])|\u00ad", "", text)
    text = re.sub("[\ufb00-\ufb06]", lambda sign: unicodedata.normalize("NFKC", sign[0]), text)  # ligatures, such as fi
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", re.sub("[\x02\ufffe]", "-", text))
