"""Queries that are documents themselves, as in ArguAna and Quora: such a query finds itself first.

So its answer leaves out the document of the query's id (BEIR's `ignore_identical_ids`) that holds its text. Texts are compared
without case, spaces and punctuation. Where ids only look alike, as numbers do, nothing is left out. Knows no judgements.
"""

import logging
import re
import unicodedata
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from dsi.docids.data.tables import Column, as_table
from dsi.docids.types import Run

logger = logging.getLogger(__name__)

Identical: TypeAlias = Mapping[str, frozenset[str]]
"""{query_id: doc_ids of the documents that the query is}."""
_APART = re.compile(r"[\W_]+")


def identical_ids(
    queries: Mapping[str, str], documents: Any, rows: Mapping[str, int], name: str = "queries"
) -> frozenset[str]:
    """Return the query_ids of {query_id: text} whose document of the same id holds the query's text; a line counts them."""
    table = as_table(documents)
    keys = {query_id: key for query_id, text in queries.items() if query_id in rows and (key := _plain(text))}
    if not keys or "text" not in table.column_names:
        return frozenset()
    asked_rows = np.array([rows[query_id] for query_id in keys], dtype=np.int64)
    columns = [Column(table[column]).take(asked_rows) for column in ("title", "text") if column in table.column_names]
    texts = (" ".join(part or "" for part in parts) for parts in zip(*columns, strict=True))
    pairs = zip(keys.items(), texts, strict=True)
    query_ids = frozenset(query_id for (query_id, key), text in pairs if key in _plain(text))
    if query_ids:
        logger.warning(
            "%s: %d of %d queries are documents themselves (the same id, and within the text); each leaves its own document "
            "out of its answer, as BEIR's ignore_identical_ids does.", name, len(query_ids), len(queries),
        )  # fmt: skip
    return query_ids


def without_identical(run: Run, identical: Identical, k: int | None = None) -> Run:
    """Return a run in which queries leave out the documents that they are, and the first k documents of each.

    >>> without_identical({"a": {"a": 2.0, "b": 1.0}, "b": {"b": 2.0, "c": 1.0}}, {"a": frozenset("a")}, 1)
    {'a': {'b': 1.0}, 'b': {'b': 2.0}}
    """
    if not identical and k is None:
        return run
    none = frozenset[str]()
    return {
        query_id: dict(islice((pair for pair in scores.items() if pair[0] not in identical.get(query_id, none)), k))
        for query_id, scores in run.items()
    }


def most_identical(identical: Identical) -> int:
    """Return how many documents of an answer are left out at most."""
    return int(bool(identical))


def _plain(text: str) -> str:
    """Return the letters and digits of a text, without case."""
    return _APART.sub("", unicodedata.normalize("NFC", text).casefold())
