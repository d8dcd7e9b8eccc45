"""The public face: search, explain, run, saving and loading, and every way an index can be broken."""

import dataclasses
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch

import dsi
from dsi import Retriever, SearchConfig
from dsi.contrastive.encoder import state_fingerprint
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.words.bm25 import BM25
from dsi.search import vector_search
from dsi.search.hits import Hit, Hits
from dsi.search.request import SearchOptions, SearchRequest
from dsi.search.walk import VectorWalk
from dsi.store.folder.loading import load_documents
from dsi.store.folder.manifest import FORMAT_VERSION, PARTS
from dsi.store.retriever import load
from tests.support.parts import from_parts
from tests.support.small import MINIPEDIA, WIDTH, random_generator, random_tree
from tests.support.small_index import DOCUMENTS, small_index

RECORDS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
_made: dict[tuple, tuple] = {}
QUERIES = ["rivers", "noble gas", "the emperor of austria", "advertising signs", "capitals on the danube", "bees"]


def index_of(encoder, *, vectors: bool, count: int = 60, leaf: int = 4, words: bool = False, **config) -> Retriever:
    """The first documents of Minipedia with a random generator; table and tree are made once."""
    rows, made = RECORDS[:count], (encoder.fingerprint, count, leaf)
    if made not in _made:
        columns = {"doc_id": [r["_id"] for r in rows], "title": [r["title"] for r in rows]}
        texts = encoder.document_texts(columns["title"], [r["text"] for r in rows])
        tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=4, max_leaf_size=leaf))
        _made[made] = datasets.Dataset.from_dict(columns), tree
    documents, tree = _made[made]
    generator = None if vectors else random_generator(tree)
    lexical = BM25(documents["doc_id"], [r["text"] for r in rows], k1=1.2, b=0.5) if words else None
    search = SearchConfig(**{"alpha": 0.3, "beam_width": 4, **config})
    return from_parts(encoder, tree, generator, documents, search, lexical)


@pytest.fixture
def retriever(encoder):
    return index_of(encoder, vectors=True)


@pytest.fixture
def digits(encoder):
    """An index with (level, digit) tokens."""
    return index_of(encoder, vectors=False, ann_temperature=0.02, beam_width=12)


def test_a_part_of_the_hits_is_hits_and_exact_only_from_the_first(retriever):
    hits = retriever.search("which capitals are on the danube", k=5, method="exact")
    assert (type(hits[:2]), hits[:2].exact, hits[1:].exact, hits[0].rank) == (Hits, True, False, 1)
    assert hits[:2].explain(hits[1].doc_id).rank == 2
    assert len(hits[1:].to_df()) == 4


def test_one_query_gives_hits_and_several_give_lists(retriever):
    hits = retriever.search("which capitals are on the danube", k=5)
    assert isinstance(hits, Hits)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert isinstance(hits[0], Hit)
    assert isinstance(hits.exact, bool)
    titles = dict(
        zip(retriever.snapshot.documents.column("doc_id"), retriever.snapshot.documents.column("title"), strict=True)
    )
    for hit in hits:
        assert titles[hit.doc_id] == hit.title
        assert retriever.snapshot.tree.node(hit.digits) >= retriever.snapshot.tree.num_inner
    queries = ["a much longer query about rivers and capitals", "neon"]
    several = retriever.search(queries, k=10, candidates=None, beam_width=20)
    assert [len(found) for found in several] == [10, 10]
    (alone,) = retriever.search(["neon"], k=10, beam_width=20)
    assert [hit.doc_id for hit in alone] == [hit.doc_id for hit in several[1]]


def dense_scores(retriever, queries) -> np.ndarray:
    """[queries, documents] in the order of the document table."""
    embeddings = retriever.encode_queries(queries).embeddings
    return embeddings @ retriever.snapshot.tree.embeddings[retriever.snapshot.tree.positions].T


def check_best(retriever, hits: Hits, scores: np.ndarray) -> None:
    """The hits are the best of all documents, with these scores [documents]."""
    own = [scores[retriever.snapshot.documents.rows[hit.doc_id]] for hit in hits]
    assert [hit.score for hit in hits] == pytest.approx(own, rel=1e-5, abs=1e-6)
    assert own == pytest.approx(np.sort(scores)[::-1][: len(hits)], rel=1e-5, abs=1e-6)


def test_exact_search_is_flat_dense_search(retriever):
    for hits, scores in zip(
        retriever.search(QUERIES, 8, method="exact"), dense_scores(retriever, QUERIES), strict=True
    ):
        assert len(hits) == 8
        assert hits.exact
        check_best(retriever, hits, scores)


