"""`dsi reproduce ltr`: learning to rank on `rank.train`, `rank.test` (svmlight) and their `.query` files (lengths of lists).

Five-fold cross-validation of every learned reranker (`dsi.rerankers`), beside LightGBM's own defaults; then the adaptation of
LambdaSMART: a base trained on many queries, then a few queries of another market, where some features are missing.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import Ridge

from dsi.eval.tables import markdown_table
from dsi_experiments.report import save_report
from dsi_experiments.rerankers.boosting import BoostedTrees, BoostingConfig
from dsi_experiments.rerankers.learned import FeatureReranker, LinearReranker, RankNet, RankNetConfig
from dsi_experiments.rerankers.lists import NDCG_EXP, Floats, JudgedLists, against, exact_weight, ndcg_exp, split_folds

FOLDS = 5
REFERENCE = "LambdaMART"
BASE_QUERIES, MISSING, SPLITS = 130, 0.3, 10
EXACT_TREES = 30
"""Of the rows that compare exact weights with shrinkage."""
SMALL: dict[str, Any] = {"trees": 30, "leaves": 4, "min_leaf": 10, "learning_rate": 0.05}
"""Of boosting on few queries; chosen on six other splits (seeds 100 to 105)."""

Fit = Callable[[JudgedLists, int], Callable[[Floats], Floats]]
"""Trains on lists with a seed; returns a function from features to scores."""


def ridge(lists: JudgedLists) -> LinearReranker:
    """Least squares on the labels."""
    weights = Ridge(alpha=10.0).fit(lists.features, lists.labels).coef_
    return LinearReranker(dict(zip(lists.names, weights.tolist(), strict=True)))


def _predictor(make: Callable[[JudgedLists, int], FeatureReranker]) -> Fit:
    return lambda lists, seed: make(lists, seed).predict


def _network(lists: JudgedLists, seed: int, *, weigh_by_ndcg: bool) -> RankNet:
    model = RankNet(lists.names, RankNetConfig(weigh_by_ndcg=weigh_by_ndcg, seed=seed))
    model.fit(lists)
    return model


def _trees(lists: JudgedLists, seed: int, base: FeatureReranker | None = None, **settings: Any) -> BoostedTrees:
    config = BoostingConfig(**{"learning_rate": 0.1, "leaves": 31, "min_leaf": 50, "seed": seed, **settings})
    return BoostedTrees(lists.names, config, base).fit(lists)


def _exactly_weighted(lists: JudgedLists, seed: int, trees: int) -> Callable[[Floats], Floats]:
    """LambdaMART whose every tree gets the weight that is best on the training lists (Wu et al. 2010), not shrinkage."""
    scores, parts = np.zeros(len(lists.labels)), list[tuple[float, BoostedTrees]]()
    for _ in range(trees):
        config = BoostingConfig(trees=1, learning_rate=1.0, leaves=31, min_leaf=50, seed=seed)
        tree = BoostedTrees(lists.names, config).fit(lists, scores)
        step = tree.predict(lists.features)
        weight = exact_weight(lists, scores, step)
        scores = scores + weight * step
        parts.append((weight, tree))
    return lambda features: np.sum([weight * tree.predict(features) for weight, tree in parts], axis=0)


def _defaults(lists: JudgedLists, seed: int) -> Callable[[Floats], Floats]:
    """LightGBM's lambdarank with its default settings."""
    lightgbm = importlib.import_module("lightgbm")
    settings = {"objective": "lambdarank", "num_leaves": 31, "min_data_in_leaf": 50, "seed": seed, "verbose": -1}
    data = lightgbm.Dataset(lists.features, lists.labels, group=list(lists.lengths))
    return lightgbm.train({**settings, "deterministic": True}, data, 100).predict  # type: ignore[no-any-return]


SYSTEMS: dict[str, Fit] = {
    "ridge regression": _predictor(lambda lists, _: ridge(lists)),
    "RankNet": _predictor(lambda lists, seed: _network(lists, seed, weigh_by_ndcg=False)),
    "LambdaRank, the same network": _predictor(lambda lists, seed: _network(lists, seed, weigh_by_ndcg=True)),
    "MART": _predictor(lambda lists, seed: _trees(lists, seed, objective="mart")),
    "LightGBM's lambdarank with its defaults": _defaults,
    REFERENCE: _predictor(_trees),
    "LambdaSMART on ridge regression": _predictor(lambda lists, seed: _trees(lists, seed, ridge(lists))),
    "LambdaMART, 30 trees by shrinkage": _predictor(lambda lists, seed: _trees(lists, seed, trees=EXACT_TREES)),
    "LambdaMART, 30 trees with exact weights": lambda lists, seed: _exactly_weighted(lists, seed, EXACT_TREES),
}


