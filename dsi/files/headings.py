"""Headings of texts in Markdown and reStructuredText, which are found at each hit: a parser would be too slow for that."""

import re
from collections.abc import Iterator
from html import unescape

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
    return " ".join(unescape(_MARKS.sub(lambda match: match[1] or match[3] or match[4] or "", text)).split())


def headings(text: str, suffix: str = ".md") -> Iterator[tuple[int, str]]:
    r"""Yield the first character and the words of the headings of a text in Markdown, or in reStructuredText.

    >>> list(headings("```\n# comment\n```\n#hash\n## C# in `short` ##\nwords\n\nNext\n====\n"))
    [(24, 'C# in short'), (51, 'Next')]
    """
    for match in (_RST if suffix == ".rst" else _MARKDOWN).finditer(text):
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        words = groups.get("marked", groups.get("html", groups.get("over", "")))
        if "marked" in groups:
            words = re.sub(r"(^|\s)#+$", "", words.strip())
        is_heading = "rule" not in groups or _is_alone(text, match)
        if suffix == ".rst":
            is_heading &= len(text[match.start("rule") : match.end()].strip()) >= len(words.strip())
        if is_heading and (words := plain_words(" ".join(words.split())[:_LONGEST])):
            yield match.start(), words


def _is_alone(text: str, match: re.Match[str]) -> bool:
    """True if a line does not go on with the one before it, which is blank, a rule or a heading."""
    before = text[text.rfind("\n", 0, max(match.start() - 1, 0)) + 1 : match.start()].strip()
    return not before or before.startswith("#") or re.fullmatch(r"([^\w\s])\1+", before) is not None
