"""Eisner against all projective trees, tree edit distance against all mappings, the parsing ranker against differences."""

from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from dsi_experiments.rerankers.candidates import Candidates, load_reranker
from dsi_experiments.rerankers.lists import ndcg_exp
from dsi_experiments.rerankers.parse_ranker import ParseRanker, ParserConfig, labelled_lists
from dsi_experiments.rerankers.parser import DependencyModel, best_tree, marginals, minimum_risk_tree
from dsi_experiments.rerankers.tree_edit import ordered_tree, tree_edit_distance


def projective_trees(n):
    """All heads [n] with one word on the root, no cycle and no crossing arcs, by definition."""
    for heads in product(range(n + 1), repeat=n):
        if heads.count(0) != 1 or any(head == m for m, head in enumerate(heads, 1)):
            continue
        above = dict(enumerate(heads, 1))

        def dominates(h, m, above=above):
            for _ in range(n):
                if m == h:
                    return True
                m = above.get(m, 0)
            return m == h

        if not all(dominates(heads.index(0) + 1, m) for m in above):
            continue
        if all(
            dominates(head, between)
            for m, head in above.items()
            if head
            for between in range(min(m, head) + 1, max(m, head))
        ):
            yield heads


@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 2), (3, 7), (4, 30), (5, 143)])
@pytest.mark.programs
def test_inside_marginals_and_best_trees_are_those_of_all_trees(n, count):
    trees = list(projective_trees(n))
    assert len(trees) == count
    assert marginals(np.zeros((n + 1, n + 1))).log_sum == pytest.approx(np.log(count), abs=1e-12)
    for seed in range(20):
        weights = 2 * np.random.default_rng(seed).normal(size=(n + 1, n + 1))
        scores = np.array([sum(weights[head, m] for m, head in enumerate(heads, 1)) for heads in trees])
        log_sum, arcs = marginals(weights)
        assert log_sum == pytest.approx(np.log(np.exp(scores).sum()), abs=1e-12)
        p = np.exp(scores - log_sum)
        expected = np.zeros((n + 1, n + 1))
        for heads, own in zip(trees, p, strict=True):
            for m, head in enumerate(heads, 1):
                expected[head, m] += own
        np.testing.assert_allclose(arcs, expected, atol=1e-12)
        value, heads = best_tree(weights)
        assert tuple(heads) == trees[scores.argmax()]
        assert value == pytest.approx(scores.max(), abs=1e-12)
        risks = [sum(expected[head, m] for m, head in enumerate(heads, 1)) for heads in trees]
        assert tuple(minimum_risk_tree(weights)) == trees[int(np.argmax(risks))]


def test_impossible_arcs_have_no_share():
    weights = np.full((5, 5), -np.inf)
    for head, m in ((0, 2), (2, 1), (2, 3), (3, 4), (2, 4)):
        weights[head, m] = 0.0
    log_sum, arcs = marginals(weights)
    assert log_sum == pytest.approx(np.log(2))
    assert arcs[3, 4] == arcs[2, 4] == pytest.approx(0.5)
    assert arcs[2, 1] == pytest.approx(1)
    with pytest.raises(ValueError, match="at least one"):
        marginals(np.zeros((1, 1)))


def random_tree(n, rng):
    heads = np.zeros(n, dtype=int)
    trees = list(projective_trees(n))
    heads[:] = trees[rng.integers(len(trees))]
    return heads


def ancestors(heads):
    n = len(heads)
    above = np.zeros((n, n), dtype=bool)
    for word in range(n):
        up = heads[word] - 1
        while up >= 0:
            above[up, word] = True
            up = heads[up] - 1
    return above


