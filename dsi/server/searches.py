"""Searches and explanations of one snapshot of an index, as plain data for JSON. Knows nothing of HTTP."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dsi.retriever import GenerativeRetriever
from dsi.search.engine import encode_queries, path_nodes
from dsi.search.explanation import ExplainedNode
from dsi.search.results import SearchResult
from dsi.server.topics import Topics

_PRUNED_SHOWN = 8
"""Pruned children of a node that are shown, the best ones."""
_TOLERANCE = 1e-5
"""Scores that are relatively closer than this are equal: the order of sums decides between them."""

Json = dict[str, Any]


def answers(
    index: GenerativeRetriever, queries: Sequence[str], k: int, options: Mapping[str, Any], *, parts: bool
) -> list[Json]:
    """Return for each query its text, whether the answer is exact, and the hits; with `parts`, those of every score.

    Args:
        index: a snapshot.
        queries: their texts.
        k: documents per query.
        options: of `SearchOptions`.
        parts: add the parts of every score.

    Raises:
        TypeError: an option does not exist.
        ValueError: bad queries or options.
    """
    encoded, request = encode_queries(index.encoder, queries), index.request("search", k, options)
    result = index.engine.search(encoded, request)
    hits = index.hits(result)
    shown: list[Json] = [
        {"query": query, "exact": query_hits.exact, "hits": [_without_none(hit._asdict()) for hit in query_hits]}
        for query, query_hits in zip(queries, hits, strict=True)
    ]
    if parts and any(hits):
        followed = index.engine.follow_result(encoded, request, result)
        for row, answer in enumerate(shown):
            for column, hit in enumerate(answer["hits"]):
                hit["parts"] = {name: float(values[row, column]) for name, values in followed.parts.items()}
    return shown


def _without_none(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


class Explainer:
    """A search of one query, level by level.

    Args:
        index: a snapshot.
        topics: of the same snapshot.
        query: a text.
        k: documents.
        options: of the search.

    Raises:
        TypeError: an option does not exist.
        ValueError: a bad query or option.
    """

    def __init__(
        self, index: GenerativeRetriever, topics: Topics, query: str, k: int, options: Mapping[str, Any]
    ) -> None:
        self.index, self.topics = index, topics
        self.encoded = encode_queries(index.encoder, [query])
        self.request = index.request("explain", k, options)
        self.explanation = index.explain(self.encoded, k, **options)
        self.result, self.trace = self.explanation.result, self.explanation.trace

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
        on_paths = [node for node in nodes if node.kept or node.children]
        others = [node for node in nodes if not (node.kept or node.children)]
        return {"children": [self._shown(node) for node in on_paths + others[:_PRUNED_SHOWN]], "pruned": len(others)}

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
            "words": [] if is_document else self.topics.telling_words(self.index.tree.node(node.digits)),
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
        row = self.index.documents.rows_of([doc_id], "doc_id")
        followed = self.index.engine.follow_all(self.encoded, self.request, np.array([row]))
        position, score = int(followed.positions[0, 0]), float(followed.scores[0, 0])
        rank = self._rank(self.result, position)
        path = self._path(position, followed.nodes[0, 0].tolist(), rank)
        return {
            "doc_id": doc_id,
            "title": self.index.documents.values_of("title", np.array([row]))[0][0],
            "digits": path[-1]["digits"],
            "rank": rank,
            "path": path,
            "reason": self._reason(position, score, rank),
        }

    def _path(self, position: int, scores: Sequence[float], rank: int | None) -> list[Json]:
        """Return the nodes on the way to a docid position, with what the search did with each."""
        tree, known, state = self.index.tree, self._known, "kept"
        digits, path = tree.digits(position), []
        for level in range(1, len(digits) + 1):
            prefix = digits[:level]
            node = known.get(prefix)
            if level == len(digits):
                state = "answer" if rank else "not an answer"
            elif node is not None and node.score is not None:
                state = "kept" if node.kept else "pruned"
            else:
                state = "not scored" if state in ("kept", "not scored") else "not reached"
            words = [] if level == len(digits) else self.topics.telling_words(tree.node(prefix))
            path.append({"digits": prefix, "score": scores[level - 1], "state": state, "words": words})
        return path

    @cached_property
    def _known(self) -> dict[tuple[int, ...], ExplainedNode]:
        return {node.digits: node for level in self.explanation.levels for node in level}

    def _rank(self, result: SearchResult, position: int) -> int | None:
        """Return the rank of the document at a docid position in a result; None if it is not there."""
        rows = self.index.tree.doc_rows
        ranks = np.flatnonzero(rows[result.positions[0, : result.counts[0]]] == rows[position]).tolist()
        return ranks[0] + 1 if ranks else None

    def _reason(self, position: int, score: float, rank: int | None) -> str:
        if rank:
            return f"It is here, at rank {rank}."
        if self.request.allowed is not None and not self.request.allowed[position]:
            return "The filter excludes it."
        k, last = int(self.result.counts[0]), _last(self.result)
        if math.isclose(score, last, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10):
            return f"Its score {score:.3f} is that of the last answer, number {k}, up to rounding."
        shown, last_shown = _distinct(score, last)
        if score < last:
            return f"Its score {shown} is less than the {last_shown} of the last answer, number {k}."
        loss, remedy = self._loss(position), self._remedy(position, score)
        return f"Its score {shown} is more than the {last_shown} of the last answer, number {k}, but {loss} {remedy}"

    def _loss(self, position: int) -> str:
        """Return at which node the walk lost a document, or that it had better candidates."""
        tree = self.index.tree
        pruned = self.trace.pruned_at(path_nodes(tree, np.array([position]))[0], tree.num_inner)
        if pruned is None:
            if self.explanation.lexical:
                return f"neither its vector nor its words made it one of the candidates ({self.request.pool} each)."
            return f"its vector did not make it one of the {self.request.pool} candidates."
        level, score, lowest = pruned
        node = ".".join(map(str, tree.digits(position)[: level + 1]))
        shown, kept = _distinct(score, lowest)
        return f"its node {node} left the walk at level {level + 1}: it scores {shown}, the last node kept {kept}."

    def _remedy(self, position: int, score: float) -> str:
        """Return which search returns a document that this one misses, found by searching."""
        config = self.explanation.config
        width = config.beam_width
        while width < self.index.tree.num_inner:  # that many are never pruned
            width *= 2
            result = self._search(beam_width=width)
            if self._rank(result, position):
                return f"A beam of {width} returns it."
            if _last(result) > score:
                return f"With a beam of {width}, {_others(result)} higher."
        if self._rank(self._search(method="exact"), position):
            return 'No wider beam returns it; method "exact" does.'
        return f"Of all documents, {_others(self.result)} higher."

    def _search(self, **changes: Any) -> SearchResult:
        config = replace(self.request.config, **changes)
        return self.index.engine.search(self.encoded, replace(self.request, config=config))


def _last(result: SearchResult) -> float:
    """Return the score of the last answer to one query."""
    count = int(result.counts[0])
    return float(result.scores[0, count - 1]) if count else -math.inf


def _others(result: SearchResult) -> str:
    count = int(result.counts[0])
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
