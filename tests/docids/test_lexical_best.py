"""The best documents of a query without looking at all: complete scores, and a bound that no other document exceeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.docids.words import term_scores
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.postings import Postings
from dsi.docids.words.term_scores import Damping, Terms, TermScorer, TopByWords


@pytest.fixture(autouse=True)
def few_postings_are_read(monkeypatch):
    """So that lists of a few dozen documents are long."""
    monkeypatch.setattr(term_scores, "_BUDGET", 12)
    monkeypatch.setattr(term_scores, "_DEPTHS", (0, 2, 4, 8))


def texts_of(rng: np.random.Generator, size: int) -> list[str]:
    """Of words that most documents have, often, or few; many documents are alike."""
    return [" ".join(f"w{word}" for word in rng.geometric(0.3, size=rng.integers(0, 12))) for _ in range(size)]


def lists_of(values: np.ndarray) -> Postings:
    """The lists of a matrix [terms, documents], from its values in any order."""
    terms, documents = np.nonzero(values)
    order = np.random.default_rng(0).permutation(len(terms))
    keys = (terms * values.shape[1] + documents)[order]
    return Postings.from_keys(keys, values[terms, documents][order].astype(np.float32), *values.shape)


def matrix_of(lists: Postings) -> np.ndarray:
    values = np.zeros((len(lists), lists.num_documents), np.float32)
    for line, start, end in zip(values, lists.starts[:-1], lists.starts[1:], strict=True):
        line[lists.documents[start:end]] = lists.values[start:end]
    return values


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), terms=st.integers(0, 6), documents=st.integers(0, 9))
def test_lists_are_the_rows_of_a_matrix(seed, terms, documents):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 3, size=(terms, documents)).astype(np.float32)
    lists = lists_of(values)
    assert lists.is_sound()
    assert lists.documents.dtype == np.int32
    np.testing.assert_array_equal(matrix_of(lists), values)
    kept = rng.random(documents) < 0.6
    fewer = lists.select(kept)
    assert fewer.is_sound()
    np.testing.assert_array_equal(matrix_of(fewer), values[:, kept])
    further = rng.integers(0, 3, size=(terms + 2, 4)).astype(np.float32)
    more = fewer.append(lists_of(further))
    assert more.is_sound()
    np.testing.assert_array_equal(matrix_of(more), np.hstack([np.pad(values[:, kept], ((0, 2), (0, 0))), further]))
    if len(lists.documents) > 1:
        assert not Postings(lists.starts, lists.documents[::-1] + 9, lists.values, documents).is_sound()
        assert not Postings(lists.starts[::-1], lists.documents, lists.values, documents).is_sound()
    if len(lists.documents):
        assert not Postings(lists.starts, lists.documents, lists.values, int(lists.documents.max())).is_sound()
    if len(further := lists_of(np.ones((1, 2), np.float32)).documents):
        assert not Postings(np.array([0, 2]), further * 0, np.ones(2, np.float32), 2).is_sound()  # one twice


def best_of(bm25: BM25, query: str, count: int) -> TopByWords:
    return bm25.scorer.top(*bm25.query_terms([query]), count)


def check(found: TopByWords, scores: np.ndarray, count: int, allowed: np.ndarray) -> None:
    """One query's candidates against all its scores."""
    rows, own, rest, *_ = found
    assert len(rows) <= count
    assert (np.diff(rows) > 0).all()
    assert allowed[rows].all()
    np.testing.assert_allclose(own, scores[rows], rtol=1e-5, atol=1e-6)
    others = allowed.copy()
    others[rows] = False
    assert rest >= 0
    assert (scores[others] <= rest).all()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 120), count=st.integers(1, 40), k1=st.sampled_from([0.0, 0.9, 2.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]), filters=st.booleans(), updates=st.integers(0, 4),
)  # fmt: skip
def test_no_other_document_is_above_the_bound(seed, size, count, k1, b, filters, updates):
    rng = np.random.default_rng(seed)
    texts = texts_of(rng, size)
    bm25 = BM25([str(n) for n in range(size)], texts, k1, b)
    queries = ["w1 w2 w3 w1", "w9", "nothing", " ".join(f"w{word}" for word in rng.geometric(0.2, size=6))]
    for _ in range(updates + 1):
        scores = bm25.scores(queries)
        mask = rng.random(len(texts)) < rng.choice([0.0, 0.1, 0.8]) if filters else None
        allowed = np.ones(len(texts), dtype=bool) if mask is None else mask
        for own, terms in zip(scores, bm25.query_terms(queries), strict=True):
            wanted = rng.permutation(np.flatnonzero(allowed))[:7]
            found = bm25.scorer.top(terms, count, mask, wanted)
            np.testing.assert_allclose(found.others, own[wanted], rtol=1e-5, atol=1e-6)
            check(found, own, count, allowed)
            some = rng.integers(0, len(texts), size=5)
            np.testing.assert_allclose(
                bm25.scorer.contributions(terms, some).sum(axis=0), own[some], rtol=1e-5, atol=1e-6
            )
        removed = rng.choice(len(texts), rng.integers(0, len(texts)), replace=False).tolist()
        more = texts_of(rng, int(rng.integers(1, 30)))
        texts = [text for row, text in enumerate(texts) if row not in set(removed)] + more
        bm25 = bm25.update(removed, [str(n) for n in range(len(texts))], more)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), documents=st.integers(1, 80), count=st.integers(0, 30))
