"""Vectors in few bytes: what they decode to, how they change, and trees that keep them."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.commands.main import main
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import Product, Vectors, VectorsConfig
from dsi.store.retriever import load
from tests.support.small import random_tree, with_codes
from tests.support.small_index import small_index

POINTS = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)


@pytest.mark.parametrize(("kind", "error"), [("float32", 0), ("int8", 0.02)])
def test_vectors_decode_to_about_what_they_were(kind, error):
    vectors = Vectors.from_array(POINTS, kind)
    assert vectors.shape == POINTS.shape
    assert np.abs(vectors[:] - POINTS).max() <= error
    np.testing.assert_array_equal(vectors[5], vectors[:][5])
    np.testing.assert_array_equal(vectors[np.array([[7, 1], [2, 2]])], vectors[:][[[7, 1], [2, 2]]])
    assert vectors.nbytes == {"float32": 48, "int8": 12}[kind] * 300
    np.testing.assert_allclose(vectors.squares(), (vectors[:].astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)


def test_codes_to_search_by_are_half_a_byte_a_part():
    codes = Vectors.search_codes(POINTS)
    assert isinstance(codes.codec, Product)
    assert codes.parts[0].shape == (300, 6)
    theirs = faiss.ProductQuantizer(12, 12, 4)
    faiss.copy_array_to_vector(codes.codec.codebooks.ravel(), theirs.centroids)
    np.testing.assert_array_equal(codes[:], theirs.decode(theirs.compute_codes(POINTS)))


@pytest.mark.parametrize(("dim", "code_bytes"), [(12, 6), (33, 17), (64, 16), (384, 48), (768, 96), (1024, 128)])
def test_codes_have_an_eighth_of_the_dimension_and_at_least_sixteen_bytes(dim, code_bytes):
    points = np.random.default_rng(0).normal(size=(20, dim)).astype(np.float32)
    assert Vectors.search_codes(points[:10]).parts[0].shape == (10, code_bytes)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["float32", "int8"]),
    steps=st.integers(1, 4),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_rearranged_vectors_are_those_of_an_array(kind, steps, data, seed):
    rng = np.random.default_rng(seed)
    vectors = Vectors.from_array(POINTS, kind)
    expected, first = vectors[:], vectors.parts[0]
    for _ in range(steps):
        new = POINTS[rng.integers(300, size=data.draw(st.integers(0, 3)))]
        source = rng.integers(len(expected) + len(new), size=data.draw(st.integers(1, 40)))
        vectors = vectors.rearrange(source, new)
        expected = np.concatenate(
            [expected, Vectors.from_codec(new, vectors.codec)[:] if len(new) and vectors.codec else new]
        )[source]
        assert vectors.parts[0] is first  # nothing was copied
        np.testing.assert_array_equal(vectors[:], expected)
        np.testing.assert_array_equal(vectors[1:3], expected[1:3])
        assert len(vectors) == len(vectors.all_numbers()) == len(expected)
        rows = data.draw(st.integers(0, 60))
        for batch in (1, 3, 40):  # one by one, and by a matrix product
            queries = rng.normal(size=(batch, 12)).astype(np.float32)
            np.testing.assert_allclose(vectors.products(queries), queries @ expected.T, rtol=1e-4, atol=1e-4)
            own = rng.integers(-1, len(expected), size=(batch, rows))  # -1 is padding
            products = np.where(own < 0, -np.inf, np.einsum("bmd,bd->bm", expected[own], queries))
            np.testing.assert_allclose(vectors.dots(queries, own), products, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "has_codes"),
    [("int8", False), ("int8", True), ("float32", True)],
    ids=["int8", "int8-codes", "float32-codes"],
)
def test_a_tree_keeps_its_vectors_on_disk(kind, has_codes, tmp_path):
    tree = with_codes(random_tree(400), kind) if has_codes else random_tree(400).stored_as(VectorsConfig(kind))
    tree.save(tmp_path / "docids.safetensors")
    loaded = DocidTree.load(tmp_path / "docids.safetensors")
    for name in ("centroids", "embeddings", "codes"):
        own, other = getattr(tree, name), getattr(loaded, name)
        assert (own is None) == (other is None)
        if own is not None:
            assert own.dtype == other.dtype
            np.testing.assert_array_equal(own[:], other[:])
    assert loaded.fingerprint == tree.fingerprint


def test_values_that_would_end_the_process_are_refused():
    points = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    points[3, 5] = 1e20
    with pytest.raises(ValueError, match=r"Embeddings that get codes must be below 1e\+15, got 1e\+20"):
        Product.fit(points, 8)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"vectors\.kind must be one of float32, int8, got 'int4'"):
        VectorsConfig("int4")


def test_an_index_on_disk_keeps_its_vectors_in_fewer_bytes(encoder, tmp_path, capsys):
    retriever, run = small_index(encoder), tmp_path / "index"
    retriever.save(run)
    before = retriever.run({"0": "the danube"}, k=5)["0"]
    assert main(["update", str(run), "--device", "cpu", "--vectors", "int8"]) == 0
    assert "50 documents now; generation 2" in capsys.readouterr().out
    loaded = load(run, device="cpu")
    assert loaded.snapshot.tree.embeddings.dtype == np.int8
    assert loaded.snapshot.tree.fingerprint == retriever.snapshot.tree.fingerprint
    after = loaded.run({"0": "the danube"}, k=5)["0"]
    assert before.keys() == after.keys()
    np.testing.assert_allclose([*before.values()], [after[doc_id] for doc_id in before], rtol=0.05)
    loaded.add([{"doc_id": "new", "title": "Danube", "text": "a river"}])
    assert loaded.snapshot.tree.embeddings.dtype == np.int8
