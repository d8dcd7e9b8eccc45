"""The queries whose first answer is not relevant, as a table. Knows nothing of how they were searched."""

from dsi.docids.data.collection import Collection
from dsi.docids.types import Run
from dsi.docids.words.sentences import shortened
from dsi.eval.measures import ranking
from dsi.eval.tables import markdown_table
from dsi.store.documents.table import DocumentTable

_WIDTH = 80
"""Characters of a query, and of a document's name, in a table."""


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
