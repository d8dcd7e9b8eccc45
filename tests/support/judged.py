"""Candidates with judgements."""

import numpy as np
from dsi_experiments.rerankers.lists import (
    JudgedLists,
)

NAMES = ("a", "b", "c", "d")


def judged(seed=0, lists=30, per_list=12):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(lists * per_list, len(NAMES)))
    utility = 0.7 * features[:, 0] + features[:, 1] * features[:, 2] + 0.1 * rng.normal(size=len(features))
    labels = np.digitize(utility, [0.3, 1.0, 1.8]).astype(float)
    return JudgedLists(features, labels, [per_list] * lists, NAMES)
