"""BEIR: an index as the retriever of its evaluator. Knows nothing of how a search works, and does not need `beir`.

from beir.retrieval.evaluation import EvaluateRetrieval
from dsi.integrations.beir import DocidSearch

evaluator = EvaluateRetrieval(DocidSearch("runs/example"), k_values=[10, 100])
results = evaluator.retrieve(corpus, queries)
"""

from collections.abc import Mapping
from typing import Any

from dsi.docids.types import Run
from dsi.integrations.corpora import CorpusSearch


class DocidSearch(CorpusSearch):
    """Searches the corpora that BEIR's `EvaluateRetrieval` is given.

    Equal scores differ in the last digit, so that BEIR ranks as the search does. A query that is a document itself leaves
    that out: k others are returned. `encode_and_retrieve`, which keeps embeddings in files, is not for an index.

    Args:
        retriever: the index, or its folder, which has to hold the documents of a corpus. By default each corpus is indexed by
            `dsi.index`, without training.
        **options: see `SearchOptions`.
    """

    def search(
        self,
        corpus: Mapping[str, Mapping[str, Any]],
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **_: Any,
    ) -> Run:
        """Return {query_id: {doc_id: score}}. `corpus`: {doc_id: {"title": …, "text": …}}."""
        self.take(list(corpus), ({"doc_id": doc_id, **document} for doc_id, document in corpus.items()))
        return self.run(queries, top_k)
