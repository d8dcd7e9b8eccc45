"""What callers bring themselves: vectors of documents and queries, and a loaded encoder."""

import json
import logging

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import dsi
from dsi.commands.main import main
from dsi.config import read_config
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.reading import folder_sums
from tests.support.files import needs_readers
from tests.support.small import MINIPEDIA

DOCUMENTS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").open(encoding="utf-8")][:60]
TEXTS = [f"{document['title']} {document['text']}" for document in DOCUMENTS]
QUERIES = ["which plants catch insects", "noble gases", "rivers of europe"]


@pytest.fixture(scope="module")
def model(sentence_bert_folder):
    return SentenceTransformer(str(sentence_bert_folder), device="cpu")


@pytest.fixture(scope="module")
def vectors(model):
    """Not those that the library would make: the encoder's, turned round."""
    return -model.encode(TEXTS)


def test_embeddings_of_documents_are_searched_as_they_are_and_none_is_encoded(model, vectors, monkeypatch, tmp_path):
    def refused(self, texts, kind, *args, **kwargs):
        assert kind == "query", "a document was encoded"
        return original(self, texts, kind, *args, **kwargs)

    original = Encoder.encode
    monkeypatch.setattr(TextEncoder, "encode", refused)
    retriever = dsi.index(DOCUMENTS, tmp_path / "index", embeddings=vectors, encoder=model, device="cpu")
    monkeypatch.undo()
    tree = retriever.snapshot.tree
    np.testing.assert_array_equal(tree.embeddings[tree.by_row], vectors)
    assert tree.tokens is None
    queries = model.encode(QUERIES)
    expected = queries @ vectors.T
    for loaded in (retriever, dsi.load(tmp_path / "index", device="cpu")):
        answers = loaded.search(embeddings=queries, k=60, method="exact")
        for row, (ids, scores) in enumerate(zip(answers.ids, answers.scores, strict=True)):
            by_id = dict(zip(ids, scores, strict=True))
            assert [by_id[d["_id"]] for d in DOCUMENTS] == pytest.approx(expected[row].tolist(), abs=1e-5)
        texts = loaded.search(QUERIES, k=5, lexical_weight=0)
        assert [list(ids) for ids in texts.ids] == [list(ids) for ids in answers.ids[:, :5]]


def test_who_reads_the_queries_is_told_beside_vectors_without_an_encoder(vectors, model, tiny_default, capsys):
    told = "all-MiniLM-L6-v2 reads the queries; if another model made the embeddings, give it (--encoder, encoder=…)."
    dsi.index(DOCUMENTS, embeddings=vectors, encoder=model, device="cpu")
    assert told not in capsys.readouterr().err
    dsi.index(DOCUMENTS, embeddings=vectors, device="cpu")
    assert told in capsys.readouterr().err
    dsi.index(DOCUMENTS, embeddings=vectors, config=dsi.Config(), device="cpu")  # as the command does
    assert told in capsys.readouterr().err


def test_vectors_of_queries_leave_out_what_reads_their_texts_and_say_so(model, vectors, caplog):
    retriever = dsi.index(DOCUMENTS, embeddings=vectors, encoder=model, device="cpu")
    queries = model.encode(QUERIES)
    with caplog.at_level(logging.INFO, logger="dsi"):
        answers = retriever.search(embeddings=queries, k=3)
    assert "Queries are vectors alone: words" in caplog.text
    assert answers.ids.shape == answers.scores.shape == (3, 3)
    plain = retriever.search(QUERIES, k=3, lexical_weight=0)
    assert answers.ids.tolist() == plain.ids.tolist()
    (hit, *_), explained = answers[0], answers[0].explain(answers[0][0].doc_id)
    assert explained.rank == hit.rank == 1
    assert answers[0].matches() == [[], [], []]
    retriever.learn([(QUERIES[0], DOCUMENTS[7]["_id"])])
    assert retriever.search(embeddings=queries[:1], k=1).ids[0, 0] == DOCUMENTS[7]["_id"]
    assert retriever.search(embeddings=queries[:0], k=3) == []
    with pytest.raises(ValueError, match="lexical_weight weighs a part that reads the text of a query"):
        retriever.search(embeddings=queries, lexical_weight=0.5)
    with pytest.raises(ValueError, match=r"embeddings must be numbers \[queries, 32\].* got float32 \[3, 31\]"):
        retriever.search(embeddings=queries[:, 1:])
    with pytest.raises(ValueError, match="embeddings must be finite; row 1"):
        retriever.search(embeddings=np.where(np.arange(3)[:, None] == 1, np.nan, queries))
    for arguments in ({}, {"queries": "a", "embeddings": queries}):
        with pytest.raises(TypeError, match="takes queries, or embeddings= in place of them"):
            retriever.search(**arguments)


