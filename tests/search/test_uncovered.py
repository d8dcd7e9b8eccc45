"""Words of a query that no document has, and those that no answer covers: as plain sets of terms give them."""

import json
import random
from copy import copy

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.docids.words.analyzer import Analyzer
from dsi.docids.words.common import COMMON_WORDS
from dsi.search.hits import Uncovered
from dsi.store.documents.topics import Topics

TEXTS = {
    "danube": "The Danube flows through Vienna. Rivers carry ships.",
    "neon": "Neon glows in signs. Noble gases hardly react.",
    "code": "Set max_seq_length in Node.js or with HTTPServerFactory; C++ has none.",
    "osaka": "大阪は日本の都市です。東京も都市です。",
    "thai": "ประเทศไทยมีแม่น้ำหลายสาย",
    "arabic": "النهر طويل في مصر",
}
WITHOUT_VECTORS = {"token_weight": 0.0}
"""Late interaction finds words that a document does not have; sets of terms do not."""


@pytest.fixture(scope="module")
def index(sentence_bert_folder, tmp_path_factory):
    records = [{"doc_id": doc_id, "title": "", "text": text} for doc_id, text in TEXTS.items()]
    folder = tmp_path_factory.mktemp("uncovered") / "index"
    dsi.index(records, folder, encoder=str(sentence_bert_folder), language="english", device="cpu")
    return dsi.load(folder, device="cpu")


def terms_of(index, *doc_ids):
    analyzer = Analyzer(index.snapshot.lexical.language)
    return {term for doc_id in doc_ids for term in analyzer.terms(TEXTS[doc_id])}


@pytest.mark.parametrize(
    ("query", "nowhere"),
    [
        ("ships on the Danube in 2019", ["2019"]),
        ("a ship, a river, a SIGN", []),
        ("max_seq_length and max_new_tokens", ["max_new_tokens"]),
        ("HTTPServerFactory HTTPClientFactory node.js deno.js", ["HTTPClientFactory", "deno.js"]),
        ("C++ or Rust", ["Rust"]),
        ("大阪の京都", ["の京都"]),
        ("大阪城", []),
        ("福岡", ["福岡"]),
        ("東京の大阪", []),
        ("แม่น้ำ", []),
        ("النهر البحر", ["البحر"]),
        ("Zürich zurich ZÜRICH", ["Zürich"]),
        ("how would you", []),
        ("the MIT license, wer asks", ["MIT", "license", "wer", "asks"]),
        ("谁福岡", ["福岡"]),
        ("几何", ["几何"]),
        ("大阪在哪里", []),
        ("大阪有什么", []),
        ("?!", []),
    ],
)
def test_no_document_mentions(index, query, nowhere):
    assert index.search(query, k=6, **WITHOUT_VECTORS).uncovered.nowhere == tuple(nowhere)


def test_question_words_of_the_language_of_an_index_are_not_missed(sentence_bert_folder):
    texts = ["Wien liegt an der Donau.", "Neon leuchtet in Lampen."]
    index = dsi.index(texts, encoder=str(sentence_bert_folder), language="german", device="cpu")
    assert index.search("Wer liegt wo in Prag", k=1, **WITHOUT_VECTORS).uncovered == (("Prag",), ())


def test_both_lists_are_what_sets_of_terms_give(index):
    analyzer, rng = Analyzer("english"), random.Random(0)
    words = ["danube", "vienna", "rivers", "neon", "signs", "gases", "react", "quasar", "zebra", "2019", "ships", "the"]
    for _ in range(50):
        asked = rng.sample(words, 5)
        hits = index.search(" ".join(asked), k=1, **WITHOUT_VECTORS)
        known = {word: {*analyzer.terms(word)} for word in asked if word not in COMMON_WORDS and analyzer.terms(word)}
        nowhere = [word for word, own in known.items() if not own & terms_of(index, *TEXTS)]
        missed = [word for word, own in known.items() if not own & terms_of(index, hits[0].doc_id)]
        assert hits.uncovered == (tuple(nowhere), tuple(word for word in missed if word not in nowhere))


