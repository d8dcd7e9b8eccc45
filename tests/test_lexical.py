"""BM25: the weights are the library's, updates are as if made anew, what is saved is mapped."""

import shutil

import bm25s
import numpy as np
import pytest

from docids import lexical
from docids.lexical import BM25

QUERIES = ["w1 w2 w2", "w3", "w99", "the", "w4 new"]


def texts_of(seed: int, size: int = 40) -> list[str]:
    """Of words that are rare or common; one without words, one of stop words."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{word}" for word in rng.geometric(0.15, size=rng.integers(1, 30))) for _ in range(size - 2)]
    return [*texts, "", "the of and"]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.6, 0.0), (0.0, 1.0)])
def test_weights_are_those_of_the_library(k1, b, monkeypatch):
    monkeypatch.setattr(lexical, "_BLOCK", 7)
    texts = texts_of(0)
    ours, theirs = BM25([str(n) for n in range(len(texts))], texts, k1, b), bm25s.BM25(method="lucene", k1=k1, b=b)
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


def test_changed_is_as_if_made_anew_and_saved_is_the_same(tmp_path):
    texts, more = texts_of(1), texts_of(2, 12)
    doc_ids, new_ids = [f"a{n}" for n in range(len(texts))], [f"b{n}" for n in range(len(more))]
    BM25(doc_ids, texts, 1.2, 0.5).save(tmp_path / "index")
    loaded = BM25.load(tmp_path / "index", doc_ids)
    shutil.rmtree(tmp_path / "index")
    changed = loaded.changed([0, 7, 39], new_ids, more)
    left = [n for n in range(len(texts)) if n not in (0, 7, 39)]
    fresh = BM25([doc_ids[n] for n in left] + new_ids, [texts[n] for n in left] + more, 1.2, 0.5)
    assert changed.doc_ids == fresh.doc_ids
    np.testing.assert_array_equal(changed.lengths, fresh.lengths)
    np.testing.assert_allclose(changed.scores(QUERIES), fresh.scores(QUERIES), rtol=1e-5)
    np.testing.assert_array_equal(loaded.scores(QUERIES), BM25(doc_ids, texts, 1.2, 0.5).scores(QUERIES))
