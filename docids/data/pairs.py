"""Training pairs: a query, the documents that answer it (`positive`) and others that do not (`negatives`), by texts or by ids.

A pair is a judgement: a positive is relevant, a negative is not. What is not in the collection is counted. Knows nothing of
files and training.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsi.docids.data.records import Numbered, Oddities
from dsi.docids.data.sources import POSITIVES, QUERIES, is_missing
from dsi.docids.files.checks import id_of, text
from dsi.docids.types import Qrels

if TYPE_CHECKING:
    import datasets

NEGATIVES = ("negative", "negatives")
"""Keys under which a training pair may have what does not answer it; the first that is there counts."""
_SCORES = ("score", "scores", "label", "labels")
_ABSENT = "positives that are neither the id nor the text of a document of the collection; their pairs are left out"
_ABSENT_NEGATIVE = "negatives that are neither the id nor the text of a document of the collection; they are left out"
_NO_POSITIVE = "queries without a positive in the collection; they are left out"
_NOT_READ = f"keys of pairs other than {QUERIES[0]}, {POSITIVES[0]} and {NEGATIVES[1]}; they are not read"
_HELD_OUT = "pairs of dev or test queries; they are left out, as what is measured there must not be trained on"


class Documents:
    """Finds documents of a collection by their id, or by their text, with or without the title.

    `rows`: {doc_id: row}.
    """

    def __init__(self, documents: "datasets.Dataset", rows: Mapping[str, int]) -> None:
        self._rows, self._by_text, self._documents = rows, dict[bytes, str](), documents

    def find(self, value: str) -> str | None:
        """Return the doc_id of a document; None if it is not there."""
        if value in self._rows:
            return value
        if not self._by_text:
            for block in self._documents.iter(1000):
                for doc_id, title, own in zip(block["doc_id"], block["title"], block["text"], strict=True):
                    for form in (own, f"{title} {own}"):
                        self._by_text.setdefault(_sum(form), doc_id)
        return self._by_text.get(_sum(value))


def pair_judgements(
    records: Numbered,
    name: object,
    queries: Mapping[str, str],
    documents: Documents,
    held_out: Iterable[str],
) -> tuple[dict[str, str], Qrels]:
    """Return the queries that are new, with ids, and the judgements of pairs; a line counts each kind of odd ones.

    `records`: the pairs, with the words that name each in messages; `queries`: {query_id: text} of the collection.
    """
    known = {_plain(own): query_id for query_id, own in queries.items()}
    kept, held = dict[str, str](), {_plain(queries[query_id]) for query_id in held_out}
    qrels, odd, number = dict[str, dict[str, float]](), Oddities(name), 0
    for number, (source, record) in enumerate(records, start=1):
        query = _one(record, QUERIES, source)
        query_id = query if query in queries else known.get(_plain(query), "")
        if _plain(queries.get(query_id, query)) in held:
            odd.count(_HELD_OUT, query)
            continue
        grades = _grades(record, source, documents, odd)
        if not query_id and grades:
            query_id = known[_plain(query)] = _new_id(number, queries)
            kept[query_id] = query
        for doc_id, grade in grades.items():
            judged = qrels.setdefault(query_id, {})
            judged[doc_id] = max(grade, judged.get(doc_id, grade))
    for query_id in [query_id for query_id, judged in qrels.items() if max(judged.values()) <= 0]:
        odd.count(_NO_POSITIVE, kept.pop(query_id, query_id))
        del qrels[query_id]
    odd.warn()
    if not qrels:
        raise ValueError(
            f"{name}: of its {number:,} pairs none can be trained on; positives are ids or whole texts of documents of the "
            "collection, and queries are not those of dev or test."
        )
    return kept, qrels


def _grades(record: Mapping[str, Any], source: str, documents: Documents, odd: Oddities) -> dict[str, float]:
    """Return {doc_id: grade} of one pair: 1 of its positives, 0 of its negatives."""
    positives, negatives = (_several(record, keys, source) for keys in (POSITIVES, NEGATIVES))
    if not positives:
        raise ValueError(f"{source} has no positive: none of the keys {', '.join(POSITIVES)} has a value.")
    for key in record.keys() - {*QUERIES, *POSITIVES, *NEGATIVES}:
        if key in _SCORES:
            raise ValueError(
                f"{source} has the key {key!r}, but pairs have no scores; put what is not relevant into negatives."
            )
        odd.count(_NOT_READ, key)
    grades: dict[str, float] = {}
    for values, grade, absent in ((negatives, 0, _ABSENT_NEGATIVE), (positives, 1, _ABSENT)):
        for value in values:
            if (doc_id := documents.find(value)) is None:
                odd.count(absent, value)
            else:
                grades[doc_id] = grade
    return grades


def _one(record: Mapping[str, Any], keys: Sequence[str], source: str) -> str:
    found = _several(record, keys, source)
    if len(found) != 1 or not found[0].strip():
        raise ValueError(f"{source} must have one query, a text or an id, under one of the keys {', '.join(keys)}.")
    return found[0]


def _several(record: Mapping[str, Any], keys: Sequence[str], source: str) -> list[str]:
    """Return the texts or ids under the first key that has any."""
    given: Any = next((record[key] for key in keys if key in record and not _is_nothing(record[key])), [])
    return [text(id_of(value), f"{source}: a query or a document") for value in (given if _is_list(given) else [given])]


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_nothing(value: Any) -> bool:
    return not len(value) if _is_list(value) else is_missing(value)


def _new_id(number: int, queries: Mapping[str, str]) -> str:
    """Return an id for the query of a pair that the collection does not have."""
    query_id = f"pair-{number}"
    while query_id in queries:
        query_id += "'"
    return query_id


def _plain(value: str) -> str:
    return " ".join(value.lower().split())


def _sum(value: str) -> bytes:
    return hashlib.blake2b(_plain(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()
