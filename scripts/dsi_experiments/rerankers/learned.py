"""Rerankers that score each candidate by its features: a weighted sum, and RankNet."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dsi.contrastive.models import load_weights
from dsi.docids.files.declarations import Count, Positive, Whole, settings
from dsi.docids.files.reading import RESTORE
from dsi.docids.types import Reals
from dsi_experiments.rerankers.candidates import Candidates, Reranker
from dsi_experiments.rerankers.features import compute_features
from dsi_experiments.rerankers.lists import JudgedLists, list_lambdas

_SCALE = 1e-6
"""Least deviation of a feature that RankNet divides by."""


class FeatureReranker(Reranker):
    """Base of rerankers that compute a score from the features of one candidate: a subclass sets `names`, defines `predict`."""

    features = staticmethod(compute_features)
    names: tuple[str, ...]

    def predict(self, features: Reals) -> Reals:
        """[n] scores of features [n, len(names)]."""
        raise NotImplementedError

    def score(self, candidates: Candidates) -> Reals:
        """[n, k] scores of all candidates in one pass."""
        valid = candidates.valid
        scores = np.full(valid.shape, -np.inf)
        scores[valid] = self.predict(candidates.columns(self.names)[valid])
        return scores


class LinearReranker(FeatureReranker):
    """A weighted sum of features."""

    kind = "linear"

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights, self.names = weights, tuple(weights)

    def predict(self, features: Reals) -> Reals:
        """[n] scores."""
        return np.asarray(features @ np.array(list(self.weights.values())))

    def write(self, folder: Path) -> dict[str, Any]:
        """Returns the weights; writes no file."""
        return {"weights": self.weights}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "LinearReranker":
        """Load what `write` wrote."""
        return cls({str(name): float(weight) for name, weight in settings["weights"].items()})


@settings()
class RankNetConfig:
    """How a RankNet is trained."""

    hidden: Count = 32  # width of its one hidden layer (tanh)
    sigma: Positive = 1.0  # steepness of the pairwise sigmoid
    weigh_by_ndcg: bool = False  # weight pairs by |delta nDCG| (LambdaRank)
    epochs: Count = 30  # passes over the lists
    learning_rate: float = 3e-3  # of AdamW
    weight_decay: float = 1e-2  # of AdamW
    seed: Whole = 0  # of initialisation and order


class RankNet(nn.Module, FeatureReranker):
    """A network that scores one document and is trained on pairs (Burges et al. 2005).

    A training step takes one list: its scores, their lambdas, and one backward pass, since dC/dw = sum over i of
    lambda_i ds_i/dw.
    """

    kind = "ranknet"

    def __init__(self, names: Sequence[str], config: RankNetConfig) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.names, self.config = tuple(names), config
        self.layers = nn.Sequential(nn.Linear(len(names), config.hidden), nn.Tanh(), nn.Linear(config.hidden, 1))
        self.register_buffer("mean", torch.zeros(len(names)))
        self.register_buffer("scale", torch.ones(len(names)))

    def forward(self, features: Tensor) -> Tensor:
        """[n] scores of features [n, features]."""
        return self.layers((features - self.mean) / self.scale)[:, 0]  # type: ignore[operator, no-any-return]

    def fit(self, lists: JudgedLists) -> list[float]:
        """Train in place; returns the mean cost of a list in each epoch."""
        features = torch.from_numpy(np.asarray(lists.features, dtype=np.float32))  # [documents, features]
        self.mean, self.scale = features.mean(dim=0), features.std(dim=0).clamp(min=_SCALE)
        optimizer = torch.optim.AdamW(
            self.parameters(), self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        slices, rng, costs = list(lists.slices()), np.random.default_rng(self.config.seed), []
        for _ in range(self.config.epochs):
            total = 0.0
            for number in rng.permutation(len(slices)):
                own = slices[number]
                scores = self(features[own])  # [documents of the list]
                gradient, _, cost = list_lambdas(
                    lists.labels[own],
                    scores.detach().double().numpy(),
                    self.config.sigma,
                    weigh_by_ndcg=self.config.weigh_by_ndcg,
                )
                optimizer.zero_grad()
                scores.backward(torch.from_numpy(gradient.astype(np.float32)))
                optimizer.step()
                total += cost
            costs.append(total / len(slices))
        return costs

    @torch.no_grad()
    def predict(self, features: Reals) -> Reals:
        """[n] scores."""
        return self(torch.from_numpy(np.asarray(features, dtype=np.float32))).double().numpy()  # type: ignore[no-any-return]

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights; returns the names of the features and the config."""
        save_file(self.state_dict(), folder / "model.safetensors")
        return {"names": self.names, "config": asdict(self.config)}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "RankNet":
        """Load what `write` wrote."""
        config, path = RankNetConfig(**settings["config"]), folder / "model.safetensors"
        net = load_weights(lambda: cls(settings["names"], config), path)
        if (least := float(net.scale.min())) < _SCALE:
            raise ValueError(f"{path}: scale must be at least {_SCALE:g}, got {least:g}; {RESTORE}.")
        return net
