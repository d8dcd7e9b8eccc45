"""BM25: scores are those of bm25s, updates are as if made again, what is saved is mapped."""

import math
import shutil

import bm25s
import numpy as np
import pytest
import Stemmer
from bm25s.stopwords import STOPWORDS_EN
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.docids.words import bm25 as lexical
from dsi.docids.words.analyzer import ENGLISH, STOP_WORDS
from dsi.docids.words.bm25 import BM25, LexicalConfig
from tests.support.oracles import bm25_scores


def word(number: int) -> str:
    """A word that is one term."""
    return "w" + "".join("abcdefghij"[int(digit)] for digit in str(number))


QUERIES = [f"{word(1)} {word(2)} {word(2)}", word(3), word(99), "the", f"{word(4)} new"]


def texts_of(seed: int, size: int = 40) -> list[str]:
    """Of words that are rare or common; one without words, one of stop words."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(map(word, rng.geometric(0.15, size=rng.integers(1, 30)))) for _ in range(size - 2)]
    return [*texts, "", "the of and"]


def test_stop_words_are_those_of_bm25s():
    assert frozenset(STOPWORDS_EN) == STOP_WORDS


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.6, 0.0), (0.0, 1.0)])
def test_scores_and_runs_are_those_of_bm25s(k1, b, monkeypatch):
    monkeypatch.setattr(lexical, "_BLOCK", 7)
    texts = texts_of(0)
    ours, theirs = (
        BM25([str(n) for n in range(len(texts))], texts, k1, b, language=ENGLISH),
        bm25s.BM25(method="lucene", k1=k1, b=b),
    )
    theirs.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    for query, found in zip(QUERIES, ours.scores(QUERIES), strict=True):
        (words,) = bm25s.tokenize([query], stopwords="en", show_progress=False, return_ids=False)
        expected = theirs.get_scores(words) if words else np.zeros(len(texts))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        best = ours.run({"q": query}, 5)["q"]
        assert len(best) == min(5, int((expected > 0).sum()))
        for doc_id, score in best.items():
            assert score == pytest.approx(expected[int(doc_id)], rel=1e-5)
            assert score >= np.sort(expected)[-5] * (1 - 1e-5)


TEXTS = [
    "The rivers are flowing",
    "One river flows",
    "Flussdampfer auf dem Flusse",
    "he generates generation",
    "ski skies",
]


@pytest.mark.parametrize(
    ("language", "known_words"), [("english", ["rivers", "flowed"]), ("german", ["rivers"]), ("none", ["rivers"])]
)
def test_terms_are_stems_as_bm25s_compares_them(language, known_words, tmp_path):
    ours = BM25([str(n) for n in range(len(TEXTS))], TEXTS, language=language)
    theirs, options = bm25s.BM25(method="lucene", k1=0.9, b=0.4), {"show_progress": False}
    options["stopwords"] = "en" if language == "english" else []
    options["stemmer"] = None if language == "none" else Stemmer.Stemmer(language)
    theirs.index(bm25s.tokenize(TEXTS, **options), show_progress=False)
    ours.save(tmp_path)
    loaded = BM25.load(tmp_path, ours.doc_ids)
    changed = BM25(ours.doc_ids[:2], TEXTS[:2], language=language).update([], ours.doc_ids, TEXTS[2:])
    for query in ["the river", "flows", "im Fluss", "generating", "skis", "mars"]:
        (terms,) = bm25s.tokenize([query], **options, return_ids=False)
        known = [term for term in terms if term in theirs.vocab_dict]
        expected = theirs.get_scores(known) if known else np.zeros(len(TEXTS))
        for index in (ours, loaded, changed):
            np.testing.assert_allclose(index.scores([query])[0], expected, rtol=1e-5)
    assert [word for word, _, number in loaded._words("Rivers flowed") if number >= 0] == known_words


def test_a_language_without_stems_is_refused():
    with pytest.raises(
        ValueError, match=r'lexical.language must be "auto", "none" or one of .*english.*, got \'klingon\'.'
    ):
        LexicalConfig(language="klingon")


def test_changed_is_as_if_made_anew_and_saved_is_the_same(tmp_path):
    texts, more = texts_of(1), texts_of(2, 12)
    doc_ids, new_ids = [f"a{n}" for n in range(len(texts))], [f"b{n}" for n in range(len(more))]
    BM25(doc_ids, texts, 1.2, 0.5, language=ENGLISH).save(tmp_path / "index")
    loaded = BM25.load(tmp_path / "index", doc_ids)
    shutil.rmtree(tmp_path / "index")
    left = [n for n in range(len(texts)) if n not in (0, 7, 39)]
    fresh = BM25([doc_ids[n] for n in left] + new_ids, [texts[n] for n in left] + more, 1.2, 0.5, language=ENGLISH)
    changed = loaded.update([0, 7, 39], fresh.doc_ids, more)
    assert changed.doc_ids == fresh.doc_ids
    np.testing.assert_array_equal(changed.lengths, fresh.lengths)
    np.testing.assert_allclose(changed.scores(QUERIES), fresh.scores(QUERIES), rtol=1e-5)
    np.testing.assert_array_equal(
        loaded.scores(QUERIES), BM25(doc_ids, texts, 1.2, 0.5, language=ENGLISH).scores(QUERIES)
    )


def words_of(texts: list[str]) -> list[list[str]]:
    return bm25s.tokenize(texts, stopwords="en", show_progress=False, return_ids=False)


def test_the_terms_of_a_query_have_the_rarity_of_its_words():
    bm25 = BM25(["a", "b", "c"], ["The Danube in Vienna", "vienna, Vienna", "neon"], language=ENGLISH)
    (terms,) = bm25.query_terms(["Is VIENNA on the Danube? Vienna, a mars-vienna!"])
    rarities = [math.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (2, 1, 2, 2)]  # in as many of three documents
    assert terms.factors == pytest.approx(rarities)
    vienna, danube, *others = terms.numbers.tolist()
    assert others == [vienna] * 2
    assert vienna != danube
    assert [len(own.numbers) for own in bm25.query_terms(["the mars", ""])] == [0, 0]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), k1=st.sampled_from([0.0, 0.9, 2.0]), b=st.sampled_from([0.0, 0.4, 1.0]))
def test_scores_are_sums_over_the_terms_of_a_query(seed, k1, b):
    rng, texts = np.random.default_rng(seed), texts_of(seed)
    bm25, documents = BM25([str(n) for n in range(len(texts))], texts, k1, b, language=ENGLISH), words_of(texts)
    queries = [" ".join(map(word, rng.geometric(0.2, size=6))) for _ in range(3)]
    for found, query in zip(bm25.scores(queries), queries, strict=True):
        np.testing.assert_allclose(found, bm25_scores(documents, query.split(), k1, b), atol=2e-5)


def test_terms_after_loading_and_after_an_update(tmp_path):
    texts = [*texts_of(3), f"{word(1)} solitary"]
    doc_ids = [str(n) for n in range(len(texts))]
    bm25 = BM25(doc_ids, texts, language=ENGLISH)
    bm25.save(tmp_path)
    loaded, query = BM25.load(tmp_path, doc_ids), f"{word(1).upper()} solitary {word(2)} {word(1)}"
    for own, other in zip(loaded.query_terms([query])[0], bm25.query_terms([query])[0], strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(loaded.scores([query]), bm25.scores([query]))
    fresh = BM25([*doc_ids[:-1], "new"], [*texts[:-1], word(2)], language=ENGLISH)
    changed = loaded.update([len(texts) - 1], fresh.doc_ids, [word(2)])
    assert len(changed.query_terms([query])[0].numbers) == 3  # no document has the other word now
    np.testing.assert_allclose(changed.query_terms([query])[0].factors, fresh.query_terms([query])[0].factors)
    np.testing.assert_allclose(changed.scores([query]), fresh.scores([query]), rtol=1e-5)


def test_a_long_text_counts_as_its_average_part(monkeypatch):
    monkeypatch.setattr(lexical, "LONG", 10)
    short = [f"{word(1)} {word(2)}", f"{word(3)} {word(4)} {word(4)}"]
    long = f"{word(1)} " + f"{word(2)} " * 27  # three parts, of 28 words
    part = f"{word(1)} " + f"{word(2)} " * 9
    queries = [word(1), word(2), f"{word(1)} {word(2)}"]
    index = BM25(["a", "b", "c"], [*short, long])
    np.testing.assert_array_equal(index.scores(queries), BM25(["a", "b", "c"], [*short, part]).scores(queries))
    assert index.lengths.tolist() == [2, 3, 10]
    again = BM25(["a"], short[:1]).update([], ["a", "b", "c"], [short[1], long])
    np.testing.assert_allclose(again.scores(queries), index.scores(queries), rtol=1e-6)


@pytest.mark.parametrize("length", [10_000, 20_000, 100_000])
def test_a_word_that_one_text_has_counts_in_a_whole_book(length):
    short = [f"{word(number % 5)} {word(number % 7)}" for number in range(200)]
    book = " ".join(word(number % 7) for number in range(length)) + f" {word(9)}"
    index = BM25([str(number) for number in range(201)], [*short, book])
    assert index.shares([word(9)])[0, 200] > 0.3
    assert index.shares([word(6)])[0, 200] < 1
    np.testing.assert_array_equal(index.shares([f"{word(9)} {word(9)}"]), index.shares([word(9)]))
