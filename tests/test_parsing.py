"""Eisner against all projective trees, tree edit distance against all mappings, the parsing ranker against differences."""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from dsi.rerank.parser import best_tree, marginals, minimum_risk_tree
from dsi.rerank.tree_edit import ordered_tree, tree_edit_distance


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
        with pytest.raises(ValueError, match="one word on the root"):
            ordered_tree(np.array(heads))
