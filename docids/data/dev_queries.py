"""The splits of a collection, and which train queries are set aside for tuning. Knows nothing of files."""

import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations

from dsi.docids.data import SPLITS
from dsi.docids.data.pairs import plain_query
from dsi.docids.files.checks import and_more
from dsi.docids.types import Qrels

logger = logging.getLogger(__name__)


def split_judgements(
    read: Mapping[str, Qrels], queries: Mapping[str, str], rows: Mapping[str, int], dev_queries: int,
    dev_untaught: float, seed: int,
) -> tuple[dict[str, Qrels], frozenset[str]]:  # fmt: skip
    """Return the judgements of all splits, dev cut from train if it is missing, and the relevant documents of uncut train."""
    qrels = {split: read.get(split, {}) for split in SPLITS}
    overlap = relevant_documents(qrels["train"].values())
    if qrels["train"] and not qrels["dev"]:
        known = {
            query_id: {doc_id: grade for doc_id, grade in judged.items() if doc_id in rows}
            for query_id, judged in qrels["train"].items()
        }
        train, dev = cut_dev(known, dev_queries, dev_untaught, seed)
        qrels["dev"] = {query_id: qrels["train"][query_id] for query_id in dev}
        qrels["train"] = {query_id: qrels["train"][query_id] for query_id in train}
    plain = {query_id: plain_query(queries[query_id]) for judgements in qrels.values() for query_id in judgements}
    for one, other in combinations(SPLITS, 2):
        if shared := [query_id for query_id in qrels[one] if query_id in qrels[other]]:
            message = "The query %r%s is in both %s and %s: scores would be too high."
            logger.warning(message, queries[shared[0]], and_more(len(shared) - 1), one, other)
        first = {plain[query_id]: query_id for query_id in qrels[one]}
        if twins := [query_id for query_id in qrels[other] if query_id not in qrels[one] and plain[query_id] in first]:
            pair = other, twins[0], and_more(len(twins) - 1), one, first[plain[twins[0]]]
            logger.warning("The %s query %r%s has the text of the %s query %r: scores would be too high.", *pair)
    return qrels, overlap


def cut_dev(train: Qrels, dev_queries: int, dev_untaught: float, seed: int) -> tuple[Qrels, Qrels]:
    """Cut train judgements into (train, dev): at most `dev_queries` and at most a tenth of the queries go to dev.

    The cut is by document, so that a share of the dev queries asks for documents without a train query (No Overlap); were there
    none, tuning would overrate what train queries teach. All train queries of a No Overlap query's documents go to dev; every
    document of an Overlap query keeps a train query. A document with more train queries than dev has room for keeps them all;
    where one kind of query is too rare, more of the other are taken. Test queries are not read.

    >>> train = {f"{document}{n}": {document: 1} for document in "abcdefghijklmnopqrst" for n in range(3)}
    >>> train, dev = cut_dev(train, 6, 0.5, 0)
    >>> len(train), sorted(dev)
    (54, ['i0', 'i2', 'q0', 's0', 's1', 's2'])
    """
    size, rng = min(dev_queries, len(train) // 10), random.Random(seed)
    relevant = {query_id: relevant_documents([train[query_id]]) for query_id in rng.sample(sorted(train), len(train))}
    families = _families(relevant)
    rng.shuffle(families)
    dev = _whole(families, round(size * dev_untaught))
    rest = {query_id: doc_ids for query_id, doc_ids in relevant.items() if query_id not in dev}
    dev |= _spare(rest, size - len(dev))
    dev |= _whole([family for family in families if dev.isdisjoint(family)], size - len(dev))
    keep = {query_id: judged for query_id, judged in train.items() if query_id not in dev}
    return keep, {query_id: judged for query_id, judged in train.items() if query_id in dev}


def relevant_documents(judgements: Iterable[Mapping[str, float]]) -> frozenset[str]:
    """Return the documents that some query judges relevant."""
    return frozenset(doc_id for judged in judgements for doc_id, relevance in judged.items() if relevance > 0)


def _families(relevant: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Group queries such that no document is relevant to queries of two groups."""
    parent: dict[str, str] = {}  # union-find over documents; the root of a group is its own parent

    def root(doc_id: str) -> str:
        while parent.setdefault(doc_id, doc_id) != doc_id:
            parent[doc_id] = doc_id = parent[parent[doc_id]]
        return doc_id

    for doc_ids in relevant.values():
        for doc_id in doc_ids:
            parent[root(doc_id)] = root(min(doc_ids))
    families: dict[str, list[str]] = {}
    for query_id, doc_ids in relevant.items():
        if doc_ids:
            families.setdefault(root(min(doc_ids)), []).append(query_id)
    return list(families.values())


def _whole(families: Iterable[list[str]], room: int) -> set[str]:
    """Return the queries of whole families, up to `room`."""
    chosen: set[str] = set()
    for family in families:
        if len(chosen) + len(family) <= room:
            chosen.update(family)
    return chosen


def _spare(relevant: Mapping[str, frozenset[str]], room: int) -> set[str]:
    """Return queries that leave another query to each of their documents, up to `room`."""
    left = Counter(doc_id for doc_ids in relevant.values() for doc_id in doc_ids)
    chosen: set[str] = set()
    for query_id, doc_ids in relevant.items():
        if len(chosen) < room and doc_ids and all(left[doc_id] > 1 for doc_id in doc_ids):
            chosen.add(query_id)
            left.subtract(doc_ids)
    return chosen
