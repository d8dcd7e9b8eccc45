"""Judged lists; the pairwise costs that rerankers learn from; nDCG with exponential gains, and the best weight for it.

The cost is RankNet's cross-entropy, perhaps with each pair weighted by what its swap changes in nDCG. S_ij is 1 where document
i is better than j; lambda_i = dC/ds_i (Burges et al. 2005; Wu et al. 2008, MSR-TR-2008-109). Here lambdas are the gradient of
the cost, so they are negative for the better document, and they sum to 0 in a list.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsi.eval.protocol import paired_differences
from dsi_experiments.rerankers.line_search import best_weight

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

NDCG_EXP = "nDCG(dcg='exp-log2')@10"
"""`ndcg_exp` as ir_measures prints it; plain nDCG@10 (`dsi.eval.measures`) has the label itself as gain."""


def split_folds(queries: int, count: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield the others and the queries of each fold of a random partition into `count` folds, in order of the partition."""
    for fold in np.array_split(np.random.default_rng(seed).permutation(queries), count):
        yield np.setdiff1d(np.arange(queries), fold), fold


def against(values: Floats, reference: Floats) -> str:
    """Return the mean difference to a reference with its 95 % interval, for a table; both [queries]."""
    a, b = ({str(n): float(value) for n, value in enumerate(own)} for own in (values, reference))
    difference, low, high = bootstrap_interval(a, b)
    return f"{difference:+.4f} [{low:+.4f}, {high:+.4f}]"


def bootstrap_interval(
    a: Mapping[str, float], b: Mapping[str, float], *, rounds: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference a - b over queries and its 95 % percentile interval, by bootstrap over queries (scipy)."""
    from scipy.stats import bootstrap  # takes a second to import

    differences = paired_differences(a, b)
    mean_difference = float(differences.mean())
    if len(differences) == 1:
        return mean_difference, mean_difference, mean_difference
    rng = np.random.default_rng(seed)
    result = bootstrap((differences,), np.mean, n_resamples=rounds, batch=100, method="percentile", rng=rng)
    low, high = result.confidence_interval
    return mean_difference, float(low), float(high)


@dataclass(frozen=True)
class JudgedLists:
    """Documents with features and labels, list after list."""

    features: Floats  # [documents, features]
    labels: Floats  # [documents] 0 or more, higher is better
    lengths: Sequence[int]  # documents of each list; they sum to the number of documents
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not any(len(set(self.labels[own].tolist())) > 1 for own in self.slices()):
            raise ValueError("In no list is a document better than another, so there is nothing to learn.")

    def slices(self) -> Iterator[slice]:
        """The documents of each list."""
        start = 0
        for length in self.lengths:
            yield slice(start, start + length)
            start += length

    def select(self, which: Sequence[int]) -> "JudgedLists":
        """Some of the lists."""
        slices = list(self.slices())
        rows = np.concatenate([np.arange(slices[n].start, slices[n].stop) for n in which])
        return JudgedLists(self.features[rows], self.labels[rows], [self.lengths[n] for n in which], self.names)


LineSearch = Callable[[JudgedLists, Floats, Floats], float]
"""Chooses the weight w of `added` in scores + w * added: a function of lists, scores [documents] and added [documents]."""


def ndcg_exp(lists: JudgedLists, scores: Floats, k: int = 10) -> Floats:
    """[lists] nDCG@k with gain 2^label - 1 (Burges et al. 2005); ties keep their order, a list without gain has 0."""
    values = np.zeros(len(lists.lengths))
    for number, own in enumerate(lists.slices()):
        gain = _gain(lists.labels[own])
        ideal = dcg_exp(lists.labels[own], k)
        if ideal > 0:
            found = gain[np.argsort(-scores[own], kind="stable")][:k]
            values[number] = (found / _discount(len(found))).sum() / ideal
    return values


def dcg_exp(labels: Floats, k: int) -> float:
    """DCG@k with gain 2^label - 1 of labels in their best order: what `ndcg_exp` is normalised by."""
    gain = np.sort(_gain(labels))[::-1][:k]
    return float((gain / _discount(len(gain))).sum())


def delta_ndcg(labels: Floats, scores: Floats) -> Floats:
    """[n, n] |change of nDCG| when two documents of a list swap places in the order of scores; 0 in a list without gain."""
    n = len(labels)
    rank = np.empty(n)
    rank[np.argsort(-scores, kind="stable")] = np.arange(1, n + 1)
    discount, gain = 1 / np.log2(1 + rank), _gain(labels)
    ideal = dcg_exp(labels, n)
    if ideal == 0:
        return np.zeros((n, n))
    return np.abs(gain[:, None] - gain) * np.abs(discount[:, None] - discount) / ideal


def _gain(labels: Floats) -> Floats:
    return np.asarray(2.0**labels - 1)


def _discount(n: int) -> Floats:
    return np.asarray(np.log2(2 + np.arange(n)))  # by which gains are divided, rank 1 first


def exact_weight(lists: JudgedLists, scores: Floats, added: Floats) -> float:
    """The weight w that makes nDCG@10 of scores + w * added highest (a `LineSearch`).

    Exact: by the crossings of the documents' scores, not on a grid. nDCG has gain 2^label - 1 here too: the measure of `eval`,
    whose gain is the judgement, is given 2^label - 1 as the judgement.
    """
    before: dict[str, dict[str, float]] = {}
    step: dict[str, dict[str, float]] = {}
    gains: dict[str, dict[str, float]] = {}
    for number, own in enumerate(lists.slices()):
        names = [str(n) for n in range(lists.lengths[number])]
        for run, values in ((before, scores), (step, added)):
            run[str(number)] = dict(zip(names, values[own].tolist(), strict=True))
        labelled = zip(names, _gain(lists.labels[own]).astype(int).tolist(), strict=True)
        gains[str(number)] = {name: gain for name, gain in labelled if gain}
    share, _ = best_weight(before, step, {name: own for name, own in gains.items() if own}, "nDCG@10")
    share = min(share, 0.999)
    return share / (1 - share)


def list_lambdas(
    labels: Floats, scores: Floats, sigma: float = 1.0, *, weigh_by_ndcg: bool
) -> tuple[Floats, Floats, float]:
    """Of one list: dC/ds [n], d2C/ds2 [n] and C = sum over i better than j of w_ij log(1 + exp(-sigma (s_i - s_j))).

    w_ij is |delta nDCG| in the current order (LambdaRank; taken as constant), or 1 (RankNet).
    """
    weights = (labels[:, None] > labels) * (delta_ndcg(labels, scores) if weigh_by_ndcg else 1.0)  # [n, n]
    margin = sigma * (scores[:, None] - scores)
    rho = np.exp(-np.logaddexp(0, margin))
    first, second = -sigma * weights * rho, sigma**2 * weights * rho * (1 - rho)
    gradient, curvature = first.sum(axis=1) - first.sum(axis=0), second.sum(axis=1) + second.sum(axis=0)
    return gradient, curvature, float((weights * np.logaddexp(0, -margin)).sum())


def lambdas(
    lists: JudgedLists, scores: Floats, sigma: float = 1.0, *, weigh_by_ndcg: bool
) -> tuple[Floats, Floats, float]:
    """`list_lambdas` of all lists: gradient and curvature [documents], and the whole cost."""
    gradient, curvature, cost = np.zeros(len(scores)), np.zeros(len(scores)), 0.0
    for own in lists.slices():
        gradient[own], curvature[own], part = list_lambdas(
            lists.labels[own], scores[own], sigma, weigh_by_ndcg=weigh_by_ndcg
        )
        cost += part
    return gradient, curvature, cost