def test_generate_finds_less_with_a_narrow_beam_and_all_with_a_wide_one(retriever):
    scores = dense_scores(retriever, QUERIES)
    rows, missed = retriever.snapshot.documents.rows, 0
    for hits, own in zip(retriever.search(QUERIES, 5, beam_width=1), scores, strict=True):
        assert [hit.score for hit in hits] == pytest.approx([own[rows[hit.doc_id]] for hit in hits], rel=1e-5)
        assert not hits.exact
        missed += hits[0].score < own.max() - 1e-5
    assert missed
    for hits, own in zip(retriever.search(QUERIES, 5, beam_width=100), scores, strict=True):
        assert hits.exact
        check_best(retriever, hits, own)


def test_a_default_search_walks_once_a_query_and_reads_a_small_part(encoder, monkeypatch):
    retriever = index_of(
        encoder, vectors=True, count=len(RECORDS), leaf=2, words=True, lexical_weight=0.05, candidates=5
    )
    walk, walked = VectorWalk.descend, []
    monkeypatch.setattr(VectorWalk, "descend", lambda *given: walked.extend(given[2]) or walk(*given))
    found = retriever.snapshot.search(retriever.encode_queries(QUERIES), k=5)
    assert len(walked) == len(QUERIES)
    nodes, documents = retriever.snapshot.tree.num_inner, len(retriever.snapshot.documents)
    assert documents > 100
    assert (found.read > 5).all()
    assert (found.read < (nodes + documents) / 4).all()
    assert not found.exact.any()
    walked.clear()
    everything = retriever.snapshot.search(retriever.encode_queries(QUERIES), k=5, method="exact")
    assert (everything.read == documents).all()
    assert everything.exact.all()
    assert not walked


@pytest.mark.parametrize("outright", [0, 1000])
def test_filters_hold_inside_the_walk_at_any_selectivity(retriever, monkeypatch, outright):
    monkeypatch.setattr(vector_search, "_OUTRIGHT", outright)
    query, doc_ids = "long rivers of europe", list(retriever.snapshot.documents.column("doc_id"))
    ranked = [hit.doc_id for hit in retriever.search(query, k=60, method="exact")]
    (scores,) = dense_scores(retriever, [query])
    for allow in (doc_ids[:30], ranked[-2:], [ranked[-1]], set(doc_ids)):
        for options in ({"method": "exact"}, {"beam_width": 1}, {"beam_width": 100}):
            hits = retriever.search(query, k=5, allow=allow, **options)
            assert len(hits) == min(5, len(allow))
            assert {hit.doc_id for hit in hits} <= set(allow)
            own = [scores[retriever.snapshot.documents.rows[hit.doc_id]] for hit in hits]
            assert [hit.score for hit in hits] == pytest.approx(own, rel=1e-5)  # a filter changes no score
            if hits.exact:
                assert [hit.doc_id for hit in hits] == [doc_id for doc_id in ranked if doc_id in allow][:5]
            assert hits.exact or (options == {"beam_width": 1} and (not outright or len(allow) == len(doc_ids)))
    hits = retriever.search(query, k=5, deny=ranked[:3], beam_width=100)
    assert [hit.doc_id for hit in hits] == ranked[3:8]
    hits = retriever.search(query, k=5, allow=ranked[:3], deny=[ranked[1]])
    assert [hit.doc_id for hit in hits] == [ranked[0], ranked[2]]
    for method in ("generate", "exact"):
        nothing = retriever.search(query, k=5, allow=[], method=method)
        assert nothing == []
        assert nothing.exact
    assert [len(hits) for hits in retriever.search(["river", "neon"], k=5, allow=doc_ids[:2])] == [2, 2]


def test_exact_search_over_paths_equals_a_beam_that_prunes_nothing(digits):
    wide = digits.search(QUERIES, k=3, beam_width=60)
    narrow = digits.search(QUERIES, k=3, beam_width=3)
    assert not all(hits.exact for hits in narrow)
    everything = digits.search(QUERIES, k=3, method="exact")
    assert all(hits.exact for hits in everything)
    for a, b, few in zip(wide, everything, narrow, strict=True):
        assert [hit.doc_id for hit in a] == [hit.doc_id for hit in b]
        assert not few.exact or [hit.doc_id for hit in few] == [hit.doc_id for hit in b]


def test_the_beam_over_paths_is_at_least_as_wide_as_k(digits):
    assert [len(hits) for hits in digits.search(QUERIES[:2], k=20, beam_width=1)] == [20, 20]
    assert len(digits.search("river", k=80)) == 60


