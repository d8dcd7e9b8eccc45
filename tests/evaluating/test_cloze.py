"""The weight of words by an inverse cloze test: which weight is taken, from what, and what is said."""

import json
import re

import numpy as np
import pytest

import dsi
from dsi.config import LEXICAL_WEIGHT
from dsi.measuring.cloze import Cloze, choose, cloze_test
from tests.support.small import MINIPEDIA


def scores(pairs: int, documents: int, found: float, high: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random scores in which a share of the pairs has its document, the one of its number, at the top."""
    rng = np.random.default_rng(seed)
    table = rng.uniform(0, 0.5 * high, (pairs, documents)).astype(np.float32)
    right = np.flatnonzero(rng.random(pairs) < found)
    table[right, right] = high
    return table, np.arange(pairs)


@pytest.mark.parametrize("by_words", [0.0, 1.0])
def test_where_the_encoder_knows_the_language_the_weight_follows_how_it_spreads_its_scores(by_words):
    words, own = scores(100, 300, by_words, 0.9, seed=1)
    dense, _ = scores(100, 300, 1.0, 0.6, seed=0)
    spread = np.median(0.6 - np.median(dense, axis=1))
    for scale in (1.0, 0.2):
        cloze = choose(scale * dense, words, own)
        assert cloze.weight == pytest.approx(1.4 * scale * spread)
        assert cloze.pairs == 100
        assert cloze.knows_language


def test_where_it_does_not_the_weight_is_one_that_finds_every_sentence():
    words, own = scores(100, 300, 1.0, 0.9, seed=1)
    dense, _ = scores(100, 300, 0.0, 0.6, seed=0)
    cloze = choose(dense, words, own)
    assert not cloze.knows_language
    assert ((dense + cloze.weight * words).argmax(axis=1) == own).all()
    assert choose(dense[:20], words[:20], own[:20]).weight < 1.4 * 0.6 < cloze.weight  # too few decide nothing


def test_an_encoder_that_words_leave_behind_does_not_know_the_language():
    assert Cloze(1.0, 150, dense=0.2, words=0.9).knows_language is False
    assert Cloze(1.0, 150, dense=0.02, words=0.05).knows_language is True  # neither says anything


def test_late_interaction_is_left_out_where_the_encoder_does_not_know_the_language(monkeypatch, caplog):
    monkeypatch.setattr("dsi.measuring.tuning.cloze_test", lambda *_: Cloze(2.0, 150, dense=0.1, words=0.9))
    config = dsi.index(["Neon glows.", "The Danube flows."]).search_config
    assert (config.lexical_weight, config.token_weight) == (2.0, 0.0)
    assert "does not know the language of these documents" in caplog.text
    assert "multilingual" in caplog.text


def test_documents_choose_the_weight_where_no_query_does_and_a_line_says_so(tmp_path, caplog):
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    collection = dsi.read_collection(tmp_path)
    with caplog.at_level("INFO"):
        retriever = dsi.index(collection)
    weight = retriever.search_config.lexical_weight
    assert "sentences of the documents: lexical_weight" in caplog.text
    assert weight != LEXICAL_WEIGHT
    assert cloze_test(retriever, collection).weight == weight == cloze_test(retriever, collection).weight
    own = dsi.index(collection, config=dsi.Config().with_changes({"search": {"lexical_weight": 0.25}}))
    assert own.search_config.lexical_weight == 0.25


@pytest.mark.parametrize(
    "texts", [["One sentence"] * 12, ["12 34. 56 78."] * 4, ["The same. Twice here, as always."] * 40]
)
def test_documents_that_say_nothing_choose_nothing(texts):
    retriever = dsi.index([{"id": str(number), "text": text} for number, text in enumerate(texts)])
    assert retriever.search_config.lexical_weight == LEXICAL_WEIGHT


def test_queries_without_judgements_choose_alpha_and_the_beam(caplog):
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    documents = [json.loads(line) for line in lines]
    with caplog.at_level("INFO"):
        retriever = dsi.index(documents, queries=[document["title"] for document in documents[:25]])
    assert re.search("tuned on 25 unjudged queries and [0-9]+ sentences of the documents", caplog.text)
    assert retriever.search_config.beam_width < 40  # among 60 documents
    with caplog.at_level("INFO"):
        assert dsi.index(documents, queries=["one", ""]).search_config.beam_width == 40
