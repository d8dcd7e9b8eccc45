"""Both methods of search by vectors against literal ones: random trees, weights, filters, updates, places, codes."""

import logging
from dataclasses import replace

import faiss
import numpy as np
import pytest
import torch

from dsi.docids.clustering import DocidsConfig, assemble, build_tree
from dsi.docids.schemes import Docids
from dsi.docids.token_vectors import TokenVectors, encode_states
from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents
from dsi.docids.vectors import VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import EXTRA, WALK, WORDS, Trace
from dsi.search.scores import DocumentScores
from dsi.search.top import best, highest, highest_and_rest
from dsi.search.vector_search import VectorEngine
from dsi.search.walk import NodeScores
from tests.support import oracles
from tests.support.cases import Case, random_memory, random_tokens, small_case, texts, token_states
from tests.support.small import WIDTH, as_batch, random_batch, random_queries, random_tree, with_codes


def random_paths(documents: int, rng: np.random.Generator) -> np.ndarray:
    """[documents, depth] paths of a tree that is deep in places and wide in others."""
    paths = np.full((documents, 6), -1, dtype=np.int32)

    def split(rows: np.ndarray, level: int) -> None:
        if level == 5 or len(rows) <= rng.integers(1, 6):
            paths[rows, level] = np.arange(len(rows))
            return
        labels = rng.integers(0, rng.integers(1, 6), size=len(rows))
        paths[rows, level] = np.unique(labels, return_inverse=True)[1]
        for digit in np.unique(paths[rows, level]):
            split(rows[paths[rows, level] == digit], level + 1)

    split(np.arange(documents), 0)
    return paths[:, (paths >= 0).any(axis=0)]


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    documents, several = int(rng.integers(2, 70)), int(rng.integers(1, 4)) if seed % 3 == 0 else 1
    paths = random_paths(documents * several, rng)
    rows = np.repeat(np.arange(documents), several) if several > 1 else None
    points = rng.normal(size=(documents * several, WIDTH)).astype(np.float32)
    tree = assemble(Docids(paths, rows), points)
    tree = replace(tree, pieces=several, piece_cost=0.3 if seed % 12 in (0, 9) else 0.0)
    chance = np.random.default_rng([seed, 1])
    with_tokens = seed % 2 == 0
    if with_tokens:
        tree = replace(tree, tokens=random_tokens(tree.num_places, chance))
    kind = ["float32", "float32", "int8", "int8", "codes"][seed % 5]
    if kind == "codes":
        tree = with_codes(tree)
    elif kind != "float32":
        tree = tree.stored_as(VectorsConfig(kind))
    held = texts(documents, rng)
    bm25 = BM25([str(n) for n in range(documents)], held)
    if seed % 4 >= 2 and documents > 4:  # updates
        gone = rng.choice(documents, size=int(rng.integers(1, documents - 1)), replace=False)
        new = int(rng.integers(1, 12))
        _ = VectorEngine(tree).listed  # lists are made before the update, as in an index that is searched
        tree = remove_documents(tree, gone)
        bm25 = bm25.update(gone.tolist(), [str(n) for n in range(documents - len(gone))], [])
        held = [text for row, text in enumerate(held) if row not in gone]
        vectors = rng.normal(size=(new, WIDTH)).astype(np.float32)
        tokens = None
        if with_tokens:
            tokens = encode_states(tree.tokens.head, tree.tokens.bits, token_states(new, chance))
        tree = add_documents(tree, vectors, tokens=tokens)
        more = texts(new, rng)
        bm25 = bm25.update([], [str(n) for n in range(documents - len(gone) + new)], more)
        held = held + more
    batch_size = int(rng.choice([1, 3, 12]))
    states, mask, embeddings = random_queries(batch_size, seed=seed)
    asked = [f"{text} new{number % 4}" for number, text in enumerate(texts(batch_size, rng))]
    batch = as_batch(states, mask, embeddings, asked)
    if seed % 7 in (1, 4):
        shares = np.random.default_rng([seed, 4]).choice([0, 0.3, 1], size=batch_size)
        batch = batch._replace(shares_read=shares.astype(np.float32))
    config = SearchConfig(
        token_weight=float(chance.choice([0, 1, 4])),
        beam_width=int(rng.integers(1, 7)),
        candidates=int(rng.choice([1, 3, 100])),
        lexical_weight=float(rng.choice([0, 0.5, 3])),
        memory_weight=float(np.random.default_rng([seed, 2]).choice([0, 1, 10])),
    )
    memory = (
        random_memory(tree.num_rows, batch.embeddings, bm25, np.random.default_rng([seed, 3])) if seed % 5 < 3 else None
    )
    allowed = extra = None
    if rng.random() < 0.4:
        by_row = rng.random(tree.num_rows) < rng.choice([0.05, 0.5, 0.9])
        allowed = by_row[tree.doc_rows] & (tree.doc_rows >= 0)
    if rng.random() < 0.3:
        extra = rng.normal(size=(batch_size, tree.num_rows)) * 3
    return Case(tree, bm25, batch, SearchRequest(int(rng.integers(1, 15)), config, allowed, extra), memory, held)


