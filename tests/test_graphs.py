"""Recorded searches: nothing in a search waits for a value, and replays with other queries give their answers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsi.search.added import AddedScores
from dsi.search.beam import TreeSearcher
from dsi.search.beams import SearchResult
from dsi.search.graphs import GraphedSearch, record_on_gpu
from dsi.search.queries import QueryBatch
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from tests.conftest import random_generator, random_queries, random_tied, random_tree, searcher_for

CONFIGS = [
    SearchConfig(alpha=0.4, beam_width=6),
    SearchConfig(fusion="paper", alpha=0.6, beta=2, beam_width=6),
    SearchConfig(alpha=1.0, beta=0, beam_width=6),
    SearchConfig(alpha=0.0, beam_width=6),
]
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose result a GPU would have to send to the processor, or whose shape depends on values."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.__name__.split(".")[0]
        assert name not in WAITS, f"{name} waits for a value"
        if name in ("index", "index_put_"):
            assert not any(t is not None and t.dtype == torch.bool for t in arguments[1]), (
                "a mask as index has no fixed shape"
            )
        return function(*arguments, **(keywords or {}))


def by_hand(search: Callable[[], SearchResult]) -> tuple[Callable[[], None], SearchResult]:
    """A graph as a GPU has it, without one: fixed tensors that every replay overwrites."""
    held = search()

    def replay() -> None:
        for name, tensor in vars(search()).items():
            getattr(held, name).copy_(tensor)

    return replay, held


@pytest.mark.parametrize("objective", ["ce", "otm"])
@pytest.mark.parametrize("config", CONFIGS, ids=["bound", "paper", "decoder", "dense"])
def test_nothing_in_a_search_waits_for_a_value(config, objective):
    tree = random_tree(60, branching=3, leaf=3)
    searcher = searcher_for(tree, random_generator(tree, objective=objective))
    states, mask, embeddings = random_queries(3)
    queries, request = ScoredQueries(states, mask, searcher.node_scores(embeddings, config)), SearchRequest(5, config)
    expected = searcher.search(queries, request)
    searcher.fixed_shape = True
    searcher.levels(queries, request)  # what is computed once is there
    with NoWaiting():
        found = searcher.levels(queries, request)
    assert torch.equal(found.positions, expected.positions)
    with pytest.raises(AssertionError, match="waits for a value"), NoWaiting():
        bool(found.exact.any())


@pytest.mark.parametrize("config", CONFIGS, ids=["bound", "paper", "decoder", "dense"])
def test_replays_answer_the_queries_they_are_given(config):
    tree = random_tree(60, branching=3, leaf=3)
    generator = random_generator(tree)
    plain: TreeSearcher = searcher_for(tree, generator)
    recorded = 0

    def record(search: Callable[[], SearchResult]) -> tuple[Callable[[], None], SearchResult]:
        nonlocal recorded
        recorded += 1
        return by_hand(search)

    graphs = GraphedSearch(searcher_for(tree, generator), record)
    alive = plain.dense.alive(torch.arange(60) % 3 == 0)
    answers = []
    for seed in range(4):
        states, mask, embeddings = random_queries(3, seed=seed, longest=5 + seed)
        for mask_of_nodes in (None, alive):
            queries = ScoredQueries(states, mask, plain.node_scores(embeddings, config, mask_of_nodes))
            request = SearchRequest(5, config, mask_of_nodes)
            expected, found = plain.search(queries, request), graphs.search(queries, request)
            torch.testing.assert_close(found.scores, expected.scores, atol=1e-5, rtol=1e-5)
            assert torch.equal(found.positions, expected.positions)
            answers.append((found, found.positions.clone()))
    assert recorded == 2  # with and without a filter; the lengths are padded to one
    assert all(
        torch.equal(found.positions, then) for found, then in answers
    )  # later replays leave earlier answers alone


@pytest.mark.gpu
def test_graphs_on_a_gpu_give_the_answers_of_the_processor():
    tree = random_tree(300, branching=5)
    generator = random_generator(tree)
    plain = searcher_for(tree, generator)
    device = torch.device("cuda")
    on_gpu = GraphedSearch(TreeSearcher(tree, type(plain.decoder)(generator.to(device)), device), record_on_gpu)
    for config in CONFIGS:
        states, mask, embeddings = random_queries(8)
        request = SearchRequest(5, config)
        expected = plain.search(ScoredQueries(states, mask, plain.node_scores(embeddings, config)), request)
        scores = on_gpu.searcher.node_scores(embeddings.to(device), config)
        found = on_gpu.search(ScoredQueries(states.to(device), mask.to(device), scores), request)
        torch.testing.assert_close(found.scores.cpu(), expected.scores, atol=1e-3, rtol=1e-3)


TIED_CONFIGS = {
    "estimate": ("estimate", SearchConfig(fusion="estimate", alpha=0.5, beam_width=6)),
    "bound": ("estimate", SearchConfig(alpha=0.5, beam_width=6)),
    "path": ("ce", SearchConfig(alpha=1.0, beta=0.0, beam_width=6)),
}


@pytest.mark.parametrize("name", list(TIED_CONFIGS))
def test_searches_with_tied_tokens_wait_for_no_value_and_can_be_replayed(name):
    objective, config = TIED_CONFIGS[name]
    tree = random_tree(60, branching=3, leaf=3)
    generator = random_tied(tree, objective=objective)
    plain, recorded = searcher_for(tree, generator), GraphedSearch(searcher_for(tree, generator), by_hand)
    alive = plain.dense.alive(torch.arange(60) % 3 == 0)
    for seed in range(3):
        states, mask, embeddings = random_queries(3, seed=seed)
        extra = AddedScores([""] * 3, tree, given=np.random.default_rng(seed).random((3, 60), np.float32))
        batch = QueryBatch(torch.arange(3), states, mask, embeddings, [""] * 3, None if objective == "ce" else extra)
        for mask_of_nodes in (None, alive):
            request = SearchRequest(5, config, mask_of_nodes)
            queries = recorded.searcher.score(batch, request)
            expected, found = plain.search(plain.score(batch, request), request), recorded.search(queries, request)
            assert torch.equal(found.positions, expected.positions)
            torch.testing.assert_close(found.scores, expected.scores)
            plain.fixed_shape = True
            with NoWaiting():
                again = plain.levels(queries, request)
            assert torch.equal(again.positions, expected.positions)
            plain.fixed_shape = False
    assert len(recorded._graphs) == 2
