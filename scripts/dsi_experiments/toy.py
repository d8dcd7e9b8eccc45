"""The toy experiment of Zhuo et al. 2020 (Tables 1 and A.1) on our tree: what beam search loses by the targets of nodes.

`dsi reproduce toy`. Nodes score their best estimate from N samples of relevance; the rows "Algorithm 1" are trained on
the samples, by the paper's algorithm taken literally.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.tree import DocidTree
from dsi.eval.tables import markdown_table
from dsi_experiments.regret import regret
from dsi_experiments.report import save_report
from dsi_experiments.tree_targets import TreeTargets

Cells = dict[str, dict[tuple[int, float], tuple[float, float]]]
"""{estimator: {(k, sample size): (mean regret, its standard error)}}."""

TOY_SIZES = (100, 1000, 10_000, math.inf)
TOY_KS = (1, 5, 10, 20, 50)

ALGORITHM_1 = "Algorithm 1"
STEPS, STEP_SIZE, MINIBATCH, INITIAL_STD = 250, 1.0, 50, 0.01
"""Of Algorithm 1; the paper leaves them open. 1,000 steps lose as much as 250."""
_AT_ONCE = 20
"""Runs whose samples are in memory together: 200 MB of 10,000 samples each."""

PUBLISHED_TOY = {
    1: (0.095, 0.076, 0.074, 0.059),
    5: (0.075, 0.055, 0.050, 0.037),
    10: (0.062, 0.043, 0.036, 0.024),
    20: (0.057, 0.036, 0.031, 0.018),
    50: (0.042, 0.021, 0.016, 0.011),
}
"""Table 1 of the paper: regret@k of z for N = 100, 1000, 10000, inf (the last in float32)."""


def reproduce(output: Path, runs: int, seed: int) -> str:
    """Tables 1 and A.1 into OUTPUT."""
    cells = toy(runs, seed)
    rows = [
        {"estimator": name, "k": k, "N": size, "regret": value, "standard_error": error}
        for name, own in cells.items()
        for (k, size), (value, error) in own.items()
    ]
    text = toy_table(cells, runs)
    save_report(output, "toy", text, {"runs": runs, "seed": seed, "cells": rows})
    return text


def complete_tree(labels: int, branching: int, seed: int = 0) -> DocidTree:
    """The smallest complete tree with a leaf for every label, in random order; leaves past the last label are padding."""
    leaves = branching ** math.ceil(math.log(labels, branching) - 1e-9)
    points = np.zeros((leaves, 1), dtype=np.float32)
    return build_tree(points, DocidsConfig(method="random", branching=branching, max_leaf_size=branching), seed=seed)


def toy(
    runs: int, seed: int, sizes: Sequence[float] = TOY_SIZES, ks: Sequence[int] = TOY_KS, labels: int = 1000
) -> Cells:
    """Regret by estimator, k and sample size: relevance is drawn, nodes score their estimate from N samples, the beam is k.

    Estimators: "z" (eq. 1, direct), "hierarchical z" (a product of conditionals, as PLT), "z*" (eq. 13), "zhat" (the
    fixed point of eq. 15), "Algorithm 1" (`algorithm_1`, trained with the beam k; not for N = inf, as it draws from a
    data set) and, for N = inf, "z, float32": 1 - prod(1 - eta) in float32, where the top of the tree is all ties.
    `sizes` are N, `ks` beam widths and answers, `labels` M; the tree is complete and binary.
    """
    torch.manual_seed(seed)
    targets = TreeTargets(complete_tree(labels, 2))
    found: dict[str, dict[tuple[int, float], list[float]]] = {}
    for first in range(0, runs, _AT_ONCE):
        eta = _draw_probabilities(min(_AT_ONCE, runs - first), targets.tree.num_places, labels)
        for size in sizes:
            samples = None if size == math.inf else _draw_samples(eta, int(size))
            scores = _exact_scores(targets, eta) if samples is None else _sampled_scores(targets, eta, samples)
            for k in ks:
                trained = {} if samples is None else {ALGORITHM_1: algorithm_1(targets, samples, k, STEPS)}
                for name, own in (scores | trained).items():
                    chosen = targets.search(own, k, k, random_ties=True)
                    found.setdefault(name, {}).setdefault((k, size), []).extend(regret(eta.numpy(), chosen.numpy()))
    return {
        name: {cell: (float(np.mean(v)), float(np.std(v, ddof=1) / math.sqrt(len(v)))) for cell, v in cells.items()}
        for name, cells in found.items()
    }


def algorithm_1(targets: TreeTargets, samples: Tensor, k: int, steps: int) -> Tensor:
    """Train one logit a node by Algorithm 1 of the paper, taken literally, and return the logits, [runs, nodes].

    Differs from our objective "otm": it begins with the beam and with zhat, from random weights, and nothing else ever
    adds a node. A node outside the beam's candidates keeps the weight it began with. `samples`: [runs, N, documents]
    True where a document is relevant.
    """
    runs = torch.arange(len(samples))[:, None]
    logits = INITIAL_STD * torch.randn(len(samples), targets.tree.num_inner + targets.tree.num_places)
    for _ in range(steps):
        # 1) Draw a minibatch. Nodes know nothing of instances, so its mean is all that the gradient needs.
        drawn = torch.randint(samples.shape[1], (len(samples), MINIBATCH))
        relevant = samples[runs, drawn].sum(dim=1, dtype=torch.float32) / MINIBATCH  # [runs, documents]
        logits = logits - STEP_SIZE * gradient(targets, logits, relevant, k)
    return logits


def gradient(targets: TreeTargets, logits: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return the gradient of eq. 16 with respect to the logits, [runs, nodes], averaged over a minibatch.

    `relevant`: [runs, documents] the share of the minibatch in which each document is relevant.
    """
    # 2) The children of the beam of the present model (eq. 3); 0, the root, stands for none.
    candidates = torch.zeros_like(logits)
    for nodes in targets.beams(logits, k):
        candidates.scatter_(1, nodes.clamp(min=0), 1.0)
    candidates[:, 0] = 0.0
    # 3) The target of the child that scores best (eq. 15), from the documents upwards.
    zhat = targets.estimated(logits, relevant)
    # 4) Binary cross-entropy of eq. 16.
    return candidates * (logits.sigmoid() - zhat)


