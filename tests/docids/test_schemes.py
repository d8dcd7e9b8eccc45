"""Docid schemes: every docid leads to its document and back, before and after updates, whatever the scheme."""

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dsi_experiments.schemes.title import title_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

import dsi
from dsi.commands.main import main
from dsi.config import read_config
from dsi.docids.clustering import DocidsConfig, assemble, build_tree
from dsi.docids.schemes import BUILT_IN, Docids, SchemeInput, find_scheme, make_docids, scheme_names
from dsi.docids.schemes.file import read_docids, write_docids
from dsi.docids.schemes.lloyd import train_kmeans
from dsi.docids.tree import DocidTree, padded_places
from dsi.docids.updating import add_documents, remove_documents
from dsi.store.retriever import load
from dsi.training.docids_stage import load_tokenizer
from dsi.training.indexing import read_embeddings
from dsi.training.pipeline import TrainingRun
from tests.support.small import WIDTH
from tests.support.tiny_settings import VECTORS, write_settings
from tests.support.trees import shared, walk

ROOT = Path(__file__).parents[2]
QUANTIZERS = ("rq", "rkmeans", "pq")
"""Schemes of the papers' wing, found by their entry points."""
WING = ["balanced", "random", "title", *QUANTIZERS]
EVERY = [*BUILT_IN, *WING]
OWN_SETTINGS = {
    **{method: {"branching": 4, "max_leaf_size": 3} for method in ("kmeans", "balanced", "random")},
    **{method: {"branching": 4} for method in QUANTIZERS},
    "title": {},
    "file": {},
}


class Letters:
    """A tokenizer whose tokens are letters; 1 ends a text."""

    eos_token_id, sep_token_id = 1, None

    def __len__(self) -> int:
        return 0x110000

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(ord, text)) for text in texts]}


def embeddings_of(documents: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(documents, WIDTH)).astype(np.float32)


def scheme_input(method: str, documents: int, folder: Path, **others) -> SchemeInput:
    """What any scheme needs; some titles are the same, some begin others."""
    chance = np.random.default_rng(documents)
    titles = ["".join(chance.choice(list("ab "), size=chance.integers(1, 8))) + "c" for _ in range(documents)]
    doc_ids, own = [f"d{row}" for row in range(documents)], dict(OWN_SETTINGS[method])
    if method == "file":
        method = str(folder / "docids.tsv")
        write_docids(
            folder / "docids.tsv", doc_ids, Docids.from_paths([[9 * len(t), ord(t[0]), 3] for t in titles]).paths
        )
    config = DocidsConfig(method=method, **own)
    vectors = embeddings_of(documents)
    return SchemeInput(vectors, config, doc_ids=doc_ids, titles=titles, tokenizer=Letters(), **others)


def scheme_tree(method: str, documents: int, folder: Path) -> DocidTree:
    given = scheme_input(method, documents, folder)
    return assemble(make_docids(given), given.embeddings)


def check_walk(tree: DocidTree) -> None:
    """Every document has its docid alone, which leads to it; nothing else is reached."""
    assert tree.is_sound()
    occupied = np.flatnonzero(tree.doc_rows >= 0)
    all_digits = [tree.digits(int(position)) for position in occupied]
    assert len(set(all_digits)) == len(occupied)
    assert [tree.node(digits) - tree.num_inner for digits in all_digits] == occupied.tolist()
    assert {tree.node(digits) - tree.num_inner for digits in walk(tree, ())} == set(range(tree.num_places))


@pytest.mark.parametrize("method", EVERY)
@pytest.mark.parametrize("documents", [5, 60, 300])
def test_every_docid_leads_to_its_document_and_back(method, documents, tmp_path):
    tree = scheme_tree(method, documents, tmp_path)
    check_walk(tree)
    np.testing.assert_array_equal(tree.embeddings[tree.positions], embeddings_of(documents))
    assert tree.fingerprint == scheme_tree(method, documents, tmp_path).fingerprint


