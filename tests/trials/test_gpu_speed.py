"""How fast a GPU embeds, indexes with token codes, trains and searches: ours beside sentence-transformers, logged as JSON.

`pytest -m "gpu and slow" tests/trials/test_gpu_speed.py --log-cli-level=INFO`; without a GPU it is rehearsed with
DSI_DEVICE=cpu DSI_TEXTS=300. DSI_TEXTS: how many texts are embedded; a fifth of them is indexed, with token codes.
"""

import json
import logging
import os
import statistics
import time

import pytest
import torch
from sentence_transformers import SentenceTransformer

import dsi
from dsi.config import Config
from dsi.contrastive.encoder import Encoder, packaged_encoder
from dsi.measuring.provenance import provenance
from dsi.training.stages import stage_seconds
from tests.support.small import MINIPEDIA

logger = logging.getLogger(__name__)
DEVICE, TEXTS = os.environ.get("DSI_DEVICE", "cuda"), int(os.environ.get("DSI_TEXTS", "100000"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROUNDS = 3


def seconds(call):
    """The seconds that a call takes, all of its kernels included, and what it returns."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


@pytest.fixture(scope="module")
def documents():
    """Texts of a hundred words or so: Minipedia's, with a number each, so that no two are alike."""
    own = dsi.read_collection(MINIPEDIA).documents
    titles, texts = own["title"], own["text"]
    return [
        {"doc_id": f"d{row}", "title": titles[row % len(own)], "text": f"{row}. {texts[row % len(own)]}"}
        for row in range(TEXTS)
    ]


@pytest.fixture(scope="module")
def log():
    found = {"texts": TEXTS, **provenance()}
    yield found.update
    logger.info(json.dumps(found))


def test_texts_a_second_beside_sentence_transformers(documents, log):
    encoder = Encoder.load(Config().encoder, device=DEVICE)
    plain = SentenceTransformer(str(packaged_encoder()), device=DEVICE)
    texts = encoder.document_texts(*zip(*((own["title"], own["text"]) for own in documents), strict=True))
    found = {"ours": [], "sentence-transformers, 256 a batch": [], "sentence-transformers, 32 a batch": []}
    some = texts[: max(1, len(texts) // 5)]
    encoder.encode(some[:64], "document"), plain.encode(some[:64])  # once, for what is made at first use
    whole, embeddings = seconds(lambda: encoder.encode(texts, "document"))
    assert embeddings.shape == (len(texts), encoder.embedding_dim)
    for _ in range(ROUNDS):
        found["ours"].append(len(some) / seconds(lambda: encoder.encode(some, "document"))[0])
        for batch in (256, 32):
            own, others = seconds(lambda batch=batch: plain.encode(some, batch_size=batch, show_progress_bar=False))
            found[f"sentence-transformers, {batch} a batch"].append(len(some) / own)
    assert (others * embeddings[: len(others)]).sum(axis=1) == pytest.approx(1, abs=1e-3)
    log(
        {
            "embedding, s": round(whole, 2),
            "texts/s": {name: round(statistics.median(own)) for name, own in found.items()},
        }
    )


def test_an_index_with_token_codes(documents, log, tmp_path):
    some = documents[: max(100, len(documents) // 5)]
    own, retriever = seconds(lambda: dsi.index(some, tmp_path / "index", device=DEVICE))
    queries = [document["text"].split(". ", 2)[1] for document in some[:64]]
    retriever.search(queries[:2])
    one = statistics.median(seconds(lambda query=query: retriever.search(query))[0] for query in queries[:32])
    many = seconds(lambda: retriever.search(queries))[0] / len(queries)
    assert retriever.search(queries[0])[0].doc_id
    log({"index of": len(some), "index, s": round(own, 1), "search, ms": [round(1000 * one, 2), round(1000 * many, 2)]})


def test_a_step_of_both_trainings(log, tmp_path):
    changes = {"contrastive": {"epochs": 1.0}, "training": {"epochs": 2.0}, "bf16": True}
    collection = dsi.read_collection(MINIPEDIA)
    own, _ = seconds(
        lambda: dsi.train(
            collection, tmp_path / "run", config=Config.named("digits").with_changes(changes), device=DEVICE
        )
    )
    record = json.loads((tmp_path / "run" / "generator" / "training.json").read_text())
    step = round(1000 * record["seconds"] / record["steps"], 1)
    log({"training, s": round(own, 1), **stage_seconds(tmp_path / "run"), "ms a step of the decoder": step})
