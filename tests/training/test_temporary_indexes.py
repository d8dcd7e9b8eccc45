"""Indexes without a folder of their own: they share the encoder, leave with the retriever, and do not mix."""

import gc
from pathlib import Path

import pytest

import dsi
from dsi.training.indexing import _temporary_folder

TEXTS = ["Neon glows in advertising signs.", "The Danube flows through Vienna."]


def folders():
    """The names of what temporary indexes have left on disk."""
    return {path.name for path in Path(_temporary_folder().name).iterdir() if not path.name.startswith(".")}


@pytest.fixture(autouse=True)
def _nothing_before():
    gc.collect()


def made(texts, folder, **settings):
    return dsi.index(texts, encoder=str(folder), device="cpu", **settings)


def test_they_share_the_encoder_and_leave_with_the_retriever(sentence_bert_folder):
    pytest.importorskip("dsi.graph")
    retrievers = [made([*TEXTS, f"Text {number}."], sentence_bert_folder) for number in range(4)]
    assert len({id(retriever.snapshot.encoder._session) for retriever in retrievers}) == 1
    assert len(folders() - {"encoder"}) == 4
    place = Path(_temporary_folder().name)
    links = {(place / name / "encoder" / "model.safetensors").stat().st_ino for name in folders() - {"encoder"}}
    assert len(links) == 1
    del retrievers
    gc.collect()
    assert folders() == {"encoder"}


def test_saving_one_asks_for_a_folder(sentence_bert_folder, tmp_path):
    retriever = made(TEXTS, sentence_bert_folder)
    with pytest.raises(
        ValueError, match=r"The index is in no folder of yours yet. Save it to one: retriever.save\(folder\)"
    ):
        retriever.save()
    retriever.add([{"id": "bees", "text": "Bees dance."}])
    assert retriever.save(tmp_path / "kept") == 2
    retriever.add([{"id": "new", "text": "Iron rusts."}])
    assert retriever.save() == 3


def test_each_answers_from_its_own_documents_and_can_be_kept(sentence_bert_folder, tmp_path):
    one, other = made(TEXTS, sentence_bert_folder), made(["Bees dance.", "Iron rusts."], sentence_bert_folder)
    kept = dsi.index(TEXTS, tmp_path / "kept", encoder=str(sentence_bert_folder), device="cpu")
    for query in ("neon", "bees"):
        expected = {hit.doc_id: hit.score for hit in kept.search(query)}
        assert {hit.doc_id: hit.score for hit in one.search(query)} == pytest.approx(expected)
    assert {hit.text for hit in other.search("dance")} == {"Bees dance.", "Iron rusts."}
    one.add([{"id": "new", "text": "Argon is lazy."}])
    one.save(tmp_path / "run")
    del one
    gc.collect()
    assert len(dsi.load(tmp_path / "run", device="cpu").snapshot.documents) == 3
    assert other.search("iron")[0].text


def test_another_encoder_or_other_prompts_are_not_mixed_up(sentence_bert_folder, tmp_path):
    plain = made(TEXTS, sentence_bert_folder)
    config = dsi.Config().with_changes({"encoder.query_prompt": "ask: ", "encoder.name": str(sentence_bert_folder)})
    prompted = dsi.index(TEXTS, config=config, device="cpu")
    assert (plain.snapshot.encoder.prompts["query"], prompted.snapshot.encoder.prompts["query"]) == ("", "ask: ")
    assert plain.snapshot.encoder.fingerprint != prompted.snapshot.encoder.fingerprint
    assert made(TEXTS, sentence_bert_folder).snapshot.encoder.fingerprint == plain.snapshot.encoder.fingerprint


def test_one_that_fails_leaves_nothing(sentence_bert_folder, monkeypatch):
    before = folders()
    monkeypatch.setattr("dsi.contrastive.text_encoder.TextEncoder.forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made(["Another text."], sentence_bert_folder)
    assert folders() == before
