"""Documents with several docids: each is found once, by its best place, whatever the search, the filter and the updates."""

import dataclasses
import math
from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import dsi
from dsi import Retriever, SearchConfig
from dsi.config import Config, read_config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.cutting import piece_text
from dsi.docids.clustering import DocidsConfig, assemble
from dsi.docids.schemes import Docids, SchemeInput, make_docids
from dsi.docids.schemes.file import read_docids, write_docids
from dsi.docids.tree import DocidTree, nearest_places
from dsi.docids.updating import add_documents, remove_documents
from dsi.docids.vectors import VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.measuring.runs import IndexRuns
from dsi.search import vector_search
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchRequest
from dsi.search.vector_search import VectorEngine
from dsi.store.documents.topics import Topics
from dsi.store.folder.loading import load_docids
from dsi.store.retriever import load
from dsi.training.docids_stage import save_docids_stage
from dsi.training.embedding import pieces_line
from dsi.training.pipeline import TrainingRun
from tests.support.oracles import path_scores
from tests.support.parts import from_parts
from tests.support.small import HAS_GENERATORS, WIDTH, as_batch, engine_for, random_generator, random_queries
from tests.support.small_index import DOCUMENTS, QUERIES
from tests.support.tiny_settings import VECTORS, write_settings


@pytest.mark.parametrize(
    "text",
    [
        "A river is long and deep.\n\n" * 4000,
        "river " * 15_000,
        "gas,river," * 8000,
        "river " * 8000 + " " * 70_000 + "gas",
    ],
)
@pytest.mark.parametrize("longest", [10_000, 10**9])
def test_a_text_that_a_hundred_pieces_do_not_cover_is_cut_by_stretches_of_which_none_is_left_out(
    text, longest, encoder, monkeypatch
):
    monkeypatch.setattr("dsi.contrastive.cutting.LONG", longest)
    monkeypatch.setattr("dsi.contrastive.cutting._STRETCH", 5000)
    encoder.model.max_seq_length = encoder.max_length = 32
    (cut,) = encoder.cut(["The title"], [text], 2**16)
    assert len(cut.spans) > 100
    assert cut.is_whole
    end = 0
    for start, stop in cut.spans:
        assert not text[end:start].strip()
        assert encoder.token_offsets([piece_text("The title", text, (start, stop), cut.title_end)], 100)[0][30:] == []
        end = stop
    assert not text[end:].strip()
    (few,) = encoder.cut(["The title"], [text], 150)
    assert (len(few.spans), few.is_whole) == (min(150, len(cut.spans)), len(cut.spans) <= 150)


@pytest.mark.parametrize(
    ("title", "words", "length", "pieces", "cut"),
    [
        ("a", 5, 20, 1, 0),
        ("a", 40, 20, 1, 1),
        ("a", 30, 20, 2, 0),
        ("a", 40, 500, 1, 1),  # the model reads 32 tokens, whatever the setting says
        ("a " * 25, 15, 20, 1, 1),  # of title and text
        ("a", 40, 500, 3, 0),
        ("a", 300, 20, 5, 1),
        ("a " * 25, 15, 20, 9, 1),  # of the title
    ],
)
def test_documents_that_the_encoder_does_not_read_to_their_ends_are_counted(title, words, length, pieces, cut, encoder):
    encoder.config = dataclasses.replace(encoder.config, document_length=length)
    encoder.model.max_seq_length = encoder.max_length = 32
    texts = [" ".join(["river"] * words), "short", ""]
    documents = datasets.Dataset.from_dict({"title": [title, "", ""], "text": texts})
    assert DocumentTexts(encoder, documents, pieces).count_cut == cut
    own = [
        encoder.encode(encoder.piece_texts([title], [text], pieces)[0], "document")
        for text in (texts[0], texts[0] + " gas")
    ]
    if title == "a":
        assert (len(own[0]) == len(own[1]) and np.array_equal(*own)) == bool(cut)


def random_rows(documents: int, most: int, seed: int) -> np.ndarray:
    """The document of each place; document 0 has as many as there can be."""
    counts = np.random.default_rng(seed).integers(1, most + 1, size=documents)
    counts[0] = most
    return np.repeat(np.arange(documents), counts)


def tree_of(rows: np.ndarray, seed: int, **own) -> DocidTree:
    vectors = np.random.default_rng(seed).normal(size=(len(rows), WIDTH)).astype(np.float32)
    config = DocidsConfig(**{"branching": 3, "max_leaf_size": 3, "pieces": 5, **own})
    docids = make_docids(SchemeInput(vectors, config, rows=rows))
    assert docids.rows is rows
    return dataclasses.replace(assemble(docids, vectors), piece_cost=0.3 * (seed % 2))


