"""Quotes and minuses of a query: the answer is that of a search among the documents that have the words, one text at a time."""

import json
import random
import unicodedata

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.search.syntax import Asked, read_query
from tests.support.small import MINIPEDIA
from tests.support.small_index import small_index

ARTICLES = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").open(encoding="utf-8")][:40]
SCRIPTS = {
    "crash": "A segmentation\n  fault of Windows, in C++ code: SIGSEGV.", "faults": "Segmentation faults on Linux – 27001.",
    "han": "東京都の地下鉄は便利です。", "thai": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "korean": "서울은 대한민국의 수도이다.",
    "hindi": "दिल्ली भारत की राजधानी है", "arabic": "القاهرة هي عاصمة مصر", "russian": "Москва — столица России",
    "accents": "un cafe\u0301 à Montréal", "signs": "ISO/IEC 27001 (2022), a.b*c [x] max_seq_length",
    "wide": "ＡＢＣ\u3000１２", "joined": "東京ABC駅は2020年 그리고 Windows를",
    "jamo": unicodedata.normalize("NFD", "부산은 항구이다."),
    "tones": "Ti\u00ea\u0301ng Vi\u00ea\u0323t la\u0300 seg\u00admen\u00adtation\u000berror\u2028or line",
}  # fmt: skip


@pytest.fixture(scope="module")
def index(sentence_bert_folder, tmp_path_factory):
    documents = [{"doc_id": name, "title": f"The {name}", "text": text, "own": True} for name, text in SCRIPTS.items()]
    documents += [{"doc_id": own["_id"], "title": own["title"], "text": own["text"], "own": False} for own in ARTICLES]
    config, folder = dsi.Config().without_training(), tmp_path_factory.mktemp("words") / "index"
    return dsi.index(documents, folder, config=config, encoder=str(sentence_bert_folder), device="cpu")


def having(index, words):
    """The documents whose title or text has words, found by looking at each place of each, letter by letter."""
    return {
        doc_id
        for doc_id in index.snapshot.documents.rows
        if any(has(text, words) for text in (index.get(doc_id).title, index.get(doc_id).text))
    }


def has(text, words):
    return is_in(text, words) or is_in(text, unicodedata.normalize("NFKC", words))


def is_in(text, words):
    text, words = (
        " ".join(unicodedata.normalize("NFC", own.replace("\u00ad", "")).lower().split()) for own in (text, words)
    )
    return any(
        text[at : at + len(words)] == words and is_edge(text, at) and is_edge(text, at + len(words))
        for at in range(len(text))
    )


def is_edge(text, at):
    """Whether no word of a script with spaces goes on at a place."""
    return not (0 < at < len(text) and all(is_of_word(char) for char in text[at - 1 : at + 1]))


def is_of_word(char):
    unspaced = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "HANGUL")
    return (
        unicodedata.category(char)[0] in "LNM_" and not unicodedata.name(char, "").startswith(unspaced)
    ) or char == "_"


QUOTES = [
    "segmentation fault", "SEGMENTATION FAULTS", "faults on", "c++", "sigsegv",
    "地下鉄", "京都", "ประเทศไทย", "서울", "대한민국",
    "दिल्ली", "भारत", "عاصمة مصر", "столица", "café", "cafe", "ISO/IEC 27001", "a.b*c [x]", "seq", "max_seq_length", "27001",
    "ABC", "2020", "windows", "駅は2020", "Tiếng Việt", "Tiê\u0301ng", "Viê\u0323t là", "là segmentation", "error or line",
    "cafe\u0301 à montréal", "café\n a\u0300", "부산", unicodedata.normalize("NFD", "항구"), "seg\u00admentation",
    "the", "The crash", "of windows, in", "ＡＢＣ", "river", "fault", "nobody has this", "िल्ली",
]  # fmt: skip


@pytest.mark.parametrize("words", QUOTES)
def test_a_quote_and_a_minus_find_what_a_look_at_each_text_finds(index, words):
    there = having(index, words)
    assert bool(there) == (words not in ("nobody has this", "cafe", "seq", "िल्ली"))
    hits = index.search(f'"{words}"', k=60, syntax=True)
    assert {hit.doc_id for hit in hits} == there
    assert hits.note == ("" if there else f"No document has {words!r}.")
    plain = {hit.doc_id: hit.score for hit in index.search(words.replace("\u00ad", ""), k=60, method="exact")}
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(
        {doc_id: plain[doc_id] for doc_id in there}, abs=1e-4
    )
    without = index.search(f'text -"{words}"', k=60, syntax=True)
    assert {hit.doc_id for hit in without} == {*index.snapshot.documents.rows} - there


def test_random_parts_of_texts_are_found(index):
    chance = random.Random(7)
    rows = sorted(index.snapshot.documents.rows.keys() - {"jamo"})  # which is cut in letters
    for _ in range(20):
        text = index.get(chance.choice(rows)).text
        first = chance.randrange(len(text) - 8)
        words = " ".join(text[first : first + chance.randrange(2, 30)].split()).strip('-“”„«»「」"＂')
        for query in (f'"{words}"', f'"{words.upper()}" -river' if words.isascii() else f'"{words}" -river'):
            expected = having(index, words) - (having(index, "river") if "river" in query[-5:] else set())
            assert {hit.doc_id for hit in index.search(query, k=60, syntax=True)} == expected


