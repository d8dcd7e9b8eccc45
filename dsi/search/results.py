"""The records of a search: its result, the hits that users see, and a trace of how it came about. Knows no index."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.checks import counted, printable

if TYPE_CHECKING:
    import pandas

Ints = NDArray[np.integer]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

WALK, WORDS, EXTRA = 1, 2, 4
"""Where a document was found: below the nodes that the walk kept, by words, by extra_scores; several add up."""
_LABEL, _EXCERPT = 80, 160
"""Characters of a text that stand for a missing title, and that are printed below one."""
_LONG, _MANY, _BLOCK = 2**14, 128, 256
"""Of at least `_LONG` scores, `_MANY` for each that is looked for, few are sorted: those that reach a floor, which maxima of
blocks of at most `_BLOCK` give."""


class ShardError(RuntimeError):
    """The shards of an index cannot answer a search, or not completely where that is required."""


@dataclass(frozen=True)
class SearchResult:
    """The top k documents of a batch of queries, best first.

    Attributes:
        positions: [batch, k] docid positions, of a document with several places its best one; -1 if fewer documents may be
            returned.
        scores: [batch, k] document scores; -inf at position -1.
        exact: [batch] True if the result is provably the top k of all documents that may be returned.
        read: [batch] how many vectors of nodes and documents were scored; with docid tokens that have weights of their own,
            how many nodes.
        compared: [batch] how many documents were scored by late interaction.
        sources: [batch, k] where each document was found: `WALK`, `WORDS`, `EXTRA` or a sum of them.
        coverage: [batch] share of the documents that could be searched; below 1 only if shards did not answer.
        missing: [batch] numbers of these shards.
    """

    positions: Ints
    scores: Floats
    exact: Bools
    read: Ints
    compared: Ints
    sources: Ints
    coverage: Floats
    missing: list[list[int]]

    @classmethod
    def empty(cls, queries: int, k: int) -> "SearchResult":
        """Return a result without documents, to be filled by `put`; with k = 0 it is complete, and exact."""
        return cls(
            np.full((queries, k), -1, dtype=np.int64),
            np.full((queries, k), -np.inf, dtype=np.float32),
            np.ones(queries, dtype=bool),
            np.zeros(queries, dtype=np.int64),
            np.zeros(queries, dtype=np.int64),
            np.zeros((queries, k), dtype=np.uint8),
            np.ones(queries, dtype=np.float32),
            [[] for _ in range(queries)],
        )

    def put(self, rows: Ints, other: "SearchResult") -> None:
        """Replace some rows by those of `other`."""
        for name in ("positions", "scores", "exact", "read", "compared", "sources", "coverage"):
            getattr(self, name)[rows] = getattr(other, name)
        for row, missing in zip(rows.tolist(), other.missing, strict=True):
            self.missing[row] = missing

    @property
    def counts(self) -> Ints:
        """[batch] how many documents each query has."""
        return np.asarray((self.positions >= 0).sum(axis=1))


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
        share: what it adds to the document's score.
        spans: the words that it found.
        is_clear: whether these are marked: the same word, or by late interaction one with a product of at least .5, neither of
            them a stop word.
    """

    word: str
    share: float
    spans: tuple[Span, ...]
    is_clear: bool = True