@pytest.mark.parametrize("method", ["generate", "exact"])
def test_extra_scores_of_documents_are_added(retriever, method):
    queries = ["long rivers of europe", "neon"]
    extra = np.random.default_rng(0).normal(size=(2, 60))
    scores = dense_scores(retriever, queries) + extra
    for hits, own in zip(retriever.search(queries, k=5, method=method, extra_scores=extra), scores, strict=True):
        assert hits.exact  # all documents are among the `candidates` by extra_scores
        check_best(retriever, hits, own)
    with pytest.raises(ValueError, match=r"\[queries, documents\] = \(1, 60\), got float64 \(2, 60\)"):
        retriever.search("river", extra_scores=extra)


def test_extra_scores_find_documents_that_no_walk_reaches(retriever):
    extra = np.zeros((1, 60))
    worst = int(np.argmin(dense_scores(retriever, ["river"])))
    extra[0, worst] = 100.0
    hits = retriever.search("river", k=1, beam_width=2, candidates=3, extra_scores=extra)
    assert hits[0].doc_id == list(retriever.snapshot.documents.rows)[worst]
    explanation = retriever.explain("river", k=1, beam_width=2, candidates=3, extra_scores=extra)
    (first,) = (node for level in explanation.levels for node in level if node.rank == 1)
    assert first.found_by == ("extra scores",)
    plain = retriever.explain("river", k=1, beam_width=2, candidates=3)
    nodes, others = (
        [(node.digits, node.score, node.kept) for level in each.levels for node in level if node.documents > 1]
        for each in (explanation, plain)
    )
    walked = {digits for digits, *_ in others}
    assert [node for node in nodes if node[0] in walked] == others  # they steer no walk


def test_bm25_joins_the_dense_scores_and_is_saved_with_the_index(encoder, tmp_path):
    retriever = index_of(encoder, vectors=True, words=True)
    bm25 = retriever.snapshot.lexical
    queries = ["light noble gas", "electric current", "of the"]
    scores = dense_scores(retriever, queries) + np.float32(0.5) * bm25.shares(queries)
    for hits, own in zip(retriever.search(queries, k=8, lexical_weight=0.5, method="exact"), scores, strict=True):
        check_best(retriever, hits, own)
    found = retriever.search(queries, k=8, lexical_weight=0.5)
    assert found != retriever.search(queries, k=8, lexical_weight=0)
    assert found != retriever.search(queries, k=8)  # the index's own weight is 0
    alone = retriever.search(queries[1], k=3, beam_width=1, lexical_weight=1e6)
    words = np.argsort(-bm25.scores(queries)[1], kind="stable")[:1]
    assert alone[0].doc_id == bm25.doc_ids[int(words[0])]

    retriever.search_config = dataclasses.replace(retriever.search_config, lexical_weight=0.5)
    assert "of a document = dense + 0.5 BM25" in str(retriever.explain(queries[0]))
    retriever.save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    assert (loaded.snapshot.lexical.k1, loaded.snapshot.lexical.b) == (1.2, 0.5)
    for again, hits in zip(loaded.search(queries, k=8), found, strict=True):
        assert again.ids.tolist() == hits.ids.tolist()
        np.testing.assert_allclose(again.scores, hits.scores, atol=1e-4)
    shutil.rmtree(tmp_path / "index" / "lexical")
    with pytest.raises(FileNotFoundError, match=r"lexical.* is missing from the index"):
        load(tmp_path / "index", device="cpu")


def test_the_lexical_part_of_other_documents_is_refused(retriever, tmp_path):
    BM25(["a", "b"], ["neon", "helium"]).save(tmp_path / "lexical")
    with pytest.raises(ValueError, match="covers 2 documents, the document table has 60"):
        BM25.load(tmp_path / "lexical", retriever.snapshot.documents.column("doc_id"))


def test_run_is_what_search_finds(retriever):
    queries = {"q2": "long rivers of europe", "q1": "neon"}
    run = retriever.run(queries, k=4)
    for query_id, text in queries.items():
        assert run[query_id] == pytest.approx({hit.doc_id: hit.score for hit in retriever.search(text, k=4)}, abs=1e-5)


def test_non_ascii_and_unknown_words_are_answered(retriever):
    for query in ("东京 naïve", "zzzz", "?"):
        assert len(retriever.search(query, k=3)) == 3


