"""Search over (level, digit) tokens against brute force, against flat dense search and against transformers' generate."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dsi.docids.clustering import DocidsConfig, assemble
from dsi.docids.schemes import SchemeInput, make_docids
from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents
from dsi.generator.beam import PathEngine
from dsi.generator.model import DocidGenerator
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import SearchResult, Trace
from tests.support.oracles import chain_logits, document_log_p
from tests.support.paths import Floats, path_scores
from tests.support.small import (
    WIDTH,
    as_batch,
    beam_search_for,
    complete_tree,
    random_batch,
    random_generator,
    random_queries,
    random_tree,
)
from tests.support.transformers_reference import GenerateBaseline


def run(search: PathEngine, batch: QueryBatch, k: int, config: SearchConfig, **more: Any) -> SearchResult:
    return search.methods[config.method].retrieve(batch, SearchRequest(k, config, **more))


def expected_top(scores: Floats, k: int) -> tuple[NDArray[np.integer], Floats]:
    order = (-scores).argsort(axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


def close(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-5)


# Against brute force


def random_rows(documents: int, most: int, seed: int) -> NDArray[np.integer]:
    """The document of each place; document 0 has as many as there can be."""
    counts = np.random.default_rng(seed).integers(1, most + 1, size=documents)
    counts[0] = most
    return np.repeat(np.arange(documents), counts)


def tree_with_places(documents: int, most: int, branching: int, leaf: int, seed: int) -> DocidTree:
    rows = random_rows(documents, most, seed)
    vectors = np.random.default_rng(seed).normal(size=(len(rows), WIDTH)).astype(np.float32)
    config = DocidsConfig(branching=branching, max_leaf_size=leaf, pieces=most)
    return assemble(make_docids(SchemeInput(vectors, config, rows=rows, seed=seed)), vectors)


def best_documents(tree: DocidTree, scores: Floats, k: int) -> list[list[float]]:
    """The k best scores of each query, one a document; scores: [batch, places], -inf where a place may not be returned."""
    found = []
    for own in scores.tolist():
        best: dict[int, float] = {}
        for position, score in enumerate(own):
            if score > -math.inf:
                row = int(tree.doc_rows[position])
                best[row] = max(score, best.get(row, -math.inf))
        found.append(sorted(best.values(), reverse=True)[:k])
    return found


def check(result: SearchResult, tree: DocidTree, scores: Floats, k: int) -> None:
    """As many documents as there can be, once each and best first, with the scores of their paths; certificates are right."""
    for row, expected in enumerate(best_documents(tree, scores, k)):
        there = result.positions[row] >= 0
        positions, own = result.positions[row][there], result.scores[row][there]
        rows = tree.doc_rows[positions].tolist()
        assert len(rows) == len(set(rows)) == len(expected)
        close(own, scores[row, positions])
        assert (np.diff(own) <= 0).all()
        assert (own <= np.array(expected) + 1e-4).all()
        if result.exact[row]:
            close(own, expected)


def check_both(
    search: PathEngine, batch: QueryBatch, k: int, config: SearchConfig, scores: Floats, **more: Any
) -> None:
    """Check the beam's answers, and those of all paths, which are certified."""
    check(run(search, batch, k, config, **more), search.tree, scores, k)
    exact = run(search, batch, k, dataclasses.replace(config, method="exact"), **more)
    assert exact.exact.all()
    check(exact, search.tree, scores, k)


