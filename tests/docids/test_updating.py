"""Adding to a docid tree and removing from it: every document in its place, no other docid ever changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents, without_traces
from dsi.docids.vectors import VectorsConfig
from tests.support.small import WIDTH, random_tree


def places(tree: DocidTree, names: list[str]) -> dict[str, tuple[int, ...]]:
    """{name of a document: its digits}; names are in the order of the table."""
    return {names[row]: tree.digits(int(position)) for row, position in enumerate(tree.positions)}


def check(tree: DocidTree, names: list[str], vectors: dict[str, np.ndarray]) -> None:
    assert tree.is_sound()
    assert len(tree.positions) == len(names) == tree.num_places - tree.num_removed
    for row, position in enumerate(tree.positions):
        np.testing.assert_array_equal(tree.embeddings[position], vectors[names[row]])
        assert tree.node(tree.digits(int(position))) == tree.num_inner + position
        assert tree.rows_below(tree.num_inner + int(position)).tolist() == [row]
    assert all(not len(tree.rows_below(tree.num_inner + free)) for free in np.flatnonzero(tree.doc_rows < 0))
    for node in range(tree.num_inner):
        below = slice(tree.doc_start[node], tree.doc_end[node])
        first, count = int(tree.first_child[node]), int(tree.num_children[node])
        if first < tree.num_inner:  # children cover the same documents, in order
            ends = np.concatenate([tree.doc_start[first : first + count], [tree.doc_end[first + count - 1]]])
            assert ends[0] == tree.doc_start[node]
            assert ends[-1] == tree.doc_end[node]
            assert (np.diff(ends) == tree.doc_end[first : first + count] - tree.doc_start[first : first + count]).all()
        occupied = tree.doc_rows[below] >= 0
        assert tree.rows_below(node).tolist() == tree.doc_rows[below][occupied].tolist()
        if occupied.any():
            np.testing.assert_allclose(tree.centroids[node], tree.embeddings[below][occupied].mean(axis=0), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.integers(3, 60), branching=st.integers(2, 4), leaf=st.integers(1, 4), seed=st.integers(0, 1000),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 25), st.booleans()), min_size=1, max_size=5),
)  # fmt: skip
def test_any_updates_keep_every_other_docid(documents, branching, leaf, seed, steps):
    rng = np.random.default_rng(seed)
    tree = original = random_tree(max(documents, branching), branching=branching, leaf=leaf, seed=seed)
    names = [f"old{n}" for n in range(tree.num_places)]
    vectors = {name: tree.embeddings[position] for name, position in zip(names, tree.positions, strict=True)}
    before, serial = places(tree, names), 0
    for adds, count, close in steps:
        if adds:
            new = rng.normal(size=(count, WIDTH)).astype(np.float32)
            if close:  # all in one corner, so that clusters and their parents overflow
                new = (tree.embeddings[0] + 0.01 * new).astype(np.float32)
            tree = add_documents(tree, new)
            fresh = [f"new{serial + n}" for n in range(count)]
            serial += count
            names = names + fresh
            vectors.update(zip(fresh, new, strict=True))
        else:
            rows = rng.choice(len(names), size=min(count, len(names)), replace=False)
            tree = remove_documents(tree, rows)
            names = [name for row, name in enumerate(names) if row not in set(rows.tolist())]
        check(tree, names, vectors)
        now = places(tree, names)
        for name, digits in now.items():
            assert before.get(name, digits) == digits
        before = {**before, **now}
    assert tree.origin_fingerprint == original.fingerprint
    assert tree.depth == original.depth
    # The decoder knows exactly what it was trained on: the old nodes, less the places that others took.
    assert int(tree.trained[: tree.num_inner].sum()) == original.num_inner
    for row, position in enumerate(tree.positions):
        assert tree.trained[tree.num_inner + position] == names[row].startswith("old")


def test_a_free_place_is_taken_and_a_full_cluster_gets_a_neighbour():
    tree = random_tree(40, branching=4, leaf=4)
    position = 8
    row, digits = int(tree.doc_rows[position]), tree.digits(position)
    freed = remove_documents(tree, np.array([row]))
    assert freed.num_removed == 1
    taken = add_documents(freed, tree.embeddings[[position]])
    assert taken.num_removed == 0
    assert taken.digits(int(taken.positions[-1])) == digits
    assert taken.num_places == tree.num_places

    crowd = np.repeat(tree.embeddings[[position]], 200, axis=0)
    crowded = add_documents(tree, crowd)
    assert int(crowded.num_children.max()) <= max(
        2 * 4, int(crowded.num_children[0])
    )  # only the root may outgrow twice
    assert crowded.num_inner > tree.num_inner
    assert crowded.depth == tree.depth


def test_bad_vectors_are_refused():
    tree = random_tree(20)
    with pytest.raises(ValueError, match="embeddings must be finite"):
        add_documents(tree, np.full((1, WIDTH), np.nan, dtype=np.float32))


def test_an_updated_tree_survives_saving(tmp_path):
    tree = remove_documents(add_documents(random_tree(30), np.ones((5, WIDTH), dtype=np.float32)), np.array([3, 31]))
    tree.save(tmp_path / "tree.safetensors")
    loaded = DocidTree.load(tmp_path / "tree.safetensors")
    assert loaded.fingerprint == tree.fingerprint
    assert loaded.origin_fingerprint == tree.origin_fingerprint == random_tree(30).fingerprint
    np.testing.assert_array_equal(loaded.trained, tree.trained)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_vector_of_a_document_that_was_alone_in_its_cluster_leaves_with_it(kind, tmp_path):
    tree = random_tree(30, leaf=1).stored_as(VectorsConfig(kind))
    alone = int(np.flatnonzero(tree.doc_end - tree.doc_start == 1)[0])
    position = tree.doc_start[[alone]]
    vector = tree.embeddings.numbers(position).tobytes()
    removed = remove_documents(tree, tree.doc_rows[position])
    assert removed.centroids.numbers([alone]).tobytes() == tree.centroids.numbers([alone]).tobytes()
    tree = without_traces(removed)
    tree.save(tmp_path / "tree.safetensors")
    assert vector not in (tmp_path / "tree.safetensors").read_bytes()
    loaded = DocidTree.load(tmp_path / "tree.safetensors")
    assert without_traces(loaded) is loaded
    add_documents(loaded, np.ones((3, WIDTH), np.float32)).save(tmp_path / "tree.safetensors")