CALLS = {
    "search": lambda r, **options: r.search("river", 5, **options),
    "explain": lambda r, **options: r.explain("river", 5, **options),
    "run": lambda r, **options: r.run({"q": "river"}, 5, **options),
    "follow": lambda r, **options: r.snapshot.follow(["river"], [["gold"]], **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_takes_the_same_options_and_refuses_a_misspelt_one(retriever, name):
    with pytest.raises(TypeError, match=rf"{name}\(\) has no option 'beam_with'; did you mean 'beam_width'\?"):
        CALLS[name](retriever, beam_with=None)
    CALLS[name](retriever, beam_width=8, where="doc_id <> 'neon'", deny=["helium"], method="generate")
    CALLS[name](retriever, **dict.fromkeys(SearchOptions.__annotations__))  # None: as the index has it


def test_the_options_are_those_of_the_record():
    record = {field.name for field in dataclasses.fields(SearchRequest)} - {"k", "config", "allowed"}
    config = {field.name for field in dataclasses.fields(SearchConfig)}
    own = {"fusion"}  # of an index: a call over HTTP names no code
    assert set(SearchOptions.__annotations__) == record | (config - own) | {"allow", "deny", "where"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": True}, "method must be a string, got True"),
        ({"k": 2.5}, "k must be an integer, got 2.5"),
        ({"k": True}, "k must be an integer, got True"),
        ({"alpha": "0.5"}, "alpha must be a number, got '0.5'"),
        ({"beam_width": 10.0}, "beam_width must be an integer, got 10.0"),
        ({"allow": 3}, "allow must be a list or set of doc_ids, got 3"),
        ({"allow": [None]}, "allow must hold doc_ids, which are strings, got None"),
        ({"deny": [["neon"]]}, "deny must hold doc_ids, which are strings, got ['neon']"),
        ({"lexical_weight": 1e300}, "lexical_weight must be between 0 and 1e6, got 1e+300"),
        (
            {"extra_scores": np.full((1, 60), np.nan)},
            "extra_scores must be finite, from -1e30 to 1e30, got nan for query 0",
        ),
        (
            {"extra_scores": [[0.0] * 60]},
            "must be a NumPy array of numbers [queries, documents] = (1, 60), got list",
        ),
        ({"extra_scores": np.zeros((1, 60), dtype=complex)}, "= (1, 60), got complex128 (1, 60)"),
    ],
)
def test_values_of_the_wrong_type_or_size_are_refused(retriever, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        retriever.search("river", **options)


@pytest.mark.parametrize("method", ["generate", "exact"])
@pytest.mark.parametrize("size", [-1e30, 1e30])
def test_the_largest_values_give_finite_scores(retriever, digits, method, size):
    extra = np.zeros((1, 60))
    extra[0, 7] = size
    for index in (retriever, digits):
        for temperature in (1e-6, 1e6):
            index.search_config = dataclasses.replace(index.search_config, ann_temperature=temperature)
            more = {"extra_scores": extra} if index is retriever else {}
            hits = index.search("river", k=12, method=method, **more)
            assert len(hits) == 12
            assert np.isfinite([hit.score for hit in hits]).all()


def test_doc_ids_may_be_any_iterable_and_numpy_takes_part(retriever):
    doc_ids = list(retriever.snapshot.documents.rows)
    found = retriever.search(
        "river", k=np.int64(2), allow=np.array(doc_ids[:2]), min_score=np.float32(-9), method=np.str_("generate")
    )
    assert {hit.doc_id for hit in found} == set(doc_ids[:2])
    denied = retriever.search("river", k=60, deny=np.array(doc_ids[:2]))
    assert {hit.doc_id for hit in denied} == set(doc_ids[2:])
    by_set = retriever.search("river", k=2, allow={*doc_ids[:2]})
    assert by_set == found
    queries = ["river", "neon"]
    assert (
        retriever.search(np.array(queries), k=3)
        == retriever.search(iter(queries), k=3)
        == retriever.search(queries, k=3)
    )
    retriever.remove(doc_id for doc_id in doc_ids[:2])
    retriever.remove(np.array(doc_ids[2:4]))
    assert list(retriever.snapshot.documents.rows) == doc_ids[4:]


@pytest.mark.parametrize("options", [
    {"allow": ["neon", "gold", "jupiter", "muon", "hooke-s-law"]},
    {"deny": ["FIRST"]},
    {"where": "doc_id < 'n'"},
    {"extra_scores": np.linspace(0, 30, 60)[None]},
    {"method": "exact"},
    {"beam_width": 1, "k": 30},
])  # fmt: skip
def test_explain_shows_the_search_that_answered_under_any_option(retriever, digits, options):
    query = "which capitals are on the danube"
    for index in (retriever, digits):
        if "extra_scores" in options and index is digits:
            continue  # paths take none
        plain, own = index.search(query, k=3), {"k": 3, **options}
        if "deny" in own:
            own["deny"] = [plain[0].doc_id]
        hits = index.search(query, **own)
        changes = own.keys() & {"allow", "deny", "where", "extra_scores"}
        assert not changes or [hit.doc_id for hit in hits] != [hit.doc_id for hit in plain]
        explanation = index.explain(query, **own)
        ranked = {node.rank: node for level in explanation.levels for node in level if node.rank}
        assert {rank: node.digits for rank, node in ranked.items()} == {hit.rank: hit.digits for hit in hits}
        for hit in hits:
            assert ranked[hit.rank].score == pytest.approx(hit.score, rel=1e-5)
            assert sum(ranked[hit.rank].parts.values()) == pytest.approx(hit.score, rel=1e-4)
            assert ranked[hit.rank].label == hit.title


def test_a_search_passes_through_few_files(encoder, tmp_path):
    """From the public call to the answer: thirteen files in three rooms of dsi, and as many of encoder and packages below."""
    index_of(encoder, vectors=True, words=True, lexical_weight=0.1).save(tmp_path / "index")
    retriever, root = dsi.load(tmp_path / "index", device="cpu"), Path(dsi.__file__).parent
    retriever.search("x", k=5)  # makes what later searches read
    touched = set()

    def record(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            touched.add(path.relative_to(root))

    sys.setprofile(record)
    try:
        retriever.search("x", k=5)
    finally:
        sys.setprofile(None)
    ours = {path for path in touched if path.parts[0] not in ("docids", "contrastive", "eval", "graph")}
    assert len(ours) <= 13, sorted(map(str, ours))
    assert len({path.parent for path in ours}) <= 3
    assert len(touched) <= 30, sorted(map(str, touched))


def test_explain_shows_the_walk_that_search_made(retriever, monkeypatch):
    """Documents, their scores, and the nodes kept are those of the search itself."""
    query, walk, reached = "which capitals are on the danube", VectorWalk.descend, []
    monkeypatch.setattr(VectorWalk, "descend", lambda *given: reached.extend(found := walk(*given)) or found)
    hits = retriever.search(query, k=5)
    (searched,) = reached
    explanation = retriever.explain(query, k=5)
    assert len(reached) == 2
    tree = retriever.snapshot.tree
    kept = [node for level in explanation.levels for node in level if node.kept and node.rank is None]
    ends = {tree.node(node.digits) for node in kept}
    assert set(searched.nodes.tolist()) == {node for node in ends if tree.first_child[node] >= tree.num_inner}
    below = [node for level in explanation.levels for node in level if tree.node(node.digits) >= tree.num_inner]
    result = retriever.snapshot.search(retriever.encode_queries([query]), k=100, candidates=60)
    docids = [tree.digits(position) for position in result.positions[0].tolist()]
    scores = dict(zip(docids, result.scores[0].tolist(), strict=True))
    for node in below:
        assert node.score == pytest.approx(scores[node.digits], rel=1e-5)
    assert sorted(below, key=lambda node: -node.score)[:5] == sorted(
        [node for node in below if node.rank], key=lambda node: node.rank
    )
    assert [node.label for node in below if node.rank == 1] == [hits[0].title]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.search(None), "takes queries, or embeddings= in place of them"),
        (lambda r: r.search({"river"}), "Queries must be a list of texts, in order, .* got {'river'}"),
        (lambda r: r.search([None]), "Query 0 must be a string, got None"),
        (lambda r: r.search(["river", b"neon"]), "Query 1 must be a string, got b'neon'"),
        (
            lambda r: r.search("a \ud800"),
            r"Query 0 must be Unicode text, got the lone surrogate '\\ud800' at character 3",
        ),
        (lambda r: r.search("a\0b"), r"Query 0 must be a text without NUL characters, got 'a\\x00b'"),
        (lambda r: r.run({"q": None}), "Query 'q' must be a string, got None"),
        (lambda r: r.run({1.5: "river"}), "A query_id must be a string, got 1.5"),
        (lambda r: r.explain(" "), r"explain\(\) takes a query that is not empty: the answer of an empty one is empty"),
        (lambda r: r.search(pandas.DataFrame({"q": ["river"]})), r"queries\[0\] has no query_id: .*; its keys are 'q'"),
        (lambda r: r.run([{"id": "a", "text": "x"}] * 2), r"queries\[1\]: duplicate query_id 'a'; ids must be unique"),
        (lambda r: r.explain(None), "Query 0 must be a string, got None"),
        (lambda r: r.explain(r.encode_queries(["a", "b"])), r"explain\(\) takes one query, got 2"),
        (lambda r: r.encode_queries(["river"], batch_size=0), "batch_size must be at least 1, got 0"),
        (
            lambda r: r.snapshot.search(["river"]),
            r"search\(\) of a snapshot takes what encode_queries\(\) returns, got \['river'\]",
        ),
        (
            lambda r: r.snapshot.follow(["river"], [[]]),
            r"documents for each of the 1 queries, .* got 1 lists of lengths \[0\]",
        ),
        (
            lambda r: r.snapshot.follow(["a", "b"], [["neon"], ["neon", "gold"]]),
            r"equally long .* got 2 lists of lengths \[1, 2\]",
        ),
        (lambda r: setattr(r, "search_config", 3), "search_config must be a SearchConfig, got 3"),
        (lambda r: r.get("neonn"), r"get names the doc_id 'neonn', which is not in the index\."),
        (lambda r: r.get(3.5), r"get must be a list or set of doc_ids, got 3\.5"),
        (lambda r: r.get(3), "get names the doc_id '3', which is not in the index"),
        (lambda r: r.search({"q1": "river"}), r"search\(\) takes a text or a list of texts; run\(\) takes"),
        (lambda r: r.run("rivers"), "takes a list of queries, got the text 'rivers'"),
        (lambda r: r.add({"doc_id": "d1", "text": "x"}), "documents must be a list or an iterator of dictionaries"),
        (lambda r: r.search("river", 0), r"k must be at least 1, got 0\."),
        (lambda r: r.search("river", 5, alpha=2), r"alpha must be between 0 and 1, got 2"),
        (
            lambda r: r.search("river", 5, deny="danube"),
            "deny must be a list or set of doc_ids, got the string 'danube'",
        ),
    ],
)
def test_bad_calls_are_named(retriever, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(retriever)


def test_explain_shows_the_way_to_the_answers_and_what_was_pruned(retriever, digits):
    query = "which capitals are on the danube"
    for index in (retriever, digits):
        explanation = index.explain(query, k=3, beam_width=3)
        hits = index.search(query, k=3, beam_width=3)
        ranked = {node.rank: node for level in explanation.levels for node in level if node.rank}
        assert [ranked[n].label for n in (1, 2, 3)] == [hit.title for hit in hits]
        for hit in hits:
            node = ranked[hit.rank]
            assert node.digits == hit.digits
            assert node.found_by == ("walk",)
            for length in range(1, len(hit.digits)):  # every ancestor was kept
                (above,) = [n for n in explanation.levels[length - 1] if n.digits == hit.digits[:length]]
                assert above.kept
                assert index is retriever or above.score >= node.score - 1e-5  # path scores only fall on the way down
        assert any(not node.kept for level in explanation.levels for node in level)
        printed = str(explanation)
        assert query in printed
        answer = explanation.answer.splitlines()
        assert printed.splitlines()[: len(answer)] == answer  # before the tree
        parts = " + ".join(f"{value:.3f} {name}" for name, value in ranked[1].parts.items() if value).replace(
            "+ -", "- "
        )
        assert len(answer) == 4
        assert answer[1].startswith(f"#1 {'.'.join(map(str, hits[0].digits))}  {hits[0].score:.3f}")
        assert f" = {parts}  " in answer[1] or len(ranked[1].parts) == 1
        assert printed.count(f"─ #1 {'.'.join(map(str, hits[0].digits))}") == 1
        for level in explanation.levels:  # of a level's pruned nodes at least the best one below each parent is shown
            for node in [node for node in level if not node.kept][:1]:
                assert f"─ - {'.'.join(map(str, node.digits))}  {node.score:.3f}" in printed
        kept_inner = [sum(n.kept and n.documents > 1 for n in level) for level in explanation.levels]
        assert max(kept_inner) <= 3


def test_saving_loses_no_file_of_a_user(retriever, tmp_path, monkeypatch):
    (tmp_path / "notes" / "sub").mkdir(parents=True)
    (tmp_path / "notes" / "sub" / "mine.txt").write_text("mine")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="notes holds 'sub', which would be lost; name a new folder"):
        retriever.save(tmp_path / "notes")
    with pytest.raises(NotADirectoryError, match=r"thesis.txt is a file"):
        retriever.save(tmp_path / "thesis.txt")
    with pytest.raises(ValueError, match="folder must name a folder, got ''"):
        retriever.save("")
    monkeypatch.chdir(tmp_path / "notes")
    for here in (".", "..", tmp_path / "notes"):
        with pytest.raises(ValueError, match="is the current folder or one above it, and would be replaced"):
            retriever.save(here)
    assert (tmp_path / "notes" / "sub" / "mine.txt").read_text() == (tmp_path / "thesis.txt").read_text() == "mine"