def token_scores(case: Case) -> np.ndarray:
    """[batch, places] late interaction by its definition, token by token, in float64; faiss decodes."""
    tokens, batch = case.tree.tokens, case.batch
    scores = np.zeros((len(batch.texts), case.tree.num_places))
    if tokens is None:
        return scores
    quantizer = faiss.ScalarQuantizer(8, getattr(faiss.ScalarQuantizer, f"QT_{tokens.bits}bit_tqmse"))
    quantizer.train(np.eye(1, 8, dtype=np.float32))
    every = [part.codes[part.starts[row] : part.starts[row + 1]] for part in tokens.parts for row in range(len(part))]
    held = [quantizer.decode(codes) for codes in every]
    for place, row in enumerate(tokens.order):
        for query in range(len(batch.texts) if len(held[row]) else 0):
            states = batch.states[query][batch.mask[query]].astype(np.float64)
            best = [
                max(cosine(tokens.head.astype(np.float64) @ state, vector) for vector in held[row]) for state in states
            ]
            scores[query, place] = np.mean(best)
    return scores


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def place_scores(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[batch, places] dense scores, all but late interaction, and all, by their definition; -inf at removed documents.

    The last also has -inf at places that are not their document's best by dense score: late interaction reads that one alone.
    """
    tree, config = case.tree, case.request.config
    z = case.batch.embeddings.astype(np.float64)
    vectors = np.stack([tree.embeddings[place] for place in range(tree.num_places)]).astype(np.float64)
    pieces = np.array([max(1, int((tree.doc_rows == row).sum())) for row in tree.doc_rows])
    gone = tree.doc_rows < 0
    dense = np.where(gone, -np.inf, z @ vectors.T - tree.piece_cost * np.log2(pieces))
    rows = np.maximum(tree.doc_rows, 0)
    read = np.ones((len(z), 1))
    if config.lexical_weight and case.batch.shares_read is not None:
        read = np.maximum(case.batch.shares_read.astype(np.float64) ** 2, 0.01)[:, None]
    unshared = dense
    if config.memory_weight and case.memory:
        dense = moved_scores(case, unshared, config.memory_weight * read[:, 0])
    dense = read * dense
    total = dense + config.lexical_weight * case.bm25.shares(case.batch.texts).astype(np.float64)[:, rows]
    if case.request.extra_scores is not None:
        total = total + case.request.extra_scores[:, rows]
    if config.memory_weight and case.memory:
        total = total + config.memory_weight * read * memory_scores(case, unshared)[:, rows]
    every = total + (config.token_weight * read * token_scores(case) if config.token_weight else 0)
    best = [by_document(tree, own) for own in dense]
    is_best = [
        [score == own.get(row) for score, row in zip(scores, tree.doc_rows.tolist(), strict=True)]
        for scores, own in zip(dense, best, strict=True)
    ]
    every = np.where(is_best, every, -np.inf)
    return tuple(np.where(gone, -np.inf, scores) for scores in (dense, total, every))


def memory_scores(case: Case, dense: np.ndarray) -> np.ndarray:
    """[batch, documents] what earlier queries say, by its definition; dense scores [batch, places]."""
    tree, (pairs,) = case.tree, case.memory.blocks
    documents = np.stack([tree.embeddings[place] for place in np.flatnonzero(tree.doc_rows >= 0)]).astype(np.float64)
    scores = np.zeros((len(dense), tree.num_rows))
    for query, (vector, own) in enumerate(zip(case.batch.embeddings.astype(np.float64), dense, strict=True)):
        best, terms = by_document(tree, own), case.bm25.analyzer.terms
        texts = [terms(text) for text in case.texts]
        earlier = {row: [] for row in range(tree.num_rows)}
        for row, text, count in zip(pairs.rows.tolist(), pairs.texts.tolist(), pairs.counts.tolist(), strict=True):
            earlier[row].append((terms(text), count))
        asked = terms(case.batch.texts[query]) if case.request.config.lexical_weight else []
        words = {row: oracles.learned_words(asked, texts[row], own, texts) for row, own in earlier.items()}
        found = oracles.memory_scores(vector, pairs.vectors, pairs.rows, pairs.counts, best, documents, words)
        scores[query, list(found)] = list(found.values())
    return scores


def moved_scores(case: Case, dense: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[batch, places] dense scores, those of documents with earlier queries moved towards these; weights [batch]."""
    tree, (pairs,), moved = case.tree, case.memory.blocks, dense.copy()
    documents = np.stack([tree.embeddings[place] for place in np.flatnonzero(tree.doc_rows >= 0)]).astype(np.float64)
    for query, (vector, own) in enumerate(zip(case.batch.embeddings.astype(np.float64), dense, strict=True)):
        everything = vector, pairs.vectors, pairs.rows, pairs.counts, by_document(tree, own), documents
        _, margin, length, _ = oracles.memory_margin(*everything)
        for place, row in enumerate(tree.doc_rows.tolist()):
            asked = pairs.rows == row
            if asked.any():
                said = pairs.vectors[asked], pairs.counts[asked], margin, length, weights[query]
                moved[query, place] = oracles.moved_score(own[place], vector, *said)
    return moved


def remembered(case: Case, query: int) -> set[int]:
    """The rows of the documents of the 51 nearest earlier queries, of which the last has next to no share."""
    (pairs,) = case.memory.blocks
    return set(pairs.rows[np.argsort(-(pairs.vectors @ case.batch.embeddings[query]))[:51]].tolist())


def by_document(tree: DocidTree, scores: np.ndarray) -> dict[int, float]:
    """{row: score of its best place} of one query."""
    found: dict[int, float] = {}
    for place, row in enumerate(tree.doc_rows.tolist()):
        if row >= 0:
            found[row] = max(found.get(row, -np.inf), scores[place])
    return found


def allowed_places(case: Case) -> np.ndarray:
    return case.tree.doc_rows >= 0 if case.request.allowed is None else case.request.allowed


def node_scores(case: Case, query: int) -> "dict[tuple[int, int], float]":
    """{(level, inner node): its score}, by the definition of the walk."""
    tree, z, found = case.tree, case.batch.embeddings[query].astype(np.float64), {}
    for level, nodes in enumerate(tree.levels[1:]):
        for node in range(nodes.start, nodes.stop):
            found[level, node] = float(z @ tree.centroids[node].astype(np.float64)) + 0.09 * oracles.bonus(tree, node)
    return found


def check(seed: int) -> int:
    """Compare both methods of one random case with literal ones; returns how many answers were compared."""
    case = random_case(seed)
    tree, request, index = case.tree, case.request, case.index
    allowed, (dense, plain, total) = allowed_places(case), place_scores(case)
    rows_allowed = {row for row in tree.doc_rows[allowed].tolist() if row >= 0}
    k = min(request.k, len(rows_allowed))
    results = {
        "exact": index.methods["exact"].retrieve(case.batch, request),
        "generate": index.methods["generate"].retrieve(case.batch, request),
    }
    for name, result in results.items():
        assert result.positions.shape == (len(case.batch.texts), k), (seed, name)
    for query in range(len(case.batch.texts) if k else 0):
        scores = by_document(tree, total[query])
        truth = sorted((score for row, score in scores.items() if row in rows_allowed), reverse=True)[:k]
        for name, result in results.items():
            positions, own = result.positions[query], result.scores[query]
            rows = tree.doc_rows[positions[positions >= 0]].tolist()
            assert len(set(rows)) == len(rows), (seed, name)
            assert set(rows) <= rows_allowed, (seed, name)
            expected = [scores[row] for row in rows]
            np.testing.assert_allclose(own[positions >= 0], expected, rtol=1e-5, atol=1e-5, err_msg=f"{seed} {name}")
            np.testing.assert_allclose(  # the place that is named is the best one
                [total[query, place] for place in positions[positions >= 0]], expected, rtol=1e-5, atol=1e-5
            )
            if name != "words":
                assert (positions >= 0).all(), (seed, name)
            if result.exact[query]:
                np.testing.assert_allclose(own, truth, rtol=1e-5, atol=1e-5, err_msg=f"{seed} {name}")
        assert results["exact"].exact[query]
        if len(rows_allowed) > 0:
            _check_candidates(
                case,
                query,
                dense[query],
                by_document(tree, plain[query]),
                scores,
                rows_allowed,
                results["generate"],
                k,
                seed,
            )
    return 3 * len(case.batch.texts)


def _check_candidates(case, query, dense, plain, scores, rows_allowed, result, k, seed) -> None:
    """The answer is the best of what the literal walk, words, extra_scores and memory find, by the first beam that finds k."""
    tree, request, config = case.tree, case.request, case.request.config
    if request.allowed is not None:
        assert result.exact[query]  # so few documents are all scored
        return
    listed = case.index.listed
    ends = None if listed is None else lambda node: bool(listed.ends[node])
    nodes = node_scores(case, query)
    width = config.beam_width
    while True:
        last, pruned = oracles.walk(tree, lambda level, node: nodes[level, node], width, allowed_places(case), ends)
        places = [place for node in last for place in range(tree.doc_start[node], tree.doc_end[node])]
        reached = {row for row in tree.doc_rows[places].tolist() if row >= 0}
        if len(reached) > request.pool and tree.most_places > 1:
            return  # which of them are candidates depends on places; scores were compared
        best_dense = by_document(tree, dense)
        candidates = set(sorted(reached, key=lambda row: -best_dense[row])[: request.pool])
        if config.lexical_weight:
            (terms,) = case.bm25.share_terms([case.batch.texts[query]])
            candidates |= set(case.bm25.scorer.top(terms, request.pool).rows.tolist())
        if request.extra_scores is not None:
            candidates |= set(np.argsort(-request.extra_scores[query])[: request.pool].tolist())
        if config.memory_weight and case.memory:
            candidates |= remembered(case, query)
        if len(candidates) >= k or not pruned:
            break
        width *= 2
    if config.token_weight and tree.tokens is not None:  # the last stage
        candidates = sorted(candidates, key=lambda row: -plain[row])[: max(k, request.pool)]
    expected = sorted((scores[row] for row in candidates), reverse=True)[:k]
    np.testing.assert_allclose(result.scores[query], expected, rtol=1e-5, atol=1e-5, err_msg=str(seed))


@pytest.mark.parametrize(
    "start", [0, 40, 80, *(pytest.param(start, marks=pytest.mark.slow) for start in (120, 160, 200))]
)
def test_both_methods_are_as_defined(start):
    assert sum(check(seed) for seed in range(start, start + 40)) > 200


@pytest.mark.fuzz
def test_twenty_thousand_comparisons():
    compared, seed = 0, 1_000
    while compared < 20_000:
        compared += check(seed)
        seed += 1
    logging.getLogger(__name__).warning("%d answers of %d random indexes compared", compared, seed - 1_000)


def test_the_walk_that_is_traced_is_the_one_that_answered():
    case = small_case(beam_width=3, alpha=0.6, lexical_weight=0.5)
    one = case.batch.select(np.array([2]))
    trace = Trace()
    result = case.index.methods["generate"].retrieve(one, case.request, trace)
    assert trace.beam_width == 3
    scores = node_scores(replace_batch(case, one), 0)
    kept = [0]
    for level, own in enumerate(trace.levels):
        expected = [
            child
            for node in kept
            if case.tree.first_child[node] < case.tree.num_inner
            for child in oracles.children_of(case.tree, node)
        ]
        assert own.nodes[0].tolist() == sorted(expected)
        np.testing.assert_allclose(
            own.scores[0], [scores[level, node] for node in own.nodes[0].tolist()], rtol=1e-5, atol=1e-5
        )
        kept = own.nodes[0][own.kept[0]].tolist()
        assert kept == sorted(sorted(expected, key=lambda node: -scores[level, node])[:3])
    assert set(result.positions[0].tolist()) <= set(trace.positions[0].tolist())


def replace_batch(case: Case, batch: QueryBatch) -> Case:
    return Case(case.tree, case.bm25, batch, case.request)


def test_fewer_than_k_found_double_the_beam_of_that_query_alone():
    case = small_case(beam_width=1, candidates=1)
    request = replace(case.request, k=20)
    trace = Trace()
    result = case.index.methods["generate"].retrieve(case.batch.select(np.array([0])), request, trace)
    assert trace.beam_width > 1
    assert (result.positions >= 0).all()


@pytest.mark.parametrize("k", [1, 20])
def test_what_every_pass_of_a_widened_search_scores_is_counted(k, monkeypatch):
    scored = []
    for kind, name in ((DocumentScores, "dots"), (NodeScores, "scores")):
        own = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, own=own: (scored.append(given[-1].size), own(*given))[1])
    case = small_case(beam_width=1, candidates=1)
    one = case.batch.select(np.array([0]))
    result = case.index.methods["generate"].retrieve(one, replace(case.request, k=k))
    assert result.read.tolist() == [sum(scored)]