@pytest.mark.parametrize("method", EVERY)
def test_documents_come_and_go_and_no_other_docid_changes(method, tmp_path):
    original = tree = scheme_tree(method, 80, tmp_path)
    names, chance = [f"d{row}" for row in range(80)], np.random.default_rng(1)
    before = {name: tree.digits(int(position)) for name, position in zip(names, tree.positions, strict=True)}
    for step in range(4):
        gone = chance.choice(len(names), size=15, replace=False)
        tree = remove_documents(tree, gone)
        names = [name for row, name in enumerate(names) if row not in gone]
        tree = add_documents(tree, embeddings_of(25, seed=step + 1))
        names += [f"new{step}.{number}" for number in range(25)]
        check_walk(tree)
        now = {name: tree.digits(int(position)) for name, position in zip(names, tree.positions, strict=True)}
        assert all(before.get(name, digits) == digits for name, digits in now.items())
        before = now
    assert tree.origin_fingerprint == original.fingerprint


def test_a_new_document_goes_to_the_nearest_cluster(tmp_path):
    tree = scheme_tree("rkmeans", 200, tmp_path)
    position = 50
    added = add_documents(tree, tree.embeddings[[position]])
    near, own = added.digits(int(added.positions[-1])), tree.digits(position)
    nearest, node = [], 0
    while tree.first_child[node] < tree.num_inner:
        children = tree.first_child[node] + np.arange(tree.num_children[node])
        node = int(children[((tree.centroids[children] - tree.embeddings[[position]]) ** 2).sum(axis=1).argmin()])
        nearest.append(node - int(children[0]))
    assert near[: len(nearest)] == tuple(nearest) or len(near) == len(own)
    assert near[0] == nearest[0]


