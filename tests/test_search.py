"""Fused constrained search against brute force, against flat dense search and against transformers' generate."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator
from dsi.generator.reference import GenerateBaseline
from dsi.search.beam import TreeSearcher
from dsi.search.beams import SearchResult
from dsi.search.decoder import FastDecoder
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from tests.conftest import random_generator, random_queries, random_tree, searcher_for
from tests.oracles import chain_logits, document_log_p, level_log_p

Queries = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def log_likelihoods(tree: DocidTree, generator: DocidGenerator, queries: Queries) -> torch.Tensor:
    """[batch, documents] the decoder's score of every docid, one at a time."""
    return document_log_p(tree, generator, *queries[:2])


def paper_ann(tree: DocidTree, embeddings: torch.Tensor, temperature: float, beta: float) -> torch.Tensor:
    """[batch, documents] sum of log P_ANN over the first beta levels, one document and one level at a time (eq. 10)."""
    total = torch.zeros(len(embeddings), tree.num_documents)
    for position in range(tree.num_documents):
        path = tree.digits(position)
        for level in range(min(len(path), beta)):
            parent = tree.node(path[:level])
            children = [tree.node((*path[:level], digit)) for digit in range(tree.num_children[parent])]
            vectors = [
                tree.centroids[c] if c < tree.num_inner else tree.embeddings[c - tree.num_inner] for c in children
            ]
            scores = embeddings @ torch.from_numpy(np.stack(vectors)).T / temperature
            total[:, position] += scores.log_softmax(dim=1)[:, path[level]]
    return total


def scored(
    searcher: TreeSearcher, queries: Queries, config: SearchConfig, alive: torch.Tensor | None = None
) -> ScoredQueries:
    states, mask, embeddings = queries
    return ScoredQueries(states, mask, searcher.node_scores(embeddings, config, alive))


def run(searcher: TreeSearcher, queries: Queries, k: int, config: SearchConfig) -> SearchResult:
    return searcher.search(scored(searcher, queries, config), SearchRequest(k, config))


def expected_top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    return order, scores.gather(1, order)


@pytest.mark.parametrize("objective", ["ce", "plt", "otm"])
@pytest.mark.parametrize(("documents", "branching"), [(37, 3), (60, 4), (5, 4)])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_a_beam_as_wide_as_the_leaves_equals_scoring_every_document_bound(documents, branching, alpha, objective):
    tree = random_tree(documents, branching=branching)
    generator, queries = random_generator(tree, objective=objective), random_queries(5)
    config = SearchConfig(fusion="bound", alpha=alpha, ann_temperature=0.7, beam_width=documents)
    result = run(searcher_for(tree, generator), queries, documents, config)
    dense = queries[2] @ torch.from_numpy(tree.embeddings[:]).T / 0.7
    scores = alpha * log_likelihoods(tree, generator, queries) + (1 - alpha) * dense
    positions, values = expected_top(scores, documents)
    torch.testing.assert_close(result.scores, values, atol=1e-4, rtol=1e-5)
    assert (result.positions == positions).float().mean() > 0.99  # rounding may swap near-equal neighbours
    assert result.exact.all()


@pytest.mark.parametrize("beta", [0, 1, 2, math.inf])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_a_beam_as_wide_as_the_leaves_equals_scoring_every_document_paper(alpha, beta):
    tree = random_tree(41)
    generator, queries = random_generator(tree), random_queries(4)
    config = SearchConfig(fusion="paper", alpha=alpha, beta=beta, ann_temperature=2.0, beam_width=41)
    result = run(searcher_for(tree, generator), queries, 41, config)
    # eq. 11 and 12: weight alpha up to level beta, the decoder alone below
    per_level = level_log_p(tree, generator, *queries[:2])
    weight = torch.tensor([alpha if level < beta else 1.0 for level in range(tree.depth)])
    ann = paper_ann(tree, queries[2], 2.0, beta if beta < math.inf else 99)
    scores = (per_level * weight).sum(dim=2) + (1 - alpha) * ann
    torch.testing.assert_close(result.scores, expected_top(scores, 41)[1], atol=1e-4, rtol=1e-5)


