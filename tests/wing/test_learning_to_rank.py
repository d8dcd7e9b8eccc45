"""Pairwise costs, RankNet, boosted trees: against differences, oracles and themselves."""

import ir_measures
import numpy as np
import pytest
import torch
from dsi_experiments.ltr import _exactly_weighted
from dsi_experiments.rerankers.boosting import MODEL, BoostedTrees, BoostingConfig
from dsi_experiments.rerankers.candidates import Candidates, load_reranker
from dsi_experiments.rerankers.kinds import TRAINABLE
from dsi_experiments.rerankers.learned import LinearReranker, RankNet, RankNetConfig
from dsi_experiments.rerankers.lists import (
    NDCG_EXP,
    JudgedLists,
    dcg_exp,
    delta_ndcg,
    exact_weight,
    lambdas,
    list_lambdas,
    ndcg_exp,
)
from dsi_experiments.rerankers.training import TRAINERS, JudgedCandidates, fit_reranker
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.eval.measures import evaluate
from tests.support.judged import NAMES, judged


def listed(lists, k):
    """The same documents as candidates of queries."""
    count = len(lists.lengths)
    shape = (count, k)
    return Candidates(
        queries=[f"q{n}" for n in range(count)],
        doc_ids=[[f"d{n}-{i}" for i in range(k)] for n in range(count)],
        titles=[[""] * k] * count,
        scores=np.tile(-np.arange(k, dtype=float), (count, 1)),
        query_embeddings=np.zeros((count, 2)),
        embeddings=np.zeros((*shape, 2)),
        features=lists.features.reshape(count, k, -1),
        names=lists.names,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.3, 3.0), st.booleans())
def test_lambdas_are_the_derivatives_of_the_cost_and_sum_to_zero(seed, n, sigma, weigh_by_ndcg):
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(0, 4, n).astype(float), rng.normal(size=n)
    gradient, curvature, cost = list_lambdas(labels, scores, sigma, weigh_by_ndcg=weigh_by_ndcg)
    weights = (labels[:, None] > labels) * (delta_ndcg(labels, scores) if weigh_by_ndcg else 1.0)

    def c(s):  # the order, and with it the weights, stays as it was
        return (weights * np.log1p(np.exp(-sigma * (s[:, None] - s)))).sum()

    assert cost == pytest.approx(c(scores), abs=1e-12)
    assert gradient.sum() == pytest.approx(0, abs=1e-12)
    step = 1e-4
    for i, unit in enumerate(np.eye(n) * step):
        assert gradient[i] == pytest.approx((c(scores + unit) - c(scores - unit)) / (2 * step), abs=1e-6)
        second = (c(scores + unit) - 2 * c(scores) + c(scores - unit)) / step**2
        assert curvature[i] == pytest.approx(second, abs=1e-5)


def test_delta_ndcg_is_what_a_swap_changes():
    rng = np.random.default_rng(1)
    lists = JudgedLists(np.zeros((7, 0)), rng.integers(0, 5, 7).astype(float), [7], ())
    scores = rng.normal(size=7)
    deltas, before = delta_ndcg(lists.labels, scores), ndcg_exp(lists, scores, 7)[0]
    for i in range(7):
        for j in range(7):
            swapped = scores.copy()
            swapped[[i, j]] = scores[[j, i]]
            assert deltas[i, j] == pytest.approx(abs(ndcg_exp(lists, swapped, 7)[0] - before), abs=1e-12)


def test_ndcg_exp_is_the_one_of_ir_measures_with_exponential_gains():
    rng = np.random.default_rng(4)
    lists = JudgedLists(np.zeros((50, 0)), rng.integers(0, 5, 50).astype(float), [20, 20, 10], ())
    scores, names = rng.normal(size=50), [f"{n:02}" for n in range(20)]
    run = {str(n): dict(zip(names, scores[own].tolist(), strict=False)) for n, own in enumerate(lists.slices())}
    qrels = {
        str(n): dict(zip(names, lists.labels[own].astype(int).tolist(), strict=False))
        for n, own in enumerate(lists.slices())
    }
    measure = ir_measures.nDCG(gains={label: 2**label - 1 for label in range(5)}) @ 10
    found = {value.query_id: value.value for value in ir_measures.iter_calc([measure], qrels, run)}
    np.testing.assert_allclose(ndcg_exp(lists, scores), [found[str(n)] for n in range(3)], atol=1e-9)
    assert str(ir_measures.nDCG(dcg="exp-log2") @ 10) == NDCG_EXP
    assert dcg_exp(np.array([1.0, 3.0]), 10) == pytest.approx(7 + 1 / np.log2(3))


def test_ndcg_exp_with_binary_labels_is_the_ndcg_of_eval():
    rng = np.random.default_rng(3)
    lists = JudgedLists(np.zeros((40, 0)), (rng.random(40) < 0.3).astype(float), [20, 20], ())
    scores = rng.normal(size=40)
    run = {str(n): {str(i): float(scores[own][i]) for i in range(20)} for n, own in enumerate(lists.slices())}
    qrels = {str(n): {str(i): int(lists.labels[own][i]) for i in range(20)} for n, own in enumerate(lists.slices())}
    expected = list(evaluate(run, qrels, ["nDCG@10"])["nDCG@10"].values())
    np.testing.assert_allclose(ndcg_exp(lists, scores), expected, atol=1e-12)


