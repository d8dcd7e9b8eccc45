"""Learns which documents users took for their queries, and forgets it: pairs are checked, encoded, and put into the memory.

Knows no folders.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsi.contrastive.encoder import Encoder
from dsi.docids.data.records import Oddities, id_of
from dsi.docids.data.sources import POSITIVES, QUERIES, items_of, pair_records
from dsi.docids.files.checks import shown, text
from dsi.docids.query_memory import same
from dsi.docids.types import Rows
from dsi.store.documents import DocumentTable
from dsi.store.updating import Content

logger = logging.getLogger(__name__)

_ABSENT = "pairs of documents that are not in the index; they are left out"
_EMPTY = "pairs without a query; they are left out"


class Pair(NamedTuple):
    """A query, and the document that was taken for it; `source` names the pair in messages."""

    source: str
    query: str
    doc_id: str


def with_pairs(content: Content, encoder: Encoder, pairs: Iterable[Any]) -> tuple[Content, int]:
    """Return the content after learning pairs, and how many were learned; a line counts each kind of those left out.

    Args:
        content: the parts of an index.
        encoder: of the index.
        pairs: (query, doc_id), or records with these keys.

    Raises:
        TypeError: pairs are no list of pairs.
        ValueError: a query or a doc_id that is not a text, or no pair can be learned.
    """
    odd = Oddities("learn")
    queries, rows = _known(content, checked_pairs(pairs, "learn"), odd, needs_query=True)
    odd.warn()
    unique = list(dict.fromkeys(map(same, queries)))
    vectors = encoder.encode(encoder.query_texts(unique), "query")
    numbers = {query: number for number, query in enumerate(unique)}
    memory = content.memory.learn(queries, rows, vectors[[numbers[same(query)] for query in queries]])
    return content._replace(memory=memory), len(queries)


def without_pairs(content: Content, pairs: Iterable[Any]) -> tuple[Content, int]:
    """Return the content after forgetting pairs, and how many were forgotten; without a query all pairs of the document.

    Raises:
        TypeError, ValueError: as `with_pairs`.
    """
    odd = Oddities("forget")
    queries, rows = _known(content, checked_pairs(pairs, "forget"), odd, needs_query=False)
    odd.warn()
    memory = content.memory.forget(queries, rows)
    forgotten = len(content.memory) - len(memory)
    if not forgotten:
        logger.warning("forget: the index has learned none of these pairs.")
        return content, 0
    return content._replace(memory=memory), forgotten


def checked_pairs(pairs: Iterable[Any], name: str) -> list[Pair]:
    """Return pairs, checked; `name` is of the call, for messages.

    Raises:
        TypeError: they are no list of pairs.
        ValueError: a query or a doc_id is not a text.
    """
    if isinstance(pairs, Path):
        return [_record(record, source) for source, record in pair_records(pairs)]
    if isinstance(pairs, Mapping | str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"{name}() takes a list of (query, doc_id), got {shown(pairs)}; put each pair into a list.")
    return [_pair(pair, f"{name}: pair {number}") for number, pair in enumerate(items_of(pairs, name))]


def _pair(pair: Any, source: str) -> Pair:
    if isinstance(pair, Mapping):
        return _record(pair, source)
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"{source} must be (query, doc_id), or a record with these keys, got {shown(pair)}.")
    return Pair(source, text(pair[0], f"{source}: the query"), text(id_of(pair[1]), f"{source}: the doc_id"))


def _record(record: Mapping[str, Any], source: str) -> Pair:
    """Return the pair of a record, as files of training pairs have it."""
    found = [_value(record, keys) for keys in (QUERIES, POSITIVES)]
    if not isinstance(found[1], str):
        raise ValueError(
            f"{source} must have one doc_id, a text, under one of the keys {', '.join(POSITIVES)}, got {shown(record)}."
        )
    return Pair(source, text(found[0] or "", f"{source}: the query"), text(found[1], f"{source}: the doc_id"))


def _value(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value = id_of(next((record[key] for key in keys if record.get(key) is not None), None))
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _known(content: Content, pairs: Sequence[Pair], odd: Oddities, *, needs_query: bool) -> tuple[list[str], Rows]:
    """Return the queries [n] and the rows of the documents [n] of the pairs whose documents are in the index.

    Raises:
        ValueError: there are none.
    """
    found = DocumentTable(content.documents).find({pair.doc_id for pair in pairs})
    kept = []
    for pair in pairs:
        if needs_query and not pair.query.strip():
            odd.count(_EMPTY, pair.source)
        elif pair.doc_id not in found:
            odd.count(_ABSENT, pair.doc_id)
        else:
            kept.append(pair)
    if pairs and not kept:
        raise ValueError(f"No pair can be taken. {' '.join(odd.lines())}")
    return [pair.query for pair in kept], np.array([found[pair.doc_id] for pair in kept], dtype=np.int64)