class AnsweredSearch(Protocol):
    """The search that answered one query: what `Hit.explain` and marked words need of it."""

    def explain(self, doc_id: str) -> Any:
        """Return the `DocumentExplanation` of any document of the index."""

    def matches(self, hits: "Sequence[Hit]") -> list[list[Match]]:
        """Return the words of the query that each of its hits matches."""


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
        search: that found it; None after reranking.
    """

    rank: int
    score: float
    doc_id: str
    title: str
    digits: tuple[int, ...]
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    search: ClassVar[AnsweredSearch | None] = None  # no field: `dataclasses.asdict` would copy the index

    def found_by(self, search: AnsweredSearch | None) -> "Hit":
        """Return this hit, which from now on knows its search."""
        object.__setattr__(self, "search", search)
        return self

    @property
    def label(self) -> str:
        """The title; without one the first words of the text, or else the doc_id."""
        return label_of(self.doc_id, self.title, self.text)

    def explain(self) -> Any:
        """Return why the document is here: the `DocumentExplanation` with its parts, its way down the tree and matched words.

        Raises:
            ValueError: the hit was reranked, pickled or copied, so the search is not known.
        """
        return _known(self.search).explain(self.doc_id)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes that JSON can hold, without text and metadata where there are none."""
        names = ("rank", "score", "doc_id", "title", "digits", "text", "metadata")
        return {name: value for name in names if (value := getattr(self, name)) is not None and value != {}}

    def __reduce__(self) -> tuple[Any, ...]:
        return Hit, (self.rank, self.score, self.doc_id, self.title, self.digits, self.text, dict(self.metadata))


def label_of(doc_id: str, title: str, text: str | None) -> str:
    """Return what a document is called: its title, without one its first words, without a text its doc_id.

    >>> label_of("d1", "", "a text")
    'a text'
    """
    return title.strip() or shorten(text or "", _LABEL, placeholder=" …") or doc_id


def _known(search: AnsweredSearch | None) -> AnsweredSearch:
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
    metadata: dict[str, bool | int | float | str]
    digits: tuple[int, ...]


class Hits(list[Hit]):
    """The documents found for one query, best first; prints as a list, and as HTML in a notebook.

    Attributes:
        exact: True if it is proven that no other document has a higher score than these. It says nothing of
            relevance, and after reranking it is still about the search.
        query: its text.
        coverage: share of the documents that could be searched; below 1 only if shards of a cluster did not answer.
        missing: numbers of these shards.
    """

    def __init__(
        self,
        hits: Iterable[Hit],
        exact: bool,
        query: str = "",
        search: AnsweredSearch | None = None,
        coverage: float = 1.0,
        missing: Iterable[int] = (),
    ) -> None:
        super().__init__(hits)
        self.exact, self.query, self._search = exact, query, search
        self.coverage, self.missing = coverage, list(missing)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> "Hits": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Hit | Hits":
        found = super().__getitem__(index)
        if isinstance(found, Hit):
            return found
        exact = self.exact and found == list(self)[: len(found)]  # others may lack what scores higher
        return Hits(found, exact, self.query, self._search, self.coverage, self.missing)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hits, (list(self), self.exact, self.query, None, self.coverage, self.missing)

    def explain(self, doc_id: str) -> Any:
        """Return why a document of the index is, or is not, among these: a `DocumentExplanation`.

        Raises:
            ValueError: the doc_id is not in the index, or the hits were reranked, pickled or copied.
        """
        return _known(self._search).explain(doc_id)

    def to_df(self) -> "pandas.DataFrame":
        """Return a table with a row a hit: rank, score, doc_id, title, digits, text, and the metadata.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise ModuleNotFoundError("hits.to_df() needs pandas; run pip install pandas.", name="pandas") from None
        names = ["rank", "score", "doc_id", "title", "digits", "text"]
        rows = [
            {name: getattr(hit, name) for name in names}
            | {f"metadata.{name}" if name in names else name: value for name, value in hit.metadata.items()}
            for hit in self
        ]
        return pandas.DataFrame(rows, columns=list(dict.fromkeys([*names, *chain.from_iterable(rows)])))

    def matches(self) -> list[list[Match]]:
        """Return the words of the query that each hit matches; none for hits that do not know their search."""
        return self._search.matches(self) if self._search else [[] for _ in self]

    def __str__(self) -> str:
        return self.format()

    __repr__ = __str__

    def format(self, mark: Callable[[str], str] = str) -> str:
        """Return the hits as lines: rank, score, doc_id and title, then the part of the text that matches best.

        Args:
            mark: applied to matched words.
        """
        lines = [f'"{printable(self.query)}"  ({self._summary})']
        for hit, matches in zip(self, self.matches(), strict=True):
            title = _marked(pieces(hit.title, matches, "title"), _line, mark)
            docid = ".".join(map(str, hit.digits))
            lines.append(f"{hit.rank:4d}  {hit.score:9.4f}  {printable(hit.doc_id)}  {title}  [{docid}]")
            if hit.text:
                text = _marked_excerpt(hit.text, matches, _line, mark)
                lines.append(f"{'':17}{' '.join(text.split())}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the hits for a notebook, with matched words marked."""
        mark, items = "<mark>{}</mark>".format, []
        for hit, matches in zip(self, self.matches(), strict=True):
            title = hit.title if hit.title.strip() else hit.label  # without a title there is no word of it to mark
            label = _marked(pieces(title, matches, "title"), escape, mark)
            facts = [hit.doc_id, *(f"{name}: {value}" for name, value in hit.metadata.items())]
            body = f"<br>{_marked_excerpt(hit.text, matches, escape, mark)}" if hit.text else ""
            items.append(f"<li><b>{label}</b> {hit.score:.3f}{body}<br><small>{escape(' · '.join(facts))}</small></li>")
        return f"<div><b>{escape(self.query)}</b>: {self._summary}<ol>{''.join(items)}</ol></div>"

    @property
    def _summary(self) -> str:
        """How many there are, and what is proven of a search."""
        count = counted(len(self), "document")
        if self.missing:
            count += f"; {self.coverage:.0%} of the documents were searched"
        if not self or not self._search:
            return count
        return f"{count}; {'proven: no other scores higher' if self.exact else 'others may score higher'}"