def test_nothing_pruned_is_certified_and_reads_everything():
    case = small_case(beam_width=1_000)
    result = case.index.methods["generate"].retrieve(case.batch, case.request)
    assert result.exact.all()
    assert (result.read == case.tree.num_places).all()  # all nodes are kept, whatever their scores
    narrow = case.index.methods["generate"].retrieve(
        case.batch, replace(case.request, config=SearchConfig(beam_width=2))
    )
    assert not narrow.exact.any()
    assert (narrow.read < result.read / 2).all()


@pytest.mark.parametrize("candidates", [1, 12, 500])
@pytest.mark.parametrize(("method", "much"), [("generate", 0.25), ("exact", 1.0), ("exact", 0.25)])
def test_a_result_counts_its_late_interactions(monkeypatch, candidates, method, much):
    monkeypatch.setattr("dsi.search.pools._MUCH", much)
    case = small_case(400)
    case.tree = replace(case.tree, tokens=random_tokens(400, np.random.default_rng(0)))
    compared, score = [], TokenVectors.late_interaction

    def count(tokens, queries, places):
        compared.append(sum(map(len, places)))
        return score(tokens, queries, places)

    monkeypatch.setattr(TokenVectors, "late_interaction", count)
    config = SearchConfig(token_weight=0.01, lexical_weight=0.5, beam_width=3, candidates=candidates)
    found = case.index.methods[method].retrieve(case.batch, SearchRequest(3, config))
    assert found.compared.sum() == sum(compared)
    assert (found.compared >= 3).all()
    if method == "exact" and much < 1:  # one query reads a third of the documents: all are read once for the others
        assert found.compared[0] < 400
        assert (found.compared[1:] == 400).all()
    else:
        assert (found.compared < 400).all() or candidates > 400  # so many may all be found by words
    if method == "generate":
        assert (found.compared <= max(candidates, 3)).all()
    plain = replace(config, token_weight=0.0)
    assert (case.index.methods[method].retrieve(case.batch, SearchRequest(3, plain)).compared == 0).all()


