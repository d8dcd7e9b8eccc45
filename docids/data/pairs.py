"""Training pairs as others publish them: a query, what answers it, what does not, and scores, by texts or by ids.

    sentence-transformers   anchor, positive, negative or negative_1, negative_2, …; score, scores, label or labels
    FlagEmbedding           query, pos, neg, pos_scores, neg_scores (lists)
    MS MARCO                lines of query, positive and negatives with tabs between them, texts or ids

A pair is a judgement: a positive is relevant, a negative is not. A negative whose score reaches that of the positives may be
relevant, and is left out. What is not in the collection is counted. Knows nothing of files and training.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import datasets

from dsi.docids.data.records import Numbered, Oddities, id_of
from dsi.docids.data.sources import POSITIVES, QUERIES, is_missing
from dsi.docids.files.checks import plain, text
from dsi.docids.types import Qrels

NEGATIVES = ("negative", "negatives", "neg", "negative_id", "negative_ids", "nid")
SCORES = ("score", "scores", "label", "labels")
"""Keys of a pair, the first that is there counts."""
_ABSENT = "positives that are neither the id nor the text of a document of the collection; their pairs are left out"
_ABSENT_NEGATIVE = "negatives that are neither the id nor the text of a document of the collection; they are left out"
_NO_POSITIVE = "queries without a positive in the collection; they are left out"
_HIGH = "negatives that score as high as a positive; they may be relevant, and are left out"
_HELD_OUT = "pairs of dev or test queries; they are left out, as what is measured there must not be trained on"


class Documents:
    """Finds documents of a collection by their id, or by their text, with or without the title.

    Args:
        documents: their table.
        rows: {doc_id: row}.
    """

    def __init__(self, documents: datasets.Dataset, rows: Mapping[str, int]) -> None:
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

    Args:
        records: the pairs, with the words that name each in messages.
        name: of all of them.
        queries: {query_id: text} of the collection.
        documents: finds those of the collection.
        held_out: query_ids of dev and test.

    Raises:
        ValueError: a pair lacks a query or a positive, a value of another type, or no pair is of a document of the collection.
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
    """Return {doc_id: grade} of one pair: above 0 of its positives, 0 of its negatives."""
    positives = _several(record, POSITIVES, source)
    negatives = _several(record, NEGATIVES, source) or _numbered_negatives(record, source)
    if not positives:
        raise ValueError(f"{source} has no positive: none of the keys {', '.join(POSITIVES)} has a value.")
    grade, is_lower = _scores(record, source, len(positives), len(negatives))
    grades: dict[str, float] = {}
    for value, lower in zip(negatives, is_lower, strict=True):
        doc_id = documents.find(value)
        if doc_id is None:
            odd.count(_ABSENT_NEGATIVE, value)
        elif not lower:
            odd.count(_HIGH, value)
        else:
            grades[doc_id] = 0
    for value in positives:
        doc_id = documents.find(value)
        if doc_id is None:
            odd.count(_ABSENT, value)
        else:
            grades[doc_id] = grade
    return grades


def _scores(record: Mapping[str, Any], source: str, positives: int, negatives: int) -> tuple[float, Sequence[bool]]:
    """Return the grade of the positives, and for each negative whether it scores less than they do.

    Scores are of the positives and then of the negatives, or margins of the positive over each negative; one score without a
    negative is the grade.
    """
    lists = [record[key] for key in ("pos_scores", "neg_scores") if not _is_nothing(record.get(key))]
    lists = lists or [record[key] for key in SCORES if not _is_nothing(record.get(key))][:1]
    flat = [value for own in lists for value in (own if _is_list(own) else [own])]
    scores = [plain(float, value, f"{source}: a score") for value in flat]
    if not scores:
        return 1, [True] * negatives
    if not negatives and len(scores) == 1:
        return scores[0], []
    if len(scores) == positives + negatives:
        least = min(scores[:positives])
        return 1, [score < least for score in scores[positives:]]
    if len(scores) == negatives:
        return 1, [margin > 0 for margin in scores]
    raise ValueError(
        f"{source}: expected a score of each of {positives} positives and {negatives} negatives, or the margin of "
        f"each negative, got {len(scores)}."
    )


def _numbered_negatives(record: Mapping[str, Any], source: str) -> list[str]:
    """Return the values of the keys negative_1, negative_2 and so on."""
    keys = [key for key in record if str(key).startswith("negative_") and str(key)[len("negative_") :].isdigit()]
    return [own for key in keys for own in _several(record, (key,), source)]


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