def test_late_interaction_covers_a_word(index):
    covered = set()
    for doc_id in TEXTS:
        hits = index.search("danube quasar glows 2019", k=1, allow=[doc_id], lexical_weight=0.0, token_weight=2.0)
        (batch,) = index.encode_queries([hits.query]).batches
        place = index.snapshot.tree.node(hits[0].digits) - index.snapshot.tree.num_inner
        products = index.snapshot.tree.tokens.products(
            index.snapshot.tree.tokens.project(batch.word_states(0)), place
        ).max(axis=0)
        spans = [span for span in index.snapshot.encoder.spans(hits.query, "query") if not span.is_special]
        tokens = {word: [] for word in hits.query.split()}
        for span, product in zip(spans, products.tolist(), strict=True):
            start = hits.query.rfind(" ", 0, span.start + 1) + 1
            tokens[hits.query[start:].split()[0]].append(product)
        words = {word for word, own in tokens.items() if np.mean(own) < 0.5}
        without = {word for word in tokens if not {*Analyzer("english").terms(word)} & terms_of(index, doc_id)}
        assert {*hits.uncovered.elsewhere} == words & without
        covered |= without - words
    assert covered


def test_a_filter_tells_nothing_of_other_documents(index):
    hits = index.search("danube quasar", deny=["danube"], **WITHOUT_VECTORS)
    assert hits.uncovered == ((), ("danube", "quasar"))
    assert index.search("danube quasar", where="doc_id = 'none'").uncovered == ((), ())


def test_a_removed_document_mentions_nothing(index):
    other = copy(index)
    other.remove(["neon"])
    assert other.search("neon in vienna", k=5, **WITHOUT_VECTORS).uncovered.nowhere == ("neon",)


def test_vectors_and_an_index_without_words_lack_nothing(index, sentence_bert_folder):
    (hits,) = index.search(embeddings=np.ones((1, 32), dtype=np.float32), k=2)
    assert hits.uncovered == Uncovered()
    config = dsi.Config().with_changes({"lexical": {"model": "none"}, "search": {"lexical_weight": 0.0}})
    plain = dsi.index(list(TEXTS.values()), config=config, encoder=str(sentence_bert_folder), device="cpu")
    assert plain.search("quasar").uncovered == Uncovered()


def test_it_is_said_everywhere(index, tmp_path, capsys):
    hits = index.search("danube quasar", k=1, **WITHOUT_VECTORS)
    said = "no document mentions: quasar"
    assert str(hits).splitlines()[0] == f'"danube quasar"  (1 document; proven: no other scores higher; {said})'
    assert said in hits._repr_html_()
    assert hits.uncovered == (("quasar",), ())
    assert said in index.explain("danube quasar", **WITHOUT_VECTORS).answer
    lists = {"nowhere": ["quasar"], "elsewhere": []}
    index.save(tmp_path / "index")
    command = ["search", str(tmp_path / "index"), "danube quasar", "-k", "1", "--token-weight", "0"]
    main([*command, "--json"])
    assert json.loads(capsys.readouterr().out)["uncovered"] == lists
    main(command)
    assert said in capsys.readouterr().out.splitlines()[0]


def test_a_server_says_it(index):
    searches = pytest.importorskip("dsi.server.searches")
    lists, topics = {"nowhere": ["quasar"], "elsewhere": []}, Topics(index.snapshot.tree, index.snapshot.documents)
    answered = searches.answer_of(index.search("danube quasar", k=1, **WITHOUT_VECTORS), matches=False)
    assert answered["uncovered"] == lists
    picture = searches.Explainer(index.snapshot, topics, "danube quasar", 1, WITHOUT_VECTORS).picture()
    assert picture["uncovered"] == lists
    answered = searches.answer_of(index.search("danube", k=1, **WITHOUT_VECTORS), matches=False)
    assert "uncovered" not in answered


def test_words_of_a_stranger_reach_no_terminal():
    assert str(Uncovered(("\x1b[31mred",), ())) == "no document mentions: \\x1b[31mred"
