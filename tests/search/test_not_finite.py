"""Queries whose vectors are not finite are refused by their texts, wherever they enter; the others are answered and learned."""

import dataclasses

import numpy as np
import pytest

import dsi
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.query_memory import QueryMemory
from dsi.search.queries import EncodedQueries
from dsi.store.retriever import Retriever, load
from tests.support.small_index import DOCUMENTS, small_index

GOOD, BAD, OWN = "which planet has rings", "a broken query", DOCUMENTS[3]["doc_id"]
VALUES = [np.nan, np.inf, -np.inf, 1e38]
SAID = "The embedding of the query 'a broken query' is not finite, so no document can be compared with it."


@pytest.fixture(params=VALUES)
def value(request) -> float:
    return request.param


@pytest.fixture
def retriever(encoder) -> Retriever:
    index = small_index(encoder, vectors=True)
    index.search_config = dsi.SearchConfig(lexical_weight=0.1, memory_weight=2.0, candidates=3, beam_width=2)
    return index


@pytest.fixture
def broken(monkeypatch, value):
    """An encoder that gives vectors with some value to queries with the word "broken"."""
    forward = TextEncoder.forward

    def breaking(self, texts, kind):
        encoded = forward(self, texts, kind)
        which = np.array(["broken" in text for text in texts])
        broken = np.where(which[:, None], np.float32(value), encoded.embeddings)
        return encoded._replace(embeddings=broken)

    monkeypatch.setattr(TextEncoder, "forward", breaking)


def ids(hits) -> list[str]:
    return [hit.doc_id for hit in hits]


@pytest.mark.parametrize("method", ["generate", "exact"])
def test_of_several_queries_the_others_are_answered(retriever, broken, caplog, method):
    retriever.learn([(f"{GOOD} {number}", OWN) for number in range(60)])
    alone = retriever.search(GOOD, 5, method=method)
    found = retriever.search([BAD, GOOD, BAD], 5, method=method)
    assert [ids(hits) for hits in found] == [[], ids(alone), []]
    assert [hits.exact for hits in found] == [False, alone.exact, False]
    assert caplog.text.count(f"{SAID} Its answer is empty.") == 2
    run = retriever.run({"b": BAD, "g": GOOD}, 5, method=method)
    assert (list(run["b"]), list(run["g"])) == ([], ids(alone))
    among = {"b": ids(alone), "g": ids(alone)}
    caplog.clear()
    run = retriever.run({"b": BAD, "g": GOOD}, 5, among=among, method=method)
    assert (list(run["b"]), list(run["g"])) == ([], ids(alone))
    assert caplog.text.count(f"{SAID} Its answer is empty.") == 1


def test_one_query_is_refused_by_its_text(retriever, broken):
    for call in (retriever.search, retriever.explain, lambda query: retriever.snapshot.follow([query], [[OWN]])):
        with pytest.raises(ValueError, match=SAID):
            call(BAD)
    with pytest.raises(ValueError, match=SAID):
        retriever.search([GOOD, BAD])[1].explain(OWN)


def test_vectors_that_the_caller_brings_are_checked_too(retriever, value, caplog):
    encoded = retriever.encode_queries([GOOD, BAD])
    for name in ("embeddings", "states"):
        changed = [batch._replace(**{name: getattr(batch, name).copy()}) for batch in encoded.batches]
        for batch in changed:
            row = batch.texts.index(BAD)
            getattr(batch, name)[row].reshape(-1)[0] = value if name == "embeddings" else np.nan
        given = EncodedQueries(encoded.query_ids, changed)
        caplog.clear()
        found = retriever.search(given, 5)
        assert [ids(hits) for hits in found] == [ids(retriever.search(GOOD, 5)), []]
        assert caplog.text.count(f"{SAID} Its answer is empty.") == 1
        assert not found[1].exact
        assert retriever.snapshot.search(given, 5).counts.tolist() == [5, 0]
        assert retriever.run(given, 5)["1"] == {}
        with pytest.raises(ValueError, match=SAID):
            retriever.explain(given.each()[1])


def test_others_are_learned_and_the_index_is_loaded_by_every_machine(retriever, broken, tmp_path, caplog):
    assert retriever.learn([(BAD, OWN), (GOOD, OWN), (f"{BAD} again", OWN)]) == 1
    assert (
        "learn: queries whose embedding is not finite: 2 ('a broken query', 'a broken query again'); their pairs are left out."
        in caplog.text
    )
    with pytest.raises(ValueError, match="the embedding of 'a broken query' is not finite"):
        retriever.learn([(BAD, OWN)])
    retriever.save(tmp_path / "run")
    again = load(tmp_path / "run", device="cpu")
    assert [(pair.doc_id, pair.count) for pair in again.learned()] == [(OWN, 1)]
    assert again.snapshot.memory.is_sound(again.snapshot.tree.embeddings.shape[1], 50)


def test_dev_queries_that_are_not_finite_take_nothing_out_of_the_memory(retriever, value):
    memory = QueryMemory().learn(
        ["a", "b"], np.array([1, 2]), np.eye(2, retriever.snapshot.encoder.embedding_dim, dtype=np.float32)
    )
    index = Retriever(retriever.snapshot.with_memory(memory))
    encoded = index.encode_queries(["c"])
    (batch,) = encoded.batches
    broken = dataclasses.replace(encoded, batches=[batch._replace(embeddings=np.full_like(batch.embeddings, value))])
    cleaned, rows = broken.cleaned()
    assert rows == [0]
    assert len(memory.without(cleaned.texts, cleaned.embeddings)) == 2
