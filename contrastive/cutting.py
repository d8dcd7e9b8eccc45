"""Cuts long texts into pieces at the ends of sentences, given where their tokens lie. Knows no tokenizer and no model."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dsi.docids.types import Ints
from dsi.docids.words.sentences import SENTENCE_END

_OVERLAP, _MARGIN = 32, 4
"""Tokens that a piece repeats of the one before at most, and that stay free, as a piece may have more tokens than it had in its
text."""
MORE = 16
"""Tokens that are read beyond those needed."""
AT_ONCE, _STRETCH = 100, 50_000
"""Pieces of a text that are cut at once, and characters of a longer one that are, about: what a hundred of 128 tokens cover."""
LONG = 4 * _STRETCH
"""Characters from which on a text is too long to be cut at once."""
_SPACE = re.compile(r"\s+")


class DocumentCut(NamedTuple):
    """Where a document is cut into pieces."""

    spans: tuple[tuple[int, int], ...]  # first character, and one past the last, of each piece of the text
    title_end: int  # characters of the title before each piece
    is_whole: bool = True  # whether title and text are read to their ends

    def texts(self, title: str, text: str) -> list[str]:
        """Return the pieces, each after the title."""
        return [piece_text(title, text, span, self.title_end) for span in self.spans]


class Lengths(NamedTuple):
    """Tokens of a text that is read whole, and of a piece; and the pieces of a document, at most."""

    document: int
    piece: int
    pieces: int

    def most(self, limit: int) -> int:
        """Return the tokens of a text that are read at once, where the model reads `limit` of title and text at a time."""
        pieces = self.at_once.pieces
        return self.document if pieces == 1 else pieces * min(self.document, limit)

    def reads_at_once(self, text: str) -> bool:
        """False for a text that is cut by stretches anyway."""
        return self.pieces <= AT_ONCE or len(text) <= LONG

    @property
    def at_once(self) -> "Lengths":
        """The same, with as many pieces as are cut at once."""
        return self._replace(pieces=min(self.pieces, AT_ONCE))


Offsets = Sequence[tuple[int, int]]
"""First and last character of tokens."""


def cut_documents(
    titles: Sequence[str], texts: Sequence[str], offsets: Callable[[Sequence[str], int], Sequence[Offsets]],
    lengths: Lengths, limit: int,
) -> list[DocumentCut]:  # fmt: skip
    """Return where documents are cut: at once, or by stretches where that leaves words out and there may be more pieces.

    `offsets`: returns those of texts, of a number of tokens at most; `limit`: tokens of title and text that the model
    reads.
    """
    most = lengths.most(limit) + MORE
    heads = [text if lengths.reads_at_once(text) else "" for text in texts]

    def cut(title: str, text: str, of_title: Offsets, of_text: Offsets) -> DocumentCut:
        at_once = cut_document(title, text, of_title, of_text, lengths.at_once, limit)
        if lengths.pieces <= AT_ONCE or (lengths.reads_at_once(text) and not has_words(text[at_once.spans[-1][1] :])):
            return at_once
        return cut_stretches(title, text, of_title, lambda part: offsets([part], most)[0], lengths, limit)

    return [cut(*args) for args in zip(titles, texts, offsets(titles, limit + 1), offsets(heads, most), strict=True)]


def cut_document(
    title: str, text: str, of_title: Offsets, of_text: Offsets, lengths: Lengths, most: int
) -> DocumentCut:
    """Return where a document is cut, given its first tokens; `most`: tokens of title and text that the model reads."""
    length = lengths.document
    if len(of_text) <= length and len(of_title) + len(of_text) <= most:
        return DocumentCut(((0, len(text)),), len(title))
    if lengths.pieces == 1:
        end = of_text[length - 1][1] if len(of_text) > length else len(text)
        return DocumentCut(((0, end),), len(title), is_whole=False)
    of_title = of_title[: most // 4]
    title_end = len(title) if not of_title or not has_words(title[of_title[-1][1] :]) else of_title[-1][1]
    longest = max(1, min(length, most - len(of_title) - _MARGIN))
    length = min(lengths.piece, longest)
    spans = piece_spans(text, of_text, length, lengths.pieces)
    while has_words(text[spans[-1][1] :]) and length < longest:  # as short as the number of pieces allows
        length = min(longest, length + max(1, length // 4))
        spans = piece_spans(text, of_text, length, lengths.pieces)
    is_whole = title_end == len(title) and not has_words(text[spans[-1][1] :])
    return DocumentCut(tuple(spans), title_end, is_whole)


def cut_stretches(
    title: str, text: str, of_title: Offsets, read: Callable[[str], Offsets], lengths: Lengths, limit: int
) -> DocumentCut:
    """Return where a long document is cut: as `cut_document` cuts stretches of it, whose tokens `read` returns."""
    spans, start, title_end = list[tuple[int, int]](), 0, 0
    while start < len(text) and len(spans) < lengths.pieces:
        stretch = text[start : _stretch_end(text, start)]
        if not has_words(stretch):
            start += len(stretch)
            continue
        rest = lengths._replace(pieces=lengths.pieces - len(spans)).at_once
        cut = cut_document(title, stretch, of_title, read(stretch), rest, limit)
        title_end = title_end or cut.title_end  # of the first stretch, which is long
        spans += [(start + first, start + last) for first, last in cut.spans]
        start = spans[-1][1]
    is_whole = not has_words(title[title_end:]) and not has_words(text[spans[-1][1] :])
    return DocumentCut(tuple(spans), title_end, is_whole)


def _stretch_end(text: str, start: int) -> int:
    """Return where a stretch of a text ends: with a paragraph, a line or a word if one ends in its second half."""
    end = start + _STRETCH
    if end >= len(text):
        return len(text)
    for edge in ("\n\n", "\n", " "):
        if (last := text.rfind(edge, start + _STRETCH // 2, end)) > 0:
            return last + len(edge)
    return end


def piece_text(title: str, text: str, span: tuple[int, int], title_end: int) -> str:
    """Return a piece of a text after the first `title_end` characters of its title, as the encoder reads it."""
    return f"{title[:title_end]} {text[span[0] : span[1]]}".strip()


def piece_spans(text: str, offsets: Sequence[tuple[int, int]], length: int, pieces: int) -> list[tuple[int, int]]:
    """Return the characters start to end of the pieces of a text, all about as long; with no gaps between them.

    A piece ends with a sentence if one ends in its second half, else with a word. The next one repeats its last tokens, a
    quarter of the length and 32 at most, from the beginning of a sentence or word on.

    >>> tokens = [(0, 1), (2, 3), (4, 5), (5, 6), (7, 8), (9, 10), (11, 12)]
    >>> piece_spans("a b c. d e f", tokens, 5, 3)
    [(0, 7), (5, 12)]
    """
    starts = np.array([end - len(text[start:end].lstrip()) for start, end in offsets] or [0])  # of some ▁ is a space
    edges = [  # tokens that begin a sentence, and those that begin a word
        np.searchsorted(starts, [match.end() for match in edge.finditer(text, 0, int(starts[-1]))])
        for edge in (SENTENCE_END, _SPACE)
    ]
    overlap = min(_OVERLAP, length // 4)
    count = max(1, -(-(len(starts) - overlap) // (length - overlap)))
    even = -(-(len(starts) + (count - 1) * overlap) // count) + _OVERLAP // 2  # a sentence may end before it
    length, first, spans = min(length, even), 0, list[tuple[int, int]]()
    while len(spans) < pieces and first + length < len(starts):
        end = _edge(edges, first + length // 2 + 1, first + length, last=True) or first + length
        spans.append((int(starts[first]) if spans else 0, int(starts[end])))
        first = _edge(edges, end - overlap, end - 1, last=False) or end - overlap
    if len(spans) < pieces:
        spans.append((int(starts[first]) if spans else 0, len(text)))
    return spans


def _edge(edges: Sequence[Ints], least: int, most: int, *, last: bool) -> int:
    """Return the first or last number from `least` to `most` of the first list that has one; 0 if none has. Lists ascend."""
    for numbers in edges:
        inside = numbers[np.searchsorted(numbers, least) : np.searchsorted(numbers, most, side="right")]
        if len(inside):
            return int(inside[-1 if last else 0])
    return 0


def has_words(text: str) -> bool:
    """True if a text has a letter or a digit: what a cut leaves out may be space, or characters that nobody sees."""
    return any(map(str.isalnum, text))


def head_of(text: str, size: int) -> str:
    """Return a text up to the last space in its first `size` characters, or all of it."""
    if len(text) <= size:
        return text
    head = text[:size]
    return head[: end if (end := head.rfind(" ")) > 0 else size]
