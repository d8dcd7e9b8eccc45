"""Searches and explanations of one snapshot of an index, as plain data for JSON. Knows nothing of HTTP."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dsi.search.answers import Hits
from dsi.search.explanation import ExplainedNode
from dsi.search.queries import EncodedQueries, encode_queries
from dsi.search.request import SearchRequest
from dsi.server.parts import score_parts
from dsi.server.topics import Topics
from dsi.snapshot import IndexSnapshot

_PRUNED_SHOWN = 8
"""Pruned children of a node that are shown, the best ones."""

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
    if parts and request.method != "beam":
        raise ValueError('Only the scores of a beam search have parts; leave out parts, or method "mcts".')
    found = index.hits(index.search(encoded, request))
    shown = [
        {"query": query, "exact": hits.exact, "hits": [_hit(hit._asdict()) for hit in hits]}
        for query, hits in zip(queries, found, strict=True)
    ]
    if parts:
        _add_parts(index, encoded, options, found, shown)
    return shown


def _hit(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _add_parts(
    index: IndexSnapshot, encoded: EncodedQueries, options: Mapping[str, Any], found: Sequence[Hits], shown: list[Json]
) -> None:
    all_parts = score_parts(index, encoded, options, [[hit.doc_id for hit in hits] for hits in found])
    for answer, own in zip(shown, all_parts[:, :, -1].tolist(), strict=True):
        for hit, parts in zip(answer["hits"], own, strict=False):
            hit["parts"] = dict(zip(("generator", "encoder", "lexical"), parts, strict=True))


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
        self.index, self.topics, self.options = index, topics, options
        self.encoded = encode_queries(index.encoder, [query])
        self.request: SearchRequest = index.request("explain", k, options)
        self.explanation, self.result = index.explain(query, self.encoded, self.request)
        self.generator = self._generator_parts()

    def picture(self) -> Json:
        """Return the beam as a tree: kept nodes, the best pruned ones, and how many more there were."""
        levels = self.explanation.levels
        return {
            "query": self.explanation.query,
            "config": shown_config(self.request.config),
            "exact": bool(self.result.exact[0]),
            "levels": [{"scored": len(level), "kept": sum(node.kept for node in level)} for level in levels],
            "children": [self._shown(node) for node in _chosen(self.explanation.roots)],
            "pruned": _pruned(self.explanation.roots),
        }

    def _shown(self, node: ExplainedNode) -> Json:
        number = self.index.tree.node(node.digits)
        is_document = number >= self.index.tree.num_inner
        shown: Json = {
            "digits": node.digits,
            "score": node.score,
            "generator": self.generator[node.digits],
            "rest": node.score - self.generator[node.digits],
            "kept": node.kept,
            "rank": node.rank,
            "documents": node.documents,
            "title": node.label if is_document else None,
            "words": [] if is_document else self.topics.of(number),
        }
        if node.children:
            shown["children"] = [self._shown(child) for child in _chosen(node.children)]
            shown["pruned"] = _pruned(node.children)
        return shown

    def _generator_parts(self) -> dict[tuple[int, ...], float]:
        """Return {digits: what the generator contributes to the score} of all nodes that were scored."""
        nodes = [node for level in self.explanation.levels for node in level]
        config = self.request.config
        if not nodes or not (self.index.searcher.estimating and config.alpha):
            return {node.digits: node.generative for node in nodes}
        tree = self.index.tree
        below = torch.tensor(
            [[self._place(tree.node(node.digits)) for node in nodes]]
        )  # paths to them go through the nodes
        request = self.index.request("follow", 1, {**self.options, "alpha": 0.0})
        _, unchanged = self.index.follow_places(self.encoded, request, below)
        values = unchanged[0].tolist()
        return {node.digits: node.score - own[len(node.digits) - 1] for node, own in zip(nodes, values, strict=True)}

    def _place(self, node: int) -> int:
        """Return the docid position of a document at or below a node."""
        tree = self.index.tree
        start = node - tree.num_inner
        if start < 0:
            start = int(tree.doc_start[node])
            start += int(np.argmax(self._may_be_found()[start : tree.doc_end[node]]))
        return start

    def _may_be_found(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[places] True at documents that the filter lets through."""
        tree, alive = self.index.tree, self.request.alive
        return tree.doc_rows >= 0 if alive is None else alive[tree.num_inner :].numpy(force=True)

    # Why is a document not here?

    def target(self, doc_id: str) -> Json:
        """Return where a document was lost, or its rank: its path, with scores, and a sentence.

        Raises:
            ValueError: the doc_id is not in the index.
        """
        document = self.index.document(doc_id)
        own, scores = self._best_path(doc_id)
        known = {node.digits: node for level in self.explanation.levels for node in level}
        path = []
        for level in range(len(own)):
            digits = own[: level + 1]
            node = known.get(digits)
            number = self.index.tree.node(digits)
            is_document = number >= self.index.tree.num_inner
            kept = node is not None and bool(node.rank if is_document else node.kept)
            state = "not reached" if node is None else "kept" if kept else "pruned"
            words = [] if is_document else self.topics.of(number)
            path.append({"digits": digits, "score": finite(scores[level]), "state": state, "words": words})
        last = known.get(own)
        return {
            "doc_id": doc_id,
            "title": document.title,
            "digits": own,
            "rank": last.rank if last else None,
            "path": path,
            "reason": self._reason(own, known),
        }

    def _best_path(self, doc_id: str) -> tuple[tuple[int, ...], list[float]]:
        """Return the docid of a document, of several the one that scores best, and the scores of the nodes on the way."""
        tree, request = self.index.tree, self.index.request("follow", 1, self.options)
        places = torch.from_numpy(tree.places[self.index.documents.rows_of([doc_id], "target")]).long()
        scores = torch.add(*self.index.follow_places(self.encoded, request, places))[0]  # [places, depth]
        best = int(scores[:, -1].argmax())
        return tree.digits(int(places[0, best])), scores[best].tolist()

    def _reason(self, digits: tuple[int, ...], known: Mapping[tuple[int, ...], ExplainedNode]) -> str:
        tree = self.index.tree
        position = tree.node(digits) - tree.num_inner
        if not self._may_be_found()[position]:
            return "The filter excludes it."
        found = known.get(digits)
        if found and found.rank:
            return f"It is here, at rank {found.rank}."
        k, last = self._last()
        if found:
            return f"It was scored, but {found.score:.3f} is less than the {last:.3f} of the last answer, number {k}."
        lost = next(
            (known[digits[:n]] for n in range(1, len(digits)) if digits[:n] in known and not known[digits[:n]].kept),
            None,
        )
        if lost is None:
            return "The search ended before it came to this document."
        name, level = ".".join(map(str, lost.digits)), len(lost.digits)
        kept = [node.score for node in self.explanation.levels[level - 1] if node.kept and node.children]
        if kept and lost.score < min(kept) and len(kept) >= self.request.config.beam_width:
            return (
                f"Its node {name} left the beam at level {level}: it scores {lost.score:.3f}, the last of the {len(kept)} "
                f"nodes kept {min(kept):.3f}. A wider beam would keep it."
            )
        return (
            f"Its node {name} was dropped at level {level}: no document below it scores more than {lost.score:.3f}, and the "
            f"last answer, number {k}, scores {last:.3f}."
        )

    def _last(self) -> tuple[int, float]:
        scores = [score for score in self.result.scores[0].tolist() if math.isfinite(score)]
        return len(scores), scores[-1] if scores else -math.inf


def _chosen(nodes: Sequence[ExplainedNode]) -> list[ExplainedNode]:
    """Return the kept nodes, and the best pruned ones."""
    return [node for node in nodes if node.kept] + [node for node in nodes if not node.kept][:_PRUNED_SHOWN]


def _pruned(nodes: Sequence[ExplainedNode]) -> int:
    return sum(not node.kept for node in nodes)


def shown_config(config: Any) -> Json:
    """Return a search config for JSON, which has no infinity: null is all levels."""
    return {name: finite(value) for name, value in vars(config).items()}


def finite(value: Any) -> Any:
    """Return a value, None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
