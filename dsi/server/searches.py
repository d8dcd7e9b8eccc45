"""Searches and explanations of one snapshot of an index, as plain data for JSON. Knows nothing of HTTP."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from dsi.docids.data.locations import locate
from dsi.docids.data.records import json_value
from dsi.search.explain.explanation import ExplainedNode, select
from dsi.search.hits import Evidence, Hit, Hits, Match, excerpt
from dsi.search.queries import encode_queries, not_finite
from dsi.search.request import SearchRequest
from dsi.search.syntax import read_query
from dsi.store.documents.topics import Topics
from dsi.store.snapshot import Snapshot
from dsi.store.words import having_words

_PRUNED_SHOWN = 8
"""Pruned children of a node that are shown, the best ones."""
_EXCERPT = 240
"""Characters of a text that are shown before it is opened."""

Json = dict[str, Any]


def answers(
    index: Snapshot,
    queries: Sequence[str],
    request: SearchRequest,
    *,
    syntax: bool = False,
    parts: bool = False,
    matches: bool = False,
) -> list[Json]:
    """Return for each query its text, whether the answer is exact, and the hits.

    With `syntax` quotes and minuses are read, and a note says where no document passes; `parts` adds those of every score, and
    `matches` the words of the query that each hit matches, and the ends of the part of its text that has the most.
    """
    if syntax:
        return [_answer_asked(index, query, request, parts=parts, matches=matches) for query in queries]
    encoded = encode_queries(index.encoder, queries)
    result = index.engine.search(encoded, request)
    searches = index.answered(encoded, request)
    hits = index.hits_of(result, searches)
    shown = [{**answer_of(found, matches=matches), "query": query} for query, found in zip(queries, hits, strict=True)]
    for row in encoded.cleaned()[1]:
        shown[row]["error"] = not_finite(queries[row])
    if parts and any(hits):
        followed = index.engine.follow_result(encoded, request, result)
        for row, answer in enumerate(shown):
            for column, hit in enumerate(answer["hits"]):
                hit["parts"] = {name: float(values[row, column]) for name, values in followed.parts.items()}
    return shown


def answer_of(hits: Hits, *, matches: bool) -> Json:
    """Return hits with their query, whether they are exact, and what they and shards lack; `matches` as in `answers`."""
    shown: Json = {"query": hits.query, "exact": hits.exact, "hits": [_shown_hit(hit) for hit in hits]}
    if matches:
        for hit, fields, words in zip(hits, shown["hits"], hits.matches(), strict=True):
            text, parts = hit.text or "", fields.get("passages", ())
            for place, span in [(fields, hit.best_span), *((part, (part["start"], part["end"])) for part in parts)]:
                place["excerpt"] = list(ends := excerpt(text, words, _EXCERPT, span))
                if "location" in place and ends[0] > span[0]:  # else it is the passage's
                    place["location"]["address"] = str(locate(hit.metadata, hit.text, ends))
            fields.update(label=hit.label, matches=shown_matches(words))
    return {**shown, **hits.uncovered.as_dict(), **_lack(hits.coverage, hits.missing)}


def shown_passages(evidence: Evidence) -> Json:
    """Return evidence for JSON."""
    lack = _lack(evidence.coverage, evidence.missing)
    return {"tokens": evidence.tokens, **lack, "passages": [passage.as_dict() for passage in evidence]}


def _answer_asked(index: Snapshot, query: str, request: SearchRequest, **shown: bool) -> Json:
    asked = read_query(query)
    narrowed, note = having_words(request, index.tree, index.documents, asked)
    (answer,) = answers(index, [asked.text], narrowed, **shown)
    return {**answer, "query": query, **({"note": note} if note else {})}


def _shown_hit(hit: Hit) -> Json:
    fields: Json = hit.as_dict()
    return {**fields, "metadata": shown_values(fields["metadata"])} if "metadata" in fields else fields


def shown_values(values: Mapping[str, Any]) -> Json:
    """Return values for JSON: dates as ISO 8601 writes them, NaN and inf as null, bytes in base64, others as texts."""
    plain = {name: json_value(value) for name, value in values.items()}
    shown: Json = from_json(to_json(plain, inf_nan_mode="null", bytes_mode="base64", fallback=str))
    return shown


def _lack(coverage: float, missing: Sequence[int]) -> Json:
    """Return what an answer says of shards that did not answer; nothing if all did."""
    return {"coverage": coverage, "missing": list(missing)} if missing else {}


class Explainer:
    """A search of one query, level by level; `check` is called after each search that it takes, and what it raises ends it."""

    def __init__(
        self,
        index: Snapshot,
        topics: Topics,
        query: str,
        k: int,
        options: Mapping[str, Any],
        check: Callable[[], None] = lambda: None,
        *,
        syntax: bool = False,
    ) -> None:
        self.index, self.topics = index, topics
        request = index.request("explain", k, options)
        if syntax:
            asked = read_query(query)
            query, (request, _) = asked.text, having_words(request, index.tree, index.documents, asked)
        (self.answered,) = index.answered(encode_queries(index.encoder, [query]), request)
        self.answered.check = check

    def picture(self) -> Json:
        """Return the search as a tree: nodes kept, the best ones pruned, how many more there were, and the documents."""
        explanation = self.answered.explanation
        result, levels = explanation.result, [_counts(level) for level in explanation.levels]
        return {
            "query": explanation.query,
            "config": shown_values(vars(explanation.config)),
            "exact": bool(result.exact[0]),
            **_lack(float(result.coverage[0]), result.missing[0]),
            "walked": any(level["scored"] for level in levels) and explanation.config.method == "generate",
            "read": explanation.read,
            **explanation.uncovered.as_dict(),
            **({"note": explanation.note} if explanation.note else {}),
            "levels": levels,
            **self._below(explanation.roots),
        }

    def _below(self, nodes: Sequence[ExplainedNode]) -> Json:
        shown, pruned = select(nodes, _PRUNED_SHOWN)
        return {"children": [self._shown(node) for node in shown], "pruned": len(pruned)}

    def _shown(self, node: ExplainedNode) -> Json:
        fields = {name: value for name, value in vars(node).items() if name not in ("label", "children")}
        title = {"title": node.label if node.doc_id else None, "doc_id": node.doc_id or None}
        below = self._below(node.children) if node.children else {}
        return {**fields, **title, "words": self._words(node.digits), **below}

    def target(self, doc_id: str) -> Json:
        """Return how a document stands in the search: a `DocumentExplanation`, with telling words of the nodes on its path."""
        explained = self.answered.explain(doc_id)
        steps = [{**step._asdict(), "words": self._words(step.digits)} for step in explained.path]
        earlier = [{"cosine": past.cosine, "times": past.times} for past in explained.earlier]  # not what others asked
        shown = {name: value for name, value in vars(explained).items() if name != "learned_words"}
        return {**shown, "path": steps, "matches": shown_matches(explained.matches), "earlier": earlier}

    def whole(self, doc_id: str | None) -> Json:
        """Return the picture, with `target` if a document is named; see there."""
        target = {} if doc_id is None else {"target": self.target(doc_id)}  # refuses before the search
        return {**self.picture(), **target}

    def _words(self, digits: Sequence[int]) -> list[str]:
        node, tree = self.index.tree.node(digits), self.index.tree
        return [] if node >= tree.num_inner else self.topics.telling_words(node)


def _counts(level: Sequence[ExplainedNode]) -> Json:
    """Return how many inner nodes of a level were scored and kept, and how many answers it has."""
    scored = [node for node in level if node.score is not None and not node.doc_id]
    answers = sum(node.rank is not None for node in level)
    return {"scored": len(scored), "kept": sum(node.kept for node in scored), "answers": answers}


def shown_matches(matches: Sequence[Match]) -> list[Json]:
    """Return matched words for JSON."""
    return [{**match._asdict(), "spans": [span._asdict() for span in match.spans]} for match in matches]