@pytest.mark.parametrize("weigh_by_ndcg", [False, True])
def test_ranknet_learns_and_its_step_is_the_gradient_of_the_cost(weigh_by_ndcg):
    lists = judged(lists=60)
    model = RankNet(NAMES, RankNetConfig(epochs=30, learning_rate=1e-2, weigh_by_ndcg=weigh_by_ndcg))
    costs = model.fit(lists)
    assert costs[-1] < 0.9 * costs[0]
    fresh = judged(seed=9)
    assert ndcg_exp(fresh, model.predict(fresh.features)).mean() > ndcg_exp(fresh, fresh.features[:, 0]).mean()
    features = torch.from_numpy(fresh.features[:12]).float()
    model.zero_grad()
    scores = model(features)
    gradient, _, cost = list_lambdas(fresh.labels[:12], scores.detach().double().numpy(), weigh_by_ndcg=False)
    scores.backward(torch.from_numpy(gradient).float())
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    scores = model(features).double()
    pairs = torch.from_numpy(fresh.labels[:12, None] > fresh.labels[:12])
    whole = torch.nn.functional.softplus(-(scores[:, None] - scores))[pairs].sum()
    whole.backward()
    assert cost == pytest.approx(whole.item(), rel=1e-6)
    for own, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("objective", ["mart", "lambdamart"])
def test_trees_learn_what_no_single_feature_says(objective):
    trees = BoostedTrees(NAMES, BoostingConfig(objective, trees=40, leaves=8, min_leaf=5, learning_rate=0.1))
    trees.fit(judged(lists=60))
    fresh = judged(seed=9)
    assert ndcg_exp(fresh, trees.predict(fresh.features)).mean() > ndcg_exp(fresh, fresh.features[:, 0]).mean() + 0.02
    assert sum(trees.importance.values()) == pytest.approx(1)
    assert max(trees.importance, key=trees.importance.get) == "a"


def test_twenty_trees_and_twenty_more_from_their_scores_are_forty():
    lists = judged()
    config = {"leaves": 6, "min_leaf": 5, "learning_rate": 0.1}
    first = BoostedTrees(NAMES, BoostingConfig(trees=20, **config)).fit(lists)
    more = BoostedTrees(NAMES, BoostingConfig(trees=20, **config), base=first)
    forty = BoostedTrees(NAMES, BoostingConfig(trees=40, **config)).fit(lists)
    np.testing.assert_allclose(more.fit(lists).predict(lists.features), forty.predict(lists.features), atol=1e-12)
    assert np.abs(forty.predict(lists.features) - first.predict(lists.features)).max() > 0.1


def test_lightgbm_is_given_settings_under_which_its_gradients_are_the_lambdas():
    """One tree of one Newton step: leaves hold -sum of lambdas / sum of curvatures, times the learning rate."""
    lists = judged()
    trees = BoostedTrees(NAMES, BoostingConfig(trees=1, leaves=4, min_leaf=5, learning_rate=0.1)).fit(lists)
    gradient, curvature, _ = lambdas(lists, np.zeros(len(lists.labels)), weigh_by_ndcg=True)
    found = trees.predict(lists.features)
    assert len(set(found.round(9).tolist())) == 4
    for value in set(found.tolist()):
        leaf = found == value
        assert value == pytest.approx(-0.1 * gradient[leaf].sum() / curvature[leaf].sum(), rel=2e-4)


def test_a_base_is_stored_and_added_back(tmp_path):
    lists, base = judged(), LinearReranker({"b": -0.1, "a": 2.0})
    trees = BoostedTrees(NAMES, BoostingConfig(trees=5), base=base).fit(lists)
    trees.save(tmp_path / "trees")
    loaded = load_reranker(tmp_path / "trees")
    np.testing.assert_array_equal(loaded.predict(lists.features), trees.predict(lists.features))
    without = trees.predict(lists.features) - lists.features[:, :2] @ [2.0, -0.1]
    assert (
        ndcg_exp(lists, trees.predict(lists.features)).mean() > ndcg_exp(lists, without).mean() + 0.02
    )  # what forgetting it costs


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearReranker({"a": 1.0, "c": -2.0}),
        lambda: RankNet(NAMES, RankNetConfig(epochs=1)),
        lambda: BoostedTrees(NAMES, BoostingConfig(trees=5)),
    ],
)
def test_saved_rerankers_score_as_before_and_permuting_candidates_permutes_the_scores(make, tmp_path):
    lists, reranker = judged(per_list=12), make()
    if not isinstance(reranker, LinearReranker):
        reranker.fit(lists)
    candidates = listed(lists, 12)
    scores = reranker.score(candidates)
    reranker.save(tmp_path / "s", {"index": "1"})
    np.testing.assert_array_equal(load_reranker(tmp_path / "s", {"index": "1"}).score(candidates), scores)
    shuffle = np.random.default_rng(0).permutation(12)
    shuffled = Candidates(**{**vars(candidates), "features": candidates.features[:, shuffle]})
    np.testing.assert_allclose(reranker.score(shuffled), scores[:, shuffle], atol=1e-6)
    with pytest.raises(ValueError, match="trained for another index: its index"):
        load_reranker(tmp_path / "s", {"index": "2"})
    with pytest.raises(FileNotFoundError, match="is missing; restore it"):
        load_reranker(tmp_path / "other")


