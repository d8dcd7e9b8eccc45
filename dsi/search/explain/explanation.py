"""Explains a search: its answers and levels as data, and as printed lines and a tree. Knows nothing of how scores are made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dsi.docids.files.checks import counted, printable
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.search.engine import Engine
from dsi.search.hits import Uncovered
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import EXTRA, MEMORY, WALK, WORDS, SearchResult, Trace

_PRUNED_SHOWN = 2
SHOWN = 5e-4
"""Parts of a score below this are not printed."""
_READ = 0.75
"""An explanation says how much of a query is read where it is less than this."""
_NAMES = {WALK: "walk", WORDS: "words", EXTRA: "extra scores", MEMORY: "memory"}


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
        found_by: for a document, what found it: "walk", "words", "extra scores", "memory".
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
    """One search, printed as its answers and then as a tree.

    Attributes:
        query: its text.
        config: the search config that was used; the beam is the one that answered.
        levels: the nodes of each level, best first.
        total: how many documents the index has.
        result: the answer.
        meaning: what the scores of nodes and documents are.
        has_generator: whether one scored the nodes; else their vectors did.
        note: that what was learned has no effect, and that the encoder does not read the query, where it is so; else "".
        uncovered: words of the query that no document has, and those that no returned document covers.
    """

    query: str
    config: SearchConfig
    levels: list[list[ExplainedNode]]
    total: int
    result: SearchResult
    meaning: str
    has_generator: bool
    note: str = ""
    uncovered: Uncovered = field(default_factory=Uncovered)

    @property
    def roots(self) -> list[ExplainedNode]:
        """The nodes of the first level."""
        return self.levels[0] if self.levels else []

    @property
    def read(self) -> int:
        """How many vectors of nodes and documents were scored."""
        return int(self.result.read[0])

    @property
    def answer(self) -> str:
        """The documents that were returned, a line each: rank, docid, score and its parts."""
        config, how = self.config, "exact: all documents scored"
        if config.method != "exact":
            alpha, unit = (f"alpha {config.alpha:g}, ", "nodes scored") if self.has_generator else ("", "vectors read")
            how = f"generate, {alpha}beam {config.beam_width}: {self.read} {unit}"
        head = f'"{printable(self.query)}"  ({how}, {self.total} documents)'
        ranked = {node.rank: node for level in self.levels for node in level if node.rank}
        lines = [_line(ranked[rank], sum_of(ranked[rank].parts)) for rank in sorted(ranked)]
        return "\n".join(
            [head, *(lines or ["no document is returned"]), *filter(None, [str(self.uncovered), self.note])]
        )

    def __str__(self) -> str:
        legend = f"{self.meaning}; + kept, - pruned, # final rank"
        return "\n".join([self.answer, "", legend, *_lines(self.roots)])

    __repr__ = __str__


def explain(
    engine: Engine, encoded: EncodedQueries, request: SearchRequest, names: Callable[[int], tuple[str, str]]
) -> Explanation:
    """Search for one query, and return how the search came about; `names`: {row of a document: its id, its label}."""
    trace, tree = Trace(), engine.tree
    result = engine.search(encoded, request, trace=trace)
    nodes = _Nodes(tree, names)
    nodes.add_scored(trace)
    if result.positions.size:
        parts = engine.follow_result(encoded, request, result).parts
        nodes.add_returned(result, {name: values[0].tolist() for name, values in parts.items()})
    nodes.add_others(trace)
    config = replace(request.config, beam_width=trace.beam_width or request.config.beam_width)
    note = "\n".join(filter(None, [_unread(engine, encoded, config), idle_memory(engine.memory, config)]))
    return Explanation(
        encoded.texts[0], config, nodes.levels(), tree.num_rows, result, engine.meaning(config), engine.has_generator,
        note,
    )  # fmt: skip


def _unread(engine: Engine, encoded: EncodedQueries, config: SearchConfig) -> str:
    (batch,) = encoded.batches
    share = 1.0 if batch.shares_read is None else float(batch.shares_read[0])
    if share >= _READ or engine.has_generator or engine.lexical is None or not config.lexical_weight:
        return ""
    return (
        f"The encoder reads about {share:.0%} of this query; beside words, its part of each score is multiplied by the square "
        "of that share."
    )


def idle_memory(memory: QueryMemory, config: SearchConfig) -> str:
    """Return a line that says that what an index has learned has no weight, where it has none; else ""."""
    if config.memory_weight or not len(memory):
        return ""
    return f"The index has learned {counted(len(memory), 'pair')} without effect: memory_weight is 0."


class _Nodes:
    """The nodes of a trace, and the documents, at their places in the tree; `names` as in `explain`."""

    def __init__(self, tree: DocidTree, names: Callable[[int], tuple[str, str]]) -> None:
        self.tree, self.names = tree, names
        self.known: dict[tuple[int, ...], ExplainedNode] = {}

    def levels(self) -> list[list[ExplainedNode]]:
        """Return the nodes of each level, best first, each among the children of its parent."""
        levels: list[list[ExplainedNode]] = [[] for _ in range(max(map(len, self.known), default=0))]
        for node in sorted(self.known.values(), key=lambda node: (node.score is None, -(node.score or 0), node.digits)):
            levels[len(node.digits) - 1].append(node)
            if len(node.digits) > 1:
                self.known[node.digits[:-1]].children.append(node)
        return levels

    def add_scored(self, trace: Trace) -> None:
        """Add the nodes that the search scored on its way."""
        if not trace.levels:
            return
        depths = [np.full(level.nodes.shape[1], depth) for depth, level in enumerate(trace.levels, start=1)]
        columns = [[getattr(level, name)[0] for level in trace.levels] for name in ("nodes", "scores", "kept")]
        nodes, scores, kept, depth = (np.concatenate(column) for column in (*columns, depths))
        inner = nodes < self.tree.num_inner
        positions = np.where(inner, self.tree.doc_start[np.where(inner, nodes, 0)], nodes - self.tree.num_inner)
        paths = self.tree.paths(np.maximum(positions, 0))[1].tolist()
        entries = zip(paths, depth.tolist(), nodes.tolist(), scores.tolist(), kept.tolist(), strict=True)
        for path, length, node, *entry in entries:
            if node >= 0:
                self._add(tuple(path[:length]), node, *entry)

    def _add(self, digits: tuple[int, ...], node: int, score: float | None, kept: bool) -> ExplainedNode:
        rows = self.tree.rows_below(node)
        doc_id, label = self.names(int(rows[0])) if len(rows) else ("", "")
        own_id = doc_id if node >= self.tree.num_inner else ""
        self.known[digits] = ExplainedNode(digits, score, kept, self.tree.count_below(node), label, own_id)
        return self.known[digits]

    def add_returned(self, result: SearchResult, parts: dict[str, list[float]]) -> None:
        """Add the documents of the answer with the parts of their scores, and the nodes above them that were not scored."""
        returned = zip(result.positions[0].tolist(), result.scores[0].tolist(), result.sources[0].tolist(), strict=True)
        for column, (position, score, source) in enumerate(returned):
            if position < 0:
                continue
            digits = self.tree.digits(position)
            for length in range(1, len(digits)):
                if digits[:length] not in self.known:
                    self._add(digits[:length], self.tree.node(digits[:length]), None, kept=False)
            node = self._add(digits, self.tree.num_inner + position, score, kept=True)
            node.rank, node.found_by = column + 1, _found_by(source)
            node.parts = {name: values[column] for name, values in parts.items()}

    def add_others(self, trace: Trace) -> None:
        """Add the documents that were scored completely and not returned, below nodes that were kept."""
        entries = zip(trace.positions[0].tolist(), trace.scores[0].tolist(), trace.sources[0].tolist(), strict=True)
        for position, score, source in entries:
            if position < 0 or score == -np.inf:
                continue
            digits = self.tree.digits(position)
            above = self.known.get(digits[:-1])
            if digits not in self.known and (len(digits) == 1 or (above is not None and above.kept)):
                self._add(digits, self.tree.num_inner + position, score, kept=False).found_by = _found_by(source)


def _found_by(source: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _NAMES.items() if source & bit)


def select(nodes: Sequence[ExplainedNode], most: int) -> tuple[list[ExplainedNode], list[ExplainedNode]]:
    """Return the nodes that a picture shows, kept or on the way to an answer and the best `most` others, and all others."""
    on_paths = [node for node in nodes if node.kept or node.children]
    pruned = [node for node in nodes if not (node.kept or node.children)]
    return on_paths + pruned[:most], pruned


def _lines(nodes: Sequence[ExplainedNode], indent: str = "") -> Iterator[str]:
    """Yield the lines of nodes and of all below them."""
    shown, pruned = select(nodes, _PRUNED_SHOWN)
    below = [(_line(node), node.children) for node in shown]
    if (hidden := len(pruned) - _PRUNED_SHOWN) > 0:
        below.append((f"- and {hidden} more {'pruned' if pruned[0].documents > 1 else 'not returned'}", []))
    for left, (line, children) in zip(reversed(range(len(below))), below, strict=True):
        branch, beside = ("├─", "│  ") if left else ("└─", "   ")
        yield f"{indent}{branch} {line}"
        yield from _lines(children, indent + beside)


def sum_of(parts: Mapping[str, float]) -> str:
    """Return the parts of a score as a sum."""
    terms = (f"{value:.3f} {name}" for name, value in parts.items() if abs(value) >= SHOWN)
    return " + ".join(terms).replace("+ -", "- ")


def _line(node: ExplainedNode, parts: str = "") -> str:
    parts = f" = {parts}" if {"+", "-"} & {*parts.split()} else ""
    mark = f"#{node.rank}" if node.rank else "+" if node.kept else "-"
    label = printable(node.label)
    what = label if node.documents == 1 else f"{node.documents} documents, e.g. {label}"
    what += f" ({printable(node.doc_id)})" * (node.doc_id not in ("", node.label))
    digits = ".".join(map(str, node.digits))
    score = "not scored" if node.score is None else f"{node.score:.3f}"
    source = f"  (found by {' and '.join(node.found_by)})" if node.found_by and "walk" not in node.found_by else ""
    return f"{mark} {digits}  {score}{parts}  {what}{source}"
