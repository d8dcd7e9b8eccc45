"""Candidates that somebody else found, ranked by an index. Knows no rerankers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from dsi.docids.data.records import Oddities
from dsi.docids.files.checks import shown
from dsi.docids.types import Ints
from dsi.search.engine import Engine
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest
from dsi.search.results import SearchResult
from dsi.store.documents.table import DocumentTable

_ABSENT = "documents that are not in the index; they are left out"


def answers(
    engine: Engine,
    documents: DocumentTable,
    encoded: EncodedQueries,
    request: SearchRequest,
    among: Mapping[str, Iterable[str]] | None = None,
    *,
    show_progress: bool = False,
) -> SearchResult:
    """Return the answer of a search, or with `among`, {query_id: doc_ids}, the top k of these of each query, by their scores.

    Documents that are not in the index are left out, and a line counts them.
    """
    if among is None:
        return engine.search(encoded, request, show_progress=show_progress)
    if not isinstance(among, Mapping):
        raise TypeError(f"among must be {{query_id: doc_ids}}, got {shown(among)}.")
    named = [list(dict.fromkeys(among.get(query_id, ()))) for query_id in encoded.query_ids]
    if not any(named):
        raise ValueError(
            f"among has candidates for none of the queries: the first query_id is {shown(next(iter(among), None))} there, and "
            f"{shown(next(iter(encoded.query_ids), None))} in the queries."
        )
    rows, odd = documents.find(chain.from_iterable(named)), Oddities("among")
    if not rows:
        raise ValueError(
            f"None of the candidates is in the index; the first is {shown(next(chain.from_iterable(named)))}."
        )
    for doc_id in chain.from_iterable(named):
        if doc_id not in rows:
            odd.count(_ABSENT, doc_id)
    odd.warn()
    return engine.rank(encoded, request, [[rows[doc_id] for doc_id in own if doc_id in rows] for own in named])


def followed_rows(documents: DocumentTable, encoded: EncodedQueries, doc_ids: Sequence[Sequence[str]]) -> Ints:
    """[queries, n] rows of some documents for each query, given as lists of equal lengths."""
    if not isinstance(doc_ids, Sequence) or isinstance(doc_ids, str):
        raise TypeError(f"doc_ids must be a list of documents for each query, got {doc_ids!r}.")
    rows = [documents.rows_of(own, "doc_ids") for own in doc_ids]
    counts = [len(own) for own in rows]
    if len(rows) != encoded.count or not counts or min(counts) != max(counts) or not counts[0]:
        raise ValueError(
            f"doc_ids must be a list of documents for each of the {encoded.count} queries, equally long and not empty, got "
            f"{len(rows)} lists of lengths {counts[:10]}."
        )
    return np.array(rows)