@pytest.mark.parametrize(
    ("query", "text", "needed", "excluded"),
    [
        ('"segmentation fault" -windows', "segmentation fault", ["segmentation fault"], ["windows"]),
        ('-"visual studio", c++ -.net -C#.', ", c++", [], ["visual studio", ".net", "C#"]),
        ("“one” „two“ «three» 「四」 ＂five＂", "one two three 四 five", ["one", "two", "three", "四", "five"], []),
        ('東京の"地下鉄"', "東京の地下鉄", ["地下鉄"], []),
        ("-東京 地下鉄 －京都。", "地下鉄", [], ["東京", "京都"]),
        ("»one« ”two” ‹three› ｢四｣ «\u00a0five\n six\u202f»", "one two three 四 five\n six",
         ["one", "two", "three", "四", "five\n six"], []),
        ('-"a b"c -“d” e-"f" --"g" "+"', "c e-f --g +", ["f", "g", "+"], ["a b", "d"]),
        # Plain characters.
        *((same, same, [], []) for same in (
            'an "unbalanced quote', '-"unbalanced', 'a 5" disk and a 3" disk', '"" "  "', "rm --rf a - b", "e-mail x-ray",
            "- ", "-",
            "  spaces  stay ", "-...", "don't 'quote'", "",
        )),
    ],
)  # fmt: skip
def test_a_query_is_read(query, text, needed, excluded):
    assert read_query(query) == Asked(text, tuple(needed), tuple(excluded))


def test_without_syntax_quotes_and_minuses_are_plain_characters(index):
    for query in ('"segmentation fault" -windows', '"nobody has this"'):
        (hits,) = index.search([query], k=60)
        assert (len(hits), hits.note, hits.query) == (len(index), "", query)
    assert index.search("plain words", k=5, syntax=True) == index.search("plain words", k=5)


def test_a_quote_that_nobody_has_says_so(index):
    hits = index.search('"nobody has this" river', syntax=True)
    assert str(hits) == "\"nobody has this river\"  (0 documents. No document has 'nobody has this'.)"
    assert "0 documents. No document has" in hits._repr_html_()
    assert hits[:0].note == hits.note
    notes = {
        '"segmentation fault" "地下鉄"': "No document has all that the query asks for.",
        '"segmentation fault" -windows': "No document has all that the query asks for.",
        "-windows": "The query only says what must not be there. Add what to look for.",
    }
    for query, hits in zip(notes, index.search([*notes], syntax=True), strict=True):
        assert (list(hits), hits.note) == ([], notes[query])
    hits = index.search('"segmentation fault"', syntax=True, where="own = false")
    assert (list(hits), hits.note) == ([], "No document that the filter lets through has 'segmentation fault'.")
    assert list(index.search('"segmentation fault"', syntax=True, where="own = true").ids) == ["crash"]
    assert "The filter excludes it" in index.search('"segmentation fault"', syntax=True).explain("han").reason


def test_each_of_several_queries_has_its_own_words_and_scores(index):
    extra = np.zeros((2, len(index)), dtype=np.float32)
    extra[1, index.snapshot.documents.rows["han"]] = 100
    one, two = index.search(['"segmentation fault"', "text -windows"], k=60, syntax=True, extra_scores=extra)
    assert list(one.ids) == ["crash"]
    assert (two[0].doc_id, len(two)) == ("han", len(index) - len(having(index, "windows")))


def test_what_is_wrong_is_one_line(index, encoder):
    for query, message in {
        f'"{"x" * 10_000}"': "A quote may have 1,000 characters, got 10,000. Search without the quotes.",
        "-ab" + " -ab" * 99: "A query may have 20 quotes and words with a minus, got 100. Leave some out.",
    }.items():
        with pytest.raises(ValueError) as raised:  # noqa: PT011 (compared below)
            index.search(query, syntax=True)
        assert str(raised.value) == message
    for sign in "aé京 ि":
        assert not index.search(f'"{("b" + sign) * 500}"', syntax=True)
    titles = small_index(encoder, vectors=True)
    with pytest.raises(ValueError, match="Quotes and minuses need texts, which this index does not keep"):
        titles.search('"noble gas"', syntax=True)
    assert titles.search("noble gas", k=3, syntax=True) == titles.search("noble gas", k=3)
    for wrong in ({"queries": index.encode_queries(["a"])}, {"embeddings": np.zeros((1, 32), np.float32)}):
        with pytest.raises(TypeError, match="syntax reads texts"):
            index.search(**wrong, syntax=True)


def test_the_command_reads_them_where_it_is_asked_and_at_the_prompt(index, tmp_path, monkeypatch, capsys):
    index.save(tmp_path / "index")
    command = ["search", str(tmp_path / "index"), "--device", "cpu", "-k", "60", "--json"]
    for more, count in (([], len(index)), (["--syntax"], 1)):
        assert main([*command, *more, '"segmentation fault"']) == 0
        assert len(json.loads(capsys.readouterr().out)["hits"]) == count
    assert main([*command, "--syntax", '"nobody has this"']) == 0
    assert json.loads(capsys.readouterr().out)["note"] == "No document has 'nobody has this'."
    monkeypatch.setattr("dsi.commands.search._lines", lambda _: ['"segmentation fault"'])
    for terminal, count in ((False, len(index)), (True, 1)):
        monkeypatch.setattr("sys.stdin.isatty", lambda terminal=terminal: terminal, raising=False)
        assert main(command) == 0
        assert len(json.loads(capsys.readouterr().out)["hits"]) == count