def test_bound_fusion_below_beta_keeps_the_dense_score_of_the_ancestor():
    tree = random_tree(50)
    generator, queries = random_generator(tree), random_queries(3)
    config = SearchConfig(fusion="bound", alpha=0.5, beta=1, beam_width=50)
    result = run(searcher_for(tree, generator), queries, 50, config)
    dense = queries[2] @ torch.from_numpy(tree.embeddings[:]).T
    ancestor = torch.empty_like(dense)
    for node in range(tree.levels[1].start, tree.levels[1].stop):
        below = slice(tree.doc_start[node], tree.doc_end[node])
        ancestor[:, below] = dense[:, below].max(dim=1, keepdim=True).values
    scores = 0.5 * log_likelihoods(tree, generator, queries) + 0.5 * ancestor
    torch.testing.assert_close(result.scores, expected_top(scores, 50)[1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("beam_width", [2, 3, 5, 30])
@pytest.mark.parametrize("objective", ["ce", "plt", "otm"])
def test_a_certified_answer_is_the_best_of_all_documents_whatever_the_objective(objective, beam_width):
    tree = random_tree(60, branching=3, leaf=2)
    generator, queries = random_generator(tree, objective=objective), random_queries(40)
    config = SearchConfig(alpha=0.6, ann_temperature=0.7, beam_width=beam_width)
    result = run(searcher_for(tree, generator), queries, 2, config)
    dense = queries[2] @ torch.from_numpy(tree.embeddings[:]).T / 0.7
    best = expected_top(0.6 * log_likelihoods(tree, generator, queries) + 0.4 * dense, 2)[1]
    right = (result.scores - best).abs().amax(dim=1) < 1e-4
    assert right[result.exact].all()
    if beam_width == 30:  # nothing is pruned
        assert result.exact.all()
    if objective == "otm" and beam_width < 5:  # nodes that speak for themselves bound nothing
        assert not result.exact.any()
    if objective != "otm" and beam_width == 5:
        assert result.exact.any()
    assert (result.positions >= 0).all()


def test_beta_zero_is_the_decoder_alone_with_log_probabilities_as_scores():
    tree = random_tree(30)
    generator, queries = random_generator(tree), random_queries(3)
    scores = log_likelihoods(tree, generator, queries)
    for fusion in ("bound", "paper"):
        config = SearchConfig(fusion=fusion, alpha=0.2, beta=0, beam_width=30)
        result = run(searcher_for(tree, generator), queries, 30, config)
        torch.testing.assert_close(result.scores, expected_top(scores, 30)[1], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(scores.exp().sum(dim=1), torch.ones(3))  # a distribution over documents


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    documents=st.integers(4, 120), branching=st.integers(2, 4), leaf=st.integers(1, 6), k=st.integers(1, 12),
    extra=st.integers(0, 4), seed=st.integers(0, 50), duplicates=st.booleans(), method=st.sampled_from(["kmeans", "random"]),
)  # fmt: skip
def test_alpha_zero_bound_is_flat_dense_search_at_any_beam(
    documents, branching, leaf, k, extra, seed, duplicates, method
):
    tree = random_tree(documents, branching=branching, leaf=leaf, seed=seed, method=method)
    if duplicates:
        tree.embeddings.parts[0][::3] = tree.embeddings[0]
    searcher = searcher_for(tree, random_generator(tree, layers=1))
    queries = random_queries(3, seed=seed)
    result = run(searcher, queries, k, SearchConfig(alpha=0.0, beam_width=k + extra))
    flat = (queries[2].double() @ torch.from_numpy(tree.embeddings[:]).double().T).float()
    _, values = expected_top(flat, k)
    torch.testing.assert_close(result.scores, values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        flat.gather(1, result.positions), values, atol=1e-5, rtol=1e-5
    )  # near-equal ones may swap
    if duplicates:  # documents with one embedding tie exactly: they come in docid order
        ranks = [[p for p in row if p % 3 == 0] for row in result.positions.tolist()]
        assert all(row == sorted(row) for row in ranks)
    assert result.exact.all()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    documents=st.integers(3, 90), branching=st.integers(2, 3), leaf=st.integers(1, 5), k=st.integers(1, 10),
    extra=st.integers(0, 3), alpha=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), seed=st.integers(0, 30),
    fusion=st.sampled_from(["bound", "paper"]), beta=st.sampled_from([0.0, 1.0, 2.0, math.inf]),
)  # fmt: skip
def test_any_beam_gives_k_valid_documents_once_each_and_its_certificate_holds(
    documents, branching, leaf, k, extra, alpha, seed, fusion, beta
):
    tree = random_tree(documents, branching=branching, leaf=leaf, seed=seed)
    searcher, queries = searcher_for(tree, random_generator(tree, layers=1, seed=seed)), random_queries(2, seed=seed)
    config = SearchConfig(fusion=fusion, alpha=alpha, beta=beta, beam_width=k + extra)
    result = run(searcher, queries, k, config)
    wide = run(searcher, queries, min(k, documents), SearchConfig(fusion, alpha, beta, beam_width=documents + 10))
    expected = min(k, documents)
    for row in range(2):
        found = result.positions[row].tolist()
        assert len(found) == len(set(found)) == expected
        assert min(found) >= 0
        assert max(found) < documents
        assert (result.scores[row].diff() <= 0).all()
        assert (result.scores[row] <= wide.scores[row] + 1e-4).all()
        if result.exact[row]:
            torch.testing.assert_close(result.scores[row], wide.scores[row], atol=1e-4, rtol=1e-5)