shapes = {
    "documents": st.integers(4, 40), "branching": st.integers(2, 4), "leaf": st.integers(1, 4), "seed": st.integers(0, 99),
    "k": st.integers(1, 12), "beam_width": st.integers(1, 6), "alpha": st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    "beta": st.sampled_from([0.0, 1.0, 2.0, math.inf]), "share": st.sampled_from([0.0, 0.2, 0.6, 1.0]),
}  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(**shapes, most=st.sampled_from([1, 1, 3]), objective=st.sampled_from(["ce", "plt"]))
def test_paper_fusion_equals_brute_force_over_all_paths(
    documents, branching, leaf, seed, k, beam_width, alpha, beta, share, most, objective
):
    tree = tree_with_places(documents, most, branching, leaf, seed)
    generator = random_generator(tree, layers=1, seed=seed, objective=objective)
    search, batch = beam_search_for(tree, generator), random_batch(3, seed=seed)
    config = SearchConfig(alpha=alpha, beta=beta, beam_width=beam_width, ann_temperature=2.0)
    scores = path_scores(tree, generator, batch, config)
    allowed = None if share == 1.0 else np.random.default_rng(seed).random(documents)[tree.doc_rows] < share
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    check_both(search, batch, k, config, scores, allowed=allowed)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    **shapes, most=st.sampled_from([1, 2]), objective=st.sampled_from(["ce", "plt", "otm"]),
    new=st.integers(0, 8), gone=st.integers(0, 3),
)  # fmt: skip
def test_updated_trees_are_searched_as_all_their_paths_say(
    documents, branching, leaf, seed, k, beam_width, alpha, beta, share, most, objective, new, gone
):
    before = tree_with_places(documents, most, branching, leaf, seed)
    generator, rng = random_generator(before, layers=1, seed=seed, objective=objective), np.random.default_rng(seed)
    search, batch = beam_search_for(before, generator), random_batch(3, seed=seed)
    tree = add_documents(before, rng.normal(size=(new, WIDTH)).astype(np.float32)) if new else before
    tree = remove_documents(tree, rng.choice(tree.num_rows, size=min(gone, tree.num_rows - 1), replace=False))
    search = PathEngine(tree, search.generator)
    config = SearchConfig(alpha=alpha, beta=beta, beam_width=beam_width)
    request = SearchRequest(1, config)
    there = tree.doc_rows >= 0
    every = torch.from_numpy(np.flatnonzero(there)).expand(3, -1)
    generative, dense, _ = search.follow_paths(batch, request, every)  # one path at a time
    scores = np.full((3, tree.num_places), -np.inf)
    scores[:, there] = (generative + dense)[:, :, -1].numpy()
    allowed = None if share == 1.0 else there & (rng.random(tree.num_rows)[tree.doc_rows] < share)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    check_both(search, batch, k, config, scores, allowed=allowed)
    if (
        beta == 0 and objective == "ce" and allowed is None and not gone
    ):  # what was added has its share of the probability
        close(np.exp(scores).sum(axis=1), 1.0)


@pytest.mark.parametrize("rows", [16, 64])
def test_all_paths_are_followed_in_parts_of_a_large_tree(rows, monkeypatch):
    tree = random_tree(120, branching=3, leaf=2)
    generator, batch = random_generator(tree, layers=1), random_batch(3)
    config = SearchConfig(method="exact", alpha=0.6, ann_temperature=0.7, beam_width=2)
    expected = path_scores(tree, generator, batch, config)
    assert tree.num_inner > 64
    monkeypatch.setattr(DocidGenerator, "most_nodes", rows)
    for allowed in (None, np.arange(120) % 3 > 0):
        scores = expected if allowed is None else np.where(allowed, expected, -np.inf)
        found = run(beam_search_for(tree, generator), batch, 20, config, allowed=allowed)
        assert found.exact.all()
        check(found, tree, scores, 20)


def test_more_documents_than_nodes_in_the_beam_widen_it():
    tree = random_tree(60, branching=3, leaf=2)
    generator, batch = random_generator(tree), random_batch(4)
    config = SearchConfig(alpha=0.6, beam_width=2)
    found = run(beam_search_for(tree, generator), batch, 25, config)
    check(found, tree, path_scores(tree, generator, batch, config), 25)
    assert (found.positions >= 0).all()
    wide = run(beam_search_for(tree, generator), batch, 25, dataclasses.replace(config, beam_width=25))
    np.testing.assert_array_equal(found.positions, wide.positions)
    everything = run(beam_search_for(tree, generator), batch, 100, config)
    assert everything.positions.shape == (4, 60)
    assert everything.exact.all()