def pieces(
    text: str, matches: Sequence[Match], part: str, start: int = 0, end: int | None = None
) -> list[tuple[str, bool]]:
    """Cut characters start to end of a title or text into pieces, with True for matched words.

    >>> pieces("rivers of europe", [Match("river", 0.5, (Span("title", 0, 6, "rivers"),))], "title")
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


def _marked(found_in: Iterable[tuple[str, bool]], shown: Callable[[str], str], mark: Callable[[str], str]) -> str:
    """Return pieces of a text, each as `shown` makes it, with those that were found marked."""
    return "".join(mark(shown(piece)) if found else shown(piece) for piece, found in found_in)


def _marked_excerpt(
    text: str, matches: Sequence[Match], shown: Callable[[str], str], mark: Callable[[str], str]
) -> str:
    """Return the excerpt of a text as `_marked` does, with dots where it is cut."""
    start, end = excerpt(text, matches)
    marked = _marked(pieces(text, matches, "text", start, end), shown, mark)
    return f"{'… ' * (start > 0)}{marked}{' …' * (end < len(text))}"


def excerpt(text: str, matches: Sequence[Match], width: int = _EXCERPT) -> tuple[int, int]:
    """Return the ends of the part of a text, about `width` characters at the ends of words, that holds the most matched words.

    >>> excerpt("of all rivers the danube is long", [Match("danube", 0.5, (Span("text", 18, 24, "danube"),))], 10)
    (14, 24)
    """
    if len(text) <= width:
        return 0, len(text)
    clear = [match for match in matches if match.is_clear]
    spans = sorted(
        {(span.start, span.end, match.word) for match in clear for span in match.spans if span.field == "text"}
    )
    starts = [0, *(max(0, first - width // 5) for first, _, _ in spans)]
    inside = [
        len({word for first, last, word in spans if start <= first and last <= start + width}) for start in starts
    ]
    start = min(starts[int(np.argmax(inside))], len(text) - width)
    begin = text.rfind(" ", 0, start) + 1 if start else 0
    end = text.rfind(" ", begin, begin + width + 1)
    return begin, end if begin < end and begin + width < len(text) else min(len(text), begin + width)


@dataclass(frozen=True)
class LevelTrace:
    """The candidates of one level of a search; all arrays [batch, candidates].

    Attributes:
        nodes: candidate nodes, -1 at padding.
        scores: what they are ranked by; -inf at padding.
        kept: True if the candidate entered the beam, or the top k so far.
    """

    nodes: Ints
    scores: Floats
    kept: Bools


@dataclass
class Trace:
    """How a search came about.

    Attributes:
        levels: the candidates of each level of the walk, from the children of the root on.
        positions: [batch, n] docid positions of the documents that were scored completely, -1 at padding; empty where documents
            are among the candidates of the levels.
        scores: [batch, n] their scores.
        sources: [batch, n] where they were found.
        beam_width: of the search that answered, after widening.
    """

    levels: list[LevelTrace] = field(default_factory=list)
    positions: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.int64))
    scores: Floats = field(default_factory=lambda: np.zeros((1, 0), dtype=np.float32))
    sources: Ints = field(default_factory=lambda: np.zeros((1, 0), dtype=np.uint8))
    beam_width: int = 0

    def add_documents(self, positions: Ints, scores: Floats, sources: Ints) -> None:
        """Take the documents that were scored completely, each [batch, n]."""
        self.positions, self.scores, self.sources = positions, scores, sources

    def survivors(self, paths: Ints) -> Bools:
        """[n, depth] True at the nodes of paths that the search did not prune.

        A node that was not scored was not pruned: below the last nodes of a walk all documents are read. For one query.

        Args:
            paths: [n, depth] nodes, one a level from the children of the root on.
        """
        kept = np.ones(paths.shape, dtype=bool)
        for level, candidates in enumerate(self.levels):
            kept[:, level] = ~np.isin(paths[:, level], candidates.nodes[~candidates.kept])
        return kept

    def pruned_at(self, path: Ints, num_inner: int) -> tuple[int, float, float] | None:
        """Return where the search pruned an inner node on a path: the level from 0, its score, and the lowest score kept there.

        None if it pruned none. The lowest score is that of an inner node, infinite if none was kept. For one query.

        Args:
            path: [depth] nodes, one a level from the children of the root on.
            num_inner: number of inner nodes of the tree; nodes from there on are documents.
        """
        pruned = ~self.survivors(path[None])[0] & (path >= 0) & (path < num_inner)
        if not pruned.any():
            return None
        level = int(pruned.argmax())
        candidates = self.levels[level]
        kept = candidates.scores[candidates.kept & (candidates.nodes < num_inner)]
        return level, float(candidates.scores[candidates.nodes == path[level]][0]), float(kept.min(initial=np.inf))


def highest(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], ascending; of equal ones the first.

    >>> highest(np.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
    [1, 2]
    """
    return highest_and_rest(scores, count)[0]


