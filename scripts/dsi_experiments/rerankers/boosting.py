"""MART, LambdaMART and LambdaSMART: boosted regression trees over the features of candidates.

LambdaMART boosts trees on the lambdas of `dsi_experiments.rerankers.lists`, one Newton step a leaf; MART on least squares. With
a base, boosting starts from its scores (LambdaSMART; Wu, Burges, Svore, Gao 2008, MSR-TR-2008-109, also called model
adaptation): the base is saved with the trees and always added back. `engine="lightgbm"` is LightGBM with the settings that make
it the same algorithm: no normalisation by score differences, no truncation of the lists, no L2 term in a leaf. One difference
remains, how splits are found: LightGBM takes the gain of the Newton step, `engine="literal"`, which is far slower, the variance
of the gradient.
"""

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load_file, save_file

from dsi.docids.files.declarations import LARGEST, Count, Positive, Whole, settings
from dsi.docids.files.storage import write_text
from dsi.docids.files.untrusted import check_file, reading
from dsi.search.candidates import Floats, reranker_class
from dsi_experiments.rerankers.learned import FeatureReranker
from dsi_experiments.rerankers.lightgbm_text import checked_model
from dsi_experiments.rerankers.lists import JudgedLists, LineSearch, lambdas


@settings()
class BoostingConfig:
    """How trees are boosted.

    Attributes:
        objective: "lambdamart", or "mart" for least squares on the labels.
        engine: "lightgbm" (extra `rerank`), or "literal".
        trees: how many.
        leaves: of a tree.
        min_leaf: documents a leaf has at least.
        learning_rate: of every tree.
        sigma: steepness of the pairwise sigmoid.
        seed: of the engine.
    """

    objective: Literal["lambdamart", "mart"] = "lambdamart"
    engine: Literal["lightgbm", "literal"] = "lightgbm"
    trees: Count = 100
    leaves: Annotated[int, Field(ge=2, le=LARGEST)] = 15
    min_leaf: Count = 20
    learning_rate: Positive = 0.05
    sigma: Positive = 1.0
    seed: Whole = 0


