"""How much of a text an encoder reads, by its tokenizer of any kind, and what words do where it reads little."""

import json
import random
import re
from copy import copy
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import dsi
from dsi.contrastive.blocks import warn_unread
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder, packaged_encoder
from dsi.contrastive.readable import share_read
from dsi.docids.words.analyzer import MARKS, UNSPACED
from dsi.search.scores import DocumentScores, read_weights
from tests.support.small import MINIPEDIA

ENGLISH = "Which noble gas glows reddish orange in advertising signs?"
STRANGE = {
    "arabic": "ما هو الغاز الذي يضيء باللون البرتقالي في اللافتات",
    "russian": "Какой газ светится оранжевым цветом в рекламных вывесках",
    "hindi": "विज्ञापन संकेतों में कौन सी गैस नारंगी चमकती है",
    "korean": "광고판에서 주황색으로 빛나는 기체는 무엇입니까",
    "chinese": "哪种惰性气体在广告牌中发出橙色的光",
    "thai": "ก๊าซชนิดใดเรืองแสงสีส้มในป้ายโฆษณา",
    "hebrew": "איזה גז זוהר בכתום בשלטי פרסומת",
}
GREEK = "Ποιο ευγενές αέριο λάμπει πορτοκαλί στις διαφημιστικές πινακίδες"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(EncoderConfig(), device="cpu")


def static_encoder() -> Encoder:
    tokenizer = Tokenizer.from_file(str(packaged_encoder() / "tokenizer.json"))
    table = StaticEmbedding(tokenizer, embedding_weights=np.ones((tokenizer.get_vocab_size(), 8), np.float32))
    return Encoder(SentenceTransformer(modules=[table], device="cpu"), EncoderConfig())