def test_saving_over_an_index_keeps_rerankers_and_other_files(retriever, tmp_path):
    run = tmp_path / "run"
    retriever.save(run)
    (run / "rerank" / "mine").mkdir(parents=True)
    (run / "rerank" / "mine" / "reranker.json").write_text("{}")
    (run / "notes.txt").write_text("mine")
    (run / "notes.txt").chmod(0o600)
    (run / ".gitattributes").write_text("mine")
    for name in ("pseudo_queries", "docids-2"):
        (run / name).mkdir()
    (run / "config.toml").write_text("seed = 1")
    Retriever(retriever.snapshot).save(run)  # which does not know the folder
    assert {path.name for path in run.iterdir()} == {
        *PARTS,
        "manifest.json",
        "notes.txt",
        ".gitattributes",
        "rerank",
    } - {
        "generator",
        "lexical",
    }
    assert (run / "notes.txt").read_text() == "mine"
    assert os.name == "nt" or (run / "notes.txt").stat().st_mode & 0o777 == 0o600
    assert (run / "rerank" / "mine" / "reranker.json").read_text() == "{}"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_whoever_may_read_the_folder_may_read_all_of_an_index(retriever, tmp_path):
    retriever.save(tmp_path / "run")
    mode = (tmp_path / "run").stat().st_mode & 0o666
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()} == {mode}


