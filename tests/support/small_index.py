"""A small index with a random generator, and documents to add to it."""

import json

import datasets

from dsi import Retriever, SearchConfig
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, random_generator

DOCUMENTS = [
    {"doc_id": record["_id"], "title": record["title"], "text": record["text"]}
    for record in map(json.loads, (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:80])
]


QUERIES = ["noble gas", "electric current", "which metal is light", "cloud chamber"]
_made: dict[str, tuple] = {}


def small_index(encoder, *, vectors: bool = False) -> Retriever:
    """An index of the first 50 of `DOCUMENTS`, with a random generator; documents, tree and words are made once an encoder."""
    if encoder.fingerprint not in _made:
        old = DOCUMENTS[:50]
        documents = datasets.Dataset.from_dict({name: [d[name] for d in old] for name in ("doc_id", "title")})
        texts = encoder.document_texts([d["title"] for d in old], [d["text"] for d in old])
        tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=4, max_leaf_size=4))
        bm25 = BM25(documents["doc_id"], [f"{d['title']} {d['text']}" for d in old], k1=1.2, b=0.5)
        _made[encoder.fingerprint] = documents, tree, bm25
    documents, tree, bm25 = _made[encoder.fingerprint]
    config = SearchConfig(alpha=0.3, beam_width=12, lexical_weight=0.05 if vectors else 0.0)
    return from_parts(encoder, tree, None if vectors else random_generator(tree), documents, config, bm25)
