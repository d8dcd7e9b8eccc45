"""Whether documents are found by queries that were written for them: round trips of pseudo-queries. Knows nothing of walks.

Filtering by relevance rather than by rank alone follows doc2query-- (Gospodinov et al. 2023).
"""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dsi.config import LEXICAL_WEIGHT, Config
from dsi.contrastive.encoder import Encoder
from dsi.docids.data.collection import Collection
from dsi.docids.files.temporary import temporary_folder
from dsi.docids.places import document_scores
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.sentences import shortened
from dsi.eval.tables import markdown_table
from dsi.generator.pseudo_queries import generate_queries, read_queries_file, reading_text
from dsi.store.retriever import GenerativeRetriever

MARGIN = 0.02
"""How much higher than the first document that is too low a query's own must score; in cosines."""
_EXAMPLES = 4
"""Train queries that a causal model sees before it writes."""
_WIDTH = 60
"""Characters of a document's name in a table."""
_BLOCK = 64
"""Queries whose scores of all documents are in memory at a time."""


def query_ranks(
    encoder: Encoder,
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


def sample_queries(
    retriever: GenerativeRetriever, config: Config, count: int, collection: Collection | None = None
) -> str:
    """Return pseudo-queries of some documents with the ranks of these, as Markdown.

    Args:
        retriever: the index.
        config: how pseudo-queries are made.
        count: of the documents.
        collection: has the texts, if the index keeps none, and train queries, of which a causal model gets examples.

    Raises:
        ValueError: no pseudo-queries are made, or there are no texts.
    """
    # 1) some documents
    own, index = config.pseudo_queries, retriever.snapshot
    if own.method == "none":
        raise ValueError(
            "The configuration makes no pseudo-queries (pseudo_queries.method is none); give --set pseudo_queries.method=NAME: "
            "extractive, or a seq2seq or causal model."
        )
    if not index.documents.has_texts and collection is not None:
        index.keep_texts(collection.documents)
    if not index.documents.has_texts:
        raise ValueError(
            "Pseudo-queries are made of texts, and this index keeps none; give its collection (--data DIR)."
        )
    documents = index.documents.dataset
    rows = random.Random(config.seed).sample(range(len(documents)), min(count, len(documents)))
    # 2) their queries
    examples = train_examples(collection, config.seed) if collection else []
    with temporary_folder() as folder:
        path = Path(folder) / "queries.jsonl"
        generate_queries(
            documents.select(rows), own, path, examples=examples, seed=config.seed, device=str(index.device)
        )
        made = dict(read_queries_file(path))
    asked = [(row, query) for row in rows for query in made[documents[row]["doc_id"]]]
    # 3) their ranks
    numbers, texts = [row for row, _ in asked], [query for _, query in asked]
    found = query_ranks(index.encoder, index.tree, index.lexical, LEXICAL_WEIGHT, numbers, texts)
    ranks, margins = (values.tolist() for values in found)
    cells = [
        [query, str(rank), f"{margin:+.3f}", shortened(index.documents.label(row), _WIDTH)]
        for (row, query), rank, margin in zip(asked, ranks, margins, strict=True)
    ]
    first = sum(rank == 1 for rank in ranks)
    head = f"{len(asked)} pseudo-queries of {len(rows)} documents, {first} of which find their document first"
    return f"{head}\n\n{markdown_table(['query', 'rank', 'margin', 'document'], cells)}"


def train_examples(collection: Collection, seed: int) -> list[tuple[str, str]]:
    """Return some documents with a train query each, for the prompts of causal models."""
    pairs, documents = collection.pairs("train"), collection.documents
    chosen = random.Random(seed).sample(pairs, min(_EXAMPLES, len(pairs)))
    found = [(documents[row], collection.queries[query_id]) for query_id, row in chosen]
    return [(reading_text(document["title"], document["text"]), query) for document, query in found]