def mappings(first, second):
    """All Tai mappings: pairs of words, one to one, that keep ancestors and order (left to right)."""
    n, m = len(first), len(second)
    above = ancestors(first), ancestors(second)
    place = [np.argsort(ordered_tree(heads).nodes) for heads in (first, second)]
    for size in range(min(n, m) + 1):
        for own in combinations(range(n), size):
            for other in permutations(range(m), size):
                pairs = list(zip(own, other, strict=True))
                if all(
                    above[0][a, c] == above[1][b, d]
                    and above[0][c, a] == above[1][d, b]
                    and (place[0][a] < place[0][c]) == (place[1][b] < place[1][d])
                    for (a, b), (c, d) in combinations(pairs, 2)
                ):
                    yield pairs


@pytest.mark.parametrize("insertion", ["free", "priced"])
def test_tree_edit_distance_is_the_cheapest_mapping_and_its_edits_cost_it(insertion):
    rng = np.random.default_rng(insertion == "free")
    for _ in range(60):
        heads = random_tree(rng.integers(1, 5), rng), random_tree(rng.integers(1, 5), rng)
        n, m = len(heads[0]), len(heads[1])
        delete, substitute = rng.random(n), rng.random((n, m))
        insert = np.zeros(m) if insertion == "free" else rng.random(m)
        cheapest = min(
            sum(substitute[a, b] for a, b in pairs)
            + delete.sum()
            - sum(delete[a] for a, _ in pairs)
            + insert.sum()
            - sum(insert[b] for _, b in pairs)
            for pairs in mappings(*heads)
        )
        trees = [ordered_tree(own) for own in heads]
        distance, becomes = tree_edit_distance(*trees, delete, insert, substitute)
        assert distance == pytest.approx(cheapest, abs=1e-12)
        pairs = [(a, int(b)) for a, b in enumerate(becomes) if b >= 0]
        script = sum(substitute[pair] for pair in pairs) + delete[becomes < 0].sum()
        script += np.delete(insert, [b for _, b in pairs]).sum()
        assert script == pytest.approx(distance, abs=1e-12)
        assert pairs in [sorted(own) for own in mappings(*heads)]


def test_the_derivative_of_the_distance_is_how_often_each_cost_was_paid():
    rng = np.random.default_rng(2)
    for _ in range(100):
        trees = [ordered_tree(random_tree(5, rng)) for _ in range(2)]
        costs = [rng.random(5), rng.random(5), rng.random((5, 5))]
        _, becomes = tree_edit_distance(*trees, *costs)
        used = [(becomes < 0).astype(float), np.ones(5), np.zeros((5, 5))]
        for a, b in enumerate(becomes):
            if b >= 0:
                used[1][b], used[2][a, b] = 0, 1
        for cost, count in zip(costs, used, strict=True):
            for index in np.ndindex(cost.shape):
                before = cost[index]
                cost[index] = before + 1e-7
                above = tree_edit_distance(*trees, *costs)[0]
                cost[index] = before - 1e-7
                below = tree_edit_distance(*trees, *costs)[0]
                cost[index] = before
                assert (above - below) / 2e-7 == pytest.approx(count[index], abs=1e-5)


def test_trees_are_read_in_the_order_of_the_text():
    tree = ordered_tree(np.array([2, 0, 5, 3, 2]))  # 2 -> 1, 5; 5 -> 3; 3 -> 4
    assert tree.nodes.tolist() == [0, 3, 2, 4, 1]
    assert tree.leftmost.tolist() == [0, 1, 1, 1, 0]
    for heads in ([0, 0], [2, 1], [2, 3, 2]):
        with pytest.raises(ValueError, match="one word under the root"):
            ordered_tree(np.array(heads))


TITLES = [
    ["the otter eats a clam in the river", "river banks", "a mollusk on a rock", "the capital of the country"],
    ["capital cities on the danube", "the danube river", "otters", ""],
    ["hunting of otters", "clams and mollusks live on rocks", "the river otter", "rock music"],
]
LABELS = np.array([[2.0, 0, 1, 0], [1, 2, 0, 0], [1, 0, 2, 0]])


