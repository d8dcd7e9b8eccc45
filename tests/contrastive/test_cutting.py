"""Long texts are cut into pieces that the encoder reads to their ends: nothing is lost between them, whatever the language."""

import dataclasses
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.cutting import piece_spans
from dsi.contrastive.encoder import Encoder

SCRIPTS = {
    "english": "The river is long. Four capitals stand on its banks! Is it deep? It is, in the old town and beyond. ",
    "chinese": "这条河很长。四个首都在它的岸边！它深吗？是的，在老城和更远的地方。",
    "thai": "แม่น้ำสายนี้ยาวมาก เมืองหลวงสี่แห่งตั้งอยู่ริมฝั่ง น้ำลึกมาก ",
    "hindi": "यह नदी लंबी है। इसके किनारे चार राजधानियाँ हैं। यह गहरी है। ",
    "arabic": "النهر طويل. تقع أربع عواصم على ضفافه؟ إنه عميق. ",
    "words": "river town water deep ",
    "endless": "abcdefghij",
    "marks": "!?... --- \u200b\u200e \n\n\t ",
}


@pytest.fixture(scope="module", params=["bert", "t5"])
def reader(request, sentence_bert_folder, sentence_t5_folder):
    folder = sentence_bert_folder if request.param == "bert" else sentence_t5_folder
    encoder = Encoder.load(EncoderConfig(name=str(folder), document_prompt="passage: ", piece_length=24), device="cpu")
    encoder.model.max_seq_length = encoder.max_length = 48
    return encoder


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("title", ["", "A Title", "a title without an end " * 20])
def test_pieces_cover_a_text_and_are_read_to_their_ends(script, title, reader):
    text = SCRIPTS[script] * 40
    (cut,) = reader.cut([title], [text], 100)
    assert cut.spans[0][0] == 0
    for (start, end), (following, last) in pairwise(cut.spans):
        assert start < following <= end < last  # the next begins within it, and ends behind it
    if cut.is_whole:
        assert cut.spans[-1][1] == len(text)
    assert title.startswith(title[: cut.title_end])
    assert (cut.title_end < len(title)) == (len(title) > 100)
    for piece in reader.piece_texts([title], [text], 100)[0]:
        tokens = reader.model.tokenizer("passage: " + piece)["input_ids"]
        assert len(tokens) <= 48
        assert len(tokens) <= 24 + 12 + 8 or len(cut.spans) == 1


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), max_size=80), length=st.integers(1, 30), pieces=st.integers(1, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_no_piece_is_longer_than_allowed_and_none_is_lost(lengths, length, pieces, seed):
    rng, text, offsets = random.Random(seed), "", []
    for size in lengths:
        offsets.append((len(text), len(text) + size))
        text += "x" * (size - 1) + rng.choice("x.") + rng.choice(["", " ", "\n"])
    spans = piece_spans(text, offsets, length, pieces)
    assert 1 <= len(spans) <= pieces
    assert spans[0][0] == 0
    for start, end in spans:
        assert sum(start <= first and last <= end for first, last in offsets) <= length
    for (start, end), (following, last) in pairwise(spans):
        assert start < following <= end < last
    if len(spans) < pieces:
        assert spans[-1][1] == len(text)


def test_a_piece_begins_with_a_word_whose_first_token_begins_with_the_space_before_it():
    text = " ".join(["rivers", "towns", "harbours"] * 40)
    offsets = [found.span() for found in re.finditer(r" ?\w{1,3}", text)]  # as those of SentencePiece are
    spans = piece_spans(text, offsets, 24, 100)
    assert len(spans) > 5
    assert all(text[start - 1] == " " for start, _ in spans[1:])
    assert all(text[end - 1] == " " for _, end in spans[:-1])


def test_a_piece_ends_with_a_sentence_and_the_next_begins_with_one(reader):
    text = SCRIPTS["english"] * 10
    (cut,) = reader.cut([""], [text], 100)
    ends = [text[:end].rstrip()[-1] for _, end in cut.spans]
    assert set(ends) <= set(".!?")
    chinese = SCRIPTS["chinese"] * 10
    (cut,) = reader.cut([""], [chinese], 100)
    assert len(cut.spans) > 1 or len(reader.model.tokenizer(chinese)["input_ids"]) <= 48  # unknown words are one token


def test_a_text_that_is_read_whole_is_one_piece_as_before(reader):
    title, text = "A Title", "the river is long and deep"
    assert reader.cut([title, "", ""], [text, text, ""], 100) == reader.cut([title, "", ""], [text, text, ""], 1)
    assert reader.piece_texts([title], [text], 100) == [[f"{title} {text}"]]


def test_pieces_grow_where_there_would_be_too_many(reader):
    text = SCRIPTS["words"] * 40
    (many,), (few,) = (reader.cut([""], [text], count) for count in (100, 5))
    assert len(many.spans) > 5 == len(few.spans)
    assert many.is_whole
    assert few.is_whole == (few.spans[-1][1] == len(text))
    assert max(end - start for start, end in few.spans) > max(end - start for start, end in many.spans)


def test_an_encoder_with_a_higher_limit_reads_longer_texts_whole(reader):
    own = dataclasses.replace(reader.config, document_length=500)
    text = SCRIPTS["words"] * 20
    reader.model.max_seq_length = 512
    try:
        longer = Encoder(reader.model, own)
        assert len(longer.cut([""], [text], 100)[0].spans) == 1
        assert len(longer.cut([""], [text * 9], 100)[0].spans) > 9
    finally:
        reader.model.max_seq_length = 48
