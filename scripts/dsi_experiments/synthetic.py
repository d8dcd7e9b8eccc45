"""The synthetic experiment of Zhuo et al. 2020 (section 5.1, Table 2): trained linear node scorers, by objective.

`dsi reproduce synthetic`. Instances are normal vectors, a label is relevant with probability sigmoid(w . x - 5), the tree over
labels is binary and random, node scorers are linear. A second setting is that of generative retrieval: exactly one relevant
label an instance, drawn from softmax(w . x), and a tree with ten children a node, searched with other beams than in training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dsi.docids.files.storage import digest
from dsi.eval.tables import markdown_table
from dsi.measuring.provenance import provenance
from dsi_experiments.regret import regret
from dsi_experiments.report import save_report
from dsi_experiments.rows import Rows
from dsi_experiments.toy import complete_tree
from dsi_experiments.tree_model import TreeModel, TreeModelConfig

Regrets = dict[str, dict[tuple[int, int], list[float]]]
"""{objective: {(beam of search, answers m): regret@m of each run}}."""

FEATURES = 10
PUBLISHED = {
    "plt": (0.0444, 0.0778, 0.0955, 0.1492),
    "tdm": (0.0033, 0.0205, 0.0453, 0.1363),
    "otm": (0.0024, 0.0163, 0.0349, 0.1083),
    "otm-bs": (0.0048, 0.0201, 0.0421, 0.1313),
    "otm-optest": (0.0033, 0.0198, 0.0418, 0.1218),
}
"""Table 2: regret@m for m = 1, 10, 20, 50, means of five runs."""


@dataclass(frozen=True)
class Setting:
    """One synthetic problem."""

    branching: int
    beam_width: int
    cells: Sequence[tuple[int, int]]  # (beam of search, answers) whose regret is measured
    one_relevant: bool  # exactly one relevant label an instance
    labels: int = 1000
    train: int = 10_000
    test: int = 1000
    epochs: int = 200  # passes over the training instances
    # rows of `dsi_experiments.objectives.rows`
    objectives: Sequence[str] = ("plt", "tdm", "otm", "otm-bs", "otm-optest")


SETTINGS: Mapping[str, Setting] = {
    "several relevant labels (Table 2)": Setting(2, 50, [(50, 1), (50, 10), (50, 20), (50, 50)], one_relevant=False),
    "one relevant label": Setting(
        10,
        10,
        [(1, 1), (5, 5), (10, 1), (10, 10), (20, 10), (50, 10), (100, 10)],
        one_relevant=True,
        epochs=100,
        objectives=("ce", "plt", "man", "tdm", "otm", "otm-mix"),
    ),
}


def reproduce(output: Path, runs: int, seed: int) -> str:
    """Both settings into OUTPUT."""
    texts, rows = [], Rows(output / "synthetic.json")
    for title, setting in SETTINGS.items():
        found = synthetic(setting, runs, seed, title, rows)
        texts.append(synthetic_table(found, title, None if setting.one_relevant else PUBLISHED))
        save_report(output, "synthetic", "\n\n".join(texts))
    return "\n\n".join(texts)


def synthetic(
    setting: Setting,
    runs: int,
    seed: int,
    title: str = "",
    rows: Rows | None = None,
    done: Callable[[str], None] = print,
) -> Regrets:
    """Train every objective on the same data, run after run.

    What is trained is kept in `rows`, so that a killed command continues with the next.
    """
    found: Regrets = {name: {cell: [] for cell in setting.cells} for name in setting.objectives}
    for run in range(seed, seed + runs):
        for name in setting.objectives:
            row, key = f"{title}: {name}", digest([asdict(setting), run, name])
            record = rows.find(row, run, key) if rows else None
            if record is None:
                values = _regrets(setting, name, run)
                done(f"run {run}, {name}: regret {', '.join(f'{value:.4f}' for value in values)}")
                cells = [
                    {"beam": beam, "m": m, "regret": value}
                    for (beam, m), value in zip(setting.cells, values, strict=True)
                ]
                record = {"row": row, "seed": run, "key": key, **provenance(), "found": {"cells": cells}}
                if rows:
                    rows.put(record)
            for cell in record["found"]["cells"]:
                found[name][cell["beam"], cell["m"]].append(cell["regret"])
    return found


def _regrets(setting: Setting, objective: str, run: int) -> list[float]:
    """Train a model on the data of a run; its regret in each cell."""
    tree = complete_tree(setting.labels, setting.branching, run)
    rng = np.random.default_rng(run)
    weights = rng.normal(size=(setting.labels, FEATURES))
    (features, _, relevant), (test, eta, _) = (
        _instances(rng, weights, count, tree.num_places, setting.one_relevant)
        for count in (setting.train, setting.test)
    )
    config = TreeModelConfig(
        objective=objective, beam_width=setting.beam_width, random_nodes=2 * setting.beam_width,
        epochs=setting.epochs, batch_size=500, learning_rate=1e-2, seed=run,
    )  # fmt: skip
    model = TreeModel(tree, FEATURES, config)
    model.fit(features, relevant)
    return [float(regret(eta, model.search(test, m, beam)).mean()) for beam, m in setting.cells]


def _instances(
    rng: np.random.Generator, weights: NDArray[np.float64], count: int, leaves: int, one_relevant: bool
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float32]]:
    """Features [count, features], probabilities of relevance [count, leaves] (0 at padding leaves), and a draw from them."""
    features = rng.normal(size=(count, FEATURES)).astype(np.float32)
    closeness = features @ weights.T
    eta = np.zeros((count, leaves))
    relevant = np.zeros((count, leaves), dtype=np.float32)
    if one_relevant:
        eta[:, : len(weights)] = torch.from_numpy(closeness).softmax(dim=1).numpy()
        drawn = (eta.cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
        relevant[np.arange(count), drawn] = 1
    else:
        eta[:, : len(weights)] = 1 / (1 + np.exp(5 - closeness))
        relevant = (rng.random(eta.shape) < eta).astype(np.float32)
    return features, eta, relevant


def synthetic_table(found: Regrets, title: str, published: Mapping[str, Sequence[float]] | None = None) -> str:
    """Markdown: a line an objective, mean regret ± standard error, the published one beside it where there is one."""
    cells = list(next(iter(found.values())))
    heads = [f"beam {beam}, m = {m}" for beam, m in cells]
    rows = []
    for name, own in found.items():
        beside = (published or {}).get(name)
        row = [name]
        for number, values in enumerate(own.values()):
            error = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
            row.append(f"{np.mean(values):.4f}{error}{f' [{beside[number]:.4f}]' if beside else ''}")
        rows.append(row)
    table = markdown_table(["objective", *heads], rows)
    runs = len(next(iter(next(iter(found.values())).values())))
    beside_what = "; in brackets Table 2 of the paper" if published else ""
    return f"**{title}**\n\n{table}\n\nMean regret@m ± standard error over {runs} runs{beside_what}."