def candidates_of_texts():
    n, k = 3, 4
    scores = np.tile([4.0, 3.0, 2.0, 1.0], (n, 1))
    scores[2, 3] = -np.inf
    return Candidates(
        queries=["which otter eats clams", "capital on the danube river", "live river otters"],
        doc_ids=[[f"d{row}{c}" for c in range(k if row < 2 else 3)] for row in range(n)],
        titles=[own if row < 2 else own[:3] for row, own in enumerate(TITLES)],
        scores=scores,
        query_embeddings=np.zeros((n, 1)),
        embeddings=np.zeros((n, k, 1)),
        features=np.zeros((n, k, 0)),
    )


TEXTS = [["otter", "eats", "clam", "river"], ["river", "otter"], ["otter", "eats", "fish"], ["clam"], ["fish", "river"]]


def test_viterbi_em_never_makes_the_trees_less_probable_and_stays_in_the_simplex():
    model = DependencyModel(TEXTS)
    np.testing.assert_allclose(np.bincount(model.heads, model.theta), 1)
    values = model.fit_likelihood(TEXTS, 8)
    assert all(after >= before - 1e-9 for before, after in pairwise(values))
    assert values[-1] > values[0] + 1
    np.testing.assert_allclose(np.bincount(model.heads, model.theta), 1, atol=1e-9)
    assert sum(model.parse(words)[1] for words in TEXTS) >= values[-1] - 1e-9


def test_a_model_that_saw_trees_has_their_frequencies_and_finds_its_own_best_trees():
    model = DependencyModel(TEXTS)
    trees = [[2, 0, 2, 2], [2, 0], [2, 0, 2], [0], [0, 1]]
    model.fit_supervised(TEXTS, trees)
    heads_of_eats = [pair for pair in model.pairs if pair[0] == "eats"]
    assert model.theta[model.pairs["eats", "otter"]] == pytest.approx((2 + 1) / (5 + len(heads_of_eats)))
    assert model.theta[model.pairs["", "eats"]] == pytest.approx((2 + 1) / (5 + 5))
    np.testing.assert_allclose(np.bincount(model.heads, model.theta), 1, atol=1e-9)
    for words in TEXTS:
        p = model.probabilities(model.parameters(words))
        every = {heads: np.prod([p[h, m] for m, h in enumerate(heads, 1)]) for heads in projective_trees(len(words))}
        heads, value = model.parse(words)
        assert every[tuple(heads)] == pytest.approx(max(every.values()))
        assert np.exp(value) == pytest.approx(max(every.values()))
    assert model.parse(["unknown", "words"])[1] == pytest.approx(2 * np.log(model.floor))


def test_the_distance_is_linear_in_theta_with_the_derivative_that_training_uses():
    candidates = candidates_of_texts()
    ranker = ParseRanker.create(candidates, ParserConfig())
    valid = candidates.valid
    usage, theta = ranker._usage(candidates), ranker.model.theta.copy()
    assert ranker.model.floor < theta.min() or usage.shape[1] == len(theta)
    np.testing.assert_allclose(usage @ theta, ranker.distances(candidates)[valid], atol=1e-6)


@pytest.mark.parametrize("weigh_by_ndcg", [False, True])
def test_the_objective_is_convex_for_fixed_edits_and_its_slope_is_its_difference(weigh_by_ndcg):
    candidates = candidates_of_texts()
    ranker = ParseRanker.create(candidates, ParserConfig(divergence=0.3, weigh_by_ndcg=weigh_by_ndcg))
    lists, base = labelled_lists(candidates, LABELS), np.array([0.3, 0.2, 0.1, 0.0] * 2 + [0.3, 0.2, 0.1])
    usage, model = ranker._usage(candidates), ranker.model
    rng = np.random.default_rng(0)
    likelihood = model.normalise(rng.random(len(model.theta)))
    points = [model.normalise(rng.random(len(model.theta))) for _ in range(2)]
    value, slope = ranker.objective(lists, base, usage, points[0], likelihood)
    for parameter in range(0, len(slope), 7):
        step = np.zeros(len(slope))
        step[parameter] = 1e-7
        above, below = (ranker.objective(lists, base, usage, points[0] + s, likelihood)[0] for s in (step, -step))
        assert slope[parameter] == pytest.approx((above - below) / 2e-7, abs=1e-5)
    if not weigh_by_ndcg:  # the weights of pairs jump where the order changes
        middle = ranker.objective(lists, base, usage, sum(points) / 2, likelihood)[0]
        other = ranker.objective(lists, base, usage, points[1], likelihood)[0]
        assert middle <= (value + other) / 2 + 1e-12


