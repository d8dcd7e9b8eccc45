"""A learned router: the cells of an index, chosen by a trained linear map of the query. Knows nothing of files and times."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dsi.trees.cells import Cells

Floats = NDArray[np.float32]
_EPOCHS, _BATCH, _TEMPERATURE = 15, 128, 0.05


def routed(cells: Cells, matrix: Floats, size_weight: Floats) -> Cells:
    """The cells, chosen by a linear map [dim, dim] of the query; `size_weight` [1] multiplies what a cell's size adds."""
    mapped = cells.vectors[:, :-1] @ torch.from_numpy(np.array(matrix))
    return replace(cells, vectors=torch.cat([mapped, cells.vectors[:, -1:] * float(size_weight[0])], dim=1))


def trained_router(
    cells: Cells, queries: Floats, flat: Callable[[Floats, float], NDArray[np.int64]]
) -> dict[str, Floats]:
    """A map and a weight that give the cells of each query's exact answer a high probability; the identity and 1 at first."""
    answers = np.concatenate([flat(queries[start : start + 64], 0) for start in range(0, len(queries), 64)])
    held = torch.from_numpy(np.searchsorted(cells.edges, answers, side="right") - 1)  # [queries, 10] cells
    asked, vectors = torch.from_numpy(queries), cells.vectors
    matrix = torch.eye(asked.shape[1], requires_grad=True)
    size_weight, scale = (torch.full((1,), start, requires_grad=True) for start in (1.0, -math.log(_TEMPERATURE)))
    optimizer = torch.optim.Adam([matrix, size_weight, scale], lr=1e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(_EPOCHS):
        for own in torch.randperm(len(asked), generator=rng).split(_BATCH):
            scores = asked[own] @ matrix.T @ vectors[:, :-1].T + size_weight * vectors[:, -1]
            loss = -F.log_softmax(scores * scale.exp(), dim=1).gather(1, held[own]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"map": matrix.detach().numpy(), "size_weight": size_weight.detach().numpy()}
