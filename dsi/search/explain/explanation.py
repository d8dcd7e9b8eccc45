"""Explains a search: its levels as data, and as a printed tree. Knows nothing of how scores are made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dsi.docids.files.checks import printable
from dsi.docids.tree import DocidTree
from dsi.search.engine import EncodedQueries, Engine, Followed
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import EXTRA, WALK, WORDS, SearchResult, Trace

_PRUNED_SHOWN = 2
_SHOWN = 5e-4
"""Parts of a score below this are not printed."""
_NAMES = {WALK: "walk", WORDS: "words", EXTRA: "extra scores"}


@dataclass
class ExplainedNode:
    """A node of the docid tree: one that the search scored, or one above a document that was returned.

    Attributes:
        digits: its path.
        score: what ranked it; for a document, its score. None for a node that was not scored.
        kept: True if it entered the beam, or is a document that was returned.
        documents: number of different documents below it.
        label: the document's title; for an inner node, the title of a document below it.
        doc_id: of the document; "" for an inner node.
        rank: final rank of a document that was returned, at the place that won if it has several; else None.
        found_by: for a document, what found it: "walk", "words", "extra scores".
        parts: for a document that was returned, {name: what that part contributes to its score}.
        children: its children that were scored, best first.
    """

    digits: tuple[int, ...]
    score: float | None
    kept: bool
    documents: int
    label: str
    doc_id: str = ""
    rank: int | None = None
    found_by: tuple[str, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)
    children: list["ExplainedNode"] = field(default_factory=list)


@dataclass
class Explanation:
    """One search, printed as a tree.

    Attributes:
        query: its text.
        config: the search config that was used; the beam is the one that answered.
        levels: the nodes of each level, best first.
        roots: the first level.
        total: how many documents the index has.
        result: the answer.
        trace: the candidates of the search, level by level.
        lexical: name of the lexical scores, "" if they have no weight.
        tied: whether docid tokens are tied to the tree's vectors.
        tokens: whether late interaction takes part.
    """

    query: str
    config: SearchConfig
    levels: list[list[ExplainedNode]]
    roots: list[ExplainedNode]
    total: int
    result: SearchResult
    trace: Trace
    lexical: str = ""
    tied: bool = True
    tokens: bool = False

    @property
    def read(self) -> int:
        """How many vectors of nodes and documents were scored."""
        return int(self.result.read[0])

    def __str__(self) -> str:
        config, read = self.config, "vectors read" if self.tied else "nodes scored"
        if config.method == "exact":
            how = "exact: all documents scored"
        else:
            how = f"generate, alpha {config.alpha:g}, beam {config.beam_width}: {self.read} {read}"
        head = f'"{printable(self.query)}"  ({how}, {self.total} documents)'
        return "\n".join([head, f"{self._meaning}; + kept, - pruned, # final rank", *_lines(self.roots)])

    @property
    def _meaning(self) -> str:
        config = self.config
        words = f" + {config.lexical_weight:.3g} {self.lexical}" if self.lexical else ""
        if self.tied:
            tokens = f" + {config.token_weight:.3g} tokens" if self.tokens else ""
            return f"score of a node = q.v + bonus, of a document = dense{words}{tokens}"
        return "score = generator along the path + centroids along the path"

    __repr__ = __str__


class TracedSearch(NamedTuple):
    """One search, and how it came about.

    Attributes:
        trace: of the search.
        result: its answer.
        followed: the paths to the documents of the answer, in order.
    """

    trace: Trace
    result: SearchResult
    followed: Followed


def trace_search(engine: Engine, encoded: EncodedQueries, request: SearchRequest) -> TracedSearch:
    """Search for one query, and return how the search came about."""
    trace = Trace()
    result = engine.search(encoded, request, trace=trace)
    followed = Followed(result.positions, result.scores[:, :, None], {})
    if result.positions.size:
        followed = engine.follow_result(encoded, request, result)
    return TracedSearch(trace, result, followed)


def explain(
    query: str,
    tree: DocidTree,
    names: Callable[[int], tuple[str, str]],
    config: SearchConfig,
    search: TracedSearch,
    lexical: str,
    *,
    tied: bool,
) -> Explanation:
    """Return the `Explanation` of a search for one query.

    Args:
        query: its text.
        tree: the docids.
        names: returns the id of the document in a row of the table, and what it is called.
        config: the search config that was used.
        search: the search, with its trace.
        lexical: name of the lexical scores, "" if they have no weight.
        tied: whether docid tokens are tied to the tree's vectors.
    """
    return _Builder(tree, names, search).explanation(query, config, lexical, tied=tied)


class _Builder:
    """Puts the nodes of a trace, and the documents, at their places in the tree."""

    def __init__(self, tree: DocidTree, names: Callable[[int], tuple[str, str]], search: TracedSearch) -> None:
        self.tree, self.names, self.search = tree, names, search
        self.known: dict[tuple[int, ...], ExplainedNode] = {}
        self._add_scored()
        self._add_returned()
        self._add_others()

    def explanation(self, query: str, config: SearchConfig, lexical: str, *, tied: bool) -> Explanation:
        levels: list[list[ExplainedNode]] = [[] for _ in range(max(map(len, self.known), default=0))]
        for node in sorted(self.known.values(), key=lambda node: (node.score is None, -(node.score or 0), node.digits)):
            levels[len(node.digits) - 1].append(node)
            if len(node.digits) > 1:
                self.known[node.digits[:-1]].children.append(node)
        trace, result, _ = self.search
        config = replace(config, beam_width=trace.beam_width or config.beam_width)
        roots = levels[0] if levels else []
        tokens = bool(config.token_weight) and self.tree.tokens is not None
        return Explanation(query, config, levels, roots, self.tree.num_rows, result, trace, lexical, tied, tokens)

    def _digits(self, nodes: np.ndarray) -> list[tuple[int, ...]]:
        """Return the paths of nodes."""
        tree, inner = self.tree, nodes < self.tree.num_inner
        positions = np.where(inner, tree.doc_start[np.where(inner, nodes, 0)], nodes - tree.num_inner)
        _, digits = tree.paths(positions)
        above = np.searchsorted([level.start for level in tree.levels], nodes, side="right") - 1
        lengths = np.where(inner, above, (digits >= 0).sum(axis=1))
        return [tuple(path[:length]) for path, length in zip(digits.tolist(), lengths.tolist(), strict=True)]

    def _add_scored(self) -> None:
        """Add the nodes that the search scored on its way."""
        levels = [(level.nodes[0], level.scores[0], level.kept[0]) for level in self.search.trace.levels]
        if not levels:
            return
        nodes, scores, kept = (np.concatenate(column) for column in zip(*levels, strict=True))
        nodes, scores, kept = (column[nodes >= 0] for column in (nodes, scores, kept))
        for entry in zip(self._digits(nodes), nodes.tolist(), scores.tolist(), kept.tolist(), strict=True):
            self._add(*entry)

    def _add(self, digits: tuple[int, ...], node: int, score: float | None, kept: bool) -> ExplainedNode:
        rows = self.tree.rows_below(node)
        doc_id, label = self.names(int(rows[0])) if len(rows) else ("", "")
        own_id = doc_id if node >= self.tree.num_inner else ""
        self.known[digits] = ExplainedNode(digits, score, kept, len(set(rows.tolist())), label, own_id)
        return self.known[digits]

    def _add_returned(self) -> None:
        """Add the documents of the answer, and the nodes above them that the walk did not score."""
        (_, result, followed), tree = self.search, self.tree
        for column, position in enumerate(result.positions[0].tolist()):
            if position < 0:
                continue
            digits = tree.digits(position)
            for length in range(1, len(digits)):
                if digits[:length] not in self.known:
                    self._add(digits[:length], tree.node(digits[:length]), None, kept=False)
            node = self._add(digits, tree.num_inner + position, float(result.scores[0, column]), kept=True)
            node.rank, node.found_by = column + 1, _found_by(int(result.sources[0, column]))
            node.parts = {name: float(values[0, column]) for name, values in followed.parts.items()}

    def _add_others(self) -> None:
        """Add the documents that were scored completely and not returned, below nodes that were kept."""
        trace = self.search.trace
        if not trace.positions.shape[1]:
            return
        entries = zip(trace.positions[0].tolist(), trace.scores[0].tolist(), trace.sources[0].tolist(), strict=True)
        for position, score, source in entries:
            if position < 0 or score == -np.inf:
                continue
            digits = self.tree.digits(position)
            above = self.known.get(digits[:-1])
            if digits not in self.known and (above is None if len(digits) == 1 else above is not None and above.kept):
                self._add(digits, self.tree.num_inner + position, score, kept=False).found_by = _found_by(source)


def _found_by(source: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _NAMES.items() if source & bit)


def _lines(nodes: Sequence[ExplainedNode]) -> list[str]:
    """Return the lines of a tree; a docid may be longer than Python's stack is deep."""
    lines, waiting = [], _below(nodes, "")[::-1]
    while waiting:
        line, children, indent = waiting.pop()
        lines.append(line)
        waiting += _below(children, indent)[::-1]
    return lines