def test_training_lowers_the_objective_in_every_round_and_ranks_better():
    candidates = candidates_of_texts()
    ranker = ParseRanker.create(candidates, ParserConfig(rounds=5, steps=20, strength=4.0, divergence=1e-3))
    lists = labelled_lists(candidates, LABELS)
    before = ndcg_exp(lists, ranker.score(candidates)[candidates.valid]).mean()
    history = ranker.fit(candidates, LABELS)
    assert len(history) == 5
    assert all(after <= start for start, after in history)
    assert history[-1][1] < history[0][0]
    assert ndcg_exp(lists, ranker.score(candidates)[candidates.valid]).mean() >= before
    np.testing.assert_allclose(np.bincount(ranker.model.heads, ranker.model.theta), 1, atol=1e-9)


def test_held_out_lists_choose_the_round_and_a_search_the_strength():
    candidates = candidates_of_texts()
    ranker, seen = ParseRanker.create(candidates, ParserConfig(rounds=3, strength=9.0)), []
    start = ranker.model.theta.copy()

    def line_search(lists, base, added):
        seen.append((base, added))
        return 2.5

    worst = candidates.valid.astype(float)
    worst[:, 1:] = 0  # the held-out lists like the order as it is, so no round can be better than the start
    quiet = Candidates(**{**vars(candidates), "scores": candidates.scores * 1000})
    ranker.fit(candidates, LABELS, held_out=(quiet, worst), line_search=line_search)
    np.testing.assert_array_equal(ranker.model.theta, start)
    assert ranker.config.strength == 2.5
    np.testing.assert_allclose(seen[0][1], -ranker.distances(candidates)[candidates.valid])


def test_the_parser_is_a_reranker_that_lowers_scores_by_its_distance(tmp_path):
    candidates = candidates_of_texts()
    ranker = ParseRanker.create(candidates, ParserConfig(strength=2.0))
    ranker.fit(candidates, LABELS)
    scores = ranker.score(candidates)
    expected = candidates.scores - 2 * ranker.distances(candidates)
    np.testing.assert_allclose(scores[candidates.valid], expected[candidates.valid])
    ranker.save(tmp_path / "parser")
    loaded = load_reranker(tmp_path / "parser")
    np.testing.assert_allclose(loaded.score(candidates), scores)
    moved = np.array([2, 0, 3, 1])
    columns = {"scores": candidates.scores[:2, moved], "titles": [[own[n] for n in moved] for own in TITLES[:2]]}
    part = Candidates(**{**vars(candidates.select(np.arange(2))), **columns})
    np.testing.assert_allclose(ranker.score(part), scores[:2, moved])


def test_identical_texts_are_at_distance_zero_and_words_have_a_price():
    candidates = candidates_of_texts()
    titles = [[query, "", "something else entirely", query] for query in candidates.queries]
    candidates = Candidates(**{**vars(candidates), "titles": titles, "scores": np.zeros((3, 4))})
    ranker = ParseRanker.create(candidates, ParserConfig())
    distances = ranker.distances(candidates)
    np.testing.assert_allclose(distances[:, [0, 3]], 0, atol=1e-9)
    assert (distances[:, 1] > 0).all()
    assert (distances[:, 2] > 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parse": "chart"}, "parse must be one of viterbi, mbr, got 'chart'"),
        ({"longest": 0}, "longest must be at least 1, got 0"),
        ({"floor": 0.5}, r"floor must be in \(0, 0.001\), got 0.5"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ParserConfig(**settings)
