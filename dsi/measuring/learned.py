"""Queries that an index has learned: its answers to them tell nothing of its answers to others."""

import dataclasses
from collections.abc import Collection as Ids
from collections.abc import Mapping
from itertools import compress

import numpy as np

from dsi.docids.data.collection import Collection
from dsi.docids.data.dev_queries import relevant_documents
from dsi.docids.types import Qrels
from dsi.eval.protocol import overlap_splits
from dsi.store.retriever import Retriever


def known_queries(retriever: Retriever, queries: Mapping[str, str]) -> frozenset[str]:
    """Return the query_ids of learned queries whose answers depend on that: none where memory has no weight."""
    return learned_queries(retriever, queries) if retriever.search_config.memory_weight else frozenset()


def learned_queries(retriever: Retriever, queries: Mapping[str, str]) -> frozenset[str]:
    """Return the query_ids of those of {query_id: text} that an index has learned, in whatever case, spaces or composition."""
    index = retriever.snapshot
    texts = {query_id: query for query_id, query in queries.items() if query.strip()}
    if not (texts and len(index.memory)):
        return frozenset()
    vectors = None
    if index.memory.is_published:  # its hashes have another key
        vectors = retriever.encode_queries(texts).cleaned()[0].embeddings
    return frozenset(compress(texts, index.memory.knows(list(texts.values()), vectors)))


def taught_queries(retriever: Retriever, qrels: Qrels) -> frozenset[str]:
    """Return the query_ids of those of {query_id: {id: grade}} with a relevant document that was taken for an earlier query."""
    index = retriever.snapshot
    rows = index.documents.rows
    documents = [doc_id for doc_id in relevant_documents(qrels.values()) if doc_id in rows]
    held = index.memory.holds([""] * len(documents), np.array([rows[doc_id] for doc_id in documents], dtype=np.int64))
    return frozenset(overlap_splits(qrels, set(compress(documents, held)))["Overlap"])


def with_only(collection: Collection, split: str, query_ids: Ids[str]) -> Collection:
    """Return a collection in which only some queries of a split are judged."""
    qrels = {query_id: judged for query_id, judged in collection.qrels[split].items() if query_id in query_ids}
    if len(qrels) == len(collection.qrels[split]):
        return collection
    return dataclasses.replace(collection, qrels={**collection.qrels, split: qrels})


def without_learned(retriever: Retriever, collection: Collection, split: str) -> tuple[Collection, int]:
    """Return a collection without the judgements of a split whose queries an index has learned, and how many these are.

    If no other query has a relevant document, they stay, and all count as learned.
    """
    learned, qrels = known_queries(retriever, collection.query_texts(split)), collection.qrels[split]
    unlearned = with_only(collection, split, qrels.keys() - learned)
    if learned and not relevant_documents(unlearned.qrels[split].values()):
        return collection, len(qrels)
    return unlearned, len(learned)


def learned_line(count: int, total: int, split: str, by: str = "the index") -> str:
    """Return what a report says of learned queries."""
    if count < total:
        return (
            f"{count:,} of {total:,} {split} queries were learned by {by}, as they are or but for case and spaces; they are "
            "left out."
        )
    return (
        f"All {total:,} {split} queries were learned by {by}, so these numbers tell what it remembers and nothing of other "
        "queries: judge some that it has not learned."
    )