@pytest.mark.parametrize("objective", ["ce", "plt", "otm"])
@pytest.mark.parametrize(("documents", "branching", "alpha"), [(37, 3, 0.3), (60, 4, 0.0), (60, 4, 0.3), (5, 4, 1.0)])
def test_a_beam_as_wide_as_the_leaves_finds_everything_in_order(documents, branching, alpha, objective):
    tree = random_tree(documents, branching=branching)
    generator, batch = random_generator(tree, objective=objective), random_batch(5)
    config = SearchConfig(alpha=alpha, ann_temperature=0.7, beam_width=documents)
    result = run(beam_search_for(tree, generator), batch, documents, config)
    positions, values = expected_top(path_scores(tree, generator, batch, config), documents)
    close(result.scores, values)
    assert (result.positions == positions).mean() > 0.99  # rounding may swap near-equal neighbours
    assert result.exact.all()


@pytest.mark.parametrize(
    ("objective", "beam_width"), [("ce", 2), ("ce", 5), ("plt", 5), ("plt", 30), ("otm", 2), ("otm", 30)]
)
def test_a_certified_answer_is_the_best_of_all_documents_whatever_the_objective(objective, beam_width):
    tree = random_tree(60, branching=3, leaf=2)
    generator, batch = random_generator(tree, objective=objective), random_batch(40)
    config = SearchConfig(alpha=0.6, ann_temperature=0.7, beam_width=beam_width)
    result = run(beam_search_for(tree, generator), batch, 2, config)
    check(result, tree, path_scores(tree, generator, batch, config), 2)
    if beam_width == 30:  # nothing is pruned
        assert result.exact.all()
    if objective == "otm" and beam_width < 5:  # nodes that speak for themselves bound nothing
        assert not result.exact.any()
    if objective != "otm" and beam_width == 5:
        assert result.exact.any()
    assert (result.positions >= 0).all()


def test_a_narrow_beam_is_sometimes_wrong_and_then_never_certified():
    tree = random_tree(200, branching=3, leaf=3)
    search, batch = beam_search_for(tree, random_generator(tree)), random_batch(64)
    narrow = run(search, batch, 1, SearchConfig(alpha=1.0, beam_width=1))
    best = run(search, batch, 1, SearchConfig(alpha=1.0, method="exact"))
    wrong = narrow.positions[:, 0] != best.positions[:, 0]
    assert wrong.any()
    assert not narrow.exact[wrong].any()
    assert narrow.exact.any()
    assert (narrow.read < best.read).any()


def test_beta_zero_is_the_decoder_alone_with_log_probabilities_as_scores():
    tree = random_tree(30)
    generator, batch = random_generator(tree), random_batch(3)
    result = run(beam_search_for(tree, generator), batch, 30, SearchConfig(alpha=0.2, beta=0))
    close(result.scores, expected_top(document_log_p(tree, generator, batch.states, batch.mask).numpy(), 30)[1])
    close(np.exp(result.scores).sum(axis=1), 1.0)  # a distribution over documents


# Against transformers


def test_decoder_only_equals_transformers_generate():
    # 64 documents in a complete tree of three levels: every docid has the same length, and both searches prune alike.
    tree = complete_tree()
    generator, batch = random_generator(tree), random_batch(6)
    baseline = GenerateBaseline(generator, tree)
    for beam_width in (4, 8, 20):
        ours = run(beam_search_for(tree, generator), batch, 4, SearchConfig(alpha=1.0, beam_width=beam_width))
        positions, scores = baseline.search(batch.states, batch.mask, 4, beam_width)
        close(ours.scores, scores.numpy())
        assert ours.positions.tolist() == positions.tolist()


