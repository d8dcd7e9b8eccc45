"""The passage of an answer holds the words that found its document, wherever in a long text they stand."""

import json

import numpy as np
import pytest

import dsi
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.occurrences import occurrences
from dsi.search.passages import Words
from tests.support.small import MINIPEDIA

ARTICLES = [json.loads(line)["text"] for line in (MINIPEDIA / "corpus.jsonl").open(encoding="utf-8")]
MARKS = [
    "KX-0357", "max_seq_length", "48213", "Szczebrzeszyn", "E0425", "东京都机场", "v2.11.0", "Ångström-Żółć",
    "أبجدية", "ISO/IEC 27001", "naïveté", "C++17",
]  # fmt: skip


def manual(at: int) -> list[str]:
    """Twelve long texts, each with a mark of its own after some of its articles."""
    texts = []
    for number, mark in enumerate(MARKS):
        articles = ARTICLES[8 * number : 8 * number + 8]
        articles.insert(at, f"The part in the box is {mark} and no other.")
        texts.append("\n".join(articles))
    return texts


@pytest.fixture(scope="module", params=[1, 8], ids=["near the beginning", "at the end"])
def index(request, sentence_bert_folder, tmp_path_factory):
    pytest.importorskip("dsi.files")
    config = dsi.Config().without_training().with_changes({"encoder": {"piece_length": 60}})
    folder = tmp_path_factory.mktemp("manual")
    for number, text in enumerate(manual(request.param)):
        (folder / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    return dsi.index(folder, config=config, encoder=str(sentence_bert_folder), device="cpu")


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("query", ["{}", "what is in the box of {}?", '"{}"'])
def test_a_passage_holds_the_code_number_or_name_that_found_its_document(index, mark, query):
    hits = index.search(query.format(mark), k=3, lexical_weight=3.0)
    hit = hits[0]
    assert hit.doc_id == f"{MARKS.index(mark):02d}.txt"
    assert mark in hit.passage
    assert len(hit.passage) < len(hit.text) / 3
    assert mark in hit.as_dict()["passage"]
    first, last = hit.location.lines
    assert mark in "\n".join(hit.text.split("\n")[first - 1 : last])
    assert hit.explain().passage_span == hit.passage_span
    excerpt = hits[:1].format("<{}>".format)
    assert mark in excerpt.replace("<", "").replace(">", "")
    assert f"<{mark[0]}" in excerpt
    assert "<mark>" in hits._repr_html_()


def test_a_small_weight_of_words_is_enough(index):
    for weight in (0.01, 0.1):
        (hit,) = index.search(MARKS[0], k=1, lexical_weight=weight, allow=["00.txt"])
        assert MARKS[0] in hit.passage


def test_without_words_the_vector_chooses(index):
    query = "what grows in the forest"
    (vector,) = index.snapshot.encoder.encode(index.snapshot.encoder.query_texts([query]), "query")
    for hit in index.search(query, k=12, lexical_weight=0.0, token_weight=0.0):
        row = index.snapshot.documents.find([hit.doc_id])[hit.doc_id]
        places = np.flatnonzero(index.snapshot.tree.doc_rows == row)
        best = places[np.argmax(index.snapshot.tree.embeddings[places] @ vector)]
        assert hit.passage_span == index.snapshot.tree.spans_at(np.array([best]))[0]


def test_pieces_score_their_words_as_documents_of_average_length_do():
    text = "red fox. red red sky. fox in the sky, Foxes"
    bm25 = BM25(["a", "b"], [text, "a blue whale"])
    factors = bm25.term_factors("red foxes and a whale")
    assert {*factors} == {"red", "fox", "whale"}
    spans = np.array([[0, 8], [9, 21], [22, len(text)]])
    expected = [
        sum(factors[term] * tf / (tf + bm25.k1) for term, tf in counts.items())
        for counts in ({"red": 1, "fox": 1}, {"red": 2}, {"fox": 2})
    ]
    np.testing.assert_allclose(Words(bm25, 1.0, "red foxes and a whale").shares(text, spans), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("english", "The rivers, KX-0357; max_seq_length of Node.js in the U.S.A. and C++ on .NET, rivers’ end"),
        ("english", "ﬁsh Café e\u0301te\u0301 in\u00advisible ＡＢＣ“quoted”"),
        ("none", "東京都は2020年 ประเทศไทย 서울은 Windows를 हिन्दी ｶﾞｲﾄﾞ"),
        ("german", "Straßen STRASSE Übungen"),
    ],
)
def test_every_term_of_a_text_is_found_where_it_stands(language, text):
    analyzer = Analyzer(language)
    found = occurrences(text, language, {*analyzer.terms(text)})
    assert sorted(term for own in found for term in own.terms) == sorted(analyzer.terms(text))
    for start, end, terms in found:
        assert {*terms} <= {*analyzer.terms(text[start:end])}
    assert occurrences(text, language, {"absent"}) == []