def test_sources_name_what_found_a_document():
    case = small_case(beam_width=1, candidates=1, lexical_weight=50.0)
    extra = np.zeros((4, 60))
    extra[:, 7] = 1e4
    result = case.index.methods["generate"].retrieve(case.batch, replace(case.request, k=1, extra_scores=extra))
    assert (case.tree.doc_rows[result.positions[:, 0]] == 7).all()
    assert (result.sources[:, 0] & EXTRA).all()
    by_words = case.index.methods["generate"].retrieve(case.batch, replace(case.request, k=1))
    assert (by_words.sources & WORDS).any()
    walked = case.index.methods["generate"].retrieve(
        case.batch, replace(case.request, config=SearchConfig(beam_width=2))
    )
    assert (walked.sources == WALK).all()


def test_a_root_that_holds_documents_is_all_of_them():
    tree = assemble(Docids(np.arange(30)[:, None].astype(np.int32)), np.eye(30, WIDTH, dtype=np.float32))
    index = VectorEngine(tree)
    states, mask, embeddings = random_queries(2)
    batch = as_batch(states, mask, embeddings, ["a", "b"])
    result = index.methods["generate"].retrieve(batch, SearchRequest(3, SearchConfig(beam_width=1, alpha=1.0)))
    assert result.exact.all()
    expected = np.sort(embeddings @ tree.embeddings[:].T, axis=1)[:, ::-1][:, :3]
    np.testing.assert_allclose(result.scores, expected, rtol=1e-5)


