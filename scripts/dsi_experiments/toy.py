"""The toy experiment of Zhuo et al. 2020 (Tables 1 and A.1) on our tree: what beam search loses by the targets of nodes.

`dsi reproduce toy`. Nothing is trained: nodes score their best estimate from N samples of relevance.
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

    Estimators: "z" (eq. 1, direct), "hierarchical z" (a product of conditionals, as PLT), "z*" (eq. 13), "zhat" (the fixed
    point of eq. 15) and, for N = inf, "z, float32": 1 - prod(1 - eta) in float32, where the top of the tree is all ties.

    Args:
        runs: independent draws of probabilities, order of labels and samples.
        seed: of all draws.
        sizes: N.
        ks: beam width and answers.
        labels: M; the tree is complete and binary.
    """
    torch.manual_seed(seed)
    tree = complete_tree(labels, 2)
    targets = TreeTargets(tree)
    found: dict[str, dict[tuple[int, float], list[float]]] = {}
    for _ in range(runs):
        eta = torch.zeros(1, tree.num_places, dtype=torch.float64)
        eta[0, torch.randperm(tree.num_places)[:labels]] = torch.rand(labels, dtype=torch.float64)
        for size in sizes:
            scores = _exact_scores(targets, eta) if size == math.inf else _sampled_scores(targets, eta, int(size))
            for k in ks:
                for name, own in scores.items():
                    chosen = targets.search(own, k, k, random_ties=True)
                    value = regret(eta.numpy(), chosen.numpy())[0]
                    found.setdefault(name, {}).setdefault((k, size), []).append(float(value))
    return {
        name: {cell: (float(np.mean(v)), float(np.std(v, ddof=1) / math.sqrt(len(v)))) for cell, v in cells.items()}
        for name, cells in found.items()
    }


def _exact_scores(targets: TreeTargets, eta: Tensor) -> dict[str, Tensor]:
    """With infinitely many samples: z in log space (monotone in 1 - prod(1 - eta)), z in float32, and p*."""
    none_below = targets.fold(torch.log1p(-eta), lambda below: below.sum(dim=2), 0.0)
    return {
        "z": -none_below,
        "z, float32": 1 - targets.fold((1 - eta).float(), lambda below: below.prod(dim=2), 1.0),
        "z*": targets.best_below(eta),
        "zhat": targets.best_below(eta),
    }


def _sampled_scores(targets: TreeTargets, eta: Tensor, size: int) -> dict[str, Tensor]:
    """{estimator: [1, nodes] scores} from `size` samples of relevance with probabilities eta [1, documents]."""
    relevant = (torch.rand(size, eta.shape[1]) < eta).to(torch.float32)
    direct = targets.any_below(relevant).mean(dim=0, keepdim=True).double()
    leaves = relevant.mean(dim=0, keepdim=True).double()
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
    for name in ("z", "z, float32", "hierarchical z", "z*", "zhat"):
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
        [*lines, f"Mean regret@k ± standard error over {runs} runs, beam k; in brackets Table 1 of the paper."]
    )


def _beside(name: str, k: int, size: float) -> str:
    if not name.startswith("z") or name in ("z*", "zhat") or k not in PUBLISHED_TOY or size not in TOY_SIZES:
        return ""
    return f" [{PUBLISHED_TOY[k][TOY_SIZES.index(size)]:.3f}]"