def test_a_narrow_beam_is_sometimes_wrong_and_then_never_certified():
    tree = random_tree(200, branching=3, leaf=3)
    generator = random_generator(tree)
    queries = random_queries(64)
    searcher = searcher_for(tree, generator)
    config = SearchConfig(alpha=1.0, beam_width=1)
    narrow = run(searcher, queries, 1, config)
    best = run(searcher, queries, 1, SearchConfig(alpha=1.0, beam_width=300))
    wrong = narrow.positions[:, 0] != best.positions[:, 0]
    assert wrong.any()
    assert not narrow.exact[wrong].any()
    assert narrow.exact.any()


@pytest.mark.parametrize("method", ["balanced", "random"])
def test_decoder_only_equals_transformers_generate(method):
    # 64 documents in a complete tree of three levels: every docid has the same length, and both searches prune alike.
    tree = random_tree(64, branching=4, leaf=4, method=method)
    generator, queries = random_generator(tree), random_queries(6)
    baseline = GenerateBaseline(generator, tree)
    for beam in (4, 8, 20):
        ours = run(searcher_for(tree, generator), queries, 4, SearchConfig(alpha=1.0, beam_width=beam))
        positions, scores = baseline.search(queries[0], queries[1], 4, beam)
        torch.testing.assert_close(ours.scores, scores, atol=1e-4, rtol=0)
        assert torch.equal(ours.positions, positions)


def test_decoder_only_is_never_worse_than_transformers_generate_on_docids_of_different_lengths():
    tree = random_tree(150, branching=3, leaf=3)
    assert len({len(tree.digits(p)) for p in range(150)}) > 1
    generator, queries = random_generator(tree), random_queries(6)
    baseline = GenerateBaseline(generator, tree)
    for beam in (5, 10, 80):
        ours = run(searcher_for(tree, generator), queries, 5, SearchConfig(alpha=1.0, beam_width=beam))
        positions, scores = baseline.search(queries[0], queries[1], 5, beam)
        assert (ours.scores >= scores - 1e-4).all()
    assert torch.equal(ours.positions, positions)  # at the widest beam both are exact


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_the_fast_decoder_gives_the_logits_of_the_training_path(feed_forward):
    tree = random_tree(80)
    generator = random_generator(tree, layers=3)
    if feed_forward != "relu":
        config = generator.config
        config.feed_forward_proj, config.is_gated_act, config.dense_act_fn = feed_forward, True, "gelu_new"
        generator = DocidGenerator(config).eval()
    states, mask, _ = random_queries(3)
    positions = np.array([[0, 7, 33], [5, 5, 79], [12, 60, 1]])  # three beams a query
    decoder = FastDecoder(generator)
    cache = decoder.start(states, mask)
    digits = torch.from_numpy(np.stack([tree.paths(row)[1] for row in positions])).long()
    tokens = torch.zeros(3, 3, dtype=torch.long)
    for level in range(2):
        logits = decoder.step(tokens, level, cache)
        for query, beam in itertools.product(range(3), range(3)):
            expected = chain_logits(tree, generator, states[[query]], mask[[query]], digits[query, [beam]])
            torch.testing.assert_close(
                logits[query, beam], expected[0, level, : tree.fan_out[level]], atol=1e-5, rtol=1e-4
            )
        tokens = int(tree.token_offsets[level]) + digits[:, :, level]


def test_padding_and_batching_do_not_change_answers():
    tree = random_tree(60)
    searcher = searcher_for(tree, random_generator(tree))
    states, mask, embeddings = random_queries(5, longest=12)
    config = SearchConfig(alpha=0.4, beam_width=10)
    together = run(searcher, (states, mask, embeddings), 5, config)
    for row in range(5):
        length = int(mask[row].sum())
        alone = run(searcher, (states[[row], :length], mask[[row], :length], embeddings[[row]]), 5, config)
        assert torch.equal(alone.positions[0], together.positions[row])
        torch.testing.assert_close(alone.scores[0], together.scores[row], atol=1e-5, rtol=1e-5)