class BoostedTrees(FeatureReranker):
    """An ensemble of regression trees, perhaps on top of a base.

    Args:
        names: of the features, including those that the base reads.
        config: how trees are boosted.
        base: a reranker whose scores boosting starts from.

    Raises:
        ValueError: the base reads a feature that is not among `names`.
    """

    kind = "trees"

    def __init__(self, names: tuple[str, ...], config: BoostingConfig, base: FeatureReranker | None = None) -> None:
        missing = [name for name in base.names if name not in names] if base else []
        if missing:
            raise ValueError(f"The base reads the feature {missing[0]!r}, which is not among {', '.join(names)}.")
        self.names, self.config, self.base = tuple(names), config, base
        self._trees: _Trees | None = None

    def fit(self, lists: JudgedLists, line_search: LineSearch | None = None) -> "BoostedTrees":
        """Train in place; returns the trees.

        Args:
            lists: judged documents.
            line_search: chooses the weight of each tree, instead of the learning rate; for engine "literal". Boosting ends with
                the first tree of weight 0.

        Raises:
            ValueError: a line search with another engine.
        """
        if line_search is not None and self.config.engine != "literal":
            raise ValueError('line_search needs engine "literal"; leave it out for "lightgbm".')
        start = self.base_scores(lists.features)
        if self.config.engine == "literal":
            self._trees = _LiteralTrees.fit(lists, start, self.config, line_search)
        else:
            self._trees = _LightGBM.fit(lists, start, self.config)
        return self

    def base_scores(self, features: Floats) -> Floats:
        """[n] scores that boosting starts from."""
        if self.base is None:
            return np.zeros(len(features))
        return self.base.predict(features[:, [self.names.index(name) for name in self.base.names]])

    def predict(self, features: Floats) -> Floats:
        """[n] scores, including those of the base."""
        return self.base_scores(features) + self._fitted.predict(features)

    @property
    def importance(self) -> dict[str, float]:
        """{feature: share of the gain of all splits}."""
        gains = self._fitted.gains(len(self.names))
        return dict(zip(self.names, (gains / max(gains.sum(), 1e-12)).tolist(), strict=True))

    @property
    def _fitted(self) -> "_Trees":
        if self._trees is None:
            raise ValueError("These trees are not trained yet; call fit.")
        return self._trees

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees, and the base beside them; returns names, config and base."""
        self._fitted.write(folder)
        settings: dict[str, Any] = {"names": self.names, "config": asdict(self.config), "base": None}
        if self.base:
            (folder / "base").mkdir()
            settings["base"] = {"kind": self.base.kind, "settings": self.base.write(folder / "base")}
        return settings

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "BoostedTrees":
        """Load what `write` wrote."""
        base = settings["base"] and reranker_class(settings["base"]["kind"]).read(
            folder / "base", settings["base"]["settings"]
        )
        trees = cls(tuple(settings["names"]), BoostingConfig(**settings["config"]), base or None)  # type: ignore[arg-type]
        engine = _LiteralTrees if trees.config.engine == "literal" else _LightGBM
        trees._trees = engine.read(folder, len(trees.names))
        return trees


class _LightGBM:
    """A LightGBM booster."""

    def __init__(self, booster: Any) -> None:
        self.booster = booster

    @classmethod
    def fit(cls, lists: JudgedLists, start: Floats, config: BoostingConfig) -> "_LightGBM":
        lightgbm = _lightgbm()
        settings = {
            "objective": "lambdarank" if config.objective == "lambdamart" else "regression",
            "lambdarank_norm": False,
            "lambdarank_truncation_level": max(lists.lengths),
            "label_gain": [2.0**label - 1 for label in range(int(lists.labels.max()) + 1)],
            "lambda_l2": 0.0,
            "min_sum_hessian_in_leaf": 1e-9,
            "sigmoid": config.sigma,
            "num_leaves": config.leaves,
            "min_data_in_leaf": config.min_leaf,
            "learning_rate": config.learning_rate,
            "boost_from_average": False,
            "seed": config.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }
        data = lightgbm.Dataset(lists.features, lists.labels, group=list(lists.lengths), init_score=start)
        return cls(lightgbm.train(settings, data, num_boost_round=config.trees))

    def predict(self, features: Floats) -> Floats:
        return np.asarray(self.booster.predict(features, raw_score=True))

    def gains(self, count: int) -> Floats:
        return np.asarray(self.booster.feature_importance("gain"))

    def write(self, folder: Path) -> None:
        write_text(folder / "model.txt", self.booster.model_to_string())

    @classmethod
    def read(cls, folder: Path, features: int) -> "_LightGBM":
        path = folder / "model.txt"
        check_file(path)
        with reading(path):
            return cls(_lightgbm().Booster(model_str=checked_model(path.read_text(encoding="utf-8"), features)))


def _lightgbm() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except ImportError:
        raise ValueError(
            'engine "lightgbm" needs LightGBM; pip install "dr-scl-experiments[rerank]", or use engine "literal".'
        ) from None


class _LiteralTrees:
    """Regression trees as arrays, nodes of all trees one after another.

    Attributes:
        feature: [nodes] that a node splits on; -1 at leaves.
        threshold: [nodes] values up to it go left.
        children: [nodes, 2] left and right; a leaf points at itself.
        value: [nodes] of leaves, times the weight of the tree.
        gain: [nodes] by how much a split lowers the squared error.
        roots: [trees] node at which each tree starts.
        depth: of the deepest tree.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    @classmethod
    def fit(
        cls, lists: JudgedLists, start: Floats, config: BoostingConfig, line_search: LineSearch | None = None
    ) -> "_LiteralTrees":
        from sklearn.tree import DecisionTreeRegressor

        features, scores = np.asarray(lists.features, dtype=np.float32), start.astype(np.float64)
        grown: list[dict[str, NDArray[Any]]] = []
        for number in range(config.trees):
            if config.objective == "lambdamart":
                gradient, curvature, _ = lambdas(lists, scores, config.sigma, weigh_by_ndcg=True)
            else:
                gradient, curvature = scores - lists.labels, np.ones(len(scores))
            tree = DecisionTreeRegressor(
                max_leaf_nodes=config.leaves, min_samples_leaf=config.min_leaf, random_state=config.seed + number
            ).fit(features, -gradient)
            leaves = tree.apply(features)
            steps = _newton(leaves, gradient, curvature, tree.tree_.node_count)
            weight = line_search(lists, scores, steps[leaves]) if line_search else config.learning_rate
            if weight == 0:
                break
            scores = scores + weight * steps[leaves]
            grown.append(_arrays(tree.tree_, weight * steps))
        return cls(_join(grown))

    def predict(self, features: Floats) -> Floats:
        arrays, features = self.arrays, np.asarray(features, dtype=np.float32)
        nodes = np.repeat(arrays["roots"][None, :], len(features), axis=0)  # [n, trees]
        for _ in range(int(arrays["depth"].max(initial=0))):
            values = np.take_along_axis(features, np.maximum(arrays["feature"][nodes], 0), axis=1)
            nodes = arrays["children"][nodes, (values > arrays["threshold"][nodes]).astype(int)]
        return np.asarray(arrays["value"][nodes].sum(axis=1))

    def gains(self, count: int) -> Floats:
        inner = self.arrays["feature"] >= 0
        return np.bincount(self.arrays["feature"][inner], self.arrays["gain"][inner], minlength=count).astype(float)

    def write(self, folder: Path) -> None:
        save_file(self.arrays, folder / "trees.safetensors")

    @classmethod
    def read(cls, folder: Path, features: int) -> "_LiteralTrees":
        path = folder / "trees.safetensors"
        with reading(path):
            arrays = load_file(path)
            _check_arrays(arrays, features)
        return cls(arrays)


