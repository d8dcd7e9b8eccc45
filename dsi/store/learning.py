"""Learns which documents users took for their queries, and forgets it: pairs are checked, encoded, and put into the memory.

Knows no folders.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsi.contrastive.encoder import Encoder
from dsi.docids.data.records import Oddities, id_of
from dsi.docids.data.sources import POSITIVES, QUERIES, items_of, pair_records
from dsi.docids.files.checks import shown, text
from dsi.docids.query_memory import same
from dsi.docids.types import Floats, Rows
from dsi.store.documents import DocumentTable
from dsi.store.updating import Content

_ABSENT = "pairs of documents that are not in the index; they are left out"
_UNKNOWN = "pairs that the index has not learned; they are left out"
_EMPTY = "pairs without a query; they are left out"


class Pair(NamedTuple):
    """A query, and the document that was taken for it."""

    query: str
    doc_id: str


def checked_pairs(pairs: Iterable[Any], name: str, documents: DocumentTable) -> list[Pair]:
    """Return the pairs of documents that are in the index; a line counts each kind of those that are left out.

    Args:
        pairs: (query, doc_id), records with these keys, or the path of a file of them.
        name: "learn", or "forget", where an empty query stands for all of a document.
        documents: of the index.

    Raises:
        TypeError: they are no list of pairs.
        ValueError: a query or a doc_id that is not a text, or no pair is left.
    """
    odd, given = Oddities(name), dict(_named(pairs, name))
    found, kept = documents.find(pair.doc_id for pair in given.values()), []
    for source, pair in given.items():
        if name == "learn" and not pair.query.strip():
            odd.count(_EMPTY, source)
        elif pair.doc_id not in found:
            odd.count(_ABSENT, pair.doc_id)
        else:
            kept.append(pair)
    if given and not kept:
        raise ValueError(f"No pair can be taken. {' '.join(odd.lines())}")
    odd.warn()
    return kept


def query_vectors(encoder: Encoder, queries: Sequence[str]) -> Floats:
    """Return embeddings [queries, dim] as the encoder of an index reads queries; the same query is encoded once."""
    unique = {query: number for number, query in enumerate(dict.fromkeys(map(same, queries)))}
    vectors = encoder.encode(encoder.query_texts(list(unique)), "query")
    return vectors[[unique[same(query)] for query in queries]]


def with_pairs(content: Content, pairs: Sequence[Pair], vectors: Floats) -> Content:
    """Return the content after learning pairs, with vectors [pairs, dim]; those of documents that are gone are left out."""
    known, queries, rows = _rows(content, pairs)
    return content._replace(memory=content.memory.learn(queries, rows, vectors[known])) if queries else content


def without_pairs(content: Content, pairs: Sequence[Pair]) -> Content:
    """Return the content after forgetting pairs; one with an empty query stands for all pairs of its document.

    A line counts those that the index has not learned.
    """
    known, queries, rows = _rows(content, pairs)
    odd, held = Oddities("forget"), content.memory.holds(queries, rows)
    for number, is_held in zip(known, held, strict=True):
        if not is_held:
            odd.count(_UNKNOWN, tuple(pairs[number]))
    odd.warn()
    return content._replace(memory=content.memory.forget(queries, rows)) if any(held) else content


def _rows(content: Content, pairs: Sequence[Pair]) -> tuple[list[int], list[str], Rows]:
    """Return the numbers, queries and rows [n] of the pairs whose documents are there."""
    found = DocumentTable(content.documents).find(pair.doc_id for pair in pairs)
    known = [number for number, pair in enumerate(pairs) if pair.doc_id in found]
    rows = np.array([found[pairs[number].doc_id] for number in known], dtype=np.int64)
    return known, [pairs[number].query for number in known], rows


def _named(pairs: Iterable[Any], name: str) -> Iterator[tuple[str, Pair]]:
    """Yield pairs, each after the words that name it in messages."""
    if isinstance(pairs, Path):
        yield from ((source, _record(record, source)) for source, record in pair_records(pairs))
    elif isinstance(pairs, Mapping | str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"{name}() takes a list of (query, doc_id), got {shown(pairs)}; put each pair into a list.")
    else:
        for number, pair in enumerate(items_of(pairs, name)):
            yield (source := f"{name}: pair {number}"), _pair(pair, source)


def _pair(pair: Any, source: str) -> Pair:
    if isinstance(pair, Mapping):
        return _record(pair, source)
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"{source} must be (query, doc_id), or a record with these keys, got {shown(pair)}.")
    return Pair(text(pair[0], f"{source}: the query"), text(id_of(pair[1]), f"{source}: the doc_id"))


def _record(record: Mapping[str, Any], source: str) -> Pair:
    """Return the pair of a record, as files of training pairs have it."""
    found = [_value(record, keys) for keys in (QUERIES, POSITIVES)]
    if not isinstance(found[1], str):
        raise ValueError(
            f"{source} must have one doc_id, a text, under one of the keys {', '.join(POSITIVES)}, got {shown(record)}."
        )
    return Pair(text(found[0] or "", f"{source}: the query"), text(found[1], f"{source}: the doc_id"))


def _value(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value = id_of(next((record[key] for key in keys if record.get(key) is not None), None))
    return value[0] if isinstance(value, list) and len(value) == 1 else value
