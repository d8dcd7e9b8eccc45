"""The terms of texts in every script, of identifiers and names; the language of a collection."""

import pickle
import random
import string
import tracemalloc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsi.docids.data.collection import MadeTexts
from dsi.docids.words import analyzer as module
from dsi.docids.words.analyzer import ENGLISH, NO_STEMS, Analyzer
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.languages import find_language
from dsi.docids.words.occurrences import occurrences

THAI = "ประเทศ"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The rivers are flowing", ["river", "flow"]),
        ("don't; Planck's constant", ["don", "planck", "constant"]),
        ("C, R and 7", ["c", "r", "7"]),
        ("C++ and C# on .NET", ["c++", "c#", ".net", "net"]),
        ("max_seq_length", ["max_seq_length", "max", "seq", "length"]),
        ("HTTPServerFactory", ["httpserverfactori", "http", "server", "factori"]),
        ("Node.js 3.5 v2.1.0", ["node.js", "nodej", "node", "js", "3.5", "v2.1.0"]),
        ("in the U.S.A. or the USA", ["usa", "usa"]),
        ("B12 Covid19", ["b12", "12", "covid19", "covid", "19"]),
        ("end. Next", ["end", "next"]),
        ("café Straße ＡＢＣ ﬁsh", ["cafe", "strass", "abc", "fish"]),
        ("in\u00advis\u200bible", ["invis"]),
        ("東京都 へ", ["東京", "京都", "へ"]),
        ("서울은 Windows를", ["서울", "울은", "window", "를"]),
        (THAI, ["ปร", "ระ", "ะเ", "เท", "ทศ", "ประ", "ระเ", "ะเท", "เทศ"]),
        ("น้ำ", [unicodedata.normalize("NFKC", "น้ำ")]),
        ("हिन्दी", ["हिंदी"]),
        ("____ -- …", []),
        ("", []),
    ],
)
def test_terms_of_every_kind_of_word(text, found):
    assert Analyzer(ENGLISH).terms(text) == found


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("french", "café", "cafe"),
        ("german", "Straße", "STRASSE"),
        ("spanish", "canción", "CANCION"),
        ("russian", "ёлка", "елка"),
        ("greek", "Αθήνα", "ΑΘΗΝΑ"),
        (NO_STEMS, "e\u0301te\u0301", "été"),
        (ENGLISH, "naïve", "naive"),
    ],
)
def test_letter_forms_are_one_term(language, one, other):
    analyzer = Analyzer(language)
    assert analyzer.terms(one) == analyzer.terms(other)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("hindi", "हिन्दी भाषा की किताब"),
        ("tamil", "தமிழ் நூல்"),
        ("french", "l'e\u0301cole a\u0300 Paris"),
        (NO_STEMS, "東京 Ünï"),
    ],
)
def test_a_document_is_found_by_each_of_its_words(language, text):
    bm25 = BM25(["a", "b"], [text, "other"], language=language)
    for word in text.split():
        assert bm25.scores([unicodedata.normalize("NFC", word)])[0, 0] > 0


def test_identifiers_and_languages_are_found_whole_and_in_parts():
    texts = [
        "set max_seq_length to 512",
        "class HTTPServerFactory",
        "written in C++",
        "a C compiler",
        "naïve Bayes in R",
        "3.5",
    ]
    words = BM25([str(number) for number in range(len(texts))], texts, language=ENGLISH)
    best = {
        query: next(iter(words.run({"q": query}, 1)["q"]), "")
        for query in ("seq", "http server", "C++", "C", "R", "3.5")
    }
    assert best == {"seq": "0", "http server": "1", "C++": "2", "C": "3", "R": "4", "3.5": "5"}


def test_what_an_analyzer_remembers_stays_behind_when_it_is_pickled():
    analyzer = Analyzer(ENGLISH)
    assert analyzer.terms("one two two") == ["one", "two", "two"]
    assert set(analyzer) == {"one", "two"}
    assert not pickle.loads(pickle.dumps(analyzer))


LETTERS = {
    "latin": string.ascii_lowercase,
    "han": "".join(map(chr, range(0x4E00, 0x9000))),
    "thai": "".join(map(chr, range(0x0E01, 0x0E2F))),
    "any case": string.ascii_letters + "._",
    "devanagari": "".join(map(chr, range(0x0905, 0x0939))),
}


