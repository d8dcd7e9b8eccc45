"""Why answers were missed: by the search, or by the model.

A miss is a search error when the right document scores higher than the last answer given, so that a wider beam would have
found it, and a model error otherwise. The level at which the right document's node left the beam, and by how much, shows where
the tree or the decoder goes wrong first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docids.tree import DocidTree
from dsi.retriever import GenerativeRetriever
from dsi.search.beam import LevelTrace


@dataclass(frozen=True)
class Miss:
    """One query whose right document was not among the k answers.

    Attributes:
        query_id: the query.
        doc_id: the right document.
        search_error: it scores higher than the last answer given.
        level: of the first of its digits that was not kept, from 0.
        margin: how much the lowest node kept on that level scores above it (0 where none was).
    """

    query_id: str
    doc_id: str
    search_error: bool
    level: int
    margin: float


def diagnose(
    retriever: GenerativeRetriever, queries: Mapping[str, str], answers: Mapping[str, str], k: int = 10, **settings: Any
) -> list[Miss]:
    """The misses among some queries.

    Args:
        retriever: the index.
        queries: {query_id: text}.
        answers: {query_id: doc_id} the right document of each.
        k: answers a query.
        **settings: of `SearchConfig`.
    """
    encoded = retriever.encode_queries(list(queries.values()))
    run = retriever.run_encoded(list(queries), encoded, k, **settings)
    generative, dense = retriever.follow_encoded(encoded, [[answers[query_id]] for query_id in queries], **settings)
    scores = (generative + dense)[:, 0, -1].tolist()
    misses = []
    for (query_id, found), score in zip(run.items(), scores, strict=True):
        doc_id = answers[query_id]
        if doc_id in found:
            continue
        digits = retriever.tree.digits(int(retriever.tree.positions[retriever.table.rows[doc_id]]))
        trace, _ = retriever.trace(queries[query_id], k, **settings)
        last = min(found.values())
        level, margin = _left_at(retriever.tree, digits, trace) or (len(digits) - 1, last - score)
        misses.append(Miss(query_id, doc_id, score > last, level, margin))
    return misses


def _left_at(tree: DocidTree, digits: tuple[int, ...], trace: list[LevelTrace]) -> tuple[int, float] | None:
    """The level on which a document's node was pruned, and the margin to the lowest node kept there.

    None for a document that was an answer until documents with longer docids pushed it out.
    """
    for level, looked_at in enumerate(trace[: len(digits)]):
        node = tree.node(digits[: level + 1])
        scores, kept = (looked_at.generative + looked_at.dense)[0], looked_at.kept[0]
        own = looked_at.nodes[0] == node
        if not (own & kept).any():
            return level, float(scores[kept].min() - scores[own][0]) if kept.any() else 0.0
    return None


def errors_by_level(misses: list[Miss]) -> dict[str, dict[int, int]]:
    """{"search errors" | "model errors": {level from 0: misses whose node left the beam there}}."""
    counts: dict[str, dict[int, int]] = {"search errors": {}, "model errors": {}}
    for miss in misses:
        own = counts["search errors" if miss.search_error else "model errors"]
        own[miss.level] = own.get(miss.level, 0) + 1
    return counts


def diagnosis_table(misses: list[Miss], queries: int, k: int) -> str:
    """Misses by kind and by the level where the right node left the beam, as Markdown."""
    errors = sum(miss.search_error for miss in misses)
    lines = [
        f"{len(misses)} of {queries} queries without their document among {k}: {errors} search errors "
        f"(it scores higher than the last answer), {len(misses) - errors} model errors",
        "",
        "| left the beam at level | misses | search errors | median margin |",
        "| --- | --- | --- | --- |",
    ]
    for level in sorted({miss.level for miss in misses}):
        here = [miss for miss in misses if miss.level == level]
        margins = sorted(miss.margin for miss in here)
        wrong = sum(miss.search_error for miss in here)
        lines.append(f"| {level} | {len(here)} | {wrong} | {margins[len(margins) // 2]:.3f} |")
    return "\n".join(lines)
