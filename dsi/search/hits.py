"""The documents that a search found, as users see them: with texts, matched words, and why they are there. Knows no index."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from dsi.docids.data.locations import SOURCE, Location, locate
from dsi.docids.data.records import json_value
from dsi.docids.files.checks import counted, printable
from dsi.docids.words.sentences import SENTENCE_END, cut_before, shortened

if TYPE_CHECKING:
    import pandas

_LABEL, _EXCERPT = 80, 160
"""Characters of a text that stand for a missing title, and that are printed below one."""


class Span(NamedTuple):
    """Characters start to end of a document's "title" or "text", and what they are."""

    field: str
    start: int
    end: int
    text: str


class Match(NamedTuple):
    """A word of the query and what it found in a document.

    Attributes:
        word: of the query.
        share: what it adds to the document's score, by BM25 and by late interaction.
        spans: the words that it found.
        is_clear: whether these are marked: the same word, or by late interaction one with a product of at least .5, neither of
            them a stop word.
    """

    word: str
    share: float
    spans: tuple[Span, ...]
    is_clear: bool = True


class Uncovered(NamedTuple):
    """Words of a query that its answer lacks, as the query writes them; common and question words are left out.

    `nowhere`: those that no document of the index has; none for a search with a filter, which tells nothing of other documents.
    `elsewhere`: others, which no returned document covers by words or by late interaction.
    """

    nowhere: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    def __str__(self) -> str:
        lists = {"no document mentions": self.nowhere, "none of these mentions": self.elsewhere}
        return "; ".join(f"{what}: {', '.join(map(printable, words))}" for what, words in lists.items() if words)

    def as_dict(self) -> dict[str, Any]:
        """Return {"uncovered": both lists}, nothing if they are empty, as answers in JSON have it."""
        return {"uncovered": {name: list(words) for name, words in self._asdict().items()}} if any(self) else {}


class Piece(NamedTuple):
    """Characters start to end of a text, and their score; see `Passage`."""

    start: int
    end: int
    score: float


class Passage(NamedTuple):
    """A part of a document that answers a query: characters start to end of its text."""

    doc_id: str
    start: int
    end: int
    score: float  # the document's, less by as much as the piece is worse than its best one
    title: str  # of the document, "" if it has none
    text: str | None  # of the passage; None if the index keeps no texts
    location: Location | None  # file, page or heading, lines; None if the document was not read from a file

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes that JSON can hold, without those that are None."""
        found = {name: value for name, value in self._asdict().items() if value is not None}
        return found | ({"location": self.location.as_dict()} if self.location else {})


class _AnsweredSearch(Protocol):
    """The search that answered one query, `AnsweredQuery` of `dsi.search.explain.why`: what hits need of it."""

    def explain(self, doc_id: str) -> Any: ...
    def matches(self, hits: "Sequence[Hit]") -> list[list[Match]]: ...
    def uncovered(self, hits: "Sequence[Hit]") -> Uncovered: ...
    def percentile(self, score: float) -> float | None: ...


@dataclass(frozen=True)
class Hit:
    """One document found.

    Attributes:
        rank: from 1.
        score: the document's score under the options of the search.
        doc_id: its key in the collection.
        title: "" if it has none.
        digits: its docid, a path in the tree.
        text: None if the index keeps no texts.
        metadata: {column: value}, without missing values.
        passage_span: first character, and one past the last, of the best piece of its text; None if the text is one piece.
        pieces: that `passages` shows, in their order in the text; empty unless a search asks for several.
        search: that found it; None after reranking, pickling or copying.
    """

    rank: int
    score: float
    doc_id: str
    title: str
    digits: tuple[int, ...]
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    passage_span: tuple[int, int] | None = None
    pieces: tuple[Piece, ...] = ()
    search: ClassVar[_AnsweredSearch | None] = None  # no field: `dataclasses.asdict` would copy the index

    def found_by(self, search: _AnsweredSearch | None) -> "Hit":
        """Return this hit, which from now on knows its search."""
        object.__setattr__(self, "search", search)
        return self

    @property
    def percentile(self) -> float | None:
        """How many of 100 questions that the index's documents answer have a lower best score, filter or not.

        It moves with encoder, language and size of the collection; it is no probability. None where the index is too small to
        know, for other weights than it was tuned with, and for hits that do not know their search.
        """
        return None if self.search is None else self.search.percentile(self.score)

    @property
    def label(self) -> str:
        """The title; without one the first words of the text, or else the doc_id."""
        return label_of(self.doc_id, self.title, self.text)

    @property
    def passage(self) -> str | None:
        """The piece of the text that answers best, all of it where it is one piece; None if the index keeps no texts."""
        return self.text if self.text is None or self.passage_span is None else self.text[slice(*self.passage_span)]

    @property
    def passages(self) -> list[Passage]:
        """The best places of the text, as many as the search asked for (`passages`), in their order there; none overlap."""
        return [self.part(*piece) for piece in self.pieces or [(*self.best_span, self.score)]]

    @property
    def best_span(self) -> tuple[int, int]:
        """`passage_span`, or the ends of a text that is one piece."""
        return self.passage_span or (0, len(self.text or ""))

    def part(self, start: int, end: int, score: float) -> Passage:
        """Return characters start to end of the text, without the space around them, as a passage."""
        text = self.text and self.text[start:end]
        if text:
            start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
            text = text.strip()
        place = locate(self.metadata, self.text, (start, end))
        return Passage(self.doc_id, start, end, score, self.title, text, place)

    @property
    def location(self) -> Location | None:
        """Where the passage stands: file, page or heading, lines; None if the document was not read from a file."""
        return locate(self.metadata, self.text, self.passage_span)

    @property
    def own_metadata(self) -> dict[str, Any]:
        """The metadata without the columns that `location` is made of."""
        return {name: value for name, value in self.metadata.items() if name not in SOURCE}

    def explain(self) -> Any:
        """Return why the document is here: the `DocumentExplanation` with its parts, its way down the tree and matched words.

        Raises:
            ValueError: the hit was reranked, pickled or copied, so the search is not known.
        """
        return _known(self.search).explain(self.doc_id)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes that JSON can hold, without text and metadata where there are none.

        With `passage_span` and `passage` where the text has several pieces, `passages` if the search asked for several, and
        `location` where it was read from a file.
        """
        names = ["rank", "score", "percentile", "doc_id", "title", "digits", "text", "passage_span"]
        names += ["passage"] * (self.passage_span is not None)
        metadata = {name: json_value(value) for name, value in self.own_metadata.items()}
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        place = self.location
        passages = [passage.as_dict() for passage in self.passages] if self.pieces else []
        for passage in passages:
            del passage["doc_id"], passage["title"]
        further = {"passages": passages, "location": place and place.as_dict(), "metadata": metadata}
        return found | {name: value for name, value in further.items() if value}

    def __reduce__(self) -> tuple[Any, ...]:
        return Hit, tuple(getattr(self, attribute.name) for attribute in fields(self))


