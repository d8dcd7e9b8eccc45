"""Documents of an index as a query for others like them: their stored vectors, and the words that tell most of them.

Of a document in pieces the vector is that of its most central piece, which is nearest to the mean of all. Encodes nothing.
"""

from collections.abc import Sequence

import numpy as np

from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Rows
from dsi.search.engine import restricted
from dsi.search.hits import Hits
from dsi.search.queries import EncodedQueries, given_vectors
from dsi.search.request import SearchOptions, without_parts
from dsi.store.snapshot import Snapshot

_WORDS = 25
"""Words that stand for documents, as in Lucene's MoreLikeThis."""


def similar(index: Snapshot, doc_ids: Sequence[str], k: int, options: SearchOptions) -> Hits:
    """Return the documents that are like some, without these; see `Retriever.similar`."""
    rows = np.unique(np.array(index.documents.rows_of(doc_ids, "doc_ids"), dtype=np.int64))
    if not len(rows):
        raise ValueError("similar() takes one doc_id or more, got none. Name a document.")
    words = telling_words(index, rows)
    parts = ["alpha"] if index.engine.has_generator else ["token_weight", *(() if words else ("lexical_weight",))]
    options = without_parts(options, *parts)
    if index.engine.has_generator:
        options["beta"] = float("inf")  # the decoder has nothing to read at any level
    request = index.request("similar", k, options)
    others = np.ones(len(index.documents), dtype=bool)
    others[rows] = False
    vector = np.mean([central_vector(index.tree, row) for row in rows.tolist()], axis=0)
    encoded = given_vectors(vector[None], index.encoder)
    batches = [batch._replace(texts=[words], has_texts=bool(words)) for batch in encoded.batches]
    (hits,) = index.hits(EncodedQueries(encoded.query_ids, batches), restricted(request, index.tree, others))
    return hits


def telling_words(index: Snapshot, rows: Rows) -> str:
    """Return the words that tell most of documents; none if the index has no BM25 or no texts."""
    if index.lexical is None or not index.documents.has_texts:
        return ""
    columns = (index.documents.values_of(name, rows[None])[0] for name in ("title", "text"))
    text = "\n".join(f"{title}\n{text}" for title, text in zip(*columns, strict=True))
    return " ".join(index.lexical.telling_words(text, rows, _WORDS))


def central_vector(tree: DocidTree, row: int) -> Floats:
    """[dim] the vector of a document, by its row; of several pieces that which is nearest to their mean."""
    vectors = np.asarray(tree.embeddings[tree.places_of(np.array([row]))[0]])
    return np.asarray(vectors[np.argmax(vectors @ vectors.mean(axis=0))])
