"""Whether documents are found by queries that were written for them: round trips of pseudo-queries. Knows nothing of walks.

Filtering by relevance rather than by rank alone follows doc2query-- (Gospodinov et al. 2023).
"""

import random
from collections.abc import Sequence

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.collection import Collection
from dsi.docids.tree import DocidTree, document_scores
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.generator.pseudo_queries import reading_text

MARGIN = 0.02
"""How much higher than the first document that is too low a query's own must score; in cosines."""
_EXAMPLES = 4
"""Train queries that a causal model sees before it writes."""
_BLOCK = 64
"""Queries whose scores of all documents are in memory at a time."""


def query_ranks(
    encoder: TextEncoder,
    tree: DocidTree,
    lexical: BM25 | None,
    weight: float,
    rows: Sequence[int] | Ints,
    texts: Sequence[str],
    first: int = 1,
) -> tuple[Ints, Floats]:
    """Return where each query's document ranks among all by z.e + weight * words, late interaction left out.

    Args:
        encoder: of the queries.
        tree: the docids.
        lexical: the words of the documents, if they count.
        weight: of the words.
        rows: [n] the document of each query.
        texts: [n] the queries.
        first: a rank.

    Returns:
        [n] ranks from 1, and [n] margins: the document's score, less that of the other document at rank `first`; inf where
        there are fewer.
    """
    ranks, margins = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block, asked = slice(start, start + _BLOCK), list(texts[start : start + _BLOCK])
        scores = document_scores(encoder.encode(encoder.query_texts(asked), "query"), tree)  # [block, documents]
        if lexical is not None and weight:
            scores = scores + np.float32(weight) * lexical.shares(asked)
        queries, found = np.arange(len(asked)), np.asarray(rows[block])
        own = scores[queries, found]
        ranks[block] = 1 + (scores > own[:, None]).sum(axis=1)
        scores[queries, found] = -np.inf
        others = np.partition(-scores, first - 1, axis=1)[:, first - 1] if first < scores.shape[1] else np.inf
        margins[block] = own + others
    return ranks, margins


def train_examples(collection: Collection, seed: int) -> list[tuple[str, str]]:
    """Return some documents with a train query each, for the prompts of causal models."""
    pairs, documents = collection.pairs("train"), collection.documents
    chosen = random.Random(seed).sample(pairs, min(_EXAMPLES, len(pairs)))
    found = [(documents[row], collection.queries[query_id]) for query_id, row in chosen]
    return [(reading_text(document["title"], document["text"]), query) for document, query in found]
