"""Explains a search: its levels as data and as a printed tree. Knows nothing of models."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from docids.tree import DocidTree
from dsi.search.beams import LevelTrace
from dsi.search.request import SearchConfig

_PRUNED_SHOWN = 2


@dataclass
class ExplainedNode:
    """A node that the search scored.

    Attributes:
        digits: its path.
        generative: weighted generative score.
        dense: weighted dense score.
        kept: True if it entered the beam or the top k so far.
        documents: number of different documents below it.
        label: the document's title; for an inner node, the title of a document below it.
        rank: final rank of a document that was returned, at the place that won if it has several; else None.
        children: its children that were scored, best first.
    """

    digits: tuple[int, ...]
    generative: float
    dense: float
    kept: bool
    documents: int
    label: str
    rank: int | None = None
    children: list["ExplainedNode"] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The score that the node was ranked by."""
        return self.generative + self.dense


@dataclass
class Explanation:
    """One search, printed as a tree.

    Attributes:
        query: its text.
        config: the search config.
        levels: the nodes of each level, best first.
        roots: the first level.
        lexical: name of the lexical scores.
    """

    query: str
    config: SearchConfig
    levels: list[list[ExplainedNode]]
    roots: list[ExplainedNode]
    lexical: str = "BM25"

    def __str__(self) -> str:
        weight = self.config.lexical_weight
        words = f" (with {self.lexical}, weight {weight:.3g})" if weight else ""
        head = [
            f'"{self.query}"  ({self.config.fusion} fusion, alpha {self.config.alpha:g}, beta {self.config.beta:g}, '
            f"beam {self.config.beam_width})",
            f"score = {'generative + dense' if self._has_parts else self._whole}{words}; + kept, - pruned, # final rank",
        ]
        return "\n".join([*head, *_lines(self.roots, parts=self._has_parts)])

    @property
    def _has_parts(self) -> bool:
        """Whether generative and dense scores add up; a generator with tied tokens changes the dense ones instead."""
        return any(node.generative and node.dense for level in self.levels for node in level)

    @property
    def _whole(self) -> str:
        return (
            "estimate of the best document below"
            if self.config.fusion == "estimate"
            else "that of the best document below"
        )

    __repr__ = __str__


def explain(
    query: str,
    tree: DocidTree,
    titles: Sequence[str],
    config: SearchConfig,
    trace: Sequence[LevelTrace],
    positions: Sequence[int],
    lexical: str = "BM25",
) -> Explanation:
    """Return the `Explanation` of a search for one query.

    Args:
        query: its text.
        tree: the docids.
        titles: of the documents, in collection order; only those shown are read.
        config: the search config that was used.
        trace: of the search (batch of 1).
        positions: docid positions of the documents found, best first.
        lexical: name of the lexical scores.
    """
    ranks = {tree.num_inner + position: rank for rank, position in enumerate(positions, start=1) if position >= 0}
    above = {0: ExplainedNode((), 0.0, 0.0, kept=True, documents=tree.num_documents, label="")}  # the root
    roots = above[0].children
    levels: list[list[ExplainedNode]] = []
    for level in trace:
        entries = zip(
            level.nodes[0].tolist(),
            level.generative[0].tolist(),
            level.dense[0].tolist(),
            level.kept[0].tolist(),
            strict=True,
        )
        scored = sorted((entry for entry in entries if entry[0] >= 0), key=lambda entry: -(entry[1] + entry[2]))
        level_nodes: dict[int, ExplainedNode] = {}
        parents = _parents(tree, list(above), [entry[0] for entry in scored])
        for parent, (node, *scores) in zip(parents, scored, strict=True):
            digits = (*above[parent].digits, node - int(tree.first_child[parent]))
            level_nodes[node] = _node(tree, titles, ranks, node, digits, *scores)
            above[parent].children.append(level_nodes[node])
        levels.append(list(level_nodes.values()))
        above = level_nodes
    return Explanation(query, config, levels, roots, lexical)


def _parents(tree: DocidTree, above: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return the parent of each node; all are among the nodes `above`."""
    inner = np.array([node for node in above if node < tree.num_inner], dtype=np.int64)
    inner = inner[tree.first_child[inner].argsort()]
    found: list[int] = inner[tree.first_child[inner].searchsorted(nodes, side="right") - 1].tolist()
    return found


def _node(
    tree: DocidTree,
    titles: Sequence[str],
    ranks: dict[int, int],
    node: int,
    digits: tuple[int, ...],
    generative: float,
    dense: float,
    kept: bool,
) -> ExplainedNode:
    rows = tree.rows_below(node)
    documents, label = len(set(rows.tolist())), titles[int(rows[0])]
    return ExplainedNode(digits, generative, dense, kept, documents, label, ranks.get(node))


def _lines(nodes: Sequence[ExplainedNode], *, parts: bool) -> list[str]:
    """Return the lines of a tree; a docid may be longer than Python's stack is deep."""
    lines, waiting = [], _below(nodes, "", parts=parts)[::-1]
    while waiting:
        line, children, indent = waiting.pop()
        lines.append(line)
        waiting += _below(children, indent, parts=parts)[::-1]
    return lines


def _below(
    nodes: Sequence[ExplainedNode], indent: str, *, parts: bool
) -> list[tuple[str, Sequence[ExplainedNode], str]]:
    """Return, for each node that is shown, its line, its children and their indent."""
    kept = [node for node in nodes if node.kept]
    pruned = [node for node in nodes if not node.kept]
    shown = kept + pruned[:_PRUNED_SHOWN]
    hidden = len(pruned) - _PRUNED_SHOWN
    entries: list[tuple[str, Sequence[ExplainedNode], str]] = []
    for number, node in enumerate(shown):
        last = number == len(shown) - 1 and hidden <= 0
        line = f"{indent}{'└─' if last else '├─'} {_line(node, parts=parts)}"
        entries.append((line, node.children, indent + ("   " if last else "│  ")))
    if hidden > 0:
        entries.append((f"{indent}└─ - and {hidden} more pruned", (), ""))
    return entries


def _line(node: ExplainedNode, *, parts: bool) -> str:
    mark = f"#{node.rank}" if node.rank else "+" if node.kept else "-"
    what = node.label if node.documents == 1 else f"{node.documents} documents, e.g. {node.label}"
    digits = ".".join(map(str, node.digits))
    sum_of = f" = {node.generative:.3f} + {node.dense:.3f}" if parts else ""
    return f"{mark} {digits}  {node.score:.3f}{sum_of}  {what}"