def test_batches_and_single_queries_agree():
    case = small_case(documents=90, queries=9, beam_width=3, alpha=0.5, lexical_weight=0.4)
    for method in case.index.methods.values():
        whole = method.retrieve(case.batch, case.request)
        for row in range(9):
            one = method.retrieve(case.batch.select(np.array([row])), case.request)
            assert one.positions[0].tolist() == whole.positions[row].tolist()
            np.testing.assert_allclose(one.scores[0], whole.scores[row], rtol=1e-5)


def test_follow_gives_node_scores_and_parts_that_add_up():
    case = small_case(beam_width=3, alpha=0.6, lexical_weight=0.5)
    request = replace(case.request, extra_scores=np.random.default_rng(1).normal(size=(4, 60)))
    rows = np.array([[3, 8], [1, 2], [0, 59], [7, 7]])
    followed = case.index.follow(case.batch, request, rows)
    *_, total = place_scores(Case(case.tree, case.bm25, case.batch, request))
    assert set(followed.parts) == {"dense", "BM25", "extra"}
    for query in range(4):
        scores = node_scores(case, query)
        for column, row in enumerate(rows[query]):
            position = int(case.tree.positions[row])
            np.testing.assert_allclose(followed.scores[query, column], total[query, position], rtol=1e-5, atol=1e-5)
            parents, digits = case.tree.paths(np.array([position]))
            length = int((digits >= 0).sum())
            for level in range(length - 1):
                np.testing.assert_allclose(
                    followed.nodes[query, column, level], scores[level, parents[0, level + 1]], rtol=1e-5, atol=1e-5
                )
            assert followed.nodes[query, column, length - 1] == followed.scores[query, column]
            assert np.isnan(followed.nodes[query, column, length:]).all()


