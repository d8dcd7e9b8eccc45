"""Searches and explanations of one snapshot of an index, as plain data for JSON. Knows nothing of HTTP."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dsi.search.answers import Hits
from dsi.search.explanation import ExplainedNode
from dsi.search.queries import EncodedQueries, encode_queries
from dsi.search.request import SearchRequest
from dsi.search.results import SearchResult
from dsi.server.topics import Topics
from dsi.snapshot import IndexSnapshot

_PRUNED_SHOWN = 8
"""Pruned children of a node that are shown, the best ones."""
_TOLERANCE = 1e-5
"""Scores that are relatively closer than this are equal: the order of sums decides between them."""

Json = dict[str, Any]


def answers(
    index: IndexSnapshot, queries: Sequence[str], k: int, options: Mapping[str, Any], *, parts: bool
) -> list[Json]:
    """Return for each query its text, whether the answer is exact, and the hits; with `parts`, those of every score.

    Raises:
        TypeError: an option does not exist.
        ValueError: bad queries or options.
    """
    encoded = encode_queries(index.encoder, queries)
    request = index.request("search", k, options)
    found = index.hits(index.search(encoded, request))
    shown = [
        {"query": query, "exact": hits.exact, "hits": [_hit(hit._asdict()) for hit in hits]}
        for query, hits in zip(queries, found, strict=True)
    ]
    if parts and any(found):
        _add_parts(index, encoded, request, found, shown)
    return shown


def _hit(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _add_parts(
    index: IndexSnapshot, encoded: EncodedQueries, request: SearchRequest, found: Sequence[Hits], shown: list[Json]
) -> None:
    followed = index.follow(encoded, request, [[hit.doc_id for hit in hits] for hits in found])
    for row, answer in enumerate(shown):
        for column, hit in enumerate(answer["hits"]):
            hit["parts"] = {name: float(values[row, column]) for name, values in followed.parts.items()}


class Explainer:
    """A search of one query, level by level.

    Args:
        index: the snapshot.
        topics: of the same snapshot.
        query: a text.
        k: documents.
        options: of the search.

    Raises:
        TypeError: an option does not exist.
        ValueError: a bad query or option.
    """

    def __init__(self, index: IndexSnapshot, topics: Topics, query: str, k: int, options: Mapping[str, Any]) -> None:
        self.index, self.topics = index, topics
        self.encoded = encode_queries(index.encoder, [query])
        self.request: SearchRequest = index.request("explain", k, options)
        self.explanation, self.result = index.explain(query, self.encoded, self.request)

    @cached_property
    def _scores_nodes(self) -> bool:
        """Whether the search scored inner nodes, not documents alone."""
        nodes = (node for level in self.explanation.levels for node in level)
        return any(node.score is not None and not self._is_document(node) for node in nodes)

    def picture(self) -> Json:
        """Return the search as a tree: nodes kept, the best ones pruned, how many more there were, and the documents."""
        explanation = self.explanation
        return {
            "query": explanation.query,
            "config": shown_config(explanation.config),
            "exact": bool(self.result.exact[0]),
            "walked": self._scores_nodes and self.request.config.method == "generate",
            "read": explanation.read,
            "levels": [self._counts(level) for level in explanation.levels],
            **self._below(explanation.roots),
        }

    def _counts(self, level: Sequence[ExplainedNode]) -> Json:
        scored = [node for node in level if node.score is not None and not self._is_document(node)]
        answers = sum(node.rank is not None for node in level)
        return {"scored": len(scored), "kept": sum(node.kept for node in scored), "answers": answers}

    def _below(self, nodes: Sequence[ExplainedNode]) -> Json:
        """Return nodes: those that were kept or lead to an answer, the best others, and the number of these."""
        needed = [node for node in nodes if node.kept or node.children]
        others = [node for node in nodes if not (node.kept or node.children)]
        return {"children": [self._shown(node) for node in needed + others[:_PRUNED_SHOWN]], "pruned": len(others)}

    def _shown(self, node: ExplainedNode) -> Json:
        is_document = self._is_document(node)
        return {
            "digits": node.digits,
            "score": node.score,
            "kept": node.kept,
            "rank": node.rank,
            "found_by": node.found_by,
            "parts": node.parts,
            "documents": node.documents,
            "title": node.label if is_document else None,
            "words": [] if is_document else self.topics.of(self.index.tree.node(node.digits)),
            **(self._below(node.children) if node.children else {}),
        }

    def _is_document(self, node: ExplainedNode) -> bool:
        return self.index.tree.node(node.digits) >= self.index.tree.num_inner

    # Why is a document not here?

    def target(self, doc_id: str) -> Json:
        """Return why a document is not among the answers, or its rank: its path, with scores, and a sentence.

        Raises:
            ValueError: the doc_id is not in the index.
        """
        document = self.index.document(doc_id)
        followed = self.index.follow(self.encoded, self.request, [[doc_id]])
        position, score = int(followed.positions[0, 0]), float(followed.scores[0, 0])
        rank = self._rank(self.result, position)
        path = self._path(position, followed.nodes[0, 0].tolist(), rank)
        return {
            "doc_id": doc_id,
            "title": document.title,
            "digits": path[-1]["digits"],
            "rank": rank,
            "path": path,
            "reason": self._reason(position, score, rank, path),
        }

    def _path(self, position: int, scores: Sequence[float], rank: int | None) -> list[Json]:
        """Return the nodes on the way to a docid position, with what the search did with each."""
        tree, known, state = self.index.tree, self._known, "kept"
        digits, path = tree.digits(position), []
        for level in range(1, len(digits) + 1):
            own = digits[:level]
            node = known.get(own)
            if level == len(digits):
                state = "answer" if rank else "not an answer"
            elif node is not None and node.score is not None:
                state = "kept" if node.kept else "pruned"
            else:
                state = "not scored" if state in ("kept", "not scored") else "not reached"
            words = [] if level == len(digits) else self.topics.of(tree.node(own))
            path.append({"digits": own, "score": scores[level - 1], "state": state, "words": words})
        return path

    @cached_property
    def _known(self) -> dict[tuple[int, ...], ExplainedNode]:
        return {node.digits: node for level in self.explanation.levels for node in level}

    def _rank(self, result: SearchResult, position: int) -> int | None:
        """Return the rank of the document at a docid position in a result; None if it is not there."""
        rows = self.index.tree.doc_rows
        found = result.positions[0, : result.found[0]]
        places = np.flatnonzero(rows[found] == rows[position]).tolist()
        return places[0] + 1 if places else None

    def _reason(self, position: int, score: float, rank: int | None, path: Sequence[Json]) -> str:
        if rank:
            return f"It is here, at rank {rank}."
        if self.request.allowed is not None and not self.request.allowed[position]:
            return "The filter excludes it."
        k, last = int(self.result.found[0]), _last(self.result)
        if math.isclose(score, last, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10):
            return f"Its score {score:.3f} is that of the last answer, number {k}, up to rounding."
        own, other = _distinct(score, last)
        if score < last:
            return f"Its score {own} is less than the {other} of the last answer, number {k}."
        lost, remedy = self._lost(path), self._remedy(position, score)
        return f"Its score {own} is more than the {other} of the last answer, number {k}, but {lost} {remedy}"

    def _lost(self, path: Sequence[Json]) -> str:
        """Return at which node the walk lost a document, or that it had better candidates."""
        lost = next((step["digits"] for step in path if step["state"] == "pruned"), None)
        if lost is None:
            if self.explanation.lexical:
                return f"neither its vector nor its words made it one of the candidates ({self.request.pool} each)."
            return f"its vector did not make it one of the {self.request.pool} candidates."
        level = self.explanation.levels[len(lost) - 1]
        kept = [node.score for node in level if node.kept and node.score is not None and not self._is_document(node)]
        own, other = _distinct(self._known[lost].score or 0.0, min(kept))
        return (
            f"its node {'.'.join(map(str, lost))} left the walk at level {len(lost)}: it scores {own}, the last node kept "
            f"{other}."
        )

    def _remedy(self, position: int, score: float) -> str:
        """Return which search returns a document that this one misses, found by searching."""
        config = self.explanation.config
        width = config.beam_width
        while width < self.index.tree.num_inner:  # that many are never pruned
            width *= 2
            found = self._search(beam_width=width)
            if self._rank(found, position):
                return f"A beam of {width} returns it."
            if _last(found) > score:
                return f"With a beam of {width}, {_others(found)} higher."
        if self._rank(self._search(method="exact"), position):
            return 'No wider beam returns it; method "exact" does.'
        return f"Of all documents, {_others(self.result)} higher."

    def _search(self, **changes: Any) -> SearchResult:
        config = replace(self.request.config, **changes)
        return self.index.search(self.encoded, replace(self.request, config=config))


def _last(result: SearchResult) -> float:
    """Return the score of the last answer to one query."""
    count = int(result.found[0])
    return float(result.scores[0, count - 1]) if count else -math.inf


def _others(result: SearchResult) -> str:
    count = int(result.found[0])
    return "another document scores" if count == 1 else f"{count} other documents score"


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


def shown_config(config: Any) -> Json:
    """Return a search config for JSON, which has no infinity: null is all levels."""
    return {name: finite(value) for name, value in vars(config).items()}


def finite(value: Any) -> Any:
    """Return a value, None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
