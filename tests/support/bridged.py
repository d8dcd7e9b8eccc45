"""An index on disk and in memory for other libraries, as fixtures."""

import json

import datasets
import pytest

from dsi import SearchConfig
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, PROMPTS

LANGUAGES, YEARS, WEIGHTS = ["en", "de", "o'k", None], [1990, 2005, 2020, None, -3], [0.5, None, -1e-7]


@pytest.fixture(scope="module")
def retriever(sentence_t5_folder):
    """An index of 40 Minipedia documents with texts, metadata and BM25."""
    encoder = Encoder.load(EncoderConfig(name=str(sentence_t5_folder), **PROMPTS), device="cpu")
    rows = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40]]
    columns = {
        "doc_id": [row["_id"] for row in rows],
        "title": [row["title"] for row in rows],
        "text": [row["text"] for row in rows],
        "lang": [LANGUAGES[n % 4] for n in range(40)],
        "year": [YEARS[n % 5] for n in range(40)],
        "weight": [WEIGHTS[n % 3] for n in range(40)],
    }
    tree = build_tree(
        encoder.encode(encoder.document_texts(columns["title"], columns["text"]), "document"),
        DocidsConfig(branching=4, max_leaf_size=4),
    )
    documents, lexical = datasets.Dataset.from_dict(columns), BM25(columns["doc_id"], columns["text"])
    settings = SearchConfig(alpha=0.3, beam_width=4)
    return from_parts(encoder, tree, None, documents, settings, lexical)


@pytest.fixture(scope="module")
def folder(retriever, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "run"
    retriever.save(folder)
    return folder