def _below(nodes: Sequence[ExplainedNode], indent: str) -> list[tuple[str, Sequence[ExplainedNode], str]]:
    """Return, for each node that is shown, its line, its children and their indent."""
    on_paths = [node for node in nodes if node.kept or node.children]
    pruned = [node for node in nodes if not (node.kept or node.children)]
    shown = on_paths + pruned[:_PRUNED_SHOWN]
    hidden = len(pruned) - _PRUNED_SHOWN
    entries: list[tuple[str, Sequence[ExplainedNode], str]] = []
    for number, node in enumerate(shown):
        last = number == len(shown) - 1 and hidden <= 0
        line = f"{indent}{'└─' if last else '├─'} {_line(node)}"
        entries.append((line, node.children, indent + ("   " if last else "│  ")))
    if hidden > 0:
        what = "pruned" if pruned[0].documents > 1 else "not returned"
        entries.append((f"{indent}└─ - and {hidden} more {what}", (), ""))
    return entries


def _line(node: ExplainedNode) -> str:
    mark = f"#{node.rank}" if node.rank else "+" if node.kept else "-"
    label = printable(node.label)
    what = label if node.documents == 1 else f"{node.documents} documents, e.g. {label}"
    what += f" ({printable(node.doc_id)})" * (node.doc_id not in ("", node.label))
    digits = ".".join(map(str, node.digits))
    score = "not scored" if node.score is None else f"{node.score:.3f}"
    parts = [f"{value:.3f} {name}" for name, value in node.parts.items() if abs(value) >= _SHOWN]
    total = f" = {' + '.join(parts)}" if len(parts) > 1 else ""
    source = f"  (found by {' and '.join(node.found_by)})" if node.found_by and "walk" not in node.found_by else ""
    return f"{mark} {digits}  {score}{total}  {what}{source}"