_Trees = _LightGBM | _LiteralTrees


def _check_arrays(arrays: dict[str, NDArray[Any]], features: int) -> None:
    """Raise ValueError unless all features, children, roots and depths are those of trees."""
    nodes, own = len(arrays["feature"]), np.arange(len(arrays["feature"]))
    shapes = {"threshold": (nodes,), "children": (nodes, 2), "value": (nodes,), "gain": (nodes,)}
    integers = all(arrays[name].dtype.kind == "i" for name in ("feature", "children", "depth", "roots"))
    if not integers or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise ValueError("arrays of nodes differ in length")
    children, leaf = arrays["children"], arrays["feature"] < 0
    below = np.where(leaf[:, None], children == own[:, None], children > own[:, None])
    if not below.all() or children.max(initial=-1) >= nodes or arrays["feature"].max(initial=-1) >= features:
        raise ValueError("a node has a child or a feature that there is not")
    if not all(0 <= root < nodes for root in arrays["roots"].tolist()) or arrays["depth"].max(initial=0) > nodes:
        raise ValueError("a tree has a root or a depth that it cannot have")
    if not all(np.isfinite(arrays[name]).all() for name in ("threshold", "value", "gain")):
        raise ValueError("some values are not finite")


def _newton(leaves: NDArray[np.integer], gradient: Floats, curvature: Floats, count: int) -> Floats:
    """[nodes] the Newton step of each leaf, -sum of gradients / sum of curvatures; 0 where the curvature is 0."""
    first, second = (np.bincount(leaves, values, minlength=count) for values in (gradient, curvature))
    return np.divide(-first, second, out=np.zeros(count), where=second > 1e-12)


def _arrays(tree: Any, values: Floats) -> dict[str, NDArray[Any]]:
    leaf, own = tree.children_left < 0, np.arange(tree.node_count)
    impurity = tree.impurity * tree.weighted_n_node_samples
    below = np.where(leaf, 0.0, impurity[tree.children_left] + impurity[tree.children_right])
    return {
        "feature": np.where(leaf, -1, tree.feature).astype(np.int32),
        "threshold": tree.threshold.astype(np.float64),
        "children": np.stack([np.where(leaf, own, tree.children_left), np.where(leaf, own, tree.children_right)], 1),
        "value": np.where(leaf, values, 0.0),
        "gain": np.where(leaf, 0.0, impurity - below),
        "depth": np.array([tree.max_depth]),
    }


def _join(trees: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays of all trees, one after another."""
    starts = np.cumsum([0, *(len(tree["feature"]) for tree in trees)])[:-1]
    shifted = [
        {**tree, "children": tree["children"] + start, "roots": np.array([start])}
        for tree, start in zip(trees, starts.tolist(), strict=False)
    ]
    names = ("feature", "threshold", "children", "value", "gain", "depth", "roots")
    if not shifted:
        empty = {
            name: np.zeros(0, dtype=np.int64 if name in ("feature", "depth", "roots") else float) for name in names
        }
        return {**empty, "children": np.zeros((0, 2), dtype=np.int64)}
    return {name: np.concatenate([tree[name] for tree in shifted]) for name in names}