def _draw_probabilities(runs: int, places: int, labels: int) -> Tensor:
    """[runs, places] of relevance: uniform for each label, in an order of its own each run; 0 for padding."""
    eta = torch.zeros(runs, places, dtype=torch.float64)
    for own in eta:
        own[torch.randperm(places)[:labels]] = torch.rand(labels, dtype=torch.float64)
    return eta


def _draw_samples(eta: Tensor, size: int) -> Tensor:
    """[runs, size, documents] True where a document is relevant."""
    return torch.stack([torch.rand(size, len(own)) < own for own in eta])


def _exact_scores(targets: TreeTargets, eta: Tensor) -> dict[str, Tensor]:
    """With infinitely many samples: z in log space (monotone in 1 - prod(1 - eta)), z in float32, and p*."""
    none_below = targets.fold(torch.log1p(-eta), lambda below: below.sum(dim=2), 0.0)
    return {
        "z": -none_below,
        "z, float32": 1 - targets.fold((1 - eta).float(), lambda below: below.prod(dim=2), 1.0),
        "z*": targets.best_below(eta),
        "zhat": targets.best_below(eta),
    }


def _sampled_scores(targets: TreeTargets, eta: Tensor, samples: Tensor) -> dict[str, Tensor]:
    """{estimator: [runs, nodes] scores} from samples [runs, N, documents] of relevance with probabilities eta."""
    direct = torch.stack([targets.any_below(own.float()).mean(dim=0) for own in samples]).double()
    leaves = torch.stack([own.float().mean(dim=0) for own in samples]).double()
    return {
        "z": direct,
        "hierarchical z": _product_of_conditionals(targets.tree, direct),
        "z*": targets.best_relevant(eta, leaves),
        "zhat": targets.best_below(leaves),
    }


def _product_of_conditionals(tree: DocidTree, direct: Tensor) -> Tensor:
    """p(z_root) times p(z_n = 1 | z_parent = 1) along each path, which telescopes to p(z_n)."""
    product = direct.clone()
    for level in tree.levels:
        for node in range(level.start, level.stop):
            first, count = int(tree.first_child[node]), int(tree.num_children[node])
            below = slice(first, first + count)
            conditional = direct[:, below] / direct[:, node : node + 1].clamp(min=1e-300)
            product[:, below] = product[:, node : node + 1] * conditional
    return product


def toy_table(cells: Cells, runs: int) -> str:
    """Markdown: a table an estimator, a line a k, regret by N, the published one beside it."""
    lines = []
    for name in ("z", "z, float32", "hierarchical z", "z*", "zhat", ALGORITHM_1):
        sizes = sorted({size for _, size in cells.get(name, {})})
        if not sizes:
            continue
        rows = [
            [
                str(k),
                *(
                    f"{cells[name][k, size][0]:.4f} ± {cells[name][k, size][1]:.4f}{_beside(name, k, size)}"
                    for size in sizes
                ),
            ]
            for k in sorted({k for k, _ in cells[name]})
        ]
        lines += [f"**{name}**", "", markdown_table(["k", *(f"N = {size:g}" for size in sizes)], rows), ""]
    return "\n".join(
        [
            *lines,
            f"Mean regret@k ± standard error over {runs} runs, beam k; in brackets Table 1 of the paper. Algorithm 1: one "
            f"logit a node, trained with beam k on minibatches of {MINIBATCH} for {STEPS} steps.",
        ]
    )


def _beside(name: str, k: int, size: float) -> str:
    if not name.startswith("z") or name in ("z*", "zhat") or k not in PUBLISHED_TOY or size not in TOY_SIZES:
        return ""
    return f" [{PUBLISHED_TOY[k][TOY_SIZES.index(size)]:.3f}]"
