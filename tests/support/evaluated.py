"""A collection with judgements and its index, as fixtures."""

import pytest

import dsi
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from tests.support.parts import from_parts

_made: list[tuple] = []


@pytest.fixture
def collection(beir):
    return dsi.read_collection(beir())


@pytest.fixture
def retriever(collection, encoder):
    """An index of its own for each test, of a tree and words that are made once."""
    documents = collection.documents
    if not _made:
        texts = encoder.document_texts(documents["title"][:], documents["text"][:])
        tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
        _made.append((tree, BM25(documents["doc_id"], collection.full_texts())))
    tree, words = _made[0]
    config = dsi.SearchConfig(alpha=0.5, lexical_weight=0.1, beam_width=3)
    return from_parts(encoder, tree, None, documents.remove_columns(["text"]), config, lexical=words)
