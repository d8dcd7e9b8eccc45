"""Small real things for the tests: encoders saved from a config, trees, generators, collections."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from dsi.config import GeneratorConfig
from dsi.docids.clustering import DocidsConfig, assemble, build_tree
from dsi.docids.schemes import Docids
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import VectorKind, Vectors, VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.search.engine import Engine
from dsi.search.queries import QueryBatch
from dsi.search.vector_search import VectorEngine

ROOT = Path(__file__).parents[2]
MINIPEDIA = ROOT / "docids" / "data" / "minipedia"
WIDTH = 32
HAS_GENERATORS = find_spec("dsi.generator") is not None
"""False where that room was torn off."""
PROMPTS: dict[str, Any] = {"query_prompt": "Query: ", "document_prompt": "Document: ", "document_length": 32}
"""The paper's, with which the tiny encoders of tests tell queries from documents."""


def save_sentence_encoder(folder: Path, model: PreTrainedModel, tokenizer_folder: Path) -> Path:
    """A sentence-transformers model with mean pooling and normalisation, in a folder of `folder`."""
    base, whole = folder / "base", folder / "whole"
    model.save_pretrained(str(base))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(base))
    modules = [Transformer(str(base)), Pooling(WIDTH, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules).save_pretrained(str(whole), create_model_card=False)
    return whole


def save_cross_encoder(folder: Path, tokenizer_folder: Path, *, labels: int = 1, layers: int = 1) -> Path:
    """A tiny cross-encoder on disk."""
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=2000, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_labels=labels, initializer_range=1.0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(str(folder))
    PreTrainedTokenizerFast.from_pretrained(str(tokenizer_folder)).save_pretrained(str(folder))
    return folder


def write_collection(folder: Path, corpus: str | None = None, queries: str | None = None, **qrels: str) -> Path:
    """Write a BEIR folder; by default 40 Minipedia documents with their queries."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    keys = {json.loads(line)["_id"] for line in lines}
    (folder / "corpus.jsonl").write_text("\n".join(lines) if corpus is None else corpus, encoding="utf-8")
    if queries is None:
        all_queries = (MINIPEDIA / "queries.jsonl").read_text(encoding="utf-8").splitlines()
        queries = "\n".join(line for line in all_queries if json.loads(line)["_id"].rsplit(".", 1)[0] in keys)
    (folder / "queries.jsonl").write_text(queries, encoding="utf-8")
    if not qrels:
        for split in ("train", "dev", "test"):
            rows = (MINIPEDIA / "qrels" / f"{split}.tsv").read_text().splitlines()
            qrels[split] = "\n".join(rows[:1] + [row for row in rows[1:] if row.split("\t")[1] in keys])
    for split, content in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text(content)
    return folder


def thin_out(folder: Path, **steps: int) -> Path:
    """Keep every nth judgement of some splits of a collection, so that measuring on them takes less time."""
    for split, step in steps.items():
        path = folder / "qrels" / f"{split}.tsv"
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *rows[::step]]))
    return folder


def random_tree(documents: int, *, branching: int = 4, seed: int = 0, leaf: int = 4) -> DocidTree:
    points = np.random.default_rng(seed).normal(size=(documents, WIDTH)).astype(np.float32)
    return build_tree(points, DocidsConfig(branching=branching, max_leaf_size=leaf), seed=seed)


def with_codes(tree: DocidTree, kind: VectorKind = "float32") -> DocidTree:
    """A tree with vectors of a kind, which is searched by codes, as large ones are."""
    return replace(tree.stored_as(VectorsConfig(kind)), codes=Vectors.search_codes(tree.embeddings))


def complete_tree() -> DocidTree:
    """64 documents in three levels of four."""
    points = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)
    return assemble(Docids.from_paths(list(itertools.product(range(4), repeat=3))), points)


def random_generator(tree: DocidTree, *, layers: int = 2, seed: int = 0, objective: str = "ce") -> Any:
    """A generator with fresh weights; where there are none, the test is skipped."""
    config = GeneratorConfig(docid_tokens="digits", num_layers=layers)
    model = pytest.importorskip("dsi.generator.model")
    generator = model.DocidGenerator.create(config, tree, WIDTH, objective, seed).eval()
    with torch.no_grad():  # fresh position biases are nearly zero; make every part of the decoder matter
        generator.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_()
        generator.head.weight.mul_(6)
    return generator


def random_queries(batch: int, *, seed: int = 0, longest: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token states [batch, longest, WIDTH], mask, embeddings [batch, WIDTH]."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (batch, 1), generator=rng)
    states = torch.randn(batch, longest, WIDTH, generator=rng)
    return states, torch.arange(longest) < lengths, torch.randn(batch, WIDTH, generator=rng)


def random_batch(batch: int, *, seed: int = 0, longest: int = 9) -> QueryBatch:
    """`random_queries` as a search takes them."""
    return as_batch(*random_queries(batch, seed=seed, longest=longest))


def as_batch(states: Any, mask: Any, embeddings: Any, texts: Sequence[str] = ()) -> QueryBatch:
    """Queries as a search takes them."""
    count = len(states)
    return QueryBatch(
        np.arange(count), np.asarray(states), np.asarray(mask), np.asarray(embeddings), list(texts) or [""] * count
    )


def beam_search_for(tree: DocidTree, generator: Any, lexical: BM25 | None = None) -> Any:
    return pytest.importorskip("dsi.generator.beam").PathEngine(tree, generator.for_search(), lexical)


def engine_for(tree: DocidTree, generator: Any, lexical: BM25 | None = None) -> Engine:
    """What searches with a generator, or by vectors if there is none."""
    return VectorEngine(tree, lexical) if generator is None else beam_search_for(tree, generator, lexical)
