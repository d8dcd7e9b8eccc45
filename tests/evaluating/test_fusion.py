"""Several runs made into one: reciprocal ranks, and weights by a conditional logit against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from dsi.eval.fusion import fit_weights, reciprocal_rank_fusion


def test_reciprocal_rank_fusion_by_hand():
    fused = reciprocal_rank_fusion([{"q": {"a": 3.0, "b": 2.0}}, {"q": {"b": 9.0}, "r": {"c": 1.0}}], k=1)
    assert fused == {"q": {"a": 1 / 2, "b": pytest.approx(1 / 3 + 1 / 2)}, "r": {"c": 1 / 2}}


def runs_of(rng: np.random.Generator, queries: int, weights: list[float], candidates: int = 12, widest: float = 9.0):
    """Runs of normal scores, and judgements drawn by a softmax of their weighted sum."""
    names = [f"d{n}" for n in range(candidates)]
    scores = rng.normal(size=(queries, candidates, len(weights))) * rng.uniform(0.1, widest, len(weights))
    chosen = (scores @ weights + rng.gumbel(size=(queries, candidates))).argmax(axis=1)
    runs = [
        {f"q{q}": dict(zip(names, own[:, part].tolist(), strict=True)) for q, own in enumerate(scores)}
        for part in range(len(weights))
    ]
    return runs, {f"q{q}": {f"d{row}": 1} for q, row in enumerate(chosen)}


def test_weights_that_made_the_judgements_are_found():
    (first, *others), qrels = runs_of(np.random.default_rng(0), 1500, [1.0, 0.5, 3.0])
    assert fit_weights(first, others, [0.1, 0.1], qrels) == pytest.approx([0.5, 3.0], rel=0.15)


def test_a_run_that_orders_nothing_keeps_its_weight():
    (first, other), qrels = runs_of(np.random.default_rng(1), 40, [1.0, 0.5])
    for value in (0.0, 0.1, 7.0):
        flat = {query_id: dict.fromkeys(scores, value) for query_id, scores in first.items()}
        weight, kept = fit_weights(first, [other, flat], [0.1, 2.0], qrels)
        assert kept == 2.0
        assert weight == pytest.approx(fit_weights(first, [other], [0.1], qrels)[0], rel=0.5)
        assert fit_weights(flat, [other], [0.1], qrels) == [0.1]


def literal(first, others, start, qrels) -> list[float]:
    """The penalised likelihood, written down by its definition and minimised without gradients."""
    scores = [
        [[run[q][d] for run in (first, *others)] + [judged.get(d, 0)] for d in sorted(first[q])]
        for q, judged in qrels.items()
    ]
    tables = [np.array(own) for own in scores]
    tables = [own for own in tables if 0 < (own[:, -1] > 0).sum() < len(own)]
    spread = np.mean([own[:, :-1].std(axis=0) for own in tables], axis=0)

    def loss(coefficients):
        total = 0.0
        for own in tables:
            values, grades = np.exp(own[:, :-1] @ (coefficients / spread)), own[:, -1]
            others_sum = values[grades <= 0].sum()
            for value, grade in zip(values, grades, strict=True):
                if grade > 0:
                    total -= grade / grades[grades > 0].sum() * np.log(value / (value + others_sum))
        return total

    likely = np.array([1.0, *start]) * spread
    centre = (
        np.exp(
            minimize_scalar(
                lambda rate: loss(np.exp(rate) * likely),
                bounds=np.log([0.1 / likely.sum(), 1e4 / likely.sum()]),
                method="bounded",
            ).x
        )
        * likely
    )
    bounds = [(0.1 * centre[0], None), *[(0, None)] * len(others)]

    def penalised(coefficients):
        return loss(coefficients) + ((coefficients - centre) ** 2).sum()

    found = minimize(penalised, centre, bounds=bounds).x / spread
    return (found[1:] / found[0]).tolist()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_weights_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    (first, *others), qrels = runs_of(rng, 12, [1.0, 0.7, 0.2], candidates=6, widest=1.0)
    qrels = {q: {**judged, f"d{rng.integers(6)}": int(rng.integers(0, 4))} for q, judged in qrels.items()}
    start = rng.uniform(0.1, 1, 2).tolist()
    assert fit_weights(first, others, start, qrels) == pytest.approx(
        literal(first, others, start, qrels), rel=0.05, abs=0.02
    )


def test_few_queries_change_little_and_none_change_nothing():
    (first, *others), qrels = runs_of(np.random.default_rng(1), 400, [1.0, 5.0])
    some = dict(list(qrels.items())[:3])
    few, many = (fit_weights(first, others, [0.5], judged)[0] for judged in (some, qrels))
    assert 0.5 < few < many
    assert fit_weights(first, others, [0.5], {}) == [0.5]


@pytest.mark.parametrize(
    "judged",
    [
        pytest.param({"a": 0}, id="all judgements are zero"),
        pytest.param({"z": 1}, id="the judged document is in no run"),
        pytest.param({"a": 1, "b": 1}, id="all are relevant"),
    ],
)
def test_queries_that_say_nothing_leave_the_weights(judged):
    assert fit_weights({"q": {"a": 2.0, "b": 1.0}}, [{"q": {"a": 1.0, "b": 2.0}}], [0.3], {"q": judged}) == [0.3]


@pytest.mark.parametrize(
    "second", [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, {"a": 1e6, "b": -1e6}]
)
@pytest.mark.parametrize("relevant", ["a", "b"])
def test_weights_are_finite_and_not_negative(second, relevant):
    for first in ({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0}):
        (weight,) = fit_weights({"q": first}, [{"q": second}], [0.3], {"q": {relevant: 1}})
        assert 0 <= weight < 1e9