def test_saved_and_loaded_answers_alike(retriever, tmp_path):
    retriever.save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    assert loaded.search_config == retriever.search_config
    for query in ("rivers", "noble gas"):
        again, hits = loaded.search(query, k=5), retriever.search(query, k=5)
        assert again.ids.tolist() == hits.ids.tolist()
        np.testing.assert_allclose(again.scores, hits.scores, atol=1e-4)  # by the encoder's graph, and by torch
    retriever.save(tmp_path / "index")  # over an existing one
    assert {path.name for path in (tmp_path / "index").iterdir()} == {
        "encoder", "docids", "memory", "manifest.json",
    }  # fmt: skip


def test_an_index_that_is_saved_over_another_one_says_so(retriever, tmp_path, caplog):
    retriever.save(tmp_path / "mine")
    other = load(tmp_path / "mine", device="cpu")
    other.save(tmp_path / "other")
    other.save()
    assert "is replaced" not in caplog.text
    retriever.save(tmp_path / "other")
    assert f"The index that was in {tmp_path / 'other'} is replaced." in caplog.text


def test_threads_get_the_answers_that_one_thread_gets(retriever):
    doc_ids = list(retriever.snapshot.documents.column("doc_id"))
    calls = [
        ("rivers", {}), ("noble gas", {"method": "exact"}),
        ("the emperor of austria and his long, long reign", {"beam_width": 1}),
        ("neon", {"allow": doc_ids[:7]}), (["bees", "advertising signs on a rainy night"], {"beam_width": 4}),
    ]  # fmt: skip
    alone = [retriever.search(query, k=4, **options) for query, options in calls]
    rounds = 12

    def work(offset: int) -> list[bool]:
        order = [(n + offset) % len(calls) for n in range(rounds)]
        return [retriever.search(calls[n][0], k=4, **calls[n][1]) == alone[n] for n in order]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert all(same for row in answers for same in row)
    assert [len(row) for row in answers] == [rounds] * 8