random_trees = st.builds(
    lambda documents, most, seed, leaf: tree_of(random_rows(documents, most, seed), seed, max_leaf_size=leaf),
    st.integers(3, 14), st.integers(2, 4), st.integers(0, 99), st.integers(1, 4),
)  # fmt: skip


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(["ab", "cd", "ef", "gh", "ij"], size=rng.integers(1, 5))) for _ in range(count)]


def query_batch(seed: int) -> QueryBatch:
    states, mask, embeddings = random_queries(3, seed=seed)
    return as_batch(states, mask, embeddings, texts(3, seed + 1))


def place_scores(tree: DocidTree, queries: np.ndarray, words: np.ndarray) -> np.ndarray:
    """[batch, places] z.e_d less the cost of pieces, and words [batch, documents], by definition; -inf at removed documents."""
    pieces = [max(1, int((tree.doc_rows == row).sum())) for row in tree.doc_rows]
    scores = queries @ tree.embeddings[:].T - tree.piece_cost * np.log2(pieces) + words[:, np.maximum(tree.doc_rows, 0)]
    return np.where(tree.doc_rows >= 0, scores, -np.inf)


def best_documents(tree: DocidTree, scores: np.ndarray, k: int) -> list[list[tuple[float, int]]]:
    """The k best (score, position) of each query, one place a document; scores: [batch, places], -inf if not allowed."""
    found = []
    for own in scores.tolist():
        best = {}
        for position, score in enumerate(own):
            row = int(tree.doc_rows[position])
            if score > -math.inf and score > best.get(row, (-math.inf,))[0]:
                best[row] = (score, position)
        found.append(sorted(best.values(), key=lambda each: (-each[0], each[1]))[:k])
    return found


# Search


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tree=random_trees, k=st.integers(1, 8), beam=st.integers(1, 4), alpha=st.sampled_from([0.0, 0.3, 0.8]),
    beta=st.sampled_from([0.0, math.inf]), kind=st.sampled_from(["digits", "vectors"]), weight=st.sampled_from([0.0, 0.5]),
    filtered=st.booleans(), outright=st.sampled_from([0, 1000]), updated=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@example(  # the beam prunes the best place of the answer
    tree=tree_of(random_rows(10, 2, 0), 0, max_leaf_size=1), k=1, beam=1, alpha=0.0, beta=math.inf, kind="digits", weight=0.0,
    filtered=True, outright=0, updated=False, seed=66,
)  # fmt: skip
def test_answers_are_the_best_documents_by_their_best_places(
    tree, k, beam, alpha, beta, kind, weight, filtered, outright, updated, seed
):
    assume(HAS_GENERATORS or kind == "vectors")
    generator = random_generator(tree, layers=1, seed=seed) if kind == "digits" else None
    if updated and kind == "vectors":
        new = np.random.default_rng(seed).normal(size=(5, WIDTH)).astype(np.float32)
        tree = remove_documents(add_documents(tree, new, np.array([0, 0, 1, 1, 1])), np.array([0, tree.num_rows]))
    bm25 = BM25([str(n) for n in range(tree.num_rows)], texts(tree.num_rows, seed))
    methods, batch = engine_for(tree, generator, bm25).methods, query_batch(seed)
    allowed = (tree.doc_rows >= 0) & ((tree.doc_rows % 3 > 0) | (not filtered))
    config = SearchConfig(
        alpha=alpha, beta=beta, ann_temperature=0.5, lexical_weight=weight if kind == "vectors" else 0.0, candidates=1
    )

    def search(method: str, beam_width: int):
        own = dataclasses.replace(config, beam_width=beam_width)
        request = SearchRequest(k, own, allowed if filtered else None)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(vector_search, "_OUTRIGHT", outright)
            return methods[method].retrieve(batch, request)

    words = np.float32(weight) * bm25.shares(batch.texts)
    if kind == "digits":
        queries = batch.states, batch.mask, batch.embeddings
        scores = path_scores(tree, generator, *queries, alpha, beta, 0.5).numpy()
    else:
        scores = place_scores(tree, batch.embeddings, words)
    count = min(k, len(set(tree.doc_rows[allowed].tolist())))
    every, wide, narrow = search("exact", beam), search("generate", 10_000), search("generate", beam)
    for query, own in enumerate(best_documents(tree, np.where(allowed, scores, -np.inf), k)):
        assert every.exact[query]
        for found in (every, wide, narrow):
            positions = found.positions[query]
            assert len(own) == len(set(tree.doc_rows[positions].tolist())) == len(positions) == count
            assert allowed[positions].all()
            np.testing.assert_allclose(scores[query, positions], found.scores[query], rtol=1e-4, atol=1e-4)
            best = [score for score, _ in best_documents(tree, scores[query : query + 1], tree.num_rows)[0]]
            assert all(np.isclose(score, best, rtol=1e-4, atol=1e-4).any() for score in found.scores[query])
            if found.exact[query]:
                np.testing.assert_allclose(found.scores[query], [score for score, _ in own], rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=random_trees, k=st.integers(1, 6), seed=st.integers(0, 99), vectors=st.booleans())