@needs_readers
def test_embeddings_that_do_not_fit_are_refused(model, vectors, sentence_bert_folder, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"embeddings must be numbers \[60, 32\], .* got float32 \[60, 31\]"):
        dsi.index(DOCUMENTS, embeddings=vectors[:, 1:], encoder=model, device="cpu")
    with pytest.raises(ValueError, match=r"embeddings must be numbers \[60, 32\], .* got float32 \[59, 32\]"):
        dsi.index(DOCUMENTS, embeddings=vectors[1:], encoder=model, device="cpu")
    np.save(tmp_path / "vectors.npy", vectors)
    own = ["--embeddings", str(tmp_path / "vectors.npy"), "--encoder", str(sentence_bert_folder), "--device", "cpu"]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)), encoding="utf-8")
    assert main(["index", str(corpus), str(tmp_path / "shell"), *own, "--pieces", "2"]) == 2
    assert "embeddings are one vector a document, got pieces 2" in capsys.readouterr().err
    assert main(["index", str(corpus), str(tmp_path / "shell"), *own]) == 0
    tree = dsi.load(tmp_path / "shell", device="cpu").snapshot.tree
    np.testing.assert_array_equal(tree.embeddings[tree.by_row], vectors)
    with pytest.raises(ValueError, match="embeddings are one vector a document, got pieces 3"):
        dsi.index(DOCUMENTS, embeddings=vectors, encoder=model, pieces=3, device="cpu")


def test_a_loaded_encoder_is_taken_as_its_folder_is(model, sentence_bert_folder, tmp_path):
    own = dsi.index(DOCUMENTS, tmp_path / "own", encoder=model, device="cpu")
    named = dsi.index(DOCUMENTS, encoder=str(sentence_bert_folder), device="cpu")
    assert len(own) == len(named) == 60
    mine, theirs = own.search(QUERIES, k=5), named.search(QUERIES, k=5)
    assert mine.ids.tolist() == theirs.ids.tolist()
    np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-5)
    (one,) = own.search(QUERIES[0], k=1).ids
    assert one == mine.ids[0, 0]
    again = dsi.index(DOCUMENTS, tmp_path / "own", encoder=model, device="cpu")  # nothing is made again
    assert again.snapshot.generation == own.snapshot.generation
    with pytest.raises(TypeError, match="encoder must be a sentence-transformers model, or its name"):
        dsi.index(DOCUMENTS, encoder=3, device="cpu")


def test_a_call_that_is_refused_writes_no_encoder(model, sentence_t5_folder, tmp_path):
    dsi.index(DOCUMENTS, tmp_path / "run", encoder=model, device="cpu")
    before = folder_sums(tmp_path / "run")
    with pytest.raises(ValueError, match="lacks 40 of the 60 documents"):
        dsi.index(DOCUMENTS[:20], tmp_path / "run", encoder=SentenceTransformer(str(sentence_t5_folder)), device="cpu")
    assert folder_sums(tmp_path / "run") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.learn([(QUERIES[0], DOCUMENTS[0]["_id"])]),
        lambda index: index.remove([DOCUMENTS[0]["_id"]]),
        lambda index: index.update(texts=[{"doc_id": record["_id"], "text": "Other words."} for record in DOCUMENTS]),
    ],
    ids=["learned", "removed", "texts"],
)
def test_a_copy_of_an_index_that_was_changed_is_not_trained_over(change, model, tmp_path):
    index = dsi.index(DOCUMENTS, tmp_path / "run", encoder=model, device="cpu")
    assert index.save(tmp_path / "as made") == 1
    change(index)
    assert index.save(tmp_path / "changed") == 2
    with pytest.raises(ValueError, match="was updated since it was made"):
        dsi.index(DOCUMENTS, tmp_path / "changed", encoder=model, device="cpu")


def test_an_index_that_is_made_again_keeps_its_settings(sentence_bert_folder, tiny_default, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("The Danube flows through Vienna.")
    named = ["index", str(tmp_path / "files"), str(tmp_path / "index"), "--device", "cpu"]
    assert main([*named, "--encoder", str(sentence_bert_folder), "--language", "none"]) == 0
    (tmp_path / "files" / "b.txt").write_text("Neon glows.")
    assert main(named) == 0
    config = read_config(tmp_path / "index" / "config.toml")
    assert (config.encoder.name, config.lexical.language) == (str(sentence_bert_folder), "none")
    dsi.index(tmp_path / "files", tmp_path / "index", language="english", device="cpu")
    assert read_config(tmp_path / "index" / "config.toml").encoder.name == str(sentence_bert_folder)


def test_a_temporary_index_takes_no_configuration_of_the_current_folder(tiny_default, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text("what another program reads")
    assert len(dsi.index(["The Danube flows through Vienna.", "Neon glows."], device="cpu")) == 2