def test_node_scores_are_the_largest_document_scores_below():
    tree = random_tree(90, branching=3, leaf=2)
    searcher = searcher_for(tree, random_generator(tree, layers=1))
    embeddings = random_queries(4)[2]
    documents = searcher.dense.document_scores(embeddings)
    scores = searcher.node_scores(embeddings, SearchConfig())
    for node in range(tree.num_inner):
        below = documents[:, tree.doc_start[node] : tree.doc_end[node]].max(dim=1).values
        assert torch.equal(scores.of(torch.full((4, 1), node))[:, 0], below)
    leaves = torch.arange(tree.num_inner, tree.num_inner + 90).expand(4, -1)
    assert torch.equal(scores.of(leaves), documents)
    # With "paper" fusion they are dot products with centroids, of the nodes that are asked for alone.
    nodes = torch.tensor([[0, 5, tree.num_inner + 7], [tree.num_inner, 3, 3], [1, 2, 0], [4, 4, 4]])
    centroids = searcher.node_scores(embeddings, SearchConfig(fusion="paper", ann_temperature=0.5)).of(nodes)
    vectors = torch.from_numpy(np.concatenate([tree.centroids, tree.embeddings]))
    torch.testing.assert_close(centroids, torch.einsum("bnd,bd->bn", vectors[nodes], embeddings) / 0.5)
    assert searcher.node_scores(embeddings, SearchConfig(beta=0)) is None


def test_log_sums_are_those_of_the_documents_below_and_documents_keep_their_scores():
    tree = random_tree(90, branching=3, leaf=2)
    dense = searcher_for(tree, random_generator(tree, layers=1)).dense
    documents = 50 * torch.randn(4, 90, generator=torch.Generator().manual_seed(0))
    documents[:, 7] = -300  # exp of its distance to the largest is 0
    nodes = dense.log_sum(documents)
    assert torch.equal(nodes[:, tree.num_inner :], documents)
    floor = documents.amax(dim=1) + np.log(torch.finfo(torch.float32).tiny)
    for node in range(tree.num_inner):
        below = documents[:, tree.doc_start[node] : tree.doc_end[node]].logsumexp(dim=1)
        torch.testing.assert_close(nodes[:, node], torch.maximum(below, floor), atol=1e-3, rtol=1e-5)


def filtered(
    searcher: TreeSearcher, queries: Queries, allowed: torch.Tensor, k: int, config: SearchConfig
) -> SearchResult:
    alive = searcher.dense.alive(allowed)
    return searcher.search(scored(searcher, queries, config, alive), SearchRequest(k, config, alive))


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    documents=st.integers(5, 90), branching=st.integers(2, 5), seed=st.integers(0, 99), share=st.floats(0, 1),
    alpha=st.sampled_from([0.0, 0.2, 0.7, 1.0]), fusion=st.sampled_from(["bound", "paper"]),
    beta=st.sampled_from([0, 1, math.inf]), beam=st.integers(3, 12),
)  # fmt: skip
def test_filtered_search_is_the_unfiltered_ranking_without_the_others(
    documents, branching, seed, share, alpha, fusion, beta, beam
):
    tree = random_tree(documents, branching=branching, seed=seed)
    searcher, queries = searcher_for(tree, random_generator(tree, layers=1)), random_queries(3, seed=seed)
    rng = np.random.default_rng(seed)
    allowed = torch.from_numpy(rng.random(documents) < share)
    allowed[rng.integers(documents)] = True
    config = SearchConfig(fusion=fusion, alpha=alpha, beta=beta, beam_width=documents)
    everything = run(searcher, queries, documents, config)
    k = min(3, int(allowed.sum()))
    kept = [[int(p) for p in row if allowed[p]][:k] for row in everything.positions]

    wide = filtered(searcher, queries, allowed, 3, config)
    expected = everything.scores.gather(1, everything.positions.argsort(dim=1).gather(1, torch.tensor(kept)))
    torch.testing.assert_close(wide.scores, expected, atol=1e-4, rtol=1e-4)
    assert wide.exact.all()

    narrow = filtered(searcher, queries, allowed, 3, dataclasses.replace(config, beam_width=beam))
    assert narrow.positions.shape == (3, k)
    assert allowed[narrow.positions].all()  # k allowed documents, whatever the share; position -1 would be caught below
    assert (narrow.positions >= 0).all()
    assert all(len(set(row.tolist())) == k for row in narrow.positions)
    assert torch.isfinite(narrow.scores).all()
    torch.testing.assert_close(narrow.scores[narrow.exact], expected[narrow.exact], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"alpha": 1.5}, r"alpha must be in \[0, 1\] .* got 1.5"),
        ({"alpha": math.nan}, r"alpha must be in \[0, 1\]"),
        ({"beta": -1}, "beta must be 0 .* got -1"),
        ({"ann_temperature": 0.0}, "ann_temperature must be between 1e-6 and 1e6, got 0.0"),
        ({"ann_temperature": math.inf}, "ann_temperature must be between 1e-6 and 1e6, got inf"),
        ({"ann_temperature": 1e-300}, "ann_temperature must be between 1e-6 and 1e6, got 1e-300"),
        ({"lexical_weight": math.nan}, r"lexical_weight must be between 0 \(dense scores alone\) and 1e6, got nan"),
        ({"lexical_weight": 1e300}, r"lexical_weight must be between 0 \(dense scores alone\) and 1e6, got 1e\+300"),
        ({"alpha": "0.5"}, "alpha must be a number, got '0.5'"),
        ({"alpha": True}, "alpha must be a number, got True"),
        ({"beta": 10**400}, "beta must be a number that a float can hold"),
        ({"beam_width": 10.0}, "beam_width must be an integer, got 10.0"),
        ({"fusion": None}, "fusion must be a string, got None"),
        ({"beam_width": 0}, "beam_width must be at least 1, got 0"),
        ({"fusion": "sum"}, "fusion must be one of bound, estimate, paper, got 'sum'"),
    ],
)
def test_settings_out_of_range_are_named(settings_, message):
    with pytest.raises(ValueError, match=message):
        SearchConfig(**settings_)