@pytest.mark.parametrize("length", [3, pytest.param(12, marks=pytest.mark.slow), 2000])
@pytest.mark.parametrize("letters", LETTERS)
def test_what_an_analyzer_remembers_is_bounded_in_bytes_whatever_queries_hold(monkeypatch, letters, length):
    most, chosen = 1 << 17, random.Random(0)
    monkeypatch.setattr(module, "_MOST_BYTES", most)
    analyzer = Analyzer(ENGLISH)
    analyzer.terms("river")
    tracemalloc.start()
    fewest = (
        60 if LETTERS[letters].isascii() else 15
    )  # other letters are words in pairs, of which each text has as many
    for _ in range(max(fewest, 15_000 // length)):
        analyzer.terms("".join(chosen.choices(LETTERS[letters], k=length)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held <= most + 100_000  # freed tuples stay with Python
    assert analyzer.terms("rivers") == ["river"]


def test_the_words_of_a_collection_are_remembered():
    analyzer, words = Analyzer(ENGLISH), [f"word{number}" for number in range(20_000)]
    analyzer.terms(" ".join(words))
    assert set(words) <= set(analyzer)


def test_threads_share_an_analyzer():
    analyzer, texts = Analyzer(ENGLISH), [f"rivers{number} flowing{number} running" for number in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(analyzer.terms, texts)) == [Analyzer(ENGLISH).terms(text) for text in texts]


ENGLISH_TEXT = "The river flows through four capitals on its way to the sea, and many towns lie on its banks."
GERMAN_TEXT = "Der Fluss fließt auf seinem Weg zum Meer durch vier Hauptstädte, und viele Orte liegen an seinen Ufern."


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        ([ENGLISH_TEXT] * 5, ENGLISH),
        ([GERMAN_TEXT] * 5, "german"),
        ([ENGLISH_TEXT] * 4 + [GERMAN_TEXT], ENGLISH),
        ([ENGLISH_TEXT, GERMAN_TEXT], NO_STEMS),
        (["这是一个关于河流的文章，它流过四个首都。"] * 3, NO_STEMS),
        ([GERMAN_TEXT] + ["这是一个关于河流的文章，它流过四个首都。"] * 3, "german"),
        ([GERMAN_TEXT] + ["강은 바다로 가는 길에 네 개의 수도를 지나 흐른다."] * 3, "german"),
        (["", "12 34", "…"], NO_STEMS),
        ([], NO_STEMS),
    ],
)
def test_the_language_of_most_texts_gives_the_stems(texts, language):
    assert find_language(texts) == language


def test_the_language_is_that_of_texts_from_everywhere_in_a_collection_that_is_read_in_slices():
    texts = [ENGLISH_TEXT] * 250 + [GERMAN_TEXT] * 1_500
    slices = []
    lazy = MadeTexts(texts, lambda some: slices.append(len(some)) or list(some))
    assert find_language(lazy) == find_language(texts) == "german"
    assert slices == [1] * 200


def test_an_index_keeps_the_language_that_was_found(tmp_path):
    texts = [GERMAN_TEXT, "Die Hauptstadt liegt am Meer."]
    words = BM25(["a", "b"], texts)
    words.save(tmp_path)
    assert BM25.load(tmp_path, ["a", "b"]).language == words.language == "german"
    assert words.update([], ["a", "b", "c"], [ENGLISH_TEXT]).language == "german"


@pytest.mark.parametrize(
    ("languages", "forms"),
    [
        ("english", "Avilés Aviles AVILÉS"),
        ("english german", "Müller Mueller"),
        ("english german", "Müller Muller"),
        ("german", "Größe Groesse GRÖSSE"),
        ("english polish none", "Łódź lodz"),
        ("english danish none", "Øresund oresund"),
        ("english none", "Đà da"),
        ("english none", "nodejs Node.js NODEJS"),
        ("english none", "10,000 10000 ١٠٠٠٠ ١٠٬٠٠٠ 10.000 10'000 10’000"),
        ("english none", "1,00,000 100000 100.000"),
        ("english none", "e-mail E-Mail email E-MAIL e‑mail e‐mail"),
        ("english none", "wi-fi WiFi wifi"),
        ("english none", "R&D rd"),
        ("turkish english none", "ışık Işık isik IŞIK"),
        ("turkish", "kızlar KIZLAR Kızlar"),
        ("turkish english none", "İstanbul istanbul ISTANBUL"),
        ("arabic persian english none", "على علي"),
        ("arabic persian english none", "مدرسة مدرسه"),
        ("arabic persian english none", "أحمد احمد أَحْمَد إحمد آحمد ٱحمد"),
        ("arabic english none", "مؤسسة موسسة"),
        ("arabic english none", "قرآن قران قُرْآن"),
        ("persian arabic english none", "کتاب كتاب كتـــاب كِتَابٌ"),
        ("persian english none", "خانهٔ خانۀ خانه"),
        ("hindi english none", "۲۰۲۴ ٢٠٢٤ २०२४ ๒๐๒๔ 2024 ２０２４"),
        ("hindi english none", "हिन्दी हिंदी"),
        ("hindi english none", "ज़मीन जमीन"),
        ("hindi english none", "फ़िल्म फिल्म"),
        ("none", "שָׁלוֹם שלום"),
        ("greek none", "Οδυσσέας ΟΔΥΣΣΕΑΣ οδυσσεας"),
        ("russian none", "Королёв королев"),
        ("none", "п'ять п’ять пʼять"),
        ("catalan none", "col·lecció collecció"),
        ("none", "ｶﾞｽ ガス"),
        ("none", "서울은 서울 서울에서"),
        ("none", "æther aether"),
        ("none", "þing thing"),
    ],
)
def test_forms_of_a_word_have_a_term_in_common_each_with_each(languages, forms):
    for analyzer in map(Analyzer, languages.split()):
        found = {form: set(analyzer.terms(form)) for form in forms.split()}
        assert all(own & other for own in found.values() for other in found.values()), found


def test_thousands_stand_behind_signs_and_spaces_but_not_in_years_and_lists():
    analyzer = Analyzer(ENGLISH)
    assert analyzer.terms("10 000 people") == ["10000", "10", "000", "peopl"]
    assert analyzer.terms("1 000 000")[0] == "1000000"
    assert analyzer.terms("in 2024 300 people") == ["2024", "300", "peopl"]
    assert analyzer.terms("10,000.50") == ["10000", "50"]
    assert analyzer.terms("0.125 v1.200") == ["0.125", "125", "v1.200", "200"]


@pytest.mark.parametrize("text", ["जमीन", "שָׁלוֹם", "தமிழ்"])
def test_marks_do_not_cut_a_word_into_parts(text):
    assert len(Analyzer(NO_STEMS).terms(text)) == 1


SINGLE = ["東京都の歴史", "京都大学", "책을 읽다", "ประเทศไทย", "佐々木さん", "a book"]


@pytest.mark.parametrize(
    ("letter", "found"),
    [("京", [0, 1]), ("책", [2]), ("ไ", [3]), ("々", [4]), ("JWT京", [0, 1]), ("史", [0]), ("水", [])],
)
def test_one_letter_of_a_script_without_spaces_finds_the_words_that_hold_it(letter, found):
    words = BM25([*map(str, range(len(SINGLE)))], SINGLE, language=NO_STEMS)
    assert [*map(int, sorted(words.run({"q": letter}, 10)["q"]))] == found
    more = words.update([0], [*map(str, range(1, 7))], ["京"])
    assert sorted(more.run({"q": "京"}, 10)["q"]) == ["1", "6"]


def test_single_letters_and_numbers_with_spaces_have_places():
    assert [tuple(own) for own in occurrences("(東京都)", NO_STEMS, {"京"})] == [(2, 3, ("京",))]
    assert [tuple(own) for own in occurrences("京", NO_STEMS, {"京"})] == [(0, 1, ("京",))]
    assert [tuple(own) for own in occurrences("of 10 000", NO_STEMS, {"10000"})] == [(3, 9, ("10000",))]
    assert [tuple(own) for own in occurrences("of 10\xa0000", NO_STEMS, {"10000"})] == [(3, 9, ("10000",))]


def test_single_letters_leave_the_scores_of_longer_words_as_they_are(monkeypatch):
    queries = ["京都", "京都大学の歴史", "책을", "ประเทศ", "book"]
    words = BM25([*map(str, range(len(SINGLE)))], SINGLE, language=NO_STEMS)
    monkeypatch.setattr(Analyzer, "letters", lambda *_: [])
    without = BM25([*map(str, range(len(SINGLE)))], SINGLE, language=NO_STEMS)
    assert (words.scores(queries) == without.scores(queries)).all()
    assert words.lengths.tolist() == without.lengths.tolist()


def test_a_stop_word_in_capitals_is_a_name_but_not_in_a_text_of_capitals():
    analyzer = Analyzer(ENGLISH)
    assert analyzer.terms("IT jobs") == ["it", "job"]
    assert analyzer.terms("IT-Support, NO-dependent, it-support") == [
        "itsupport", "it", "support", "nodepend", "no", "depend", "itsupport", "support",
    ]  # fmt: skip
    assert analyzer.terms("it is") == analyzer.terms("IT IS") == []
    assert analyzer.terms("THE ART OF WAR") == ["art", "war"]
    words = BM25(["a", "b"], ["What is it?", "The art of war"], language=ENGLISH)
    assert words.known_terms("THE ART OF WAR") == ["art", "war"]