def test_only_lists_of_kept_nodes_are_scanned(monkeypatch):
    rng = np.random.default_rng(0)
    tree = with_codes(random_tree(400, branching=4, leaf=8))
    index = VectorEngine(tree)
    listed = index.listed
    assert listed is not None
    scanned: list[np.ndarray] = []
    scan = type(listed.lists).scan

    def counting(self, queries, lists, count, allowed=None):
        scanned.append(lists[0])
        return scan(self, queries, lists, count, allowed)

    monkeypatch.setattr(type(listed.lists), "scan", counting)
    states, mask, embeddings = random_queries(1, seed=2)
    batch, trace = as_batch(states, mask, embeddings, ["a"]), Trace()
    result = index.methods["generate"].retrieve(batch, SearchRequest(5, SearchConfig(beam_width=3, alpha=0.0)), trace)
    kept = {node for level in trace.levels for node in level.nodes[0][level.kept[0]].tolist() if listed.ends[node]}
    nodes = listed.lists.nodes_of(tree)
    assert {int(nodes[number]) for number in scanned[0]} == kept
    assert len(kept) <= 3 * len(trace.levels)
    documents = {place for node in kept for place in range(tree.doc_start[node], tree.doc_end[node])}
    assert set(result.positions[0].tolist()) <= documents
    del rng