def test_bfloat16_finds_nearly_the_same_and_is_never_saved(retriever, tmp_path):
    retriever.save(tmp_path / "index")
    rounded = load(tmp_path / "index", device="cpu", dtype="bfloat16")
    queries = ["rivers", "noble gas", "the emperor of austria"]
    for exact, other in zip(retriever.search(queries, k=5), rounded.search(queries, k=5), strict=True):
        assert [hit.score for hit in other] == pytest.approx([hit.score for hit in exact], abs=0.1)
        assert len({hit.doc_id for hit in exact} & {hit.doc_id for hit in other}) >= 3
    with pytest.raises(ValueError, match=r"weights are of bfloat16; save one that was loaded in float32"):
        rounded.save(tmp_path / "other")
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, got 'int4'"):
        load(tmp_path / "index", dtype="int4")


def test_broken_indexes_are_refused_and_the_part_is_named(retriever, tmp_path):
    good = tmp_path / "good"
    retriever.save(good)

    def broken(name):
        folder = tmp_path / name
        shutil.copytree(good, folder)
        return folder

    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")
    folder = broken("missing")
    (folder / "docids" / "documents.arrow").unlink()
    with pytest.raises(FileNotFoundError, match=r"documents.arrow is missing from the index"):
        load(folder)
    folder = broken("truncated")
    weights = folder / "encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"encoder/model.safetensors was altered or truncated"):
        load(folder)
    folder = broken("version")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(ValueError, match=f"format version 99, this version reads {FORMAT_VERSION}"):
        load(folder)
    folder = broken("mixed")
    manifest["fingerprints"]["encoder"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest.json and encoder do not belong together"):
        load(folder)


def test_parts_that_do_not_belong_together_are_refused(retriever, encoder):
    other, generator = random_tree(60, seed=9), random_generator(retriever.snapshot.tree)
    with pytest.raises(ValueError, match="generator was trained for docids"):
        from_parts(encoder, other, generator, retriever.snapshot.documents.table)
    generator.config.d_model = 7
    with pytest.raises(ValueError, match=rf"The generator reads states 7 wide, the encoder gives {WIDTH}; restore the"):
        from_parts(encoder, retriever.snapshot.tree, generator, retriever.snapshot.documents.table)
    with pytest.raises(ValueError, match="cover 60 documents, the document table has 59"):
        from_parts(
            encoder,
            retriever.snapshot.tree,
            retriever.snapshot.generator,
            retriever.snapshot.documents.table.slice(0, 59),
        )
    narrow = build_tree(np.random.default_rng(0).normal(size=(60, 7)).astype("f"), DocidsConfig(branching=4))
    with pytest.raises(ValueError, match=f"embeddings of {WIDTH}, the docids need 7"):
        from_parts(encoder, narrow, random_generator(narrow), retriever.snapshot.documents.table)


def test_searching_leaves_no_gradients_and_changes_no_weights(encoder):
    retriever = index_of(encoder, vectors=False)
    before = state_fingerprint(retriever.snapshot.generator)
    retriever.search("river", k=3)
    assert state_fingerprint(retriever.snapshot.generator) == before
    assert all(p.grad is None for p in retriever.snapshot.generator.parameters())
    assert torch.is_grad_enabled()


def test_an_index_remembers_what_its_decoder_was_taught_and_warns_of_a_wider_beam(retriever, tmp_path, recwarn):
    otm = random_generator(retriever.snapshot.tree, objective="otm")
    parts, config = (retriever.snapshot.encoder, retriever.snapshot.tree, otm), SearchConfig(beam_width=10)
    from_parts(*parts, retriever.snapshot.documents.table, config).save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    assert len(loaded.search("noble gases", k=10)) == 10
    assert (
        len(loaded.search("noble gases", alpha=0.0, beam_width=50)) == 10
    )  # dense scores alone: no decoder, no warning
    assert loaded.search("noble gases", k=3, method="exact").exact
    assert not recwarn
    with pytest.warns(
        UserWarning, match=r"objective 'otm' and a beam of 10; nodes outside that .* a beam of 50 may find worse"
    ):
        loaded.search("noble gases", beam_width=50)
    (first,) = loaded.search("noble gases", k=1)
    shown = f"#1 {'.'.join(map(str, first.digits))}  {first.score:.3f} "
    assert shown in str(loaded.explain("noble gases", k=1))


@pytest.mark.programs
def test_a_retriever_is_pickled_as_the_folder_that_holds_it(encoder, tmp_path):
    index = small_index(encoder, vectors=True)
    with pytest.raises(ValueError, match="has unsaved changes, and a pickle stores only its folder"):
        pickle.dumps(index)
    index.save(tmp_path / "run")
    index.search_config = dataclasses.replace(index.search_config, beam_width=3)
    again = pickle.loads(pickle.dumps(index))
    assert again.search_config == index.search_config
    expected = index.search("noble gas", k=5)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for found in (again.search("noble gas", k=5), pool.submit(index.search, "noble gas", k=5).result()):
            assert found.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)  # by the encoder's graph, and by torch
    before = pickle.dumps(index)
    index.add(DOCUMENTS[50:51])
    with pytest.raises(ValueError, match="has unsaved changes"):
        pickle.dumps(index)
    index.save(tmp_path / "run")
    assert len(pickle.loads(pickle.dumps(index))) == 51
    with pytest.raises(ValueError, match="was changed since the retriever was pickled; load the index there instead"):
        pickle.loads(before)


@pytest.mark.parametrize("doc_ids", ["danube", None, [], [[DOCUMENTS[0]["doc_id"]]] * 2, [[]]])
def test_follow_takes_as_many_documents_for_each_query(retriever, doc_ids):
    with pytest.raises((TypeError, ValueError), match="doc_ids must be a list of documents for each"):
        retriever.snapshot.follow(["rivers"], doc_ids)


@pytest.mark.parametrize("column", ["doc_id", "title"])
def test_a_table_that_lacks_a_column_is_refused(column, tmp_path):
    table = pa.table({"doc_id": ["a"], "title": ["b"]}).drop_columns([column])
    with pa.OSFile(str(tmp_path / "documents.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match=f"documents.arrow has no column {column}; "):
        load_documents(tmp_path / "documents.arrow")