paths = st.lists(st.lists(st.sampled_from([0, 1, 2, 7, 2**31 - 1]), min_size=1, max_size=4), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(paths)
def test_any_paths_make_a_tree_whose_digits_are_ranks(given_paths):
    docids = Docids.from_paths(given_paths)
    tree = assemble(docids, embeddings_of(len(given_paths)))
    check_walk(tree)
    whole = [tuple(number for number in row if number >= 0) for row in docids.paths.tolist()]
    assert len(set(whole)) == len(whole)
    assert all(path[: len(start)] == tuple(start) for path, start in zip(whole, given_paths, strict=True))
    for row, path in enumerate(whole):
        assert tree.digits(int(tree.positions[row])) == ranks(path, whole)


def ranks(path: tuple[int, ...], every: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The digits of a path: at each step the rank among what follows there, "ends" first; literal and slow."""
    digits: list[int] = []
    for length in range(len(path) + 1):
        beside = [other for other in every if other[:length] == path[:length]]
        follow = sorted({other[length : length + 1] for other in beside})
        digits.append(follow.index(path[length : length + 1]))
        if all(len(other) <= length + 1 for other in beside):  # they are documents
            return tuple(digits)
        if len(path) == length:  # it ends where others go on: a cluster of its own
            return (*digits, 0)
    raise AssertionError("the path does not end")


@pytest.mark.parametrize("method", EVERY)
def test_docids_written_to_a_file_are_read_as_the_same_tree(method, tmp_path):
    given = scheme_input(method, 120, tmp_path)
    docids, doc_ids = make_docids(given), list(given.doc_ids)
    write_docids(tmp_path / "copy.tsv", doc_ids, docids.paths)
    again = read_docids(tmp_path / "copy.tsv", doc_ids)
    np.testing.assert_array_equal(again.paths, docids.paths)
    assert assemble(again, given.embeddings).fingerprint == assemble(docids, given.embeddings).fingerprint


@pytest.mark.parametrize("method", QUANTIZERS)
def test_any_number_of_processes_makes_the_same_codes(method, tmp_path):
    alone = make_docids(scheme_input(method, 300, tmp_path))
    for docids in shared(2, lambda processes: make_docids(scheme_input(method, 300, tmp_path, processes=processes))):
        np.testing.assert_array_equal(docids.paths, alone.paths)


@pytest.mark.parametrize("method", ["rq", "rkmeans", "title"])
def test_a_node_has_the_mean_of_the_documents_below_it_whatever_the_scheme(method, tmp_path):
    tree = scheme_tree(method, 200, tmp_path)
    points = embeddings_of(200)
    for node in range(tree.num_inner):
        np.testing.assert_allclose(tree.centroids[[node]][0], points[tree.rows_below(node)].mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("method", ["rq", "rkmeans"])
def test_each_level_of_a_residual_quantizer_tells_more_of_a_vector(method):
    points, config = embeddings_of(500), DocidsConfig(method=method, branching=8)
    paths, errors = make_docids(SchemeInput(points, config)).paths, [(points**2).mean()]
    for length in (1, 2, 3):
        _, clusters = np.unique(paths[:, :length], axis=0, return_inverse=True)
        means = np.stack([points[clusters.ravel() == own].mean(axis=0) for own in range(clusters.max() + 1)])
        errors.append(((points - means[clusters.ravel()]) ** 2).mean())
    assert errors[0] > errors[1] > errors[2] > errors[3]


def test_residual_kmeans_takes_the_nearest_centroid_of_what_is_left():
    points, config = embeddings_of(300), DocidsConfig(method="rkmeans", branching=16)
    docids, left = make_docids(SchemeInput(points, config)), points
    for level in range(2):
        centroids = train_kmeans(left, 16, seed=0)  # [16, dim]
        nearest = ((left[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(docids.paths[:, level], nearest)
        left = left - centroids[nearest]


@pytest.mark.parametrize(("documents", "branching", "levels"), [(300, 16, 2), (1024, 4, 5)])
def test_product_quantization_codes_each_part_alone(documents, branching, levels):
    points, config = embeddings_of(documents), DocidsConfig(method="pq", branching=branching)
    one = make_docids(SchemeInput(points, config)).paths
    width = -(-WIDTH // levels)
    changed = points.copy()
    changed[:, width:] = embeddings_of(documents, seed=1)[:, width:]
    other = make_docids(SchemeInput(changed, config)).paths
    np.testing.assert_array_equal(one[:, 0], other[:, 0])
    assert (one[:, 1] != other[:, 1]).any()
    for part in range(levels):
        own = points[:, part * width : (part + 1) * width]
        means = np.stack([own[one[:, part] == number].mean(axis=0) for number in range(branching)])
        assert ((own - means[one[:, part]]) ** 2).sum() < ((own - own.mean(axis=0)) ** 2).sum()


@pytest.mark.parametrize("method", QUANTIZERS)
def test_equal_documents_share_their_code_and_get_a_last_digit(method):
    points = np.repeat(embeddings_of(40), 5, axis=0)
    config = DocidsConfig(method=method, branching=8)  # 3 levels
    docids = make_docids(SchemeInput(points, config))
    code = docids.paths[:, :3].reshape(40, 5, 3)
    same = (code == code[:, :1]).all(axis=(1, 2))
    assert same.mean() > (0.9 if method == "rq" else 0.999)  # the sums of a beam can tie but for rounding
    assert build_tree(points, config).depth == 4


@pytest.mark.parametrize("path", [[0.5, 1.7], "12", [[1]], None, [2**63], np.array([0.25])])
def test_a_path_that_is_no_sequence_of_integers_is_refused_with_its_document(path):
    with pytest.raises(ValueError, match="must be integers from 0 to 2147483647; document 1 has"):
        Docids.from_paths([[1], path, [3]])


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64, np.int8, np.int64])
def test_paths_are_integers_of_any_width(kind):
    expected = Docids.from_paths([[0, 7], [3], [3]]).paths
    np.testing.assert_array_equal(
        Docids.from_paths([np.array(own, dtype=kind) for own in ([0, 7], [3], [3])]).paths, expected
    )
    docids = Docids(np.array([[0, 7], [3, 0], [3, 1]], dtype=kind), np.array([0, 0, 1], dtype=kind))
    np.testing.assert_array_equal(docids.paths, expected)
    tree = assemble(docids, embeddings_of(2))
    assert padded_places(tree, np.arange(2)).tolist() == [[0, 1], [2, 2]]


@pytest.mark.parametrize("bad", [np.ones((3000, 3)), np.ones((3000, 3), dtype=object), np.ones((2, 2, 2), dtype=int)])
def test_an_array_that_holds_no_paths_is_refused(bad):
    with pytest.raises(ValueError, match=r"must be integers \[documents, 1 or more\], got an array of"):
        Docids(bad)


# Balanced and random clusters


def test_balanced_clusters_differ_by_at_most_one():
    points = np.random.default_rng(0).normal(size=(103, 16)).astype(np.float32)
    tree = build_tree(points, DocidsConfig(method="balanced", branching=4, max_leaf_size=5))
    sizes = (tree.doc_end - tree.doc_start)[tree.levels[1]]
    assert sizes.max() - sizes.min() <= 1


def test_random_digits_ignore_the_embeddings():
    points = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    config = DocidsConfig(method="random", branching=4, max_leaf_size=4)
    assert build_tree(points, config).fingerprint == build_tree(-points, config).fingerprint


# Titles


def title_tree(titles: list[str]) -> DocidTree:
    vectors = embeddings_of(len(titles))
    given = SchemeInput(vectors, DocidsConfig(method="title"), titles=titles, tokenizer=Letters())
    return assemble(make_docids(given), vectors)


def test_titles_are_told_apart_by_as_many_tokens_as_that_takes():
    titles = ["abc", "abd", "ab", "b long title", "abc", "x"]  # misspelt
    vectors = embeddings_of(6)
    given = SchemeInput(vectors, DocidsConfig(method="title"), titles=titles, tokenizer=Letters())
    docids = make_docids(given)
    a, b, c, d, end = *map(ord, "abcd"), 1
    expected = [[a, b, c, end, 0], [a, b, d], [a, b, end], [b], [a, b, c, end, 1], [ord("x")]]
    np.testing.assert_array_equal(docids.paths, Docids.from_paths(expected).paths)
    tree = assemble(docids, vectors)
    assert tree.digits(int(tree.positions[2])) == (0, 0, 0, 0)
    assert tree.digits(int(tree.positions[3])) == (1, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab c", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=20))
def test_any_titles_make_docids(titles):
    check_walk(title_tree(titles))


def test_titles_that_are_missing_are_named():
    config = DocidsConfig(method="title")
    with pytest.raises(ValueError, match=r"needs a title for each document; document 'd1' \(and 1 more\) has none"):
        make_docids(
            SchemeInput(embeddings_of(4), config, doc_ids=["d0", "d1", "d2", "d3"], titles=["a", " ", "b", ""],
                        tokenizer=Letters())
        )  # fmt: skip
    with pytest.raises(ValueError, match='"title" needs the titles of all documents, and a tokenizer that reads them'):
        build_tree(embeddings_of(4), config)


def test_tokens_are_the_encoders_or_those_of_a_given_tokenizer(encoder, tokenizer_folder):
    titles = ["Danube river", "Neon"]
    own = title_tokens(encoder.tokenizer, titles)
    assert own == title_tokens(load_tokenizer(str(tokenizer_folder)), titles)
    end = encoder.model.tokenizer.eos_token_id
    marked = title_tokens(encoder.tokenizer, [*titles, f"a{'</s>'}b"])
    assert all(tokens[-1] == end and tokens.count(end) == 1 for tokens in marked)
    with pytest.raises(
        FileNotFoundError, match=r"generator.decoder '/no/tokenizer' has no tokenizer for docids .*; name a folder"
    ):
        load_tokenizer("/no/tokenizer")


# Files


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\t1", "b 2", "c\t3"], r"line 2: expected a doc_id, a tab, and digits .*, got 'b 2'"),
        (["a\t1", "b\t2", "c\t3", "", "x\t4"], r"line 5: the document 'x' is not in the collection; remove the line"),
        (["a\t1", "b\t", "c\t3"], r"line 2: the document 'b' has no digits; give it at least one"),
        (["a\t1", "b\t2 -1", "c\t3"], r"line 2: a digit must be an integer from 0 to 2147483647, got '-1'"),
        (["a\t1", "b\t2 2147483648", "c\t3"], r"line 2: a digit must be .*, got '2147483648'"),
        (["a\t1", "b\t1.0", "c\t3"], r"line 2: a digit must be .*, got '1.0'"),
        (["a\t1"], r"has no line for the document 'b' \(and 1 more\); give every document of the collection one"),
        (["a\t1", "b\t2", "c\t\ud800"], r"line 3: not text in UTF-8"),
    ],
)
def test_a_file_of_docids_that_is_wrong_is_refused_by_line(lines, message, tmp_path):
    path = tmp_path / "docids.tsv"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=message) as raised:
        read_docids(path, ["a", "b", "c"])
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_of_docids_gives_ranks(tmp_path):
    path = tmp_path / "docids.tsv"
    path.write_text("c\t1 2\nb\t1\na\t1\n")  # documents with the same path, and one whose path goes on
    assert read_docids(path, ["a", "b", "c"]).paths.tolist() == Docids.from_paths([[1], [1], [1, 2]]).paths.tolist()
    path.write_text("c\t7 300\nb\t7 0\na\t2\n")
    config = DocidsConfig(method=str(path))
    given = SchemeInput(embeddings_of(3), config, doc_ids=["a", "b", "c"])
    tree = assemble(make_docids(given), given.embeddings)
    assert [tree.digits(int(tree.positions[row])) for row in range(3)] == [(0, 0), (1, 0), (1, 1)]
    with pytest.raises(FileNotFoundError, match=r"docids.method names .*no.tsv, which does not exist"):
        make_docids(replace(given, config=DocidsConfig(method=str(tmp_path / "no.tsv"))))


# Settings


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"method": "file"}, "docids.method must be one of .*, or a file NAME.tsv of docids, got 'file'"),
        ({"branching": 1}, "docids.branching must be at least 2"),
        ({"method": "x.tsv", "max_leaf_size": 5}, "docids.max_leaf_size is not read"),
        (
            {"method": "x.tsv", "branching": 8},
            'docids.branching is not read by the docid method "x.tsv"; leave it at 0, got 8',
        ),
    ],
)
def test_settings_that_a_scheme_cannot_use_are_refused(own, message):
    with pytest.raises(ValueError, match=message):
        DocidsConfig(**own)


@pytest.mark.parametrize(
    ("method", "branching", "message"),
    [
        (
            "rq",
            10,
            'docids.branching must be a power of two with method "rq", got 10; set it to 8 or 16.',
        ),
        ("pq", 3, 'docids.branching must be a power of two with method "pq", got 3; set it to 2 or 4.'),
        (
            "rkmeans",
            50,
            "The collection has 40 documents, fewer than docids.branching = 50; set branching to at most 40.",
        ),
    ],
)
def test_codewords_that_a_quantizer_cannot_use_are_refused(method, branching, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_docids(SchemeInput(embeddings_of(40), DocidsConfig(method=method, branching=branching)))


@pytest.mark.parametrize("method", ["kmeans", "random", "balanced"])
def test_one_document_is_a_tree(method):
    assert build_tree(embeddings_of(1), DocidsConfig(method=method)).num_places == 1


def test_fewer_documents_than_clusters_are_refused():
    with pytest.raises(ValueError, match=r"has 1 documents, fewer than docids.branching = 2"):
        build_tree(embeddings_of(1), DocidsConfig(branching=2))


@pytest.mark.parametrize("method", ["title", "file"])
def test_one_document_has_a_docid_of_its_title_or_a_file(method, tmp_path):
    tree = scheme_tree(method, 1, tmp_path)
    check_walk(tree)
    assert tree.num_places == 1


# Embeddings in a file


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_large_embeddings_stay_in_their_file(tmp_path, kind):
    points = embeddings_of(50).astype(kind)
    np.save(tmp_path / "points.npy", points)
    read = read_embeddings(tmp_path / "points.npy")
    assert isinstance(read, np.memmap)
    assert read.dtype == kind
    config = DocidsConfig(branching=4)
    paths = [make_docids(SchemeInput(given, config)).paths for given in (read, points.astype(np.float32))]
    np.testing.assert_array_equal(*paths)


def written(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("0.5 1.5\n"),
        lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\x04\x00{{{("),
        lambda path: written(path, np.array([[None]])),
        lambda path: np.savez(path.open("wb"), np.ones((3, 2))),
    ],
)
def test_a_file_that_holds_no_array_is_refused_by_name(write, tmp_path):
    path = tmp_path / "points.npy"
    write(path)
    with pytest.raises(ValueError, match=re.escape(f"NumPy cannot read {path}; write it with numpy.save.")):
        read_embeddings(path)


# Schemes of others

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Add a docid scheme")[2]
FOREIGN, ENTRY = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1] for kind in ("python", "toml"))


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A distribution that is installed, with the scheme of CONTRIBUTING, "signs"."""
    site = tmp_path / "site"
    info = site / "sign_docids-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "sign_docids.py").write_text(FOREIGN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sign-docids\nVersion: 1.0\n")
    ((group, schemes),) = tomllib.loads(ENTRY)["project"]["entry-points"].items()
    rows = [f"[{group}]", *(f"{name} = {place}" for name, place in schemes.items())]
    (info / "entry_points.txt").write_text("\n".join(rows))
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("sign_docids", None)


def test_a_scheme_of_another_package_is_found_by_its_entry_point(foreign):
    assert len(FOREIGN.strip().splitlines()) <= 30
    names = sorted([*WING, "signs"])
    assert scheme_names() == ["kmeans", *names]
    given = SchemeInput(embeddings_of(40), DocidsConfig(method="signs", branching=2))
    tree = assemble(make_docids(given), given.embeddings)
    signs = [tuple(row) for row in (given.embeddings[:, :3] > 0).tolist()]
    paths = [tree.digits(int(tree.positions[row]))[:3] for row in range(40)]
    for depth in (1, 2, 3):  # documents share a node if their signs begin alike
        assert len({(sign[:depth], path[:depth]) for sign, path in zip(signs, paths, strict=True)}) == len(
            {sign[:depth] for sign in signs}
        )
    check_walk(tree)


def test_a_name_that_no_scheme_has_is_refused_with_those_there_are(foreign):
    with pytest.raises(
        ValueError,
        match=r"docids.method must be one of kmeans, balanced, pq, .*signs, title, or a file NAME.tsv of docids, got "
        "'words'",
    ):
        DocidsConfig(method="words")
    with pytest.raises(ValueError, match=r"'words' is not a docid scheme; use one of kmeans, .*, signs, title"):
        find_scheme("words")


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        (None, "No module named 'sign_docids'"),
        ("make = [1, 2]", "it is not a function but [1, 2]"),
        ("raise RuntimeError('first\\nsecond')", "first"),
    ],
)
def test_a_scheme_that_cannot_be_loaded_is_refused_with_its_entry_point(foreign, tmp_path, module, cause):
    place = tmp_path / "site" / "sign_docids.py"
    place.unlink() if module is None else place.write_text(module)
    message = (
        f"The docid scheme 'signs' (sign_docids:make) cannot be loaded: {cause}; repair or remove the package that "
        "brings it."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        find_scheme("signs")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda: Docids.from_paths([[1], [2]]),
            r"'signs' must give Docids with a path for each of 3 documents, got 2",
        ),
        (lambda: [[1], [2], [3]], r"must give Docids with a path .*, got \[\[1\], \[2\], \[3\]\]"),
        (lambda: Docids.from_paths([[1], [], [3]]), r"numbers from 0 .*; document 1 has \[-1\]"),
        (lambda: Docids.from_paths([[1], [2, -3], [3]]), r"document 1 has \[2, -3\]"),
        (lambda: Docids.from_paths([[1], [-1, 3], [2**31]]), r"document 1 has \[-1, 3\]"),
        (lambda: Docids.from_paths([]), r"must be integers \[documents, 1 or more\]"),
        (lambda: Docids(np.ones((3, 2))), r"must be integers \[documents, 1 or more\]"),
    ],
)
def test_what_a_scheme_gives_is_checked(foreign, monkeypatch, made, message):
    import sign_docids

    monkeypatch.setattr(sign_docids, "make", lambda documents: made())
    with pytest.raises(ValueError, match=message):
        make_docids(SchemeInput(embeddings_of(3), DocidsConfig(method="signs")))