def test_numpy_numbers_become_plain_ones():
    config = SearchConfig(alpha=np.float32(0.5), beta=2, ann_temperature=np.int64(1), beam_width=np.int32(7))
    request = SearchRequest(np.int64(3), config, exact=np.bool_(True))
    values = [config.alpha, config.beta, config.ann_temperature, config.beam_width, request.k, request.exact]
    assert values == [0.5, 2.0, 1.0, 7, 3, True]
    assert [type(value) for value in values] == [float, float, float, int, int, bool]


def test_scores_that_overflow_are_never_certified():
    tree = random_tree(60)
    states, mask, embeddings = random_queries(4)
    config = SearchConfig(alpha=0.0, beam_width=60)
    assert run(searcher_for(tree, random_generator(tree)), (states, mask, embeddings), 60, config).exact.all()
    result = run(searcher_for(tree, random_generator(tree)), (states, mask, embeddings * 3e38), 60, config)
    assert not torch.isfinite(result.scores).all(dim=1).any()
    assert not result.exact.any()


def test_k_beyond_the_beam_is_refused():
    with pytest.raises(ValueError, match=r"k must be between 1 and 20 \(the beam width\), got 250; widen beam_width"):
        SearchRequest(250, SearchConfig(beam_width=20))


@pytest.mark.parametrize("objective", ["ce", "plt", "otm"])
@pytest.mark.parametrize("fusion", ["bound", "paper"])
def test_following_given_documents_scores_them_as_a_search_does(fusion, objective):
    tree = random_tree(60, branching=3, leaf=2)
    generator, queries = random_generator(tree, objective=objective), random_queries(4)
    searcher = searcher_for(tree, generator)
    config = SearchConfig(fusion=fusion, alpha=0.6, beta=2, ann_temperature=0.7, beam_width=60)
    every = run(searcher, queries, 60, config)
    own, request = scored(searcher, queries, config), SearchRequest(60, config)
    generative, dense = searcher.follow(own, request, every.positions)
    torch.testing.assert_close(generative[:, :, -1], every.generative, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((generative + dense)[:, :, -1], every.scores, atol=1e-5, rtol=1e-5)
    # On the way the scores are those of the nodes that a search traces.
    trace: list = []
    searcher.search(own, request, trace)
    for level, looked_at in enumerate(trace):
        for query in range(4):
            known = dict(zip(looked_at.nodes[query].tolist(), looked_at.generative[query].tolist(), strict=True))
            for column, position in enumerate(every.positions[query].tolist()):
                digits = tree.digits(position)
                if level < len(digits):
                    node = tree.node(digits[: level + 1])
                    assert generative[query, column, level].item() == pytest.approx(known[node], abs=1e-4)
