"""MART, LambdaMART and LambdaSMART: boosted regression trees over the features of candidates.

LambdaMART boosts trees on the lambdas of `dsi_experiments.rerankers.lists`, one Newton step a leaf; MART on least squares. With
a base, boosting starts from its scores (LambdaSMART; Wu, Burges, Svore, Gao 2008, MSR-TR-2008-109, also called model
adaptation): the base is saved with the trees and always added back. LightGBM grows the trees, with the settings that make it
the published algorithm: no normalisation by score differences, no truncation of the lists, no L2 term in a leaf. One difference
remains, how splits are found: LightGBM takes the gain of the Newton step, MART the variance of the gradient.
"""

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dsi.docids.files.declarations import LARGEST, Count, Positive, Whole, settings
from dsi.docids.files.reading import check_file, reading
from dsi.docids.files.storage import write_text
from dsi.docids.types import Reals
from dsi_experiments.rerankers.candidates import load_reranker
from dsi_experiments.rerankers.learned import FeatureReranker
from dsi_experiments.rerankers.lists import JudgedLists

MODEL = "model.txt"
"""File of the trees, as LightGBM writes it."""


@settings()
class BoostingConfig:
    """How trees are boosted."""

    objective: Literal["lambdamart", "mart"] = "lambdamart"  # "lambdamart", or "mart" for least squares on the labels
    trees: Count = 100
    leaves: Annotated[int, Field(ge=2, le=LARGEST)] = 15  # of a tree
    min_leaf: Count = 20  # documents a leaf has at least
    learning_rate: Positive = 0.05  # of every tree
    sigma: Positive = 1.0  # steepness of the pairwise sigmoid
    seed: Whole = 0  # of LightGBM


class BoostedTrees(FeatureReranker):
    """An ensemble of regression trees of LightGBM, perhaps on top of a base.

    `names` include the features that the base reads.
    """

    kind = "trees"

    def __init__(self, names: tuple[str, ...], config: BoostingConfig, base: FeatureReranker | None = None) -> None:
        self.names, self.config, self.base = tuple(names), config, base
        self._trained: Any = None

    def fit(self, lists: JudgedLists, start: Reals | None = None) -> "BoostedTrees":
        """Train in place on judged documents; returns the trees. They start from scores [n], those of the base by default."""
        lightgbm, config = _lightgbm(), self.config
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
        start = self.base_scores(lists.features) if start is None else start
        data = lightgbm.Dataset(lists.features, lists.labels, group=list(lists.lengths), init_score=start)
        self._trained = lightgbm.train(settings, data, num_boost_round=config.trees)
        return self

    def base_scores(self, features: Reals) -> Reals:
        """[n] scores that boosting starts from."""
        if self.base is None:
            return np.zeros(len(features))
        return self.base.predict(features[:, [self.names.index(name) for name in self.base.names]])

    def predict(self, features: Reals) -> Reals:
        """[n] scores, including those of the base."""
        return self.base_scores(features) + np.asarray(self._trained.predict(features, raw_score=True))

    @property
    def importance(self) -> dict[str, float]:
        """{feature: share of the gain of all splits}."""
        gains = np.asarray(self._trained.feature_importance("gain"))
        return dict(zip(self.names, (gains / max(gains.sum(), 1e-12)).tolist(), strict=True))

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees, and the base beside them; returns names, config and base."""
        write_text(folder / MODEL, self._trained.model_to_string())
        settings = {"names": self.names, "config": asdict(self.config), "base": self.base is not None}
        if self.base:
            (folder / "base").mkdir()
            self.base.write_whole(folder / "base")
        return settings

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "BoostedTrees":
        """Load what `write` wrote; LightGBM reads its trees and trusts them."""
        base = load_reranker(folder / "base") if settings["base"] else None
        trees = cls(tuple(settings["names"]), BoostingConfig(**settings["config"]), base)  # type: ignore[arg-type]
        check_file(folder / MODEL)
        lightgbm = _lightgbm()
        with reading(folder / MODEL):
            trees._trained = lightgbm.Booster(model_str=(folder / MODEL).read_text(encoding="utf-8"))
        return trees


def _lightgbm() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except ImportError:
        raise ValueError('Boosted trees need LightGBM; pip install "dr-scl-experiments[rerank]".') from None
