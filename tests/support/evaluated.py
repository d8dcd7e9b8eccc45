"""A collection with judgements and its index, as fixtures."""

import pytest

import dsi
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from tests.support.parts import from_parts


@pytest.fixture
def collection(beir):
    return dsi.read_collection(beir())


@pytest.fixture
def retriever(collection, encoder):
    documents = collection.documents
    texts = encoder.document_texts(documents["title"][:], documents["text"][:])
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    words = BM25(documents["doc_id"], collection.full_texts())
    config = dsi.SearchConfig(alpha=0.5, lexical_weight=0.1, beam_width=3)
    without_texts = documents.remove_columns(["text"])
    return from_parts(encoder, tree, None, without_texts, config, lexical=words)
