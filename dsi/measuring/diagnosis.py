"""Why documents were missed: by the search, or by the model.

A miss is a search error if the relevant document scores higher than the last document returned: the search left it out.
Otherwise it is a model error. The level at which the relevant document's node left the beam, and its margin there, show where
the walk goes wrong first. Knows nothing of how scores are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Unpack

import numpy as np

from dsi.docids.data.collection import Collection
from dsi.docids.types import Run
from dsi.docids.words.sentences import shortened
from dsi.eval.measures import ranking
from dsi.eval.tables import markdown_table
from dsi.search.request import SearchOptions
from dsi.store.documents import DocumentTable
from dsi.store.retriever import GenerativeRetriever

_WIDTH = 80
"""Characters of a query, and of a document's name, in a table."""


@dataclass(frozen=True)
class Miss:
    """A query whose relevant document was not in the top k.

    Attributes:
        query_id: the query.
        doc_id: the relevant document.
        search_error: True if it scores higher than the last document returned.
        level: level, from 1, at which the node above its best place was pruned; that of the document if none was.
        margin: score of the lowest node kept at that level, minus its node's (0 if none was kept).
    """

    query_id: str
    doc_id: str
    search_error: bool
    level: int
    margin: float


def diagnose(
    retriever: GenerativeRetriever,
    queries: Mapping[str, str],
    answers: Mapping[str, str],
    k: int = 10,
    **options: Unpack[SearchOptions],
) -> list[Miss]:
    """Return the misses among some queries.

    Args:
        retriever: the index.
        queries: {query_id: text}.
        answers: {query_id: doc_id} the relevant document of each query.
        k: documents per query.
        **options: see `SearchOptions`.
    """
    index = retriever.snapshot
    request = index.request("diagnose", k, options)
    if not queries:
        return []
    encoded = retriever.encode_queries(queries)
    run = index.as_run(encoded.query_ids, index.engine.search(encoded, request))
    rows = index.documents.rows_of([answers[query_id] for query_id in queries], "answers")
    followed = index.engine.follow_all(encoded, request, np.array(rows)[:, None])
    scores, misses, searches = followed.scores[:, 0].tolist(), [], index.answered(encoded, request)
    for row, (query_id, hits) in enumerate(run.items()):
        if answers[query_id] in hits:
            continue
        last, position = min(hits.values()), int(followed.positions[row, 0])
        pruned = searches[row].pruned(position)
        if pruned is None:
            level, margin = len(index.tree.digits(position)), last - scores[row]
        else:
            level, margin = len(pruned.digits), pruned.lowest - pruned.score if pruned.lowest < np.inf else 0.0
        misses.append(Miss(query_id, answers[query_id], scores[row] > last, level, margin))
    return misses


def diagnose_split(
    retriever: GenerativeRetriever, collection: Collection, split: str, k: int = 10
) -> tuple[list[Miss], int]:
    """Return the misses among the judged queries of a split (first relevant document only), and the number of queries."""
    doc_ids = list(collection.rows)
    pairs = [(query_id, doc_ids[row]) for query_id, row in reversed(collection.pairs(split))]
    answers = {query_id: doc_id for query_id, doc_id in pairs if doc_id in retriever.documents.rows}
    queries = {query_id: collection.queries[query_id] for query_id in answers}
    return diagnose(retriever, queries, answers, k), len(queries)


def missed_table(run: Run, collection: Collection, split: str, documents: DocumentTable, count: int) -> str:
    """Return queries whose first answer is not relevant, those whose relevant document is lowest first, as Markdown.

    Args:
        run: the answers.
        collection: queries and judgements.
        split: that was measured.
        documents: of the index.
        count: queries, at most.
    """
    found = []
    for query_id, judged in collection.qrels[split].items():
        ranked = ranking(run.get(query_id, {}))
        relevant = [doc_id for doc_id, grade in judged.items() if grade > 0]
        ranks = [(ranked.index(doc_id) + 1 if doc_id in ranked else len(ranked) + 1, doc_id) for doc_id in relevant]
        if ranks and min(ranks)[0] > 1:
            found.append((*min(ranks), query_id, ranked))
    found.sort(key=lambda own: -own[0])  # of equals, in their order
    rows = []
    for rank, doc_id, query_id, ranked in found[:count]:
        labels = [_label(documents, own) for own in (doc_id, *ranked[:1])]
        shown_rank = str(rank) if rank <= len(ranked) else f"below {len(ranked)}"
        rows.append([_cell(collection.queries[query_id]), labels[0], shown_rank, *(labels[1:] or ["none"])])
    head = (
        f"The first answer to {len(found)} of {len(collection.qrels[split])} queries is not relevant; the worst first:"
    )
    return f"{head}\n\n{markdown_table(['query', 'its document', 'rank', 'first answer'], rows)}"


def _label(documents: DocumentTable, doc_id: str) -> str:
    row = documents.rows.get(doc_id)
    return _cell(f"{doc_id}: {documents.label(row)}" if row is not None else f"{doc_id}: not in the index")


def _cell(text: str) -> str:
    return shortened(text, _WIDTH).replace("|", "/")


def diagnosis_table(misses: list[Miss], queries: int, k: int) -> str:
    """Return misses by kind and by the level at which the relevant node was pruned, as Markdown."""
    errors = sum(miss.search_error for miss in misses)
    head = (
        f"{len(misses)} of {queries} queries without their document among {k}: {errors} search errors "
        f"(it scores higher than the last answer), {len(misses) - errors} model errors"
    )
    rows = []
    for level in sorted({miss.level for miss in misses}):
        here = [miss for miss in misses if miss.level == level]
        wrong = sum(miss.search_error for miss in here)
        rows.append([str(level), str(len(here)), str(wrong), f"{median(miss.margin for miss in here):.3f}"])
    heads = ["left the beam at level", "misses", "search errors", "median margin"]
    return f"{head}\n\n{markdown_table(heads, rows)}"