def read_ltr(folder: Path) -> JudgedLists:
    """All lists of a folder, `rank.train` then `rank.test`."""
    parts = []
    for name in ("rank.train", "rank.test"):
        features, labels = load_svmlight_file(str(folder / name), n_features=_width(folder))
        lengths = [int(line) for line in (folder / f"{name}.query").read_text().split()]
        parts.append((features.toarray(), labels, lengths))
    features, labels = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    names = tuple(f"feature {n}" for n in range(features.shape[1]))
    return JudgedLists(features, labels, [*parts[0][2], *parts[1][2]], names)


def _width(folder: Path) -> int:
    return max(int(load_svmlight_file(str(folder / f"rank.{split}"))[0].shape[1]) for split in ("train", "test"))


def cross_validate(lists: JudgedLists, fit: Fit, seed: int) -> Floats:
    """[lists] nDCG@10 (`ndcg_exp`) of each query by a system that was trained on the other folds."""
    values = np.zeros(len(lists.lengths))
    for rest, fold in split_folds(len(values), FOLDS, seed):
        held_out = lists.select(fold.tolist())
        values[fold] = ndcg_exp(held_out, fit(lists.select(rest.tolist()), seed)(held_out.features))
    return values


def adaptation(lists: JudgedLists, seed: int) -> dict[str, list[float]]:
    """{system: nDCG@10 of each split} on queries of another market, with few of them to train on."""
    found: dict[str, list[float]] = {}
    for split in range(seed, seed + SPLITS):
        rng = np.random.default_rng(split)
        order, blank = rng.permutation(len(lists.lengths)).tolist(), rng.random(len(lists.names)) < MISSING
        elsewhere = JudgedLists(np.where(blank, 0.0, lists.features), lists.labels, lists.lengths, lists.names)
        base = _trees(lists.select(order[:BASE_QUERIES]), split)
        test = elsewhere.select(order[BASE_QUERIES + 30 :])
        systems: dict[str, FeatureReranker] = {"base alone": base}
        for few in (10, 30):
            target = elsewhere.select(order[BASE_QUERIES : BASE_QUERIES + few])
            systems[f"LambdaMART on {few} queries"] = _trees(target, split, **SMALL)
            systems[f"LambdaSMART, base and {few} queries"] = _trees(target, split, base, **SMALL)
        for name, system in systems.items():
            found.setdefault(name, []).append(float(ndcg_exp(test, system.predict(test.features)).mean()))
    return found


def ltr(folder: Path, output: Path, seeds: list[int]) -> str:
    """Measure all systems and the adaptation; writes ltr.json and ltr.md."""
    lists = read_ltr(folder)
    values: dict[str, list[Floats]] = {}
    for name, fit in SYSTEMS.items():
        values[name] = [cross_validate(lists, fit, seed) for seed in seeds]
        print(f"ltr: {name} {np.mean(values[name]):.4f}", flush=True)
    adapted = adaptation(lists, seeds[0])
    systems = {name: [own.tolist() for own in found] for name, found in values.items()}
    rows = []
    for name, found in values.items():
        beside = "" if name == REFERENCE else against(np.mean(found, axis=0), np.mean(values[REFERENCE], axis=0))
        rows.append([name, f"{np.mean(found):.4f}", beside])
    table = markdown_table([f"{len(lists.lengths)} queries, {FOLDS} folds", NDCG_EXP, f"against {REFERENCE}"], rows)
    second = markdown_table(
        ["another market", f"{NDCG_EXP} ± standard error"],
        [
            [name, f"{np.mean(own):.4f} ± {np.std(own, ddof=1) / np.sqrt(len(own)):.4f}"]
            for name, own in adapted.items()
        ],
    )
    note = f"Mean over {len(seeds)} partitions into folds; 95 % intervals by paired bootstrap over queries."
    text = (
        f"{table}\n\n{note}\n\n{second}\n\nBase: {BASE_QUERIES} queries; the others with {MISSING:.0%} of the "
        f"features set to 0; {SPLITS} splits."
    )
    save_report(output, "ltr", text, {"seeds": seeds, f"{NDCG_EXP} by query": systems, "adaptation": adapted})
    return text