def test_damaged_trees_are_named(tmp_path):
    BoostedTrees(NAMES, BoostingConfig(trees=5)).fit(judged()).save(tmp_path / "trees")
    (tmp_path / "trees" / MODEL).write_text("tree\n")
    with pytest.raises(ValueError, match=r"model\.txt cannot be read"):
        load_reranker(tmp_path / "trees")


def test_candidates_follow_their_new_scores():
    lists = judged(lists=2, per_list=4)
    candidates = listed(lists, 4)
    candidates = Candidates(**{**vars(candidates), "scores": np.array([[4.0, 3, 2, 1], [4.0, 3, -np.inf, -np.inf]])})
    candidates = Candidates(**{**vars(candidates), "doc_ids": [["a", "b", "c", "d"], ["e", "f"]]})
    after = candidates.reorder(np.array([[0.0, 2, 1, 2], [1, 5, 9, 9]]))
    assert after.doc_ids == [["b", "d", "c", "a"], ["f", "e"]]
    assert after.scores.tolist() == [[2, 2, 1, 0], [5, 1, -np.inf, -np.inf]]
    assert after.as_run() == {"0": {"b": 2, "d": 2, "c": 1, "a": 0}, "1": {"f": 5, "e": 1}}
    np.testing.assert_array_equal(after.features[0], candidates.features[0][[1, 3, 2, 0]])
    with pytest.raises(ValueError, match=r"no feature 'e' \(they have a, b, c, d\); train the reranker again"):
        LinearReranker({"e": 1.0}).score(candidates)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoostingConfig(objective="x"), "objective must be one of lambdamart, mart, got 'x'"),
        (lambda: BoostingConfig(leaves=1), "leaves must be at least 2, got 1"),
        (lambda: BoostingConfig(learning_rate=0), "learning_rate must be above 0"),
        (lambda: RankNetConfig(hidden=0), "hidden must be at least 1"),
        (lambda: RankNetConfig(sigma=0), "sigma must be above 0"),
        (lambda: JudgedLists(np.zeros((3, 1)), np.zeros(3), [3], ("a",)), "nothing to learn"),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", ["ranknet", "lambdarank", "mart", "lambdamart", "lambdasmart"])
def test_every_learned_kind_learns_from_judged_candidates(kind):
    lists = judged(lists=40, per_list=12)
    lists = JudgedLists(lists.features, lists.labels, lists.lengths, ("score", *NAMES[1:]))
    candidates = listed(lists, 12)
    qrels = {
        query_id: dict(zip(own, map(int, lists.labels[s]), strict=True))
        for query_id, own, s in zip(candidates.query_ids, candidates.doc_ids, lists.slices(), strict=True)
    }
    again = JudgedCandidates(candidates, qrels)
    np.testing.assert_array_equal(again.lists().labels, lists.labels)
    reranker = fit_reranker(again, kind)
    nothing = np.zeros(len(lists.labels))
    assert ndcg_exp(lists, reranker.predict(lists.features)).mean() > ndcg_exp(lists, nothing).mean() + 0.1
    with pytest.raises(ValueError, match="No query has a relevant document among its candidates; use more candidates"):
        fit_reranker(JudgedCandidates(candidates, {query_id: {} for query_id in qrels}), kind)


def test_the_kinds_of_the_command_line_are_those_that_can_be_trained():
    assert list(TRAINERS) == list(TRAINABLE)
    with pytest.raises(
        ValueError, match="No reranker 'lambdarnak' can be trained; the kinds are lambdasmart, lambdamart"
    ):
        fit_reranker(JudgedCandidates(listed(judged(), 12), {}), "lambdarnak")


def test_the_exact_weight_of_a_tree_is_no_worse_than_a_grid():
    lists = judged(lists=12, per_list=8)
    scores, step = lists.features[:, 0], lists.features[:, 1] * lists.features[:, 2]
    weight = exact_weight(lists, scores, step)
    grid = [ndcg_exp(lists, scores + w * step).mean() for w in np.linspace(0, 5, 501)]
    assert ndcg_exp(lists, scores + weight * step).mean() >= max(grid) - 1e-12


def test_trees_with_exact_weights_rank_the_training_lists_no_worse_with_every_tree():
    pytest.importorskip("lightgbm")
    lists = judged(lists=40, per_list=20)
    values = [ndcg_exp(lists, _exactly_weighted(lists, 0, trees)(lists.features)).mean() for trees in (1, 2, 4)]
    assert values == sorted(values)
    assert values[0] > ndcg_exp(lists, np.zeros(len(lists.labels))).mean()
