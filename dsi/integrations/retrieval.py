"""Shared by the retrievers of other libraries: opening an index, checking a search, its documents. Knows none of them."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from dsi.docids.files.checks import plain, shown
from dsi.search.hits import Document, Hit
from dsi.store.retriever import Retriever, load


def open_index(retriever: object) -> Retriever:
    """Return a retriever, or load it if a folder is given."""
    if isinstance(retriever, Retriever):
        return retriever
    if not isinstance(retriever, str | Path):
        raise TypeError(f"retriever must be a Retriever or the folder of an index, got {shown(retriever)}.")
    return load(retriever)


def check_search(retriever: Retriever, k: int, options: Any, name: str = "k", call: str = "DocidRetriever") -> None:
    """Check the options of a search, when a retriever is made and not at its first query; iterators of doc_ids become lists."""
    if plain(int, k, name) < 1:
        raise ValueError(f"{name} must be at least 1, got {k}.")
    lists_of_doc_ids(options)
    retriever.snapshot.request(call, k, options)


def lists_of_doc_ids(options: Any) -> None:
    """Make lists of the filters of a search that are iterators, as every search reads them."""
    for option in ("allow", "deny"):
        if isinstance(options.get(option), Iterator):
            options[option] = list(options[option])


def find(
    retriever: Retriever, queries: Sequence[str], k: int, options: Mapping[str, Any]
) -> Iterator[list[tuple[Hit, Document]]]:
    """Yield the hits of each query with their documents, all of one moment of the index."""
    index = copy(retriever)
    answers = index.search(list(queries), k, **options)
    documents = iter(index.get([hit.doc_id for hits in answers for hit in hits]))
    for hits in answers:
        yield [(hit, next(documents)) for hit in hits]


def content(document: Document) -> str:
    """Return the text of a document, or its title if the index keeps no texts."""
    return document.title if document.text is None else document.text


def passage(hit: Hit) -> dict[str, Any]:
    """Return the passage of a hit and its span as metadata; nothing for a text of one piece."""
    return {} if hit.passage_span is None else {"passage": hit.passage, "passage_span": list(hit.passage_span)}