def test_a_document_is_found_once_with_the_score_that_its_path_has(tree, k, seed, vectors):
    assume(HAS_GENERATORS or vectors)
    generator = None if vectors else random_generator(tree, layers=1, seed=seed)
    bm25 = BM25([str(n) for n in range(tree.num_rows)], texts(tree.num_rows, seed))
    engine, batch = engine_for(tree, generator, bm25), query_batch(seed)
    request = SearchRequest(k, SearchConfig(alpha=0.5, beam_width=10_000))
    followed = engine.follow(batch, request, np.tile(np.arange(tree.num_rows), (3, 1)))
    for name in ("generate", "exact"):
        found = engine.methods[name].retrieve(batch, request)
        assert found.exact.all() or name == "generate"
        for query, scores in enumerate(followed.scores):
            rows = tree.doc_rows[found.positions[query]]
            assert len(set(rows.tolist())) == len(rows) == min(k, tree.num_rows)
            np.testing.assert_allclose(found.scores[query], scores[rows], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(found.scores[query], np.sort(scores)[::-1][: len(rows)], rtol=1e-4, atol=1e-4)
            if vectors:  # documents whose places tie may have either
                assert followed.positions[query, rows].tolist() == found.positions[query].tolist()


@pytest.mark.parametrize("seed", [8, 13])
def test_a_document_whose_places_are_equal_is_found_once(seed):
    """The walk and the words score such places in products of other shapes, whose last bits differ."""
    chance, count = np.random.default_rng(seed), 300
    rows = np.repeat(np.arange(count), chance.integers(1, 4, size=count))
    vectors = chance.normal(size=(count, WIDTH)).astype(np.float32)[rows]
    config = DocidsConfig(branching=5, max_leaf_size=5, pieces=5)
    tree = assemble(make_docids(SchemeInput(vectors, config, rows=rows)), vectors)
    bm25 = BM25([str(n) for n in range(count)], texts(count, seed))
    methods = VectorEngine(tree, bm25).methods
    request = SearchRequest(10, SearchConfig(alpha=0.3, beam_width=2, lexical_weight=0.5, candidates=10))
    for positions in methods["generate"].retrieve(query_batch(seed), request).positions:
        assert len(set(tree.doc_rows[positions].tolist())) == 10


# Trees and their updates


@settings(max_examples=40, deadline=None)
@given(tree=random_trees, seed=st.integers(0, 99), kind=st.sampled_from(["float32", "int8"]))
def test_added_documents_take_a_place_a_piece_and_removed_ones_free_all_of_theirs(tree, seed, kind):
    chance, tree = np.random.default_rng(seed), tree.stored_as(VectorsConfig(kind))
    names = [f"d{row}" for row in range(tree.num_rows)]

    def docids(own: DocidTree) -> dict[str, set[tuple[int, ...]]]:
        return {name: {own.digits(int(p)) for p in own.places_of(np.array([row]))[0]} for row, name in enumerate(names)}

    for step in range(3):
        before = docids(tree)
        rows = random_rows(3, 3, seed + step)
        tree = add_documents(tree, chance.normal(size=(len(rows), WIDTH)).astype(np.float32), rows)
        names += [f"n{step}{row}" for row in range(3)]
        assert tree.is_sound()
        assert tree.num_rows == len(names)
        now = docids(tree)
        assert {name: now[name] for name in before} == before
        assert [len(now[f"n{step}{row}"]) for row in range(3)] == np.bincount(rows).tolist()
        gone = chance.choice(len(names), min(2, len(names) - 1), replace=False)
        places = tree.num_places - tree.num_removed - sum(len(now[names[row]]) for row in gone)
        tree = remove_documents(tree, gone)
        names = [name for row, name in enumerate(names) if row not in gone]
        assert tree.is_sound()
        assert tree.num_places - tree.num_removed == places
        assert docids(tree) == {name: now[name] for name in names}


def test_a_tree_knows_the_places_of_a_row_and_keeps_them_on_disk(tmp_path):
    rows = np.array([0, 0, 0, 1, 2, 2])
    tree = tree_of(rows, 0)
    assert (tree.num_rows, tree.num_places, tree.most_places) == (3, 6, 3)
    for row in range(3):
        own = np.flatnonzero(tree.doc_rows == row)
        assert tree.places_of(np.array([row]))[0].tolist() == own.tolist()
        assert tree.positions[row] == own[0]
    assert tree.doc_rows[tree.by_row].tolist() == rows.tolist()
    pieces = np.random.default_rng(0).normal(size=(6, WIDTH)).astype(np.float32)
    np.testing.assert_array_equal(nearest_places(tree, rows, pieces), nearest_places(tree, rows, 2 * pieces))
    np.testing.assert_array_equal(tree.embeddings[nearest_places(tree, rows, pieces)], pieces)

    documents = datasets.Dataset.from_dict({"doc_id": ["a", "b", "c"], "title": ["A", "B", "C"]})
    docids = make_docids(SchemeInput(pieces, DocidsConfig(branching=3, max_leaf_size=3, pieces=3), rows=rows))
    spans = np.array([(0, 9), (7, 20), (18, 30), (0, 5), (0, 8), (8, 10)], dtype=np.int32)
    save_docids_stage(docids, pieces, documents, tmp_path, VectorsConfig(), 3, spans)
    loaded, _ = load_docids(tmp_path)
    assert (loaded.fingerprint, loaded.pieces) == (tree.fingerprint, 3)
    own = nearest_places(loaded, rows, pieces)
    np.testing.assert_array_equal(loaded.spans[own], spans)
    assert loaded.spans_at(own) == [(0, 9), (7, 20), (18, 30), None, (0, 8), (8, 10)]
    cost = 0.02 * ((pieces - pieces.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert loaded.piece_cost == pytest.approx(cost, rel=1e-5)
    np.testing.assert_allclose(loaded.place_costs[own], cost * np.log2([3, 3, 3, 1, 2, 2]), rtol=1e-5)
    smaller = remove_documents(loaded, np.array([1]))
    assert (smaller.spans[own[3]].tolist(), smaller.place_costs[own[3]]) == ([0, 0], 0)
    np.testing.assert_array_equal(smaller.spans[own[4]], spans[4])
    larger = add_documents(smaller, pieces[:3] + 0.01, np.array([0, 0, 1]), spans=np.array([(0, 4), (3, 6), (0, 2)]))
    assert larger.pieces == 3
    assert sorted(larger.spans[larger.doc_rows == 2].tolist()) == [[0, 4], [3, 6]]
    for row, before in ((0, spans[:3]), (1, spans[4:])):
        assert sorted(larger.spans[larger.doc_rows == row].tolist()) == before.tolist()
    assert larger.place_costs[larger.doc_rows == 2] == pytest.approx([loaded.piece_cost] * 2)
    again = read_docids(tmp_path / "docids.tsv", [*"aaabcc"], in_pieces=True)  # a line a piece, in order
    np.testing.assert_array_equal(again.paths, docids.paths)


# An index


@pytest.fixture(params=[pytest.param("digits", marks=pytest.mark.slow), "vectors"])
def pieces_index(request, encoder):
    return index_of(encoder, by_vectors=request.param == "vectors")


def pieces_of(encoder, documents) -> tuple[list[str], np.ndarray]:
    own = encoder.piece_texts([d["title"] for d in documents], [d["text"] for d in documents], 3)
    return [text for each in own for text in each], np.repeat(np.arange(len(own)), [len(each) for each in own])


def index_of(encoder, *, by_vectors: bool = False) -> Retriever:
    """The first 50 of `DOCUMENTS` by their first three pieces, with a random generator."""
    old = DOCUMENTS[:50]
    pieces, rows = pieces_of(encoder, old)
    assert len(rows) > 80
    documents = datasets.Dataset.from_dict({name: [d[name] for d in old] for name in ("doc_id", "title")})
    vectors = encoder.encode(pieces, "document")
    config = DocidsConfig(branching=4, max_leaf_size=4, pieces=3)
    cuts = encoder.cut([d["title"] for d in old], [d["text"] for d in old], 3)
    spans = np.array([span for own in cuts for span in own.spans], dtype=np.int32)
    tree = dataclasses.replace(
        assemble(make_docids(SchemeInput(vectors, config, rows=rows)), vectors, None, spans), pieces=3, piece_cost=0.1
    )
    bm25 = BM25(documents["doc_id"], [f"{d['title']} {d['text']}" for d in old], k1=1.2, b=0.5)
    search = SearchConfig(alpha=0.3, beam_width=12, lexical_weight=0.05 if by_vectors else 0.0)
    generator = None if by_vectors else random_generator(tree)
    return from_parts(encoder, tree, generator, documents, search, bm25)


def own_scores(retriever, documents, query: str) -> dict[str, float]:
    """{doc_id: dense score of the best piece less the cost of having several}, by definition."""
    pieces, rows = pieces_of(retriever.snapshot.encoder, documents)
    queries = retriever.snapshot.encoder.encode(retriever.snapshot.encoder.query_texts([query]), "query")
    scores = retriever.snapshot.encoder.encode(pieces, "document") @ queries[0]
    cost = retriever.snapshot.tree.piece_cost
    return {
        d["doc_id"]: float(scores[rows == row].max() - cost * np.log2((rows == row).sum()))
        for row, d in enumerate(documents)
    }


@pytest.mark.parametrize("pieces_index", ["vectors"], indirect=True)  # a generator ranks by paths
def test_an_index_ranks_documents_by_their_best_pieces_before_and_after_updates_and_on_disk(pieces_index, tmp_path):
    retriever, documents = pieces_index, {d["doc_id"]: d for d in DOCUMENTS[:50]}

    def check(own: Retriever) -> None:
        assert len(own.snapshot.documents) == len(documents) == own.snapshot.tree.num_rows
        for query in QUERIES:
            expected = own_scores(own, list(documents.values()), query)
            hits = own.search(query, len(documents), lexical_weight=0.0, method="exact")
            assert {hit.doc_id: pytest.approx(hit.score, abs=1e-4) for hit in hits} == expected
            assert hits.exact
            assert len(hits) == len(documents)

    check(retriever)
    retriever.add(DOCUMENTS[50:60])
    documents |= {d["doc_id"]: d for d in DOCUMENTS[50:60]}
    check(retriever)
    gone = [DOCUMENTS[n]["doc_id"] for n in (0, 7, 55)]
    retriever.remove(gone)
    documents = {doc_id: own for doc_id, own in documents.items() if doc_id not in gone}
    check(retriever)
    changed = {**DOCUMENTS[3], "text": DOCUMENTS[70]["text"]}
    retriever.add([changed], replace=True)
    documents[changed["doc_id"]] = changed
    check(retriever)
    retriever.save(tmp_path / "index")
    loaded = load(tmp_path / "index", device="cpu")
    check(loaded)
    loaded.add([DOCUMENTS[0]])
    documents[DOCUMENTS[0]["doc_id"]] = DOCUMENTS[0]
    check(loaded)
    loaded.save(tmp_path / "index")
    check(load(tmp_path / "index", device="cpu"))


def test_hits_show_the_piece_that_scored_best_before_and_after_updates(encoder):
    retriever = index_of(encoder, by_vectors=True)
    retriever.add([{**DOCUMENTS[60], "text": f"{DOCUMENTS[60]['text']} {DOCUMENTS[61]['text']}"}])
    texts_of = {d["doc_id"]: d for d in DOCUMENTS[:60]}
    texts_of[DOCUMENTS[60]["doc_id"]] = {**DOCUMENTS[60], "text": f"{DOCUMENTS[60]['text']} {DOCUMENTS[61]['text']}"}
    several = 0
    for query in QUERIES:
        vector = encoder.encode(encoder.query_texts([query]), "query")[0]
        for hit in retriever.search(query, 51, method="exact", lexical_weight=0.0):
            document = texts_of[hit.doc_id]
            pieces = encoder.piece_texts([document["title"]], [document["text"]], 3)[0]
            (cut,) = encoder.cut([document["title"]], [document["text"]], 3)
            best = cut.spans[int((encoder.encode(pieces, "document") @ vector).argmax())]
            assert hit.passage_span == (None if len(pieces) == 1 else best)
            several += len(pieces) > 1 and best != cut.spans[0]
    assert several > 10


@pytest.mark.parametrize(
    ("pieces_index", "options"),
    [
        pytest.param("digits", {}, marks=pytest.mark.slow), ("vectors", {}), ("vectors", {"lexical_weight": 0.5}),
    ],
    indirect=["pieces_index"],
)  # fmt: skip
def test_k_documents_come_whatever_the_beam_and_filters_take_all_places(pieces_index, options, monkeypatch):
    monkeypatch.setattr(vector_search, "_OUTRIGHT", 0)
    retriever = pieces_index
    allow = list(retriever.snapshot.documents.rows)[5:17]
    for hits in retriever.search(QUERIES, 12, beam_width=2, allow=allow, **options):
        assert {hit.doc_id for hit in hits} == set(allow)
    for hits in retriever.search(QUERIES, 12, beam_width=2, deny=allow, **options):
        assert len({hit.doc_id for hit in hits} - set(allow)) == 12
    everything = retriever.search(QUERIES, 50, beam_width=500, **options)
    for hits, narrow in zip(everything, retriever.search(QUERIES, 5, beam_width=1, **options), strict=True):
        scores = {hit.doc_id: hit.score for hit in hits}
        assert len(narrow) == 5
        for hit in narrow:
            assert hit.score <= scores[hit.doc_id] + 1e-4
    encoded = retriever.encode_queries(QUERIES)
    doc_ids = [[hit.doc_id for hit in hits] for hits in everything]
    scores = [[hit.score for hit in hits] for hits in everything]
    np.testing.assert_allclose(
        retriever.snapshot.follow(encoded, doc_ids, **options).scores, scores, rtol=1e-4, atol=1e-5
    )


def test_a_beam_full_of_one_documents_places_is_widened_for_that_query_alone(encoder):
    retriever = index_of(encoder)
    vectors = retriever.snapshot.tree.embeddings[:]
    rows = np.repeat(np.arange(50), [60, *[1] * 49])
    vectors = np.concatenate([np.ones((60, vectors.shape[1])), vectors[:49]]).astype(np.float32)
    config = DocidsConfig(branching=4, max_leaf_size=1, pieces=60)
    tree = assemble(make_docids(SchemeInput(vectors, config, rows=rows)), vectors)
    for generator in (random_generator(tree), None):
        full = from_parts(encoder, tree, generator, retriever.snapshot.documents.table)
        for hits in full.search(QUERIES, 8, beam_width=8):
            assert len({hit.doc_id for hit in hits}) == 8
            assert all(math.isfinite(hit.score) for hit in hits)
        together = full.run(QUERIES, 8, beam_width=8)
        for number, query in enumerate(QUERIES):
            alone = full.run([query], 8, beam_width=8)["0"]
            assert alone == pytest.approx(together[str(number)], abs=1e-4)
        assert full.search("gas", 8, method="exact").exact


def test_explanations_show_the_place_that_won(pieces_index):
    hits = pieces_index.search("noble gas", 5, beam_width=40)
    explanation = pieces_index.explain("noble gas", 5, beam_width=40)
    ranked = {node.rank: node for level in explanation.levels for node in level if node.rank}
    assert [ranked[hit.rank].digits for hit in hits] == [hit.digits for hit in hits]
    assert [ranked[hit.rank].label for hit in hits] == [hit.title for hit in hits]
    assert sum(node.documents for node in explanation.roots) >= 50
    assert max(node.documents for node in explanation.roots) <= 50
    row, tree = pieces_index.snapshot.documents.rows[hits[0].doc_id], pieces_index.snapshot.tree
    assert pieces_index.get(hits[0].doc_id).digits == tree.digits(int(tree.positions[row]))


def test_a_branch_of_the_tree_counts_documents_and_not_pieces(pieces_index):
    topics = Topics(pieces_index.snapshot.tree, pieces_index.snapshot.documents)
    service = pytest.importorskip("dsi.server.service")
    root = service._node(pieces_index.snapshot, topics, 0, [])
    assert root["documents"] == len(pieces_index.snapshot.documents) == 50
    assert pieces_index.snapshot.tree.num_places > 80


def test_answers_have_a_document_once(pieces_index):
    assert all(len({hit.doc_id for hit in hits}) == 9 for hits in pieces_index.search(QUERIES, 9))


# Files and settings


def file_input(path: Path, lines: list[str], **others) -> SchemeInput:
    path.write_text("\n".join(lines) + "\n")
    own = {"doc_ids": ["a", "b", "c"], **others}
    vectors = np.arange(len(own["doc_ids"]) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    return SchemeInput(vectors, DocidsConfig(method=str(path), pieces=2 if others else 1), **own)


def test_a_file_gives_a_document_several_docids_each_with_the_documents_vector(tmp_path):
    documents = file_input(tmp_path / "docids.tsv", ["b\t1 1", "a\t0", "c\t2", "b\t3 3"])
    docids = make_docids(documents)
    assert docids.rows.tolist() == [0, 1, 1, 2]
    tree = assemble(docids, documents.embeddings)
    assert {tree.digits(int(p)) for p in tree.places_of(np.array([1]))[0]} == {(1, 0), (3, 0)}
    np.testing.assert_array_equal(tree.embeddings[:], documents.embeddings[tree.doc_rows])
    assert tree.pieces == 1
    larger = add_documents(tree, documents.embeddings[:1])
    assert larger.num_rows == 4
    assert (larger.doc_rows == 3).sum() == 1
    write_docids(tmp_path / "again.tsv", [["a", "b", "c"][row] for row in docids.rows], docids.paths)
    np.testing.assert_array_equal(read_docids(tmp_path / "again.tsv", ["a", "b", "c"]).paths, docids.paths)


def test_with_pieces_the_lines_of_a_document_are_those_of_its_pieces(tmp_path):
    others = {"doc_ids": ["a", "a", "b", "c"], "rows": np.array([0, 0, 1, 2])}
    documents = file_input(tmp_path / "docids.tsv", ["a\t5", "c\t2", "b\t0", "a\t1"], **others)
    docids = make_docids(documents)
    assert docids.paths.tolist() == [[5], [1], [0], [2]]
    assert docids.rows.tolist() == [0, 0, 1, 2]
    tree = assemble(docids, documents.embeddings)
    np.testing.assert_array_equal(tree.embeddings[:], documents.embeddings[[2, 1, 3, 0]])


def test_a_line_too_many_is_named_where_every_text_is_one_piece(tmp_path):
    documents = file_input(tmp_path / "docids.tsv", ["a\t1", "a\t4", "b\t2", "c\t3"], rows=np.arange(3))
    with pytest.raises(ValueError, match=r"line 2: the document 'a' has 2 docids for 1 pieces; give each piece one"):
        make_docids(documents)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a\t1", "b\t2", "c\t3"],
            r"line 1: the document 'a' has 1 docids for 2 pieces; give each piece one, or set",
        ),
        (["a\t1", "a\t4", "b\t2", "c\t3", "b\t5"], r"line 5: the document 'b' has 2 docids for 1 pieces"),
        (
            [*(f"a\t{n}" for n in range(65_537)), "b\t70000", "c\t80000"],
            r"line 65537: the document 'a' has more than 65,536 docids",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_pieces_is_refused_by_line(lines, message, tmp_path):
    documents = file_input(tmp_path / "docids.tsv", lines, doc_ids=["a", "a", "b", "c"], rows=np.array([0, 0, 1, 2]))
    with pytest.raises(ValueError, match=message):
        make_docids(documents)


@pytest.mark.parametrize(
    "rows", [[0, 0, 2], [1, 1, 2], [0, 1], [0, 1, 0], [-1, 0, 1], [0.0, 1.0, 1.0], [[0], [1], [1]]]
)
def test_rows_that_do_not_count_documents_are_refused(rows):
    with pytest.raises(
        ValueError, match=r"The rows of a docid scheme must say whose each of its 3 paths is, ascending"
    ):
        Docids(np.array([[0], [1], [2]]), np.array(rows))


def test_a_scheme_that_leaves_out_a_piece_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dsi.docids.schemes.find_scheme", lambda name: lambda documents: Docids.from_paths([[0], [1]]))
    with pytest.raises(ValueError, match=r"must give Docids with a path for each of 3 documents, got 2"):
        make_docids(SchemeInput(np.eye(3, dtype=np.float32), DocidsConfig(branching=2), rows=np.array([0, 0, 1])))


# The whole line


@pytest.mark.parametrize("method", ["kmeans", pytest.param("rq", marks=pytest.mark.slow)])
def test_an_index_of_pieces_is_trained_tuned_searched_and_updated(
    method, beir, tmp_path, sentence_t5_folder, t5_folder
):
    docids = {"method": method, "branching": 4, "max_leaf_size": 20, "pieces": 2}
    config = write_settings(
        tmp_path / "config.toml", sentence_t5_folder, t5_folder, docids=docids,
        contrastive={"loss": "none"},
        **VECTORS,
    )  # fmt: skip
    collection = dsi.read_collection(beir())
    run = TrainingRun(tmp_path / "run", collection, read_config(config), "cpu")
    run.train()
    tree, pieces = run.tree(), DocumentTexts(run.encoder(), collection.documents, 2)
    assert (tree.num_rows, tree.num_places) == (40, len(pieces))
    assert tree.pieces == 2
    lines = (run.folder / "docids" / "docids.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        collection.documents["doc_id"][row] for row in pieces.rows.tolist()
    ]

    retriever = load(run.folder, device="cpu")
    for hits in retriever.search(QUERIES, 40, method="exact"):
        assert len({hit.doc_id for hit in hits}) == 40
        assert hits.exact
    dense = IndexRuns(collection, retriever).run_dense("test")
    by_vectors = dict.fromkeys(("lexical_weight", "token_weight", "memory_weight"), 0.0)
    found = retriever.run(collection.query_texts("test"), 10, method="exact", **by_vectors)
    for query_id, answers in found.items():
        assert list(answers) == list(dense[query_id])[:10]
        assert list(answers.values()) == pytest.approx(list(dense[query_id].values())[:10], abs=1e-4)
    long = {"doc_id": "new", "title": "Gas", "text": "helium is a noble gas of the sun " * 20}
    retriever.add([long])
    assert retriever.snapshot.tree.place_counts[40] == 2
    retriever.save(run.folder)
    assert load(run.folder, device="cpu").snapshot.tree.num_rows == 41


def test_short_collections_are_as_without_pieces_and_long_documents_join_them(
    beir, tmp_path, sentence_bert_folder, caplog
):
    collection = dsi.read_collection(beir())
    config = (
        Config()
        .without_training()
        .with_changes(
            {
                "encoder": {"name": str(sentence_bert_folder), "piece_length": 40},
                "docids": {"branching": 4, "max_leaf_size": 4},
                "dev_queries": 0,
            }
        )
    )
    plain = config.with_changes({"docids": {"pieces": 1}})
    own, before = (
        dsi.train(collection, tmp_path / name, config=used, device="cpu")
        for name, used in (("pieces", config), ("plain", plain))
    )
    assert own.snapshot.tree.spans is None
    assert own.snapshot.tree.pieces == 65_536
    assert own.snapshot.tree.fingerprint == before.snapshot.tree.fingerprint
    np.testing.assert_array_equal(own.snapshot.tree.embeddings[:], before.snapshot.tree.embeddings[:])
    np.testing.assert_array_equal(own.snapshot.tree.tokens.parts[0].codes, before.snapshot.tree.tokens.parts[0].codes)
    for query in QUERIES:
        hits = own.search(query, 40)
        assert [(hit.doc_id, hit.score) for hit in hits] == [
            (hit.doc_id, hit.score) for hit in before.search(query, 40)
        ]
        assert all(hit.passage_span is None and hit.passage == hit.text for hit in hits)

    filler = "a river is long and deep and full of water . " * 30
    documents = [
        {"doc_id": "long", "title": "Gas", "text": f"{filler}helium is a noble gas of the sun . {filler}"},
        {"doc_id": "endless", "title": "Endless", "text": filler * 100},
    ]
    caplog.clear()
    own.add(documents)
    assert not [record for record in caplog.records if "longer than" in record.getMessage()]
    assert own.snapshot.tree.place_counts[own.snapshot.documents.rows["endless"]] > 100
    assert own.snapshot.tree.is_sound()
    hit = next(
        hit for hit in own.search("helium is a noble gas of the sun", 42, method="exact") if hit.doc_id == "long"
    )
    start, end = hit.passage_span
    assert hit.passage == documents[0]["text"][start:end]
    assert 0 < end - start < 400
    own.save(tmp_path / "pieces")
    loaded = load(tmp_path / "pieces", device="cpu")
    again = next(
        other for other in loaded.search("helium is a noble gas of the sun", 42, method="exact") if other == hit
    )
    assert again.passage_span == hit.passage_span
    assert "characters" in str(hit.explain())
    assert loaded.search("helium", 42)[0].passage is not None


def test_many_pieces_are_told_with_what_fewer_would_take():
    assert pieces_line(np.array([1, 3, 2])) == "3 documents in 6 pieces"
    assert pieces_line(np.ones(30_000, int)) == "30,000 documents in 30,000 pieces"
    assert pieces_line(np.full(2_000, 10)) == (
        "2,000 documents in 20,000 pieces; fewer of each are faster, and find less in long texts: --pieces 4 embeds 8,000 "
        "(40% of the time), --pieces 1 embeds 2,000 (10% of the time)"
    )
    assert pieces_line(np.full(3_000, 3)).endswith("texts: --pieces 1 embeds 3,000 (33% of the time)")
