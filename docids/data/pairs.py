"""Training pairs: a query, the documents that answer it (`positive`) and others that do not (`negatives`), by texts or by ids.

A pair is a judgement: a positive is relevant, a negative is not. What is not in the collection is counted. Knows nothing of
files and training.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsi.docids.data.records import Oddities
from dsi.docids.data.sources import POSITIVES, QUERIES, Records, is_missing
from dsi.docids.files.checks import id_of, same, shown, text
from dsi.docids.types import Qrels

Find = Callable[[str], str | None]
"""From the id or the text of a document to its doc_id; None if there is none."""
NEGATIVES = ("negative", "negatives")
"""Keys under which a training pair may have documents that do not answer it; the first one present counts."""
_QUERY_IDS = ("query_id", "qid")
"""Keys under which a training pair may name its query; by default "pair-1", …."""
_SCORES = ("score", "scores", "label", "labels")
_ABSENT = "positives that are neither the id nor the text of a document of the collection; their pairs are left out"
_ABSENT_NEGATIVE = "negatives that are neither the id nor the text of a document of the collection; they are left out"
_NO_POSITIVE = "queries without a positive in the collection; they are left out"
_NOT_READ = f"keys of pairs other than {QUERIES[0]}, {POSITIVES[0]} and {NEGATIVES[1]}; they are not read"
_HELD_OUT = "pairs of dev or test queries; they are left out, as nothing is trained on queries that measure"


def pair_judgements(
    records: Records, name: object, queries: Mapping[str, str], held_out: Iterable[str], find: Find
) -> tuple[dict[str, str], Qrels]:
    """Return the queries that are new, with ids, and the judgements of pairs; a line counts each kind of odd ones."""
    known = {plain_query(query): query_id for query_id, query in queries.items()}
    new, held = dict[str, str](), {plain_query(queries[query_id]) for query_id in held_out}
    qrels, odd, number = dict[str, dict[str, float]](), Oddities(name), 0
    for number, (source, record) in enumerate(records, start=1):
        query = _query(record, source)
        query_id = query if query in queries else known.get(plain_query(query), "")
        if plain_query(queries.get(query_id, query)) in held:
            odd.count(_HELD_OUT, query)
            continue
        grades = _grades(record, source, find, odd)
        if not query_id and grades:
            named = _values(record, _QUERY_IDS, source)
            query_id = named[0] if named else f"pair-{number}"
            if named and (query_id in queries or query_id in new):
                raise ValueError(f"{source}: another query has the query_id {shown(query_id)}; give each its own.")
            while query_id in queries:
                query_id += "'"
            known[plain_query(query)], new[query_id] = query_id, query
        for doc_id, grade in grades.items():
            judged = qrels.setdefault(query_id, {})
            judged[doc_id] = max(grade, judged.get(doc_id, grade))
    for query_id in [query_id for query_id, judged in qrels.items() if max(judged.values()) <= 0]:
        odd.count(_NO_POSITIVE, new.pop(query_id, query_id))
        del qrels[query_id]
    odd.warn()
    if not number:
        raise ValueError(f"{name} is empty; give it a pair a line.")
    if not qrels:
        raise ValueError(
            f"{name}: no pair can be used, of {number:,}; positives are ids or whole texts of documents of the "
            "collection, and queries to train on are not those of dev or test."
        )
    return new, qrels


def _grades(record: Mapping[str, Any], source: str, find: Find, odd: Oddities) -> dict[str, float]:
    """Return {doc_id: grade} of one pair: 1 of its positives, 0 of its negatives."""
    positives, negatives = (_values(record, keys, source) for keys in (POSITIVES, NEGATIVES))
    if not positives:
        raise ValueError(
            f"{source} has no positive under one of the keys {', '.join(POSITIVES)}; its keys are {shown([*record])}."
        )
    for key in record.keys() - {*QUERIES, *POSITIVES, *NEGATIVES, *_QUERY_IDS}:
        if key in _SCORES:
            raise ValueError(f"{source} has the key {key!r}, but pairs cannot have scores; list negatives.")
        odd.count(_NOT_READ, key)
    grades: dict[str, float] = {}
    for values, grade, absent in ((negatives, 0, _ABSENT_NEGATIVE), (positives, 1, _ABSENT)):
        for value in values:
            if (doc_id := find(value)) is None:
                odd.count(absent, value)
            else:
                grades[doc_id] = grade
    return grades


def _query(record: Mapping[str, Any], source: str) -> str:
    queries = _values(record, QUERIES, source)
    if len(queries) != 1 or not queries[0].strip():
        keys = f"under one of the keys {', '.join(QUERIES)}; its keys are {shown([*record])}"
        raise ValueError(f"{source} must have one query, a text or an id, {keys}.")
    return queries[0]


def _values(record: Mapping[str, Any], keys: Sequence[str], source: str) -> list[str]:
    """Return the texts or ids under the first key that has any."""
    for key in keys:
        value = record.get(key)
        if values := value if isinstance(value, list) else [] if is_missing(value) else [value]:
            return [text(id_of(item), f"{source}: a query or a document") for item in values]
    return []


def plain_query(value: str) -> str:
    """Return a text in a form without differences of case, spaces, or how characters are composed."""
    return same(value).casefold()


def digest_of(value: str) -> bytes:
    """Return a digest of the words of a text, without case."""
    return hashlib.blake2b(plain_query(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
