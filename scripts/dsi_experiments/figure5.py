"""Figure 5 of DR-SCL: Hit@1 of DR-SCL+QG over alpha and beta, on the test queries (`dsi reproduce figure5`).

A picture of the grid; nothing is chosen by it. The temperature is chosen on dev.
"""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from dsi.eval.measures import evaluate, mean
from dsi_experiments.figures import grid_figure
from dsi_experiments.laboratory import SPLIT, Laboratory, tuned_settings
from dsi_experiments.published import grid_table
from dsi_experiments.report import save_report
from dsi_experiments.rows import Rows
from dsi_experiments.tables import TABLES

ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BETAS = (0.0, 1.0, 2.0, 3.0, float("inf"))


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Measure every cell, then write table and picture."""
    config = laboratory.config(next(row for row in TABLES["table3"] if row.published == "DR-SCL+QG"), seed)
    qrels = laboratory.collection.qrels[SPLIT]

    def tune() -> dict[str, Any]:
        return {"ann_temperature": tuned_settings(laboratory.index(config), lexical=False).get("ann_temperature", 1.0)}

    temperature = laboratory.kept("figure5", "ann_temperature, chosen on dev", seed, config, tune)["ann_temperature"]

    def measure(alpha: float, beta: float) -> dict[str, Any]:
        options = {"alpha": alpha, "beta": beta, "ann_temperature": temperature}
        run = laboratory.index(config).run(SPLIT, 10, **options)
        return {**options, "Hit@1": round(100 * mean(evaluate(run, qrels, ["Hit@1"])["Hit@1"]), 2)}

    for beta, alpha in product(BETAS, ALPHAS):
        own = _effective(alpha, beta)
        laboratory.kept("figure5", f"alpha {own:g}, beta {beta:g}", seed, config, partial(measure, own, beta))
    return write_report(laboratory.output, seed) if laboratory.processes.is_main else ""


def write_report(output: Path, seed: int) -> str:
    """Table and picture of OUTPUT/figure5.json."""
    rows = Rows(output / "figure5.json")
    found = [record["found"] for record in rows.records() if record["seed"] == seed and "Hit@1" in record["found"]]
    cells = {(cell["alpha"], float(cell["beta"])): cell for cell in found}
    wanted = {(alpha, beta): (_effective(alpha, beta), beta) for beta, alpha in product(BETAS, ALPHAS)}
    if missing := len(set(wanted.values()) - set(cells)):
        raise ValueError(f"{rows.path} lacks {missing} cells of seed {seed}; `dsi reproduce figure5` measures them.")
    values = {place: cells[own]["Hit@1"] for place, own in wanted.items()}
    temperature = cells[next(iter(wanted.values()))]["ann_temperature"]
    grid_figure(values, "alpha", "beta", "Hit@1, DR-SCL+QG", output / "figure5")
    text = f"{grid_table(values, 'alpha', 'beta')}\n\nHit@1 in percent, seed {seed}, ann_temperature {temperature:g}."
    save_report(output, "figure5", text)
    return text


def _effective(alpha: float, beta: float) -> float:
    """With beta = 0 the decoder is alone, whatever alpha."""
    return alpha if beta else 1.0
