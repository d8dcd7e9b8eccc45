"""LangChain: an index as a retriever of chains and agents. Knows nothing of how a search works.

from dsi.integrations.langchain import DocidRetriever

retriever = DocidRetriever("runs/example", k=3)
retriever.invoke("which capitals are on the danube")
"""

from functools import partial
from pathlib import Path
from typing import Any

from dsi.docids.extensions import extra
from dsi.integrations.retrieval import check_search, content, find, open_index, passage
from dsi.search.hits import Document as IndexDocument
from dsi.search.hits import Hit
from dsi.store.retriever import Retriever

with extra("langchain"):
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables.config import run_in_executor

_OURS = {name: f"metadata.{name}" for name in ("rank", "score", "passage", "passage_span")}
"""{metadata of a document that has the name of a hit's: what it is called}, as in `Hits.to_df`."""


class DocidRetriever(BaseRetriever):
    """Searches an index: from a query to documents of LangChain, best first.

    `page_content` is the text of a document, or its title if the index keeps no texts. `metadata` holds the metadata of the
    collection, and doc_id, title, rank (from 1) and score; columns rank and score of the collection are `metadata.rank` and
    `metadata.score`. `invoke`, `ainvoke`, `batch` and `abatch` take `k` and search options for one call, as in `invoke(query,
    k=5, where="year > 2000")`.

    Args:
        retriever: the index, or its folder.
        k: documents per query.
        **options: see `SearchOptions`; also name, tags and metadata, as any retriever of LangChain has.
    """

    retriever: Retriever
    k: int = 10
    options: dict[str, Any]

    def __init__(self, retriever: Retriever | str | Path, k: int = 10, **options: Any) -> None:
        fields = {name: options.pop(name) for name in type(self).model_fields if name in options}
        fields["options"] = {**fields.get("options", {}), **options}
        fields["retriever"], fields["k"] = open_index(retriever), k
        check_search(fields["retriever"], k, fields["options"])
        super().__init__(**fields)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        """Return the documents of a query; the options of a call go before those of the retriever."""
        (answer,) = find(self.retriever, [query], self.k if k is None else k, {**self.options, **options})
        return [_document(hit, document) for hit, document in answer]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        call = partial(self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **options)
        return await run_in_executor(None, call)


def _document(hit: Hit, document: IndexDocument) -> Document:
    """Return a hit and its document as a document of LangChain."""
    metadata = {
        **{_OURS.get(name, name): value for name, value in document.metadata.items()},
        "doc_id": document.doc_id,
        "title": document.title,
        "rank": hit.rank,
        "score": hit.score,
        **passage(hit),
    }
    return Document(id=document.doc_id, page_content=content(document), metadata=metadata)