def highest_and_rest(scores: Floats, count: int) -> tuple[Ints, float]:
    """Return the indices of the `count` highest of scores [n], ascending, and the highest score of the others, -inf if none."""
    n = len(scores)
    if count >= n:
        return np.arange(n), -np.inf
    is_long = n >= max(_LONG, _MANY * (count + 1))
    ordered = scores[scores >= _floor(scores, count + 1)] if is_long else scores.copy()
    rest = len(ordered) - count
    ordered.partition((rest - 1, rest))
    limit = ordered[rest]  # the lowest score that is kept
    (indices,) = (scores >= limit).nonzero()
    if len(indices) > count:
        ties = indices[scores[indices] == limit]
        indices = np.setdiff1d(indices, ties[len(ties) - (len(indices) - count) :], assume_unique=True)
    return indices, float(ordered[rest - 1])


def _floor(scores: Floats, count: int) -> np.float32:
    """A score that at least `count` of very many scores [n] reach, and few more: the `count`-th highest of blocks' maxima."""
    size = min(_BLOCK, len(scores) // (4 * count))
    whole = len(scores) // size * size
    highest = scores[:whole].reshape(-1, size).max(axis=1)
    return np.float32(np.partition(highest, len(highest) - count)[len(highest) - count])


def best(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], best first; ties in ascending order.

    >>> best(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    indices = highest(scores, count)
    return indices[np.argsort(-scores[indices], kind="stable")]