@pytest.mark.parametrize("name", EVERY)
def test_a_scheme_is_one_short_module(name):
    text = Path(inspect.getfile(find_scheme(name))).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "make" in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


# The whole line


@pytest.fixture
def train(beir, tmp_path, sentence_t5_folder, t5_folder):
    """Train an index of 40 documents with some settings of docids."""

    def run_of(**docids: object) -> TrainingRun:
        settings = {"branching": 0, "max_leaf_size": 20, "pieces": 0, **docids}
        config = write_settings(
            tmp_path / "config.toml", sentence_t5_folder, t5_folder, docids=settings, dev_queries=0,
            contrastive={"loss": "none"},
            **VECTORS,
        )  # fmt: skip
        run = TrainingRun(tmp_path / "run", dsi.read_collection(beir()), read_config(config), "cpu")
        run.train()
        return run

    return run_of


def check_updates(folder: Path) -> None:
    """An index finds every document, and keeps all docids when one comes and one goes."""
    retriever = load(folder, device="cpu")
    check_walk(retriever.snapshot.tree)
    found = retriever.search("noble gas", k=5, method="exact")
    every = retriever.search("noble gas", k=40, beam_width=40)
    assert found.exact
    assert [hit.doc_id for hit in found] == [hit.doc_id for hit in every][:5]
    before = {hit.doc_id: hit.digits for hit in every}
    assert len(before) == 40
    retriever.add([{"doc_id": "new", "title": "Gas of the sun", "text": "Helium, a noble gas."}])
    retriever.remove([found[0].doc_id])
    retriever.save(folder)
    again = load(folder, device="cpu").search("noble gas", k=41, beam_width=41)
    now = {hit.doc_id: hit.digits for hit in again}
    assert set(now) == {*before, "new"} - {found[0].doc_id}
    assert all(before.get(doc_id, digits) == digits for doc_id, digits in now.items())