def label_of(doc_id: str, title: str, text: str | None) -> str:
    """Return what a document is called: its title, without one its first words, without a text its doc_id."""
    return title.strip() or shortened(text or "", _LABEL) or doc_id


def _known(search: _AnsweredSearch | None) -> _AnsweredSearch:
    if search is None:
        raise ValueError(
            "These hits do not know their search any more, because they were reranked, pickled or copied; explain those that "
            "retriever.search() returned."
        )
    return search


class Document(NamedTuple):
    """One document of an index: doc_id, title, text (None if the index keeps no texts), metadata and docid."""

    doc_id: str
    title: str
    text: str | None
    metadata: dict[str, Any]
    digits: tuple[int, ...]


class Hits(list[Hit]):
    """The documents found for one query, best first; prints as a list, and as HTML in a notebook.

    Attributes:
        exact: True if it is proven that no other document has a higher score than these. It says nothing of
            relevance, and after reranking it is still about the search.
        query: its text.
        coverage: share of the documents that could be searched; below 1 only if shards of a cluster did not answer.
        missing: numbers of these shards.
        note: why no document has the words that the query asks for; "" if some have, or it asks for none.
    """

    def __init__(
        self, hits: Iterable[Hit], exact: bool, query: str = "", search: _AnsweredSearch | None = None,
        coverage: float = 1.0, missing: Iterable[int] = (), note: str = "",
    ) -> None:  # fmt: skip
        super().__init__(hits)
        self.exact, self.query, self._search = exact, query, search
        self.coverage, self.missing, self.note = coverage, list(missing), note

    @overload
    def __getitem__(self, index: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> "Hits": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Hit | Hits":
        found = super().__getitem__(index)
        if isinstance(found, Hit):
            return found
        exact = self.exact and found == list(self)[: len(found)]  # others may lack what scores higher
        return Hits(found, exact, self.query, self._search, self.coverage, self.missing, self.note)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the hits and what is proven of them, without the index."""
        return Hits, (list(self), self.exact, self.query, None, self.coverage, self.missing, self.note)

    @property
    def ids(self) -> NDArray[np.object_]:
        """[hits] their doc_ids."""
        return np.array([hit.doc_id for hit in self], dtype=np.object_)

    @property
    def scores(self) -> NDArray[np.float32]:
        """[hits] their scores."""
        return np.array([hit.score for hit in self], dtype=np.float32)

    def explain(self, doc_id: str) -> Any:
        """Return why a document of the index is, or is not, among these: a `DocumentExplanation`.

        Raises:
            ValueError: the doc_id is not in the index, or the hits were reranked, pickled or copied.
        """
        return _known(self._search).explain(doc_id)

    def to_df(self) -> "pandas.DataFrame":
        """Return a table with a row a hit: rank, score, doc_id, title, digits, text, passage, and the metadata.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise ModuleNotFoundError("hits.to_df() needs pandas; run pip install pandas.", name="pandas") from None
        names = ["rank", "score", "doc_id", "title", "digits", "text", "passage"]
        rows = [
            {name: getattr(hit, name) for name in names}
            | {f"metadata.{name}" if name in names else name: value for name, value in hit.metadata.items()}
            for hit in self
        ]
        return pandas.DataFrame(rows, columns=list(dict.fromkeys([*names, *chain.from_iterable(rows)])))

    def matches(self) -> list[list[Match]]:
        """Return the words of the query that each hit matches; none for hits that do not know their search."""
        return self._search.matches(self) if self._search else [[] for _ in self]

    @property
    def uncovered(self) -> Uncovered:
        """The words of the query that no document has, and those that no hit covers; none if the search is not known."""
        return self._search.uncovered(self) if self._search else Uncovered()

    def __str__(self) -> str:
        return self.format()

    __repr__ = __str__

    def format(self, mark: Callable[[str], str] = str) -> str:
        """Return the hits as lines, with the part of each passage that matches best; `mark` is applied to matched words."""
        lines = [f'"{printable(self.query)}"  ({self._summary})']
        for hit, matches in zip(self, self.matches(), strict=True):
            title = _marked(cut_at_matches(hit.title, matches, "title"), _line, mark)
            docid = ".".join(map(str, hit.digits))
            lines.append(f"{hit.rank:4d}  {hit.score:9.4f}  {printable(hit.doc_id)}  {title}  [{docid}]")
            for ends in _excerpts(hit, matches):
                if place := locate(hit.metadata, hit.text, ends):
                    lines.append(f"{'':17}{_line(str(place))}  {_line(place.heading)}".rstrip())
                if hit.text:
                    text = " ".join(_marked_excerpt(hit.text, ends, matches, _line, mark).split())
                    lines.append(f"{'':17}{text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the hits for a notebook, with matched words marked."""
        mark, items = "<mark>{}</mark>".format, []
        for hit, matches in zip(self, self.matches(), strict=True):
            title = hit.title if hit.title.strip() else hit.label
            label = _marked(cut_at_matches(title, matches, "title"), escape, mark)
            ends = _excerpts(hit, matches)
            facts = [hit.doc_id, *(f"{name}: {value}" for name, value in hit.own_metadata.items())]
            if place := locate(hit.metadata, hit.text, ends[0]):
                facts.insert(1, str(place))
            body = "".join(f"<br>{_marked_excerpt(hit.text, span, matches, escape, mark)}" for span in ends if hit.text)
            items.append(f"<li><b>{label}</b> {hit.score:.3f}{body}<br><small>{escape(' · '.join(facts))}</small></li>")
        return f"<div><b>{escape(self.query)}</b>: {escape(self._summary)}<ol>{''.join(items)}</ol></div>"

    @property
    def _summary(self) -> str:
        """How many there are, what is proven of a search, and what they lack."""
        count = counted(len(self), "document")
        if self.missing:
            count += f"; {self.coverage:.0%} of the documents were searched"
        if self.note:
            return f"{count}. {self.note}"
        proven = "proven: no other scores higher" if self and self._search and self.exact else ""
        return "; ".join(filter(None, [count, proven, str(self.uncovered)]))


class Answers(list[Hits]):
    """The hits of each of several queries, in their order."""

    @property
    def ids(self) -> NDArray[np.object_]:
        """[queries, k] doc_ids, None where a query has fewer hits than another."""
        return self._table([[hit.doc_id for hit in hits] for hits in self], np.object_, None)

    @property
    def scores(self) -> NDArray[np.float32]:
        """[queries, k] scores; -inf where a query has fewer hits than another."""
        return self._table([[hit.score for hit in hits] for hits in self], np.float32, -np.inf)

    def _table(self, lists: list[list[Any]], kind: Any, nothing: Any) -> NDArray[Any]:
        table = np.full((len(lists), max(map(len, lists), default=0)), nothing, dtype=kind)
        for line, values in zip(table, lists, strict=True):
            line[: len(values)] = values
        return table


class Evidence(list[Passage]):
    """Passages of several documents that answer a question, the most telling first; as a text they are numbered for a prompt.

    `tokens`: of the texts of all passages, by the encoder's tokenizer; `coverage` and `missing` as those of `Hits`.
    """

    def __init__(
        self, passages: Iterable[Passage], query: str, tokens: int, coverage: float = 1.0, missing: Iterable[int] = ()
    ) -> None:
        super().__init__(passages)
        self.query, self.tokens, self.coverage, self.missing = query, tokens, coverage, list(missing)

    def __str__(self) -> str:
        return "\n\n".join(f"[{number}] {_source(passage)}\n{passage.text}" for number, passage in enumerate(self, 1))


def _source(passage: Passage) -> str:
    """Return what names a passage in a prompt: its document, and where it stands."""
    place = passage.location or f"{passage.doc_id}, characters {passage.start} to {passage.end}"
    return printable(f"{passage.title.strip()} ({place})" if passage.title.strip() else str(place))


def cut_at_matches(
    text: str, matches: Sequence[Match], part: str, start: int = 0, end: int | None = None
) -> list[tuple[str, bool]]:
    """Cut characters start to end of a title or text at the ends of matched words, which get True.

    >>> cut_at_matches("rivers of europe", [Match("river", 0.5, (Span("title", 0, 6, "rivers"),))], "title")
    [('rivers', True), (' of europe', False)]
    """
    end = len(text) if end is None else end
    spans = sorted(
        {(span.start, span.end) for match in matches if match.is_clear for span in match.spans if span.field == part}
    )
    cut, here = [], start
    for first, last in spans:
        if here <= first and last <= end:
            cut += [(text[here:first], False), (text[first:last], True)]
            here = last
    return [(piece, found) for piece, found in [*cut, (text[here:end], False)] if piece]


def _line(text: str) -> str:
    """Return a text as a part of a line for a terminal."""
    return printable(re.sub(r"\s+", " ", text))


def _marked(pieces: Iterable[tuple[str, bool]], shown: Callable[[str], str], mark: Callable[[str], str]) -> str:
    """Return pieces of a text, each as `shown` makes it, with those that were found marked."""
    return "".join(mark(shown(piece)) if is_match else shown(piece) for piece, is_match in pieces)


def _excerpts(hit: Hit, matches: Sequence[Match]) -> list[tuple[int, int]]:
    """Return the ends of what is shown of each passage of a hit."""
    ends = [(passage.start, passage.end) for passage in hit.passages]
    return [excerpt(hit.text, matches, within=span) for span in ends] if hit.text else ends


def _marked_excerpt(
    text: str, ends: tuple[int, int], matches: Sequence[Match], shown: Callable[[str], str], mark: Callable[[str], str]
) -> str:
    """Return an excerpt of a text as `_marked` does, with dots where it is cut."""
    start, end = ends
    marked = _marked(cut_at_matches(text, matches, "text", start, end), shown, mark)
    return f"{'… ' * (start > 0)}{marked}{' …' * (end < len(text))}"


def excerpt(
    text: str, matches: Sequence[Match], width: int = _EXCERPT, within: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the ends of the part of a text, or of what is `within` two ends, that holds the most matched words.

    It has about `width` characters, and is cut at spaces where some are near. Words count by their share, half if the title has
    them too. It begins with the sentence of its first matched word, if that is in its first half.

    >>> excerpt("of all rivers the danube is long", [Match("danube", 0.5, (Span("text", 18, 24, "danube"),))], 10)
    (14, 24)
    """
    first, last = within or (0, len(text))
    if last - first <= width:
        return first, last
    clear = [match for match in matches if match.is_clear]
    gains = {match.word: match.share / (1 + any(span.field == "title" for span in match.spans)) for match in clear}
    spans = sorted(
        {
            (span.start, span.end, match.word)
            for match in clear
            for span in match.spans
            if span.field == "text" and first <= span.start and span.end <= last
        }
    )
    sentences = [first, *(end.end() for end in SENTENCE_END.finditer(text, first, last))]
    starts = [first, *(_before(start, sentences, width) for start, _, _ in spans)]
    sums = [
        sum(gains[word] for word in {word for a, b, word in spans if start <= a and b <= start + width})
        for start in starts
    ]
    start = max(first, min(starts[int(np.argmax(sums))], last - width))
    begin = start if start in sentences else max(first, cut_before(text, start - 1, width // 5) + 1)
    return begin, cut_before(text, begin + width, width // 5) if begin + width < last else last


def _before(start: int, sentences: Sequence[int], width: int) -> int:
    """Return where an excerpt with a word at `start` begins: with its sentence if that is near, else a little before it."""
    sentence = sentences[bisect_right(sentences, start) - 1]
    return sentence if start - sentence <= width // 2 else max(sentence, start - width // 5)
