"""Projective dependency trees, p(T) = product over arcs h -> m of theta_{m|h}: the model, and sums over trees (Eisner 1996).

The root has one modifier. Spans are combined from short to long; the derivative of the logarithm of the sum by an arc's weight
is that arc's posterior. With the maximum in place of the sum, the same two passes give the best tree: its arcs have
derivative 1. Numba compiles the loops (extra `rerank`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi_experiments.rerankers.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROOT = ""
"""The root as a head; no word is empty."""
_LEFT, _RIGHT = 0, 1


class DependencyModel:
    """Probabilities theta_{m|h} of pairs of words that occur in one text; any other pair has the floor.

    `pairs` is {(head, modifier): parameter}; `theta` [parameters] sums to 1 in each row of `heads` [parameters].
    """

    def __init__(self, texts: Sequence[Sequence[str]], floor: float = 1e-12) -> None:
        found = {(h, m) for words in texts for m in words for h in (ROOT, *words)}
        self._take(sorted(found), floor)
        self.theta = 1 / np.bincount(self.heads)[self.heads]  # [parameters]

    def _take(self, pairs: Sequence[tuple[str, str]], floor: float) -> None:
        self.floor = floor
        self.pairs = {pair: number for number, pair in enumerate(pairs)}
        rows = {head: row for row, head in enumerate(dict.fromkeys(head for head, _ in pairs))}
        self.heads = np.array([rows[head] for head, _ in pairs], dtype=np.int64)

    def parameters(self, words: Sequence[str]) -> Ints:
        """[n + 1, n + 1] parameter of each arc, head by modifier; -1 where there is none."""
        found = np.full((len(words) + 1, len(words) + 1), -1)
        for row, head in enumerate((ROOT, *words)):
            for column, word in enumerate(words, start=1):
                if row != column:
                    found[row, column] = self.pairs.get((head, word), -1)
        return found

    def probabilities(self, parameters: Ints) -> Floats:
        """Probabilities of arcs; the floor without a parameter."""
        return np.where(parameters >= 0, np.maximum(self.theta[parameters], self.floor), self.floor)

    def parse(self, words: Sequence[str], how: str = "viterbi") -> tuple[Ints, float]:
        """Heads [n] of the most probable tree, or of the minimum-risk tree (`how="mbr"`), and log p of the most probable."""
        weights = np.log(self.probabilities(self.parameters(words)))
        value, heads = best_tree(weights)
        return (minimum_risk_tree(weights) if how == "mbr" else heads), value

    def normalise(self, theta: Floats) -> Floats:
        """Theta with rows that sum to 1 and nothing below the floor."""
        theta = np.maximum(theta, self.floor)
        return np.asarray(theta / np.bincount(self.heads, theta)[self.heads])

    def fit_likelihood(self, texts: Sequence[Sequence[str]], rounds: int) -> list[float]:
        """Train by Viterbi-EM: parse all texts, count the arcs, divide by the heads' counts.

        Rows whose head has no modifier in any tree do not change. Returned is log p of the best trees in each round; it
        never falls.
        """
        arcs, values = [self.parameters(words) for words in texts], []
        for _ in range(rounds):
            counts, total = np.zeros(len(self.theta)), 0.0
            for own in arcs:
                value, heads = best_tree(np.log(self.probabilities(own)))
                total += value
                np.add.at(counts, own[heads, np.arange(1, len(own))], 1.0)
            values.append(total)
            rows = np.bincount(self.heads, counts)[self.heads]
            self.theta = np.where(rows > 0, np.maximum(counts / np.maximum(rows, 1), self.floor), self.theta)
        return values

    def fit_supervised(self, texts: Sequence[Sequence[str]], trees: Sequence[Sequence[int]]) -> None:
        """Train on given trees: relative frequencies of their arcs, with one added to each count."""
        counts = np.ones(len(self.theta))
        for words, heads in zip(texts, trees, strict=True):
            np.add.at(counts, self.parameters(words)[list(heads), np.arange(1, len(words) + 1)], 1.0)
        self.theta = self.normalise(counts)


class Posteriors(NamedTuple):
    """The sum over all trees over n words, and the posteriors of their arcs."""

    log_sum: float  # logarithm of the sum over trees of the product of their weights (or of the largest product)
    arcs: Floats  # [n + 1, n + 1] probability of each arc, head by modifier; row 0 is the root's, words count from 1


def marginals(log_weights: Floats) -> Posteriors:
    """The sum over all projective trees, and the marginal probability of each arc.

    `log_weights`: [n + 1, n + 1], head by modifier; arcs to the root and from a word to itself are ignored.
    """
    return Posteriors(*_posteriors(_checked(log_weights), False))


def best_tree(log_weights: Floats) -> tuple[float, Ints]:
    """The logarithm of the largest product, and the heads [n] of its tree; 0 is the root, words count from 1."""
    log_largest, arcs = _posteriors(_checked(log_weights), True)
    return log_largest, arcs[:, 1:].argmax(axis=0)


def minimum_risk_tree(log_weights: Floats) -> Ints:
    """Heads [n] of the tree with the largest sum of arc marginals: the fewest wrong arcs in expectation (Goodman 1996)."""
    return best_tree(marginals(log_weights).arcs)[1]


def _checked(log_weights: Floats) -> Floats:
    n = len(log_weights) - 1
    if n < 1 or log_weights.shape != (n + 1, n + 1):
        raise ValueError(f"Weights must be [n + 1, n + 1] for n words, at least one, got {list(log_weights.shape)}.")
    return np.ascontiguousarray(log_weights, dtype=np.float64)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _sum(values: Floats, hard: bool) -> float:
    largest = values.max()
    if hard or largest == -np.inf:
        return largest
    return largest + np.log(np.exp(values - largest).sum())


@njit(cache=True)  # type: ignore[untyped-decorator]
def _shares(values: Floats, hard: bool) -> Floats:
    """Derivative of `_sum` by its values; with `hard`, 1 at the first of the largest."""
    shares = np.zeros(len(values))
    if hard or values.max() == -np.inf:
        shares[values.argmax()] = 1.0
    else:
        shares[:] = np.exp(values - values.max())
        shares /= shares.sum()
    return shares


@njit(cache=True)  # type: ignore[untyped-decorator]
def _posteriors(w: Floats, hard: bool) -> tuple[float, Floats]:
    n = len(w) - 1
    whole = np.zeros((2, n + 1, n + 1))  # complete spans: _LEFT with the head at the right end, _RIGHT at the left end
    part = np.zeros((2, n + 1, n + 1))  # spans whose ends are joined by an arc
    for length in range(1, n):
        for s in range(1, n + 1 - length):
            t = s + length
            inner = _sum(whole[_RIGHT, s, s:t] + whole[_LEFT, s + 1 : t + 1, t], hard)
            part[_LEFT, s, t], part[_RIGHT, s, t] = inner + w[t, s], inner + w[s, t]
            whole[_LEFT, s, t] = _sum(whole[_LEFT, s, s:t] + part[_LEFT, s:t, t], hard)
            whole[_RIGHT, s, t] = _sum(part[_RIGHT, s, s + 1 : t + 1] + whole[_RIGHT, s + 1 : t + 1, t], hard)
    tops = w[0, 1:] + whole[_LEFT, 1, 1:] + whole[_RIGHT, 1:, n]
    arcs = np.zeros((n + 1, n + 1))
    d_whole, d_part = np.zeros_like(whole), np.zeros_like(part)
    arcs[0, 1:] = _shares(tops, hard)
    d_whole[_LEFT, 1, 1:] += arcs[0, 1:]
    d_whole[_RIGHT, 1:, n] += arcs[0, 1:]
    for length in range(n - 1, 0, -1):
        for s in range(1, n + 1 - length):
            t = s + length
            p = d_whole[_LEFT, s, t] * _shares(whole[_LEFT, s, s:t] + part[_LEFT, s:t, t], hard)
            d_whole[_LEFT, s, s:t] += p
            d_part[_LEFT, s:t, t] += p
            p = d_whole[_RIGHT, s, t] * _shares(part[_RIGHT, s, s + 1 : t + 1] + whole[_RIGHT, s + 1 : t + 1, t], hard)
            d_part[_RIGHT, s, s + 1 : t + 1] += p
            d_whole[_RIGHT, s + 1 : t + 1, t] += p
            arcs[t, s] += d_part[_LEFT, s, t]
            arcs[s, t] += d_part[_RIGHT, s, t]
            both = d_part[_LEFT, s, t] + d_part[_RIGHT, s, t]
            p = both * _shares(whole[_RIGHT, s, s:t] + whole[_LEFT, s + 1 : t + 1, t], hard)
            d_whole[_RIGHT, s, s:t] += p
            d_whole[_LEFT, s + 1 : t + 1, t] += p
    return _sum(tops, hard), arcs
