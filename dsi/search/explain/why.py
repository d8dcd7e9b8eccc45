"""Why a document is, or is not, among the answers of a search; each claim is tested by searching.

Knows nothing of how scores are made.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.checks import printable
from dsi.docids.query_memory import Earlier
from dsi.search.best_scores import BestScores
from dsi.search.engine import Engine, count_documents
from dsi.search.explain.explanation import SHOWN, ExplainedNode, Explanation, explain, sum_of
from dsi.search.explain.matches import StoredText, matched_words
from dsi.search.explain.uncovered import uncovered_words
from dsi.search.hits import Hit, Match, Uncovered, label_of
from dsi.search.passages import ScoredText, Shown, shown_pieces
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest
from dsi.search.results import SearchResult

_TOLERANCE = 1e-5
"""Scores that are relatively closer than this are equal: the order of sums decides between them."""
_RANKED = 10_000
"""With (level, digit) and word tokens, documents of larger indexes are not ranked: the decoder would run over every node."""
_EARLIER_SHOWN = 3


class _Documents(Protocol):
    """What is read of the document table, `dsi.store.documents.table`."""

    def rows_of(self, doc_ids: Iterable[str], name: str) -> list[int]: ...
    def values_of(self, column: str, rows: NDArray[np.integer]) -> list[list[Any]]: ...
    def names(self, row: int) -> tuple[str, str]: ...


class Step(NamedTuple):
    """A node on the way to a document, last the document; its score is None where nodes are not scored."""

    digits: tuple[int, ...]
    score: float | None
    # "kept", "pruned", "not scored" (all below the last nodes is read), "not reached"; "answer", "no answer"
    state: str


@dataclass(frozen=True)
class DocumentExplanation:
    """How a document stands in a search; prints as text.

    Attributes:
        query: its text.
        doc_id: of the document.
        label: its title, or its first words.
        rank: in the answer; None if it is not there.
        overall_rank: by score, among all documents that may be returned; None if it may not, or in an index with (level, digit)
            or word tokens of more than 10,000 documents.
        total: how many documents may be returned.
        answers: how many were returned.
        score: of the document.
        last_score: of the last answer; None without one.
        parts: {name: what that part contributes to the score}.
        path: the nodes from the first level to the document.
        level: at which the walk left it out, from 1; None if it did not.
        returned_by: {option: value} with which a search returns it that has as many answers; None if it is there already, or if
            enough documents score higher.
        reason: all this in a sentence or two.
        matches: the words of the query, and the words of the document that they found.
        passage_span: first character, and one past the last, of the best piece of its text; None if it is one piece.
        earlier: the earlier queries that speak for it, nearest first.
        learned_words: terms of the query that its earlier queries have, the most important first.
        note: that what the index has learned has no effect, and that the encoder does not read the query, where it is so.
    """

    query: str
    doc_id: str
    label: str
    rank: int | None
    overall_rank: int | None
    total: int
    answers: int
    score: float
    last_score: float | None
    parts: dict[str, float]
    path: list[Step]
    level: int | None
    returned_by: dict[str, Any] | None
    reason: str
    matches: list[Match]
    passage_span: tuple[int, int] | None = None
    earlier: Sequence[Earlier] = ()
    learned_words: Sequence[str] = ()
    note: str = ""

    def __str__(self) -> str:
        score = f"score {self.score:.3f} = {sum_of(self.parts)}"
        lines = [f'{self.label} ({self.doc_id}) for "{self.query}"', self.reason, score]
        if self.passage_span:
            lines.append("its passage: characters {} to {} of its text".format(*self.passage_span))
        for earlier in self.earlier[:_EARLIER_SHOWN]:
            times = f", {earlier.times} times" if earlier.times > 1 else ""
            lines.append(f"chosen for the earlier query {earlier.query}{times} (cosine {earlier.cosine:.3f})")
        lines += [f"its earlier queries have the words {', '.join(self.learned_words)}"] if self.learned_words else []
        if self.parts.get("memory", 0.0) <= -SHOWN:
            lines.append("on average, its earlier queries are less like this one than its text is")
        lines += [self.note] if self.note else []
        for step in self.path:
            shown = "" if step.score is None else f"  {step.score:.3f}"
            lines.append(f"  {'.'.join(map(str, step.digits))}{shown}  {step.state}")
        for match in sorted(self.matches, key=lambda match: -match.share):
            found = ", ".join(dict.fromkeys(span.text + " (title)" * (span.field == "title") for span in match.spans))
            lines.append(
                f"  {match.share:+.3f}  {match.word} -> {found or '(no match)'}{' (weak)' * (not match.is_clear)}"
            )
        return "\n".join(map(printable, lines))

    __repr__ = __str__


@dataclass(eq=False)
class AnsweredQuery:
    """The search for one query: made again with a trace when documents are explained, in the index as it was then.

    `check` is called after each search that an explanation makes; what it raises ends the explanation.
    """

    encoded: EncodedQueries
    request: SearchRequest
    engine: Engine
    encoder: TextEncoder
    documents: _Documents
    best_scores: BestScores | None = None
    check: Callable[[], None] | None = field(default=None, init=False)
    _missing: set[int] = field(default_factory=set, init=False)

    @cached_property
    def explanation(self) -> Explanation:
        """The search as a tree."""
        self.encoded.check_usable()
        explanation = explain(self.engine, self.encoded, self.request, self.documents.names)
        result = self._note(explanation.result)
        positions = result.positions[0, : result.counts[0]].tolist()
        explanation.uncovered = uncovered_words(self.engine, self.encoder, self.encoded, self.request, positions)
        return explanation

    def passages(self, found: Sequence[ScoredText]) -> list[Shown]:
        """Return what each answer shows of its text; see `shown_pieces`."""
        (batch,) = self.encoded.batches
        return shown_pieces(self.engine.tree, self.engine.lexical, batch, self.request, found)

    def matches(self, hits: Sequence[Hit]) -> list[list[Match]]:
        """Return the words of the query that each of its hits matches."""
        held = [StoredText(self._position(hit), hit.title, hit.text or "") for hit in hits]
        return matched_words(self.engine, self.encoder, self.encoded, self.request, held) if held else []

    def percentile(self, score: float) -> float | None:
        """Return how many of 100 questions that the documents answer have a lower best score; None where that is not known."""
        return self.best_scores.percentile(score, self.request) if self.best_scores else None

    def uncovered(self, hits: Sequence[Hit]) -> Uncovered:
        """Return the words of the query that no document has, and those that none of its hits covers."""
        positions = [self._position(hit) for hit in hits]
        return uncovered_words(self.engine, self.encoder, self.encoded, self.request, positions)

    def _position(self, hit: Hit) -> int:
        return self.engine.tree.node(hit.digits) - self.engine.tree.num_inner

    def explain(self, doc_id: str) -> DocumentExplanation:
        """Return why a document is, or is not, among the answers."""
        (row,) = self.documents.rows_of([doc_id], "doc_id")
        self.encoded.check_usable()
        followed = self.engine.follow_all(self.encoded, self.request, np.array([[row]]))
        position, score, result = int(followed.positions[0, 0]), float(followed.scores[0, 0]), self.explanation.result
        rank, overall = self._rank(result, row), self._overall_rank(row)
        pruned = self.pruned(position) if rank is None else None
        title, text = (self.documents.values_of(name, np.array([[row]]))[0][0] for name in ("title", "text"))
        held = StoredText(position, title, text or "")
        (matches,) = matched_words(self.engine, self.encoder, self.encoded, self.request, [held])
        reason, returned_by = self._reason(row, score, rank, overall, pruned)
        if self._missing:
            numbers, overall = ", ".join(map(str, sorted(self._missing))), None
            here = f"It is here, at rank {rank} of what was searched." if rank else "Its place is not known."
            reason, returned_by = f"{here} Shards {numbers} did not answer.", None
        parts = {name: float(values[0, 0]) for name, values in followed.parts.items()}
        earlier, learned_words = (
            self.engine.earlier(self.encoded.batches[0], self.request, row) if parts.get("memory") else ([], [])
        )
        return DocumentExplanation(
            query=self.encoded.texts[0],
            doc_id=doc_id,
            label=label_of(doc_id, title, text),
            rank=rank,
            overall_rank=overall,
            total=self._total,
            answers=int(result.counts[0]),
            score=score,
            last_score=_last(result) if result.counts[0] else None,
            parts=parts,
            path=self._path(position, followed.nodes[0, 0].tolist(), rank),
            level=None if pruned is None else len(pruned.digits),
            returned_by=returned_by,
            reason=reason,
            matches=matches,
            passage_span=self.passages([ScoredText(position, text, score)])[0][0],
            earlier=earlier,
            learned_words=learned_words,
            note=self.explanation.note,
        )

    def search(self, **changes: Any) -> SearchResult:
        """Return the search with some settings changed."""
        request = replace(self.request, config=replace(self.request.config, **changes))
        return self._note(self.engine.search(self.encoded, request))

    def _note(self, result: SearchResult) -> SearchResult:
        """Return a result after noting which shards it lacks."""
        self._missing.update(result.missing[0])
        if self.check:
            self.check()
        return result

    @cached_property
    def _total(self) -> int:
        """How many documents may be returned."""
        return count_documents(self.engine.tree, self.request.allowed)

    def _rank(self, result: SearchResult, row: int) -> int | None:
        rows = self.engine.tree.doc_rows[result.positions[0, : result.counts[0]]]
        ranks = np.flatnonzero(rows == row).tolist()
        return ranks[0] + 1 if ranks else None

    def _overall_rank(self, row: int) -> int | None:
        """Return the rank among all documents that may be returned; None where finding it would take long."""
        if not self._total or (self.engine.has_generator and self._total > _RANKED):
            return None
        return self._rank(self._all, row)

    @cached_property
    def _all(self) -> SearchResult:
        """All documents that may be returned, by an exact search."""
        config = replace(self.request.config, method="exact")
        request = replace(self.request, k=self._total, min_score=-math.inf, config=config)
        return self._note(self.engine.search(self.encoded, request))

    def _reason(
        self, row: int, score: float, rank: int | None, overall: int | None, pruned: "Pruned | None"
    ) -> tuple[str, dict[str, Any] | None]:
        """Return why a document is where it is, and the options with which a search returns it, if they are named there."""
        allowed, result = self.request.allowed, self.explanation.result
        everywhere = "" if overall is None else f" Of all {self._total} documents it is number {overall}."
        if rank:
            return f"It is here, at rank {rank}.{everywhere}", None
        if allowed is not None and not allowed[self.engine.tree.doc_rows == row].any():
            return "The filter excludes it.", None
        if score < self.request.min_score and not math.isclose(score, self.request.min_score, rel_tol=_TOLERANCE):
            return f"Its score {score:.3f} is less than min_score {self.request.min_score:g}.{everywhere}", None
        k, last = int(result.counts[0]), _last(result)
        (shown, last_shown), number = _distinct(score, last), f"of the last answer, number {k}"
        if math.isclose(score, last, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10):
            return f"Its score {score:.3f} is that {number}, up to rounding.{everywhere}", None
        if score < last:
            return f"Its score {shown} is less than the {last_shown} {number}.{everywhere}", None
        loss = f"it was not among the candidates that get the complete score (candidates: {self.request.pool})."
        if pruned is not None:
            node, level, (lost, kept) = ".".join(map(str, pruned.digits)), len(pruned.digits), _distinct(*pruned[1:])
            loss = f"its node {node} left the walk at level {level}: it scores {lost}, the last node kept {kept}."
        remedy, options = "No other search of this many documents returns it.", None
        if overall is not None and overall > k:
            remedy = f"{everywhere[1:-1]}: no exact answer of {k} holds it."
        else:
            remedies = (pair for pair in self._remedies() if self._rank(self.search(**pair[1]), row))
            remedy, options = next(remedies, (remedy, None))
        return f"Its score {shown} is more than the {last_shown} {number}, but {loss} {remedy}", options

    def _remedies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield searches that may return more, and what to say of the first that returns a document."""
        for wider in _doublings(self.explanation.config.beam_width, self.engine.tree.num_inner):
            yield f"A beam of {wider} returns it.", {"beam_width": wider}
        for more in () if self.engine.has_generator else _doublings(self.request.pool, self._total):
            yield f"No wider beam returns it; {more} candidates do.", {"candidates": more}
        yield 'No wider beam returns it; method "exact" does.', {"method": "exact"}

    def _path(self, position: int, scores: Sequence[float], rank: int | None) -> list[Step]:
        """Return the nodes on the way to a docid position, with what the search did with each."""
        state, path, digits = "kept", [], self.engine.tree.digits(position)
        for level in range(1, len(digits) + 1):
            node = self._known.get(digits[:level])
            if level == len(digits):
                state = "answer" if rank else "no answer"
            elif node is not None and node.score is not None:
                state = "kept" if node.kept else "pruned"
            else:
                state = "not scored" if state in ("kept", "not scored") else "not reached"
            score = scores[level - 1]
            path.append(Step(digits[:level], score if math.isfinite(score) else None, state))
        return path

    def pruned(self, position: int) -> "Pruned | None":
        """Return where the walk left out the document at a docid position; None if it did not."""
        digits = self.engine.tree.digits(position)
        for length in range(1, len(digits)):
            node = self._known.get(digits[:length])
            if node is not None and node.score is not None and not node.kept:
                beside = self.explanation.levels[length - 1]
                kept = [other.score for other in beside if other.kept and not other.doc_id and other.score is not None]
                return Pruned(node.digits, node.score, min(kept, default=math.inf))
        return None

    @cached_property
    def _known(self) -> dict[tuple[int, ...], ExplainedNode]:
        return {node.digits: node for level in self.explanation.levels for node in level}


class Pruned(NamedTuple):
    """The node where the walk left a document out, its score, and the lowest score of a node that was kept at its level."""

    digits: tuple[int, ...]
    score: float
    lowest: float


def _doublings(start: int, end: int) -> Iterator[int]:
    """Yield 2, 4, 8, … times `start`, up to the first that is at least `end`."""
    while start < end:
        start *= 2
        yield start


def _last(result: SearchResult) -> float:
    """Return the score of the last answer to one query."""
    count = int(result.counts[0])
    return float(result.scores[0, count - 1]) if count else -math.inf


def _distinct(a: float, b: float) -> tuple[str, str]:
    """Return two numbers with as many decimals as tell them apart, three at least.

    >>> _distinct(0.12341, 0.12338)
    ('0.12341', '0.12338')
    """
    for decimals in range(3, 8):
        texts = f"{a:.{decimals}f}", f"{b:.{decimals}f}"
        if texts[0] != texts[1]:
            break
    return texts