@pytest.mark.programs
def test_decoder_only_is_never_worse_than_transformers_generate_on_docids_of_different_lengths():
    tree = random_tree(150, branching=3, leaf=3)
    assert len({len(tree.digits(p)) for p in range(150)}) > 1
    generator, batch = random_generator(tree), random_batch(6)
    baseline = GenerateBaseline(generator, tree)
    for beam_width in (5, 10, 80):
        ours = run(beam_search_for(tree, generator), batch, 5, SearchConfig(alpha=1.0, beam_width=beam_width))
        positions, scores = baseline.search(batch.states, batch.mask, 5, beam_width)
        assert (ours.scores >= scores.numpy() - 1e-4).all()
    assert ours.positions.tolist() == positions.tolist()  # at the widest beam both are exact


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_the_fast_decoder_gives_the_logits_of_the_training_path(feed_forward):
    tree = random_tree(80)
    generator = random_generator(tree, layers=3)
    if feed_forward != "relu":
        config = generator.config
        config.feed_forward_proj, config.is_gated_act, config.dense_act_fn = feed_forward, True, "gelu_new"
        generator = DocidGenerator(config).eval()
    states, mask, embeddings = random_queries(3)
    positions = np.array([[0, 7, 33], [5, 5, 79], [12, 60, 1]])  # three beams a query
    decoder = generator.for_search()
    cache = decoder.start(as_batch(states, mask, embeddings, [""] * 3))
    digits = torch.from_numpy(np.stack([tree.paths(row)[1] for row in positions])).long()
    tokens = torch.zeros(3, 3, dtype=torch.long)
    for level in range(2):
        logits = decoder.child_logits(tokens, level, cache)
        for query, column in itertools.product(range(3), range(3)):
            expected = chain_logits(tree, generator, states[[query]], mask[[query]], digits[query, [column]])
            torch.testing.assert_close(
                logits[query, column], expected[0, level, : tree.fan_out[level]], atol=1e-5, rtol=1e-4
            )
        tokens = int(tree.token_offsets[level]) + digits[:, :, level]


# Parts of the search


def test_padding_and_batching_do_not_change_answers():
    tree = random_tree(60)
    search, together = beam_search_for(tree, random_generator(tree)), random_batch(5, longest=12)
    config = SearchConfig(alpha=0.4, beam_width=10)
    found = run(search, together, 5, config)
    for row in range(5):
        length = int(together.mask[row].sum())
        own = together.select(np.array([row]))
        alone = run(search, own._replace(states=own.states[:, :length], mask=own.mask[:, :length]), 5, config)
        assert alone.positions[0].tolist() == found.positions[row].tolist()
        close(alone.scores[0], found.scores[row], 1e-5)


def test_scores_that_overflow_are_never_certified_by_a_beam():
    tree, batch = random_tree(60), random_batch(4)
    search, config = beam_search_for(tree, random_generator(tree)), SearchConfig(alpha=0.0)
    assert run(search, batch, 60, config).exact.all()
    result = run(search, batch._replace(embeddings=batch.embeddings * 3e38), 60, config)
    assert not np.isfinite(result.scores).all(axis=1).any()
    assert not result.exact.any()


@pytest.mark.parametrize("objective", ["ce", "plt", "otm"])
def test_following_given_documents_scores_them_as_a_search_does(objective):
    tree = random_tree(60, branching=3, leaf=2)
    search, batch = beam_search_for(tree, random_generator(tree, objective=objective)), random_batch(1)
    request = SearchRequest(60, SearchConfig(alpha=0.6, beta=2, ann_temperature=0.7, beam_width=60))
    trace = Trace()
    every = search.methods["generate"].retrieve(batch, request, trace)
    followed = search.follow(batch, request, tree.doc_rows[every.positions])
    assert followed.positions.tolist() == every.positions.tolist()
    close(followed.scores, every.scores, 1e-5)
    # On the way the scores are those of the nodes that a search traces.
    for level, own in enumerate(trace.levels):
        known = dict(zip(own.nodes[0].tolist(), own.scores[0].tolist(), strict=True))
        for column, position in enumerate(every.positions[0].tolist()):
            digits = tree.digits(position)
            score = followed.nodes[0, column, level]
            if level < len(digits):
                assert score == pytest.approx(known[tree.node(digits[: level + 1])], abs=1e-4)
            else:
                assert np.isnan(score)


def test_numpy_numbers_become_plain_ones():
    config = SearchConfig(alpha=np.float32(0.5), beta=2, ann_temperature=np.int64(1), beam_width=np.int32(7))
    request = SearchRequest(np.int64(3), config)
    values = [config.alpha, config.beta, config.ann_temperature, config.beam_width, request.k]
    assert values == [0.5, 2.0, 1.0, 7, 3]
    assert [type(value) for value in values] == [float, float, float, int, int]
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        SearchRequest(0, config)
