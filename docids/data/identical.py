"""Queries that are documents themselves, as in ArguAna and Quora: such a query finds itself first.

So its answer leaves out (BEIR's `ignore_identical_ids`) the document of the query's id that holds its text, and documents with
nothing but its text, whatever their ids. Texts are compared without case, spaces and punctuation. Where ids only look alike, as
numbers do, nothing is left out. Knows nothing of how runs are made.
"""

import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsi.docids.data.tables import Column, as_table
from dsi.docids.types import Run

logger = logging.getLogger(__name__)

Identical: TypeAlias = Mapping[str, frozenset[str]]
"""{query_id: doc_ids of the documents that the query is}."""
_APART = re.compile(r"[\W_]+")
_BLOCK = 4_096
"""Documents that are compared at a time."""
_LONGER = 100
"""Characters that a document may have beyond twice the longest query: spaces and punctuation."""


def identical_ids(
    queries: Mapping[str, str], documents: Any, rows: Mapping[str, int], name: str = "queries"
) -> frozenset[str]:
    """Return the query_ids whose document of the same id holds the query's text; a line counts them.

    For queries that nobody has judged here: another document with their text may be what they ask for.

    `queries`: {query_id: text}; `documents`: a table with the column text; without it none can be found; `rows`:
    {doc_id: row} of the table, at least of the documents with the id of a query.
    """
    asked = {query_id: key for query_id, text in queries.items() if (key := _plain(text))}
    table = as_table(documents)
    found = frozenset(_of_their_ids(asked, table, rows)) if "text" in table.column_names else frozenset[str]()
    _tell(name, len(found), len(queries))
    return found


def identical_documents(
    queries: Mapping[str, str],
    documents: Any,
    rows: Mapping[str, int],
    relevant: Mapping[str, Iterable[str]],
    name: str,
) -> Identical:
    """Return {query_id: doc_ids} of the queries that are documents themselves; a line counts them.

    `queries`: {query_id: text}; `documents`: a table with the columns doc_id, text and perhaps title; without text none
    can be found; `rows`: {doc_id: row} of the table; `relevant`: {query_id: doc_ids} of documents that stay.
    """
    table = as_table(documents)
    if "text" not in table.column_names:
        return {}
    asked = {query_id: key for query_id, text in queries.items() if (key := _plain(text))}
    found = {query_id: {query_id} for query_id in _of_their_ids(asked, table, rows)}
    for query_id, doc_id in _of_their_texts(asked, table):
        found.setdefault(query_id, set()).add(doc_id)
    left = {query_id: frozenset(own.difference(relevant.get(query_id, ()))) for query_id, own in found.items()}
    left = {query_id: own for query_id, own in left.items() if own}
    _tell(name, len(left), len(queries))
    return left


def _tell(name: str, count: int, queries: int) -> None:
    if count:
        logger.warning(
            "%s: %d of %d queries are documents themselves (the whole text, or the same id and within the text); each leaves "
            "its own document out of its answer, as BEIR's ignore_identical_ids does.", name, count, queries,
        )  # fmt: skip


def _of_their_ids(asked: Mapping[str, str], documents: pa.Table, rows: Mapping[str, int]) -> list[str]:
    """Return the query_ids whose document of the same id holds the query's text."""
    common = [query_id for query_id in asked if query_id in rows]
    if not common:
        return []
    own = np.array([rows[query_id] for query_id in common], dtype=np.int64)
    texts = _texts({name: Column(documents[name]).take(own) for name in _columns(documents)})
    return [query_id for query_id, text in zip(common, texts, strict=True) if asked[query_id] in _plain(text)]


def _of_their_texts(asked: Mapping[str, str], documents: pa.Table) -> Iterable[tuple[str, str]]:
    """Yield each query_id with the doc_ids of documents that are nothing but its text: as title, text, or both."""
    by_text: dict[str, list[str]] = {}
    for query_id, key in asked.items():
        by_text.setdefault(key, []).append(query_id)
    longest = 2 * max(map(len, by_text), default=0) + _LONGER
    columns = documents.select(["doc_id", *_columns(documents)])
    for start in range(0, len(documents) if by_text else 0, _BLOCK):
        block = columns.slice(start, _BLOCK)
        block = block.filter(pc.less_equal(pc.utf8_length(pc.fill_null(block["text"], "")), longest))
        values = block.to_pydict()
        for doc_id, whole, text in zip(values["doc_id"], _texts(values), values["text"], strict=True):
            for key in {_plain(whole), _plain(text or "")}:
                yield from ((query_id, doc_id) for query_id in by_text.get(key, ()))


def _columns(documents: pa.Table) -> list[str]:
    return [name for name in ("title", "text") if name in documents.column_names]


def _texts(values: Mapping[str, list[str | None]]) -> list[str]:
    """Return titles and texts, joined."""
    return [
        " ".join(part or "" for part in parts)
        for parts in zip(*(values[name] for name in ("title", "text") if name in values), strict=True)
    ]


def without_identical(run: Run, identical: Identical, k: int | None = None) -> Run:
    """Return a run in which queries leave out the documents that they are, and the first k documents of each.

    >>> without_identical({"a": {"a": 2.0, "b": 1.0}, "b": {"b": 2.0, "c": 1.0}}, {"a": frozenset("a")}, 1)
    {'a': {'b': 1.0}, 'b': {'b': 2.0}}

    `run`: best first, if `k` is given; `identical`: the documents that are left out; `k`: documents per query; all by
    default.
    """
    if not identical and k is None:
        return run
    none = frozenset[str]()
    return {
        query_id: dict(islice((pair for pair in own.items() if pair[0] not in identical.get(query_id, none)), k))
        for query_id, own in run.items()
    }


def most_identical(identical: Identical) -> int:
    """Return how many documents of an answer are left out at most."""
    return max(map(len, identical.values()), default=0)


def _plain(text: str) -> str:
    """Return the letters and digits of a text, without case."""
    return _APART.sub("", unicodedata.normalize("NFC", text).casefold())
