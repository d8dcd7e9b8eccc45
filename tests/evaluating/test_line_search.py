"""The exact search for the best weight of a sum of two runs, against grids and brute force."""

import itertools

import numpy as np
import pytest
from dsi_experiments.rerankers.line_search import best_weight, interpolate
from hypothesis import given, settings
from hypothesis import strategies as st

from dsi.eval.measures import evaluate, mean


def test_interpolation_fills_gaps_with_the_lowest_score():
    a, b = {"q": {"x": 4.0, "y": 2.0}}, {"q": {"y": 1.0, "z": 3.0}}
    assert interpolate(a, b, 0.5)["q"] == {"x": 2.5, "y": 1.5, "z": 2.5}


def runs(rng: np.random.Generator, queries: int, documents: int, judged: int, ties: bool):
    def scores():
        values = rng.integers(0, 4, documents).astype(float) if ties else rng.normal(size=documents)
        return {f"d{n}": float(v) for n, v in enumerate(values) if rng.random() < 0.8}

    names = [f"q{n}" for n in range(queries)]
    qrels = {q: {f"d{n}": int(rng.integers(0, 3)) for n in rng.choice(documents, judged, replace=False)} for q in names}
    return {q: scores() for q in names}, {q: scores() for q in names}, qrels


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    judged=st.integers(1, 4),
    measure=st.sampled_from(["RR@10", "Hit@1", "nDCG@3", "Recall@2"]),
)
def test_the_weight_is_the_best_of_all(seed, judged, measure):
    a, b, qrels = runs(np.random.default_rng(seed), 4, 7, judged, ties=seed % 2 == 0)
    weight, value = best_weight(a, b, qrels, measure)

    def score(w: float) -> float:
        return mean(evaluate(interpolate(a, b, w), qrels, [measure])[measure])

    assert score(weight) == pytest.approx(value)  # what is promised is what comes of it
    crossings = {0.0, 1.0}
    for q in qrels:
        mixed = [interpolate(a, b, w)[q] for w in (0.0, 1.0)]
        for x, y in itertools.combinations(mixed[0], 2):
            start, end = mixed[0][x] - mixed[0][y], mixed[1][x] - mixed[1][y]
            if start * end < 0:
                crossings.add(start / (start - end))
    points = sorted(crossings)
    middles = [(left + right) / 2 for left, right in itertools.pairwise(points) if right - left > 1e-9]
    assert value == pytest.approx(max(score(w) for w in [0.0, 1.0, *middles]))


def test_never_worse_than_a_fine_grid():
    a, b, qrels = runs(np.random.default_rng(3), 12, 10, 1, ties=False)
    _, value = best_weight(a, b, qrels)
    grid = max(mean(evaluate(interpolate(a, b, w), qrels, ["RR@10"])["RR@10"]) for w in np.linspace(0, 1, 10_001))
    assert value >= grid - 1e-12


@pytest.mark.parametrize("tiny", [1e-17, 1e-300])
def test_crossings_that_round_to_an_end_are_no_crossings(tiny):
    a = {"q": {"x": 1.0, "y": 1.0 - tiny, "z": 0.0, "w": tiny}}
    b = {"q": {"x": 0.0, "y": 1.0, "z": tiny, "w": 0.0}}
    for first, second in ((a, b), (b, a)):
        for judged in ("x", "y", "z", "w"):
            qrels = {"q": {judged: 1}}
            weight, value = best_weight(first, second, qrels)
            assert value == mean(evaluate(interpolate(first, second, weight), qrels, ["RR@10"])["RR@10"])
            grid = [interpolate(first, second, w) for w in np.linspace(0, 1, 101)]
            assert value >= max(mean(evaluate(run, qrels, ["RR@10"])["RR@10"]) for run in grid)
