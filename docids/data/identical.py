"""Queries that are documents themselves: a document of the same id holds the query's text, as in ArguAna and Quora.

Such a query finds itself first, so its own document is left out of its answer (BEIR's `ignore_identical_ids`). Where ids only
look alike, as numbers do, nothing is left out. Knows nothing of how runs are made.
"""

import logging
from collections.abc import Collection, Mapping
from itertools import islice

import datasets

from dsi.docids.types import Run

logger = logging.getLogger(__name__)


def identical_ids(
    queries: Mapping[str, str], documents: datasets.Dataset, rows: Mapping[str, int], name: str = "queries"
) -> frozenset[str]:
    """Return the query_ids whose document of the same id holds the query's text; a line counts them.

    Args:
        queries: {query_id: text}.
        documents: a table with the column text; without it none can be found.
        rows: {doc_id: row} of the table, at least of the documents with the id of a query.
        name: of the collection, for the line.
    """
    common = [query_id for query_id, text in queries.items() if query_id in rows and text.strip()]
    if not common or "text" not in documents.column_names:
        return frozenset()
    texts = documents[[rows[query_id] for query_id in common]]["text"]
    pairs = zip(common, texts, strict=True)
    found = frozenset(query_id for query_id, text in pairs if _plain(queries[query_id]) in _plain(text or ""))
    if found:
        logger.warning(
            "%s: %d of %d queries are documents themselves (the same id, the query within the text); each leaves its own "
            "document out of its answer, as BEIR's ignore_identical_ids does.", name, len(found), len(queries),
        )  # fmt: skip
    return found


def without_identical(run: Run, identical: Collection[str], k: int | None = None) -> Run:
    """Return a run in which queries leave out the document of their own id, and the first k documents of each.

    >>> without_identical({"a": {"a": 2.0, "b": 1.0}, "b": {"b": 2.0, "c": 1.0}}, {"a"}, 1)
    {'a': {'b': 1.0}, 'b': {'b': 2.0}}

    Args:
        run: best first, if `k` is given.
        identical: the query_ids that do.
        k: documents per query; all by default.
    """
    if not identical and k is None:
        return run
    return {
        query_id: dict(islice((pair for pair in own.items() if query_id not in identical or pair[0] != query_id), k))
        for query_id, own in run.items()
    }


def _plain(text: str) -> str:
    """Return a text in lower case, with single spaces."""
    return " ".join(text.lower().split())