@pytest.mark.parametrize("method", ["kmeans", "rq", "rkmeans", "pq"])
def test_an_index_of_clusters_or_codes_is_trained_searched_and_updated(method, train):
    run = train(method=method, **{**OWN_SETTINGS[method], "pieces": 2 * (method == "kmeans")})
    if method == "kmeans":  # the file says which docids the pieces of a document have
        assert run.tree().num_places > 40
        assert (run.folder / "docids" / "docids.tsv").exists()
    check_updates(run.folder)


def test_digits_that_are_the_schemes_own_numbers_are_not_written_twice(train):
    run = train(method="kmeans", pieces=1, **OWN_SETTINGS["kmeans"])
    assert not (run.folder / "docids" / "docids.tsv").exists()
    check_updates(run.folder)


def test_an_index_of_another_packages_scheme_is_trained_searched_and_updated(foreign, train):
    check_updates(train(method="signs").folder)


def test_an_index_of_titles_is_trained_searched_and_updated_and_keeps_the_tokens(train):
    run = train(method="title")
    lines = (run.folder / "docids" / "docids.tsv").read_text(encoding="utf-8").splitlines()
    tokens = {doc_id: list(map(int, own.split())) for doc_id, _, own in (line.partition("\t") for line in lines)}
    tokenizer, titles = run.encoder().tokenizer, run.collection.documents["title"]
    for doc_id, own in tokens.items():
        assert title_tokens(tokenizer, [titles[run.collection.rows[doc_id]]])[0][: len(own)] == own
    end = run.encoder().model.tokenizer.eos_token_id
    trie = pytest.importorskip("dsi.tries").Trie
    trie.from_tokens([[token for token in own if token != end] for own in tokens.values()], [end])
    check_updates(run.folder)


