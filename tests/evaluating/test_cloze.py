"""The weight of words where no query chooses it, and which documents ask questions."""

from types import SimpleNamespace

import numpy as np
import pytest

import dsi
from dsi.config import LEXICAL_WEIGHT
from dsi.contrastive.text_encoder import TextEncoder
from dsi.measuring.cloze import ask
from tests.support.small import MINIPEDIA

TEXTS = ["Neon glows.", "The Danube flows."]


@pytest.mark.parametrize(("spread", "weight"), [(0.5, 0.7), (0.25, 0.495), (0.11, 0.328), (0.02, 0.7)])
def test_words_weigh_less_beside_an_encoder_whose_scores_lie_close_together(
    monkeypatch, caplog, spread, weight, sentence_bert_folder
):
    monkeypatch.setattr(TextEncoder, "spread", spread)
    with caplog.at_level("INFO"):
        assert dsi.index(TEXTS, encoder=sentence_bert_folder).search_config.lexical_weight == weight
    assert (f"lexical_weight is {weight:g}" in caplog.text) is (weight != LEXICAL_WEIGHT)
    assert "tuned" not in caplog.text


def test_a_weight_of_words_that_is_set_stays(monkeypatch, sentence_bert_folder):
    monkeypatch.setattr(TextEncoder, "spread", 0.11)
    config = dsi.Config().with_changes({"search": {"lexical_weight": 0.25}})
    own = dsi.index(TEXTS, config=config, encoder=sentence_bert_folder)
    assert own.search_config.lexical_weight == 0.25


def test_the_spread_is_that_of_answers_above_other_documents(monkeypatch):
    encoder = dsi.index(TEXTS).snapshot.encoder
    assert 0.5 < encoder.spread < 0.7
    vectors = {"which": [1, 0], "capital": [0, 1], "The": [0.6, 0.8], "Neon": [0.8, 0.6]}

    def forward(_: TextEncoder, texts: list[str], kind: str) -> SimpleNamespace:
        return SimpleNamespace(embeddings=np.array([vectors[text.split()[0]] for text in texts]))

    monkeypatch.setattr(type(encoder), "forward", forward)
    del encoder.__dict__["spread"]
    assert encoder.spread == pytest.approx(0.2)


def test_a_collection_without_queries_has_the_usual_weight_and_a_line_says_so(
    tmp_path, caplog, monkeypatch, sentence_bert_folder
):
    monkeypatch.setattr(TextEncoder, "spread", 0.5)
    lines = (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with caplog.at_level("INFO"):
        retriever = dsi.index(dsi.read_collection(tmp_path), encoder=sentence_bert_folder)
    assert retriever.search_config.lexical_weight == LEXICAL_WEIGHT
    assert "There are no queries to tune on" in caplog.text


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


@pytest.mark.programs
def test_only_sentences_that_the_encoder_reads_are_asked(caplog):
    texts = [f"{word} مشهور جدا. يدرس الناس تاريخ {word} منذ القدم. هناك قصص كثيرة عن {word}." for word in ARABIC * 3]
    records = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    collection = dsi.Collection.from_records(records)
    assert ask(dsi.index(collection), collection.documents) is None
    assert "100 % of the documents are in a language that the encoder hardly reads (arabic)" in caplog.text
    caplog.clear()
    told = "tells of old Paris. Its story ends with rivers and hills."
    english = dsi.Collection.from_records([{"id": str(n), "text": f"Chapter {n} {told}"} for n in range(36)])
    questions = ask(dsi.index(english), english.documents)
    assert len(questions.dense) == 36
    assert "reads" not in caplog.text


@pytest.mark.parametrize(
    "texts", [["One sentence"] * 12, ["12 34. 56 78."] * 4, ["The same. Twice here, as always."] * 9]
)
def test_few_questions_say_nothing(texts, sentence_bert_folder):
    collection = dsi.Collection.from_records([{"id": str(number), "text": text} for number, text in enumerate(texts)])
    assert ask(dsi.index(collection, encoder=sentence_bert_folder), collection.documents) is None
