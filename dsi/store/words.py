"""Searches for documents that have the words which a query asks for, in title or text. Knows nothing of scores."""

from typing import Any

from dsi.docids.files.checks import shown
from dsi.docids.tree import DocidTree
from dsi.search.engine import permitted, restricted
from dsi.search.hits import Answers, Hits
from dsi.search.queries import EncodedQueries, encode_texts, ids_and_texts
from dsi.search.request import SearchOptions, SearchRequest, request_of_each
from dsi.search.syntax import Asked, pattern_of, read_query
from dsi.store.documents.table import DocumentTable
from dsi.store.snapshot import Snapshot


def search_words(index: Snapshot, queries: Any, k: int, options: SearchOptions) -> Hits | Answers:
    """Return the answers of a search with `syntax`: each query has a filter of its own."""
    if queries is None or isinstance(queries, EncodedQueries):
        raise TypeError("syntax reads texts. Search for texts, or leave it out.")
    query_ids, texts = ids_and_texts([queries] if isinstance(queries, str) else queries)
    asked = [read_query(text) for text in texts]
    encoded = encode_texts(index.encoder, query_ids, [query.text for query in asked])
    if isinstance(queries, str):
        encoded.check_usable()
    tree, found = index.tree, Answers()
    requests = request_of_each(index.request("search", k, options), encoded.count, tree.num_rows)
    for words, one, request in zip(asked, encoded.each(), requests, strict=True):
        narrowed, note = having_words(request, tree, index.documents, words)
        found += index.hits(one, narrowed)
        found[-1].note = note
    return found[0] if isinstance(queries, str) else found


def having_words(
    request: SearchRequest, tree: DocidTree, documents: DocumentTable, asked: Asked
) -> tuple[SearchRequest, str]:
    """Return the request for the documents that have the words a query asks for, and why there are none, else ""."""
    if not asked.needed and not asked.excluded:
        return request, ""
    if not documents.has_texts:
        raise ValueError(
            "Quotes and minuses need texts, which this index does not keep. Run dsi update INDEX --texts COLLECTION."
        )
    may = permitted(request.allowed, tree)
    nobody = "No document" if request.allowed is None else "No document that the filter lets through"
    have = {words: may & documents.matches(pattern_of(words)) for words in asked.needed}
    for having in have.values():
        may &= having
    for words in asked.excluded:
        may &= ~documents.matches(pattern_of(words))
    lacking = next((shown(words) for words, having in have.items() if not having.any()), "all that the query asks for")
    note = "" if may.any() else f"{nobody} has {lacking}."
    if not asked.text.strip():
        note = "The query only says what must not be there. Add what to look for."
    return restricted(request, tree, may), note
