"""Learns which documents users took for their queries, and forgets it: pairs are checked, encoded, and put into the memory.

Knows no folders.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.records import Oddities
from dsi.docids.data.sources import POSITIVES, QUERIES, items_of, pair_records
from dsi.docids.files.checks import id_of, same, shown, text, user_path
from dsi.docids.query_memory import QueryMemory, hash_of, is_usable
from dsi.docids.query_pairs import Period
from dsi.docids.types import Floats, Rows
from dsi.docids.words.bm25 import BM25
from dsi.search.explain.explanation import idle_memory
from dsi.search.request import SearchConfig
from dsi.store.documents.table import DocumentTable
from dsi.store.updating import Content

logger = logging.getLogger(__name__)

_ABSENT = "pairs of documents that are not in the index; they are left out"
_UNKNOWN = "pairs that the index has not learned; they are left out"
_EMPTY = "pairs without a query; they are left out"
_NOT_READ = "values beside query and doc_id; they are not read, and what is learned has the time of learning"
_UNREADABLE = "queries whose embedding is not finite; their pairs are left out"


_EPOCH, _NONE = datetime(1970, 1, 1, tzinfo=UTC), np.zeros(0, dtype=np.int64)


class Pair(NamedTuple):
    """A query, and the document that was taken for it."""

    query: str
    doc_id: str


Moment: TypeAlias = datetime | str | float | None
"""A moment: a datetime or a text, in UTC unless it says otherwise, or seconds since 1970."""


@dataclass(frozen=True)
class LearnedPair:
    """A pair that an index has learned."""

    hash: str  # of the query, "#" and 16 digits, which `forget` takes in place of the query
    query: str  # its text; "" where texts are not kept
    doc_id: str
    count: int  # how often it was learned, up to three times
    time: datetime  # when it was learned first, in UTC; of an index from the Hub, 1970


def learned_pairs(content: Content) -> list[LearnedPair]:
    """Return the pairs that an index has learned, by when they were learned first."""
    pairs = content.memory.learned()
    doc_ids = DocumentTable(content.documents).values_of("doc_id", pairs.rows[:, None])
    columns = pairs.keys.tolist(), pairs.texts.tolist(), doc_ids, pairs.counts.tolist(), pairs.times[:, 0].tolist()
    return [
        LearnedPair(hash_of(key), query, doc_id, count, _EPOCH + timedelta(microseconds=time))
        for key, query, (doc_id,), count, time in zip(*columns, strict=True)
    ]


def period(since: Moment, before: Moment, *, needed: bool) -> Period:
    """Return the time from one moment on, and before another one."""
    if needed and since is None and before is None:
        raise ValueError("Give forget() pairs, since or before; it got none of them.")
    ends = {name: _moment(at, name) for name, at in (("since", since), ("before", before)) if at is not None}
    found = Period(**ends)
    if found.since >= found.before:
        raise ValueError(f"before must be later than since, got since {shown(since)} and before {shown(before)}.")
    return found


def _moment(value: object, name: str) -> int:
    """Return a moment in microseconds since 1970; one without an offset is in UTC."""
    wanted = f'{name} must be a moment in UTC, such as "2026-11-28T14:30", a datetime, or seconds since 1970, got'
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        elif isinstance(value, Real) and not isinstance(value, bool):
            value = _EPOCH + timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        raise ValueError(f"{wanted} {shown(value)}.") from None
    if not isinstance(value, datetime):
        raise TypeError(f"{wanted} {shown(value)}.")
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(microseconds=1))


def checked_pairs(pairs: Iterable[Any], name: str, documents: DocumentTable) -> list[Pair]:
    """Return the pairs of documents that are in the index; a line counts each kind of those that are left out.

    `pairs`: (query, doc_id), records with these keys, or the path of a file of them; `name`: "learn", or "forget", where an
    empty query stands for all of a document.
    """
    odd = Oddities(name)
    given = dict(_named(pairs, name, odd))
    found, kept = documents.find(pair.doc_id for pair in given.values()), []
    for source, pair in given.items():
        if name == "learn" and not pair.query.strip():
            odd.count(_EMPTY, source)
        elif pair.doc_id not in found:
            odd.count(_ABSENT, pair.doc_id)
        else:
            kept.append(pair)
    if given and not kept:
        raise ValueError(f"No pair can be used. {' '.join(odd.lines())}")
    odd.warn()
    return kept


def query_vectors(encoder: TextEncoder, queries: Sequence[str]) -> tuple[list[int], Floats]:
    """Return the numbers of the queries that can be learned, and their embeddings [n, dim]; the same query is encoded once."""
    unique = {query: number for number, query in enumerate(dict.fromkeys(map(same, queries)))}
    vectors = encoder.encode(encoder.query_texts(list(unique)), "query")
    usable, odd = is_usable(vectors), Oddities("learn")
    for query, number in unique.items():
        if not usable[number]:
            odd.count(_UNREADABLE, query)
    rows = np.array([unique[same(query)] for query in queries], dtype=np.int64)
    known = np.flatnonzero(usable[rows])
    odd.warn()
    return known.tolist(), vectors[rows[known]]


def encoded_pairs(encoder: TextEncoder, pairs: Sequence[Pair]) -> tuple[list[Pair], Floats]:
    """Return the pairs that can be learned, at least one, and the embeddings [n, dim] of their queries."""
    known, vectors = query_vectors(encoder, [pair.query for pair in pairs])
    if pairs and not known:
        raise ValueError(
            f"No pair can be used: the embedding of {shown(pairs[0].query)} is not finite; word it in another way."
        )
    return [pairs[number] for number in known], vectors


def with_pairs(content: Content, pairs: Sequence[Pair], vectors: Floats) -> Content:
    """Return the content after learning pairs, with vectors [pairs, dim]; those of documents that are gone are left out."""
    known, queries, rows = _rows(content, pairs)
    if not queries:
        return content
    terms = query_terms(content.lexical, queries)
    return content._replace(memory=content.memory.learn(queries, rows, vectors[known], terms=terms))


def query_terms(lexical: BM25 | None, queries: Sequence[str]) -> list[list[str]]:
    """Return the terms of queries as an index counts them; none without a lexical part."""
    return [[] if lexical is None else lexical.analyzer.terms(same(query)) for query in queries]


def tell_effect(before: QueryMemory, after: QueryMemory, config: SearchConfig) -> None:
    """Warn of pairs that change no answer: where the memory has no weight, and where a document has too many pairs."""
    if line := idle_memory(after, config):
        logger.warning("%s", line)
    elif (idle := after.num_idle) > before.num_idle:
        logger.warning(
            "%d of %d pairs take no part, as their documents have too many of all; those learned first do.",
            idle, len(after),
        )  # fmt: skip


def without_pairs(content: Content, pairs: Sequence[Pair] | None, when: Period) -> Content:
    """Return the content without what was learned of pairs in a period; an empty query stands for all pairs of a document."""
    if pairs is None:
        return content._replace(memory=content.memory.forget(None, _NONE, when))
    known, queries, rows = _rows(content, pairs)
    odd, held = Oddities("forget"), content.memory.holds(queries, rows)
    for number, is_held in zip(known, held, strict=True):
        if not is_held:
            odd.count(_UNKNOWN, tuple(pairs[number]))
    odd.warn()
    return content._replace(memory=content.memory.forget(queries, rows, when))


def _rows(content: Content, pairs: Sequence[Pair]) -> tuple[list[int], list[str], Rows]:
    """Return the numbers, queries and rows [n] of the pairs whose documents are there."""
    found = DocumentTable(content.documents).find(pair.doc_id for pair in pairs)
    known = [number for number, pair in enumerate(pairs) if pair.doc_id in found]
    rows = np.array([found[pairs[number].doc_id] for number in known], dtype=np.int64)
    return known, [pairs[number].query for number in known], rows


def _named(pairs: Iterable[Any], name: str, odd: Oddities) -> Iterator[tuple[str, Pair]]:
    """Yield pairs, each after the words that name it in messages."""
    if isinstance(pairs, str | Path):
        yield from ((source, _record(record, source, odd)) for source, record in pair_records(user_path(pairs)))
    elif isinstance(pairs, Mapping | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"{name}() takes a list of (query, doc_id), got {shown(pairs)}; put each pair into a list.")
    else:
        for number, pair in enumerate(items_of(pairs, name)):
            yield (source := f"{name}: pair {number}"), _pair(pair, source, odd)


def _pair(pair: Any, source: str, odd: Oddities) -> Pair:
    if isinstance(pair, Mapping):
        return _record(pair, source, odd)
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"{source} must be (query, doc_id), or a record with these keys, got {shown(pair)}.")
    return Pair(text(pair[0], f"{source}: the query"), text(id_of(pair[1]), f"{source}: the doc_id"))


def _record(record: Mapping[str, Any], source: str, odd: Oddities) -> Pair:
    """Return the pair of a record, as files of training pairs have it."""
    found = [_value(record, keys) for keys in (QUERIES, POSITIVES)]
    if not isinstance(found[1], str):
        raise ValueError(
            f"{source} must have one doc_id, a text, under one of the keys {', '.join(POSITIVES)}, got {shown(record)}."
        )
    for key in record.keys() - {*QUERIES, *POSITIVES}:
        if not (isinstance(record[key], list) and not record[key]):  # as a line without a third column has
            odd.count(_NOT_READ, key)
    return Pair(text(found[0] or "", f"{source}: the query"), text(found[1], f"{source}: the doc_id"))


def _value(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value = id_of(next((record[key] for key in keys if record.get(key) is not None), None))
    return value[0] if isinstance(value, list) and len(value) == 1 else value