def test_an_index_of_a_file_is_trained_searched_and_updated_and_made_again_if_the_file_changed(train, tmp_path, beir):
    path, doc_ids = tmp_path / "docids.tsv", list(dsi.read_collection(beir()).rows)
    path.write_text("".join(f"{doc_id}\t{len(doc_id)} {row}\n" for row, doc_id in enumerate(doc_ids)))
    run = train(method=str(path))
    first = run.tree().fingerprint
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([f"{doc_ids[0]}\t99\n", *rows[1:]]))
    run.run_stages("docids")
    assert run.tree().fingerprint != first
    run.run_stages()
    check_updates(run.folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('method = "{}/wrong.tsv"', "wrong.tsv, line 1: "),
        ('method = "{}/missing.tsv"', "missing.tsv, which does not exist"),
    ],
)
def test_documents_without_docids_are_refused_before_anything_is_trained(settings, message, tmp_path, beir, capsys):
    (tmp_path / "wrong.tsv").write_text("danube\tx\n")
    config, run = tmp_path / "config.toml", tmp_path / "run"
    config.write_text(f"[docids]\n{settings.format(tmp_path)}\n")
    corpus = [{"_id": "a", "title": "A", "text": "a text"}, {"_id": "b", "title": "", "text": "a text"}]
    judged = "query-id\tcorpus-id\tscore\nq\ta\t1"
    data = beir("\n".join(map(json.dumps, corpus)), '{"_id": "q", "text": "a"}', train=judged, test=judged)
    assert main(["train", "--config", str(config), str(data), str(run), "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()
