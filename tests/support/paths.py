"""Scores of paths by their definition."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig
from tests.support import oracles

Floats = NDArray[np.floating]


def path_scores(tree: DocidTree, generator: Any, batch: QueryBatch, config: SearchConfig) -> Floats:
    """[batch, places] the scores of all paths by definition."""
    settings = config.alpha, config.beta, config.ann_temperature
    return oracles.path_scores(tree, generator, batch.states, batch.mask, batch.embeddings, *settings).numpy()
