"""The weight of words by an inverse cloze test: which weight is taken, from what, and what is said."""

import numpy as np
import pytest

import dsi
from dsi.config import LEXICAL_WEIGHT
from dsi.measuring.cloze import Cloze, choose_words, cloze_test
from tests.support.small import MINIPEDIA


def scores(pairs: int, documents: int, found: float, high: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random scores in which a share of the pairs has its document, the one of its number, at the top."""
    rng = np.random.default_rng(seed)
    table = rng.uniform(0, 0.5 * high, (pairs, documents)).astype(np.float32)
    right = np.flatnonzero(rng.random(pairs) < found)
    table[right, right] = high
    return table, np.arange(pairs)


@pytest.mark.parametrize(
    ("by_encoder", "by_words", "least", "most"),
    [(1.0, 0.0, 0.0, 1.6), (0.0, 1.0, 1.6, 1e9), (1.0, 1.0, 0.4, 1.4)],
)
def test_the_side_that_finds_more_gets_the_weight(by_encoder, by_words, least, most):
    dense, own = scores(100, 300, by_encoder, 0.6, seed=0)
    words, _ = scores(100, 300, by_words, 0.4, seed=1)
    cloze = choose_words(dense, words, own)
    assert least <= cloze.weight <= most
    assert cloze.pairs == 100
    assert cloze.knows_language == (by_encoder > 0)


def test_without_evidence_the_weight_follows_the_spread_of_the_encoder():
    words, own = scores(20, 300, 1.0, 0.9, seed=1)
    weights = [choose_words(spread * scores(20, 300, 0.0, 1.0, seed=0)[0], words, own).weight for spread in (1.0, 0.2)]
    assert weights[0] == pytest.approx(5 * weights[1])


def test_an_encoder_that_words_leave_behind_does_not_know_the_language():
    assert Cloze(1.0, 150, dense=0.2, words=0.9).knows_language is False
    assert Cloze(1.0, 150, dense=0.02, words=0.05).knows_language is True  # neither says anything


def test_late_interaction_is_left_out_where_the_encoder_does_not_know_the_language(
    sentence_bert_folder, monkeypatch, caplog
):
    monkeypatch.setattr("dsi.measuring.tuning._by_cloze", lambda *_: Cloze(2.0, 150, dense=0.1, words=0.9))
    texts = ["Neon glows.", "The Danube flows."]
    config = dsi.index(texts, encoder=str(sentence_bert_folder), device="cpu").search_config
    assert (config.lexical_weight, config.token_weight) == (2.0, 0.0)
    assert "does not know the language of these documents" in caplog.text
    assert "multilingual" in caplog.text


ARABIC = [
    "نيون",
    "الدانوب",
    "النحل",
    "البركان",
    "المنشور",
    "المتحف",
    "الأرز",
    "الحرير",
    "الشاي",
    "السور",
    "الخزف",
    "الخط",
]


def test_sentences_that_the_encoder_cannot_read_choose_nothing(caplog):
    texts = [f"{word} مشهور جدا. يدرس الناس تاريخ {word} منذ القدم. هناك قصص كثيرة عن {word}." for word in ARABIC]
    assert dsi.index(texts).search_config.lexical_weight == LEXICAL_WEIGHT
    assert "12 of 12 documents are in words that the encoder cannot read" in caplog.text
    caplog.clear()
    dsi.index([f"About {number}. A story of it." for number in range(12)])
    assert "cannot read" not in caplog.text


def test_documents_choose_the_weight_where_no_query_does_and_a_line_says_so(sentence_bert_folder, tmp_path, caplog):
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    collection, encoder = dsi.read_collection(tmp_path), str(sentence_bert_folder)
    with caplog.at_level("INFO"):
        retriever = dsi.index(collection, encoder=encoder, device="cpu")
    weight = retriever.search_config.lexical_weight
    assert "tuned: lexical_weight" in caplog.text
    assert weight != LEXICAL_WEIGHT
    assert cloze_test(retriever, collection).weight == weight == cloze_test(retriever, collection).weight
    config = dsi.Config().with_changes({"search": {"lexical_weight": 0.25}})
    own = dsi.index(collection, encoder=encoder, config=config, device="cpu")
    assert own.search_config.lexical_weight == 0.25


@pytest.mark.parametrize(
    "texts", [["One sentence"] * 12, ["12 34. 56 78."] * 4, ["The same. Twice here, as always."] * 40]
)
def test_documents_that_say_nothing_choose_nothing(texts):
    retriever = dsi.index([{"id": str(number), "text": text} for number, text in enumerate(texts)])
    assert retriever.search_config.lexical_weight == LEXICAL_WEIGHT


def test_the_evidence_of_sentences_counts_half_where_the_encoder_knows_the_language():
    dense, own = scores(200, 300, 1.0, 0.6, seed=0)
    words = np.zeros_like(dense)
    dense[own, own + 1], words[own, own + 1] = 0.55, 0.4  # words mislead unless they weigh less than .05 / .4
    likely = choose_words(dense[:20], words[:20], own[:20]).weight  # too few decide nothing
    assert choose_words(dense, words, own).weight == pytest.approx(likely / 8**0.5, rel=1e-3)


def test_documents_that_hold_all_words_of_a_sentence_do_not_lower_the_likely_weight():
    dense, own = scores(20, 300, 0.0, 1.0, seed=0)
    shares = [scores(20, 300, 1.0, high, seed=1)[0] for high in (0.5, 0.9, 0.25)]
    weights = [choose_words(dense, words, own).weight for words in shares]  # too few sentences decide nothing
    assert weights[0] == pytest.approx(weights[1])
    assert weights[2] == pytest.approx(2 * weights[0])
