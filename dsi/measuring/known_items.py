"""A known-item test: queries made of the documents themselves, each with one document to find, where nobody has judged any.

Each query is some words of a document (`dsi.generator.pseudo_queries`, "extractive"). That shows which of two systems is ahead
on such queries; people ask others. Knows nothing of how systems are compared.
"""

import dataclasses
import random

from dsi.docids.data.collection import Collection
from dsi.docids.types import Qrels
from dsi.eval.protocol import FEWEST_QUERIES
from dsi.generator.pseudo_queries import extractive_queries
from dsi.store.retriever import GenerativeRetriever

MEANING = (
    "Nobody has judged these queries: each is made of words of one document, which has to be found. The numbers show what\n"
    "cannot be found by its own words; they do not order systems. Over systems within ten points of the best, Kendall's\n"
    "tau between such a test and judgements was .85 on SQuAD, .73 on SciFact, .34 on QMSum, -.03 on NQ passages and -.56\n"
    "on CoSQA, where people use other words than documents do. Judge some queries of your own before you choose."
)
"""Of the numbers of a known-item test; measured by `dsi benchmark-untuned` (docs/experiments/world.md)."""
_MOST = 300
"""Queries, one a document."""
_SEED = 1
"""Of their choice; training makes pseudo-queries with other seeds."""


@dataclasses.dataclass(frozen=True, repr=False)
class KnownItems(Collection):
    """Documents, and test queries that are made of some of them."""


def with_queries(retriever: GenerativeRetriever, collection: Collection | None, split: str = "test") -> Collection:
    """Return a collection that judges the answers of an index: the one given, or else a known-item test.

    Args:
        retriever: the index.
        collection: returned if it has judgements; if not, the test is made of its documents, and without one of the index's.
        split: that is measured; only "test" can be a known-item test.

    Raises:
        ValueError: there are no judgements and no texts, or fewer than 20 documents.
    """
    if collection is not None and (split != "test" or any(collection.qrels.values())):
        return collection
    # 1) texts
    documents = retriever.documents.dataset if collection is None else collection.documents
    if "text" not in documents.column_names:
        raise ValueError(
            "A known-item test is made of documents' texts, and this index keeps none; give its collection (in the shell "
            "--data DIR), or index again with text_megabytes above 0."
        )
    # 2) a query of each of some documents
    rng, asked, sought = random.Random(_SEED), dict[str, str](), Qrels()
    for number, row in enumerate(rng.sample(range(len(documents)), min(_MOST, len(documents)))):
        document, query_id = documents[row], f"known-{number}"
        if document["text"].strip():
            (asked[query_id],) = extractive_queries(document["title"], document["text"], 1, rng)
            sought[query_id] = {document["doc_id"]: 1.0}
    if len(asked) < FEWEST_QUERIES:
        raise ValueError(
            f"A known-item test needs {FEWEST_QUERIES} documents with a text, got {len(asked)}; give a collection with judged "
            "queries (in the shell --data DIR)."
        )
    rows = retriever.documents.rows if collection is None else collection.rows
    qrels: dict[str, Qrels] = {"train": {}, "dev": {}, "test": sought}
    return KnownItems("known items", [documents._fingerprint], documents, asked, qrels, frozenset(), rows)
