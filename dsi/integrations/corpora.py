"""Searches the corpora that evaluators such as MTEB and BEIR bring, with a given index or one of each. Knows none of them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from dsi.docids.data.identical import without_identical
from dsi.docids.files.checks import plain
from dsi.docids.types import Run
from dsi.eval.trec import run_without_ties
from dsi.integrations.retrieval import check_search, lists_of_doc_ids, open_index
from dsi.search.request import SearchOptions
from dsi.store.retriever import Retriever
from dsi.training.indexing import index as index_texts


class CorpusSearch:
    """Searches one corpus after another. Without a retriever each corpus is indexed by `dsi.index`."""

    def __init__(self, retriever: Retriever | str | Path | None = None, **options: Unpack[SearchOptions]) -> None:
        self.retriever = None if retriever is None else open_index(retriever)
        self.options = options
        lists_of_doc_ids(options)
        if self.retriever is not None:
            check_search(self.retriever, 10, options, call="DocidSearch")
        self._searched: Retriever | None = None
        self._allowed = options.get("allow")

    def take(self, doc_ids: Sequence[str], records: Iterable[Any]) -> None:
        """Search these documents from now on, and no others that a given index holds."""
        if self.retriever is None:
            self._searched = index_texts(records)
            return
        held = self.retriever.snapshot.documents.find(doc_ids)
        missing = [doc_id for doc_id in doc_ids if doc_id not in held]
        if missing:
            raise ValueError(
                f"The index lacks {len(missing)} of the corpus's {len(doc_ids)} documents, such as {missing[0]!r}; index this "
                "corpus, or leave the index out."
            )
        allow = self.options.get("allow")
        self._searched = self.retriever
        self._allowed = [doc_id for doc_id in (doc_ids if allow is None else allow) if doc_id in held]

    def run(self, queries: Mapping[str, str], k: int, only: Mapping[str, Sequence[str]] | None = None) -> Run:
        """Return the top k documents of each query, with scores that rank alike everywhere (`run_without_ties`).

        A query that is a document itself leaves it out (`dsi.docids.data.identical`). `only`: {query_id: the only
        documents that may be returned}.
        """
        if self._searched is None:
            raise ValueError("No corpus was given to search; hand it over before the queries, as the evaluators do.")
        options: SearchOptions = {**self.options, "allow": self._allowed}
        documents = self._searched.snapshot.documents
        identical = {query_id: frozenset({query_id}) for query_id in documents.identical_ids(queries)}
        most = plain(int, k, "k") + bool(identical)
        run = self._searched.run(queries, most, among=only, **options)
        return run_without_ties(without_identical(run, identical, k))