def trained(kind: str, texts: list[str]) -> Tokenizer:
    """A tokenizer of a kind, trained on some texts."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        more = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=2_000, show_progress=False, **more))
    elif kind == "pieces":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        more = {"unk_token": "<unk>", "special_tokens": ["<unk>"]}
        tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=2_000, show_progress=False, **more))
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        more = {"special_tokens": ["[UNK]"]}
        tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=2_000, show_progress=False, **more))
    return tokenizer


def read_by(tokenizer: Tokenizer, text: str) -> float:
    encoded, unknown = tokenizer.encode(text, add_special_tokens=False), map(tokenizer.token_to_id, ("<unk>", "[UNK]"))
    strange, tokens = {*unknown}, zip(encoded.ids, encoded.offsets, strict=True)
    pieces = [(*span, number not in strange) for number, span in tokens if span[0] < span[1]]
    return share_read(text, pieces)


@pytest.mark.parametrize("language", STRANGE)
def test_an_english_encoder_reads_english_and_no_other_script(encoder, language):
    english, strange, greek = encoder.shares_read([ENGLISH, STRANGE[language], GREEK])
    assert english > 0.95
    assert strange < 0.1
    assert greek < 0.3


def test_code_formulas_and_short_queries_are_read(encoder):
    texts = [
        "def max_seq_length(self, x): return x + 1", r"$\sum_{i=1}^n x_i^2 \le \frac{a}{b}$", "42 17", "", "   ", "😀", "x",
    ]  # fmt: skip
    assert encoder.shares_read(texts).min() > 0.7
    assert encoder.shares_read(["kubernetes ingress", "photosynthesis"]).min() > 0.4


def test_languages_whose_words_are_cut_into_pieces_are_half_read(encoder):
    texts = [
        "Welches Edelgas leuchtet in Leuchtreklamen orange?", "Qué gas noble brilla en los letreros publicitarios",
        "Khí hiếm nào phát sáng màu cam trong biển quảng cáo", "Reklam tabelalarında turuncu renkte parlayan soygaz hangisidir",
        "Ce gaz nobil strălucește portocaliu în panourile publicitare",
    ]  # fmt: skip
    shares = encoder.shares_read(texts)
    assert 0.1 < shares.min() < shares.max() < 0.9
    assert shares[3] == shares.min()


@pytest.mark.parametrize("text", ["a" * 10_000, "ا" * 10_000, "中" * 10_000, "\u202eabc", "e\u0301" * 50, "\u0301"])
def test_any_text_has_a_share(encoder, text):
    assert 0 <= encoder.shares_read([text])[0] <= 1


def test_mixed_texts_are_read_by_their_share(encoder):
    words, strange = ENGLISH.rstrip("?").split(), STRANGE["arabic"].split()[3:]
    shares = [encoder.shares_read([" ".join(words[count:] + strange[:count])])[0] for count in range(6)]
    assert shares == sorted(shares, reverse=True)
    assert max(np.diff(shares[::-1])) < 0.35
    assert 0 < encoder.shares_read(["JWT令牌"])[0] < encoder.shares_read(["JWT令牌 of a session"])[0] < 1


@pytest.mark.parametrize("kind", ["bytes", "pieces", "words"])
def test_every_kind_of_tokenizer_reads_what_it_learned(kind):
    english = [json.loads(line)["text"] for line in (MINIPEDIA / "corpus.jsonl").read_text("utf-8").splitlines()[:200]]
    tokenizer = trained(kind, english)
    assert read_by(tokenizer, ENGLISH) > 0.3  # of a small vocabulary
    assert max(read_by(tokenizer, text) for text in [*STRANGE.values(), GREEK]) < 0.2
    for language in ("arabic", "russian", "korean", "chinese"):
        own = trained(kind, [STRANGE[language]] * 50)
        if kind == "pieces":  # training keeps no word of one sentence
            words = [("\u2581" + word, -1.0) for word in STRANGE[language].split()]
            own.model = models.Unigram([("<unk>", 0.0), *words], 0)
        assert read_by(own, STRANGE[language]) > 0.9, language


def test_characters_of_chinese_are_read_one_by_one():
    known = "哪种惰性气体在广告牌中发出橙色的光"
    pieces = [(at, at + 1, True) for at in range(len(known))]
    assert share_read(known, pieces) == 1
    assert share_read(known, [(at, at + 1, at % 2 == 0) for at in range(len(known))]) < 0.2
    assert share_read("абв", [(at, at + 1, True) for at in range(3)]) == 0
    assert share_read("中", [(0, 1, True)] * 3) == 0  # bytes


def read_plainly(text: str, pieces: list[tuple[int, int, bool]]) -> float:
    """The definition, letter by letter."""
    word = rf"(?!{UNSPACED.pattern})(?:[^\W\d_]|[{MARKS}])"
    letters = read = whole = 0.0
    for found in re.finditer(rf"(?!{UNSPACED.pattern})[^\W\d_](?:{word})*|{UNSPACED.pattern}", text):
        places, own = (
            range(*found.span()),
            [piece for piece in pieces if piece[0] < found.end() and piece[1] > found.start()],
        )
        known = {at for start, end, is_known in own if is_known for at in range(start, end)}.intersection(places)
        size, part = (sum(2.5 if "\u3400" <= text[at] <= "\ud7af" else 1.0 for at in ats) for ats in (places, known))
        if size > 1:
            letters += size
            part = size * min(1.0, max(0.0, (part / max(1, len(own)) - 1.25) / 0.5))
            read += part
            whole += part * (len(own) == 1 or bool(UNSPACED.match(found.group())))
    return min(read / letters, 1.5 * (whole + 8) / (letters + 8)) if letters else 1.0


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_any_text_and_tokens_are_those_of_the_definition(seed):
    chance = random.Random(seed)
    for signs in (
        "abcdefg ABC'-_1",
        "абвгдё ",
        "東京都中文a ",
        "한국어글 b",
        "ประเทศไทย c",
        "हिन्दीँंः ",
        "عربيَُّ d",
        "aя中한ไहع\u0301\u0e4d 1_",
    ):
        for _ in range(10):
            text = "".join(chance.choices(signs, k=chance.randint(0, 25)))
            cuts = sorted(chance.choices(range(len(text) + 1), k=12))
            pieces = [(*span, chance.random() < 0.8) for span in pairwise(cuts) if span[0] < span[1]]
            assert share_read(text, pieces) == read_plainly(text, pieces), (text, pieces)


def test_a_table_of_vectors_reads_as_its_tokenizer_and_a_small_vocabulary_says_nothing(sentence_bert_folder):
    english, arabic = static_encoder().shares_read([ENGLISH, STRANGE["arabic"]])
    assert english > 0.95
    assert arabic < 0.1
    small = Encoder.load(EncoderConfig(name=str(sentence_bert_folder)), device="cpu")
    assert small.shares_read([ENGLISH, STRANGE["arabic"]]).tolist() == [1, 1]


TEXTS = [
    "الدانوب نهر طويل في أوروبا", "النيون غاز نبيل يتوهج", "النحل يصنع العسل من الرحيق", "البراكين تقذف الحمم",
    "The Danube is a long river", "Neon is a noble gas that glows", "Bees make honey", "Volcanoes erupt lava",
]  # fmt: skip


@pytest.fixture(scope="module")
def retriever() -> dsi.Retriever:
    return dsi.index(TEXTS, device="cpu")


@pytest.mark.parametrize("method", ["generate", "exact"])
def test_words_rank_a_query_that_the_encoder_cannot_read(retriever, method):
    by_words = retriever.snapshot.lexical.shares(["أين يتوهج غاز"])[0]
    hits = retriever.search("أين يتوهج غاز", k=8, method=method, lexical_weight=0.05)
    assert hits[0].text == TEXTS[1]
    assert by_words[1] == by_words.max() > 0
    assert retriever.search("a gas that shines", k=1, method=method)[0].text == TEXTS[5]
    assert retriever.search("العسل", k=1, method=method, lexical_weight=0.05)[0].text == TEXTS[2]


def test_without_words_the_vector_counts_whole(retriever):
    encoded = retriever.encode_queries(["أين يتوهج غاز"])
    plain = [batch._replace(shares_read=None) for batch in encoded.batches]
    own = retriever.snapshot.search(encoded, lexical_weight=0.0)
    assert np.array_equal(own.scores, retriever.snapshot.search(type(encoded)(["0"], plain), lexical_weight=0.0).scores)


def test_an_explanation_says_how_much_is_read(retriever):
    explained = str(retriever.explain("أين يتوهج غاز"))
    assert "The encoder reads about 0% of this query" in explained
    assert "reads" not in str(retriever.explain("a gas that glows"))
    assert "The encoder reads about 0% of this query" in str(retriever.search("أين يتوهج غاز", k=1).explain("0"))


def test_adding_says_what_cannot_be_read(retriever, caplog):
    copy(retriever).add([{"doc_id": "new", "text": STRANGE["korean"]}])
    assert "The encoder cannot read the words of 1 of 1 documents" in caplog.text


class Reader:
    """Reads a share of German and of English."""

    def __init__(self, german, english):
        self.german, self.english = german, english

    def shares_read(self, texts):
        return np.array([self.german if " der " in text else self.english for text in texts])


@pytest.mark.parametrize(
    ("german", "english", "reader", "told"),
    [
        (24, 41, Reader(0.37, 1.0), "37 % of the documents are in a language that the encoder hardly reads (german)"),
        (4, 6, Reader(0.37, 1.0), ""),  # few
        (24, 300, Reader(0.37, 1.0), ""),  # less than a tenth
        (24, 41, Reader(0.7, 1.0), ""),
        (0, 40, Reader(0.37, 0.4), ""),  # of names and codes, which look like English
        (40, 0, Reader(0.37, 1.0), "100 % of the documents"),
    ],
)
def test_a_notable_share_in_a_language_that_is_hardly_read_is_told(german, english, reader, told, caplog):
    texts = ["Von allen Flüssen war der längste die Wolga, die ins Kaspische Meer fließt."] * german
    texts += ["Of all rivers the longest is the Volga, which flows into the Caspian Sea."] * english
    random.Random(0).shuffle(texts)
    warn_unread(texts, reader)
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


def test_languages_are_told_by_their_names(caplog):
    texts = ["Von allen Flüssen war der längste die Wolga."] * 9 + [
        "汉字是一种文字。今天天气很好，我们去公园散步。"
    ] * 9
    warn_unread(texts, SimpleNamespace(shares_read=lambda own: np.full(len(own), 0.1)))
    assert "hardly reads (german, chinese)" in caplog.text


def test_a_selection_of_queries_keeps_their_shares(retriever):
    (batch,) = retriever.encode_queries(["أين يتوهج غاز", "a gas"]).batches
    row = batch.texts.index("a gas")
    assert batch.select(np.array([row])).shares_read.tolist() == [1]


def test_vectors_count_by_the_square_of_the_share_but_decide_between_equal_words():
    shares = np.array([0, 0.05, 0.5, 1], dtype=np.float32)
    np.testing.assert_allclose(read_weights(shares), [0.01, 0.01, 0.25, 1])


def test_an_exact_search_reads_no_document_that_tokens_of_little_weight_cannot_lift(retriever, monkeypatch):
    read = []
    score = DocumentScores.late_interaction
    monkeypatch.setattr("dsi.search.pools._FIRST", 1)
    monkeypatch.setattr(
        DocumentScores, "late_interaction", lambda self, row, own: (read.extend(own), score(self, row, own))[1]
    )
    assert retriever.search("النيون غاز نبيل", k=1, method="exact")[0].text == TEXTS[1]
    assert len(read) == 1