def test_equal_scores_come_in_docid_order():
    tree = assemble(Docids(np.array([[1], [0], [2], [3]], dtype=np.int32)), np.ones((4, WIDTH), dtype=np.float32))
    states, mask, embeddings = random_queries(1)
    batch = as_batch(states, mask, embeddings, ["a"])
    for method in VectorEngine(tree).methods.values():
        assert method.retrieve(batch, SearchRequest(3, SearchConfig())).positions[0].tolist() == [0, 1, 2]


def test_best_and_highest_break_ties_by_place():
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores = rng.integers(0, 4, size=rng.integers(1, 12)).astype(np.float32)
        count = int(rng.integers(1, 14))
        expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]
        assert best(scores, count).tolist() == expected
        assert highest(scores, count).tolist() == sorted(expected)


@pytest.mark.parametrize("values", [3, 1_000, 10**6])
def test_the_highest_of_very_many_scores_are_those_of_sorting(values):
    rng = np.random.default_rng(values)
    for n in (16_384, 20_001, 70_000):
        for count in (1, 10, 100, 150):
            scores = rng.integers(0, values, size=n).astype(np.float32)
            scores[rng.random(n) < 0.9] = -np.inf  # as under a filter
            expected = np.argsort(-scores, kind="stable")
            indices, rest = highest_and_rest(scores, count)
            assert indices.tolist() == sorted(expected[:count])
            assert rest == scores[expected[count]]


@pytest.mark.slow
def test_a_hundred_thousand_equal_documents_have_docids_and_are_found():
    vectors = np.tile(np.random.default_rng(0).normal(size=(1, WIDTH)).astype(np.float32), (100_000, 1))
    tree = build_tree(vectors, DocidsConfig())
    assert tree.is_sound()
    assert tree.depth <= 6
    index, batch = VectorEngine(tree), random_batch(1)
    batch = batch._replace(embeddings=torch.from_numpy(vectors[:1]))
    for method in ("generate", "exact"):
        found = index.methods[method].retrieve(batch, SearchRequest(10, SearchConfig(lexical_weight=0.0)))
        np.testing.assert_allclose(found.scores[0], (vectors[0] ** 2).sum(), rtol=1e-5)
        assert len(set(found.positions[0].tolist())) == 10