def test_lists_of_any_values_are_weighed_by_definition(seed, documents, count):
    rng = np.random.default_rng(seed)
    values = rng.random((5, documents)).round(1).astype(np.float32) * (rng.random((5, documents)) < 0.6)
    terms = Terms(rng.integers(0, 5, size=4), rng.normal(size=4).astype(np.float32))
    scores = (values / (values + np.float32(0.7)))[terms.numbers].T @ terms.factors
    own = TermScorer(lists_of(values), Damping(0.7, 0.0, 1.0), np.ones(documents, np.int32))
    np.testing.assert_allclose(own.scores(terms), scores, rtol=1e-5, atol=1e-6)
    check(own.top(terms, count), scores, count, np.ones(documents, dtype=bool))


def test_the_best_by_one_word_are_found_and_nothing_is_left_of_a_rare_one():
    bm25 = BM25(
        [str(n) for n in range(60)], ["w1 " * (n % 7 + 1) + "xx " * 3 for n in range(57)] + ["rare w1"] * 3, 0.9, 0
    )
    found = best_of(bm25, "w1", 4)
    highest = np.sort(np.argsort(-bm25.scores(["w1"])[0], kind="stable")[:4])
    np.testing.assert_allclose(found.scores, bm25.scores(["w1"])[0, highest])
    rare = best_of(bm25, "rare", 4)
    assert rare.rows.tolist() == [57, 58, 59]
    assert rare.bound == 0


def test_only_what_weighs_most_is_read_of_long_lists(monkeypatch):
    counts = lists_of(np.tile(np.arange(1, 101, dtype=np.float32), (2, 1)))
    own, read = TermScorer(counts, Damping(1.0, 0.0, 1.0), np.ones(100, np.int32)), []
    terms = Terms(np.array([0, 1]), np.ones(2, np.float32))
    own.top(terms, 3)
    weigh = TermScorer.weigh
    monkeypatch.setattr(
        TermScorer, "weigh", lambda self, values, rows: read.append(len(rows)) or weigh(self, values, rows)
    )
    rows, _, rest, _ = own.top(terms, 3)
    assert rows.tolist() == [97, 98, 99]
    assert rest < 2
    assert sum(read) <= 12 + 2 * 3


def test_top_lists_are_kept_until_the_mean_length_changes():
    texts = [f"w1 {'xx ' * (n % 9)}" for n in range(1000)]
    bm25 = BM25([str(n) for n in range(1000)], texts)
    best_of(bm25, "w1", 3)
    kept = bm25.scorer.postings.top_lists
    (before,) = kept.values()
    best_of(bm25, "w1", 3)
    assert [*kept.values()] == [before]
    longer = bm25.update([], [str(n) for n in range(1001)], ["w1 " + "yy " * 40])
    found, scores = best_of(longer, "w1", 3), longer.scores(["w1"])[0]
    check(found, scores, 3, np.ones(1001, dtype=bool))
    assert found.bound == pytest.approx(np.sort(scores)[-4], rel=0.01)


def test_updates_are_as_if_made_again_and_share_the_vocabulary():
    texts = texts_of(np.random.default_rng(0), 500)
    bm25 = first = BM25([str(n) for n in range(500)], texts)
    for step in range(40):
        texts = [*texts[1:], f"w1 new{step} w2"]
        bm25 = bm25.update([0], [str(n) for n in range(500)], texts[-1:])
    fresh = BM25([str(n) for n in range(500)], texts)
    np.testing.assert_allclose(bm25.scores(["w1 w2 new39 new7"]), fresh.scores(["w1 w2 new39 new7"]), rtol=1e-5)
    assert [len(own.query_terms(["new39"])[0].numbers) for own in (first, bm25)] == [0, 3]  # they share the vocabulary


def test_saved_are_the_words_of_this_index_alone(tmp_path):
    bm25 = BM25(["a"], ["neon gas"])
    bm25.update([], ["a", "b"], ["helium"])
    bm25.save(tmp_path)
    loaded = BM25.load(tmp_path, ["a"])
    assert [own.query_terms(["helium neon"])[0].numbers.tolist() for own in (loaded, bm25)] == [[0], [0]]
    assert bm25.run({"q": "helium gas"}, 3) == loaded.run({"q": "helium gas"}, 3)


def test_scores_are_true_when_weights_have_fallen_below_the_bounds_of_their_lists():
    texts = ["alpha beta cc dd" if n % 2 else "xx yy zz vv" for n in range(200)]
    bm25 = BM25([str(n) for n in range(200)], texts, 0.9, 0.4)
    best_of(bm25, "alpha beta", 5)  # orders the lists, for the mean length of now
    longer = bm25.update([], [str(n) for n in range(201)], ["uu " * 100])
    found, scores = best_of(longer, "alpha beta", 5), longer.scores(["alpha beta"])[0]
    assert len(found.rows) == 5
    check(found, scores, 5, np.ones(201, dtype=bool))


def test_documents_without_a_word_can_leave():
    bm25 = BM25(["a"], ["neon gas"]).update([], ["a", "b"], ["the"]).update([1], ["a"], [])
    np.testing.assert_array_equal(bm25.scores(["neon"]), BM25(["a"], ["neon gas"]).scores(["neon"]))
    assert BM25(["a", "b"], ["", ""]).update([0], ["b"], []).scores(["neon"]).tolist() == [[0.0]]


def test_rows_are_grouped_as_unique_does():
    for rows in (np.array([5, 2, 5, 2**31 - 1, 2, 5]), np.array([7]), np.empty(0, dtype=np.int64)):
        found, order, starts = term_scores._group(rows)
        unique, counts = np.unique(rows, return_counts=True)
        np.testing.assert_array_equal(found, unique)
        np.testing.assert_array_equal(np.diff([*starts, len(rows)]), counts)
        np.testing.assert_array_equal(rows[order], np.sort(rows))
        assert all((np.diff(own) > 0).all() for own in np.split(order, starts[1:]))  # equal ones in their order
