"""A known-item test: queries made of the documents themselves, each with one document to find, where nobody has judged any.

A sentence is taken out of a document, and the index without that sentence is searched for it. That shows which of two systems
is ahead on such queries; people ask others. Knows nothing of how systems are compared.
"""

import dataclasses

from dsi.docids.data.collection import Collection
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.bm25 import BM25
from dsi.eval.protocol import FEWEST_QUERIES
from dsi.measuring.cloze import find_holes
from dsi.store.retriever import GenerativeRetriever

MEANING = (
    "Nobody has judged these queries: each is a sentence that was taken out of a document, which has to be found without it.\n"
    "The numbers show what cannot be found; they do not order systems. Over systems within ten points of the best, Kendall's\n"
    "tau between such a test and judgements was .32 on SciFact, -.54 on CoSQA and -.42 on SQuAD. Judge some queries of your\n"
    "own before you choose by a difference."
)
"""Of the numbers of a known-item test; measured by `dsi benchmark-untuned` (docs/experiments/world.md)."""
_SEED = 1
"""Of the sentences; those of seed 0 choose the weight of words."""


@dataclasses.dataclass(frozen=True, repr=False)
class KnownItems(Collection):
    """Documents that a sentence was taken out of, among the others; the sentences are the test queries."""


def with_queries(
    retriever: GenerativeRetriever, collection: Collection | None, split: str = "test"
) -> tuple[GenerativeRetriever, Collection]:
    """Return an index and a collection that judges its answers: those given, or else a known-item test.

    The test's index lacks some sentences of its documents; the index given stays as it is.

    Args:
        retriever: the index.
        collection: returned if it has judgements; if not, it may have the texts that the index has not kept.
        split: that is measured; only "test" can be a known-item test.

    Raises:
        ValueError: there are no judgements and no texts, or fewer than 20 documents of two sentences.
    """
    if collection is not None and (split != "test" or any(collection.qrels.values())):
        return retriever, collection
    # 1) an index with texts
    if type(retriever) is not GenerativeRetriever:  # one on a cluster writes what it adds
        raise ValueError(
            "A known-item test changes a copy of the index in memory, and one on a cluster has no copy; load the index with "
            "GenerativeRetriever.from_pretrained, or give a collection with judged queries."
        )
    index = retriever.snapshot
    if not index.documents.has_texts and collection is not None:
        index.keep_texts(collection.documents)
    if not index.documents.has_texts:
        raise ValueError(
            "A known-item test takes sentences out of the documents, and this index keeps no texts; give its collection (in "
            "the shell --data DIR), or index again with text_megabytes above 0."
        )
    # 2) the sentences
    analyzer = index.lexical.analyzer if isinstance(index.lexical, BM25) else Analyzer("none")
    holes = list(find_holes(index.encoder, index.documents.dataset, analyzer, _SEED))
    if len(holes) < FEWEST_QUERIES:
        raise ValueError(
            f"A known-item test needs {FEWEST_QUERIES} documents of two sentences or more, got {len(holes)}; give a collection "
            "with judged queries (in the shell --data DIR)."
        )
    # 3) the documents without them
    records = index.documents.records([hole.row for hole in holes])
    index.add([{**record, "text": hole.text} for record, hole in zip(records, holes, strict=True)], replace=True)
    asked = {f"known-{number}": hole.sentence for number, hole in enumerate(holes)}
    sought = {query_id: {record["doc_id"]: 1.0} for query_id, record in zip(asked, records, strict=True)}
    made = KnownItems.from_records(index.documents.dataset, queries=asked, qrels={"test": sought})
    return index, dataclasses.replace(made, name="known items")
