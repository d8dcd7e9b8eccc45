"""`dsi reproduce table3|table4|table5|figure5`: the experiments of DR-SCL on a collection, and what the paper lacks.

Stages are shared: what two rows have in common is trained once (OUTPUT/store). Each row and seed is written down as soon as it
is measured, so a killed command goes on with the next; what is there and up to date is not measured again. OUTPUT gets a JSON
a row and seed, a Markdown table, and for figure5 a picture. Several processes or GPUs share the work under
`accelerate launch -m scripts.reproduce`.

`dsi reproduce toy` and `dsi reproduce synthetic` are the experiments of "Learning Optimal Tree Models under Beam Search"
(Tables 1, A.1 and 2), without data.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from docids.collection import read_collection
from docids.storage import write_json, write_text
from docids.tree import DocidTree
from dsi.config import Config, read_config
from dsi.training.objective import decoder_positions
from eval.figures import grid_figure
from eval.measures import evaluate, mean
from eval.report import grid_table
from scripts.arguments import quiet_libraries, with_encoder
from scripts.experiments import ON_DENSE, TABLES, Row
from scripts.hardware import provenance
from scripts.laboratory import SPLIT, Laboratory
from scripts.main import run_command
from scripts.objectives import equal_budgets
from scripts.objectives import measure as measure_objective
from scripts.objectives import write_report as objectives_report
from scripts.synthetic import PUBLISHED, SETTINGS, synthetic, synthetic_table
from scripts.tree_experiments import toy, toy_table
from scripts.updates import hold_out, measure_updates, updates_table, write_without

FIGURE_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FIGURE_BETAS = (0.0, 1.0, 2.0, 3.0, float("inf"))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then print and write the table."""
    arguments = _parse(argv)
    quiet_libraries()
    if arguments.what in WITHOUT_DATA:
        default_runs, without_data = WITHOUT_DATA[arguments.what]
        print(without_data(arguments.output, arguments.runs or default_runs, arguments.seeds[0]))
        return
    if arguments.what in ON_RANKINGS:
        if not arguments.data:
            raise ValueError(f"{arguments.what} is measured on a folder of lists: give --data.")
        experiment = getattr(importlib.import_module(f"scripts.{ON_RANKINGS[arguments.what]}"), arguments.what)
        print(experiment(arguments.data, arguments.output, arguments.seeds))
        return
    if not arguments.data or not arguments.config:
        raise ValueError(f"{arguments.what} is measured on a collection: give --data and --config.")
    config = read_config(arguments.config)
    config = with_encoder(config, arguments.encoder)
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    laboratory = Laboratory(collection, config, arguments.output, arguments.device)
    if arguments.what in ON_A_COLLECTION:
        laboratory.say(ON_A_COLLECTION[arguments.what](laboratory, arguments.seeds[0]))
        return
    _measure_table(laboratory, arguments.what, _chosen(TABLES[arguments.what], arguments.rows), arguments.seeds)


def _measure_table(laboratory: Laboratory, table: str, rows: Sequence[Row], seeds: Sequence[int]) -> None:
    """Measure every row that this collection and these settings allow; say of the others why not, at the end."""
    refused: dict[str, ValueError] = {}
    for seed in seeds:  # one seed of every row before the next seed of any
        for row in rows:
            try:
                laboratory.measure(table, row, seed)
            except ValueError as error:
                refused[row.name] = error
        text = laboratory.table(table, seeds) if laboratory.processes.is_main else ""
    laboratory.say(text)
    if refused:
        reasons = "".join(f"\n  {name}: {error}" for name, error in refused.items())
        raise ValueError(f"{len(refused)} of {len(rows)} rows could not be measured:{reasons}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*TABLES, *ON_A_COLLECTION, *ON_RANKINGS, *WITHOUT_DATA])
    parser.add_argument("--data", type=Path, help="a collection, a folder in BEIR layout")
    parser.add_argument("--config", type=Path, help="the base: DR-SCL+QG on this collection (configs/reproduce-*.toml)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--encoder", help="sentence-transformers model, Hub name or folder, instead of the configured one"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of sampling, clustering, initialisation, shuffling"
    )
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name contains one of these")
    parser.add_argument("--runs", type=int, help="of toy (200) and synthetic (3)")
    parser.add_argument("--device")
    return parser.parse_args(argv)


def _chosen(rows: Sequence[Row], texts: Sequence[str] | None) -> list[Row]:
    chosen = [row for row in rows if texts is None or any(text in row.name for text in texts)]
    if not chosen:
        raise ValueError(f"No row's name contains {texts}; the rows are: {', '.join(row.name for row in rows)}.")
    return chosen


def figure5(laboratory: Laboratory, seed: int) -> str:
    """Hit@1 over alpha and beta of "paper" fusion, DR-SCL+QG, test queries (nothing is chosen by it): table and picture."""
    config = laboratory.config(next(row for row in TABLES["table3"] if row.published == "DR-SCL+QG"), seed)
    qrels, values = laboratory.collection.qrels[SPLIT], {}

    def tuned() -> dict[str, Any]:
        return {"ann_temperature": laboratory.index(config).tuned("paper").get("ann_temperature", 1.0)}

    temperature = laboratory.kept("figure5", "temperature", config, tuned)["ann_temperature"]

    def hit(alpha: float, beta: float) -> dict[str, Any]:
        settings = {"fusion": "paper", "alpha": alpha, "beta": beta, "ann_temperature": temperature}
        run = laboratory.index(config).run(SPLIT, 10, **settings)
        return {"Hit@1": 100 * mean(evaluate(run, qrels, ["Hit@1"])["Hit@1"])}

    for beta, alpha in product(FIGURE_BETAS, FIGURE_ALPHAS):
        own = alpha if beta else 1.0  # with beta = 0 the decoder is alone, whatever alpha
        name = f"alpha {own:g}, beta {beta:g}, temperature {temperature:g}"
        values[alpha, beta] = laboratory.kept("figure5", name, config, partial(hit, own, beta))["Hit@1"]
    if not laboratory.processes.is_main:
        return ""
    grid_figure(values, "alpha", "beta", "Hit@1, DR-SCL+QG, paper fusion", laboratory.output / "figure5")
    cells = [{"alpha": a, "beta": b, "Hit@1": round(v, 2)} for (a, b), v in values.items()]
    record = {"seed": seed, **provenance(), "ann_temperature": temperature, "cells": cells}
    write_json(laboratory.output / "figure5.json", record)
    text = f"{grid_table(values, 'alpha', 'beta')}\n\nHit@1 in percent, seed {seed}, ann_temperature {temperature:g}."
    write_text(laboratory.output / "figure5.md", text + "\n")
    return text


def objectives(laboratory: Laboratory, seed: int) -> str:
    """Every objective of a docid decoder under one budget of decoder positions, by beam width: tables and pictures."""
    base = laboratory.config(Row("", "decoder"), seed)
    tree, found, text = laboratory.tree(base), {}, ""
    for name, config in equal_budgets(base, tree).items():
        found[name] = laboratory.kept(
            "objectives",
            name,
            config,
            lambda config=config: _objective(laboratory, config, tree),  # type: ignore[misc]
        )
        if laboratory.processes.is_main:
            text = objectives_report(found, laboratory.collection.folder.name, laboratory.output)
            write_json(laboratory.output / "objectives.json", {"seed": seed, **provenance(), "found": found})
    return text


def _objective(laboratory: Laboratory, config: Config, tree: DocidTree) -> dict[str, Any]:
    """What one objective costs, and its measures by beam."""
    cells, training = measure_objective(laboratory.index(config), SPLIT), laboratory.training(config)
    return {
        "positions an example": round(decoder_positions(tree, config.generator), 1),
        "batch": config.generator.batch_size,
        "epochs": round(config.generator.epochs, 2),
        "steps": training["steps"],
        "milliseconds a step": round(1000 * training["seconds"] / training["steps"], 1),
        "training seconds": round(training["seconds"]),
        "cells": cells,
    }


def updates(laboratory: Laboratory, seed: int) -> str:
    """Documents added to an index without training, against one that was trained with all; decoder on top of dense search."""
    collection, row = laboratory.collection, next(row for row in TABLES["table3"] if row.changes == ON_DENSE)
    config, rows = laboratory.config(row, seed), hold_out(laboratory.collection, seed)
    folder = laboratory.output / f"without-{seed}"
    if laboratory.processes.is_main and not folder.exists():
        write_without(collection, rows, folder)
    laboratory.processes.wait()
    part = Laboratory(read_collection(folder), laboratory.base, laboratory.output, laboratory.device)
    found = measure_updates(collection, part.index(config), laboratory.index(config), rows)
    if not laboratory.processes.is_main:
        return ""
    write_json(laboratory.output / "updates.json", {"seed": seed, **provenance(), **found})
    text = updates_table(found)
    write_text(laboratory.output / "updates.md", text + "\n")
    return text


ON_A_COLLECTION: dict[str, Callable[[Laboratory, int], str]] = {
    "figure5": figure5,
    "objectives": objectives,
    "updates": updates,
}
"""Experiments that are no tables of the paper: {name: function of laboratory and seed}."""


def _toy(output: Path, runs: int, seed: int) -> str:
    cells = toy(runs, seed)
    rows = [
        {"estimator": name, "k": k, "N": size, "regret": value, "standard_error": error}
        for name, own in cells.items()
        for (k, size), (value, error) in own.items()
    ]
    write_json(output / "toy.json", {"runs": runs, "seed": seed, "cells": rows})
    text = toy_table(cells, runs)
    write_text(output / "toy.md", text + "\n")
    return text


def _synthetic(output: Path, runs: int, seed: int) -> str:
    texts, cells = [], []
    for name, setting in SETTINGS.items():
        found = synthetic(setting, runs, seed, output / "synthetic")
        texts.append(synthetic_table(found, name, None if setting.one_relevant else PUBLISHED))
        cells += [
            {"setting": name, "objective": objective, "beam": beam, "m": m, "regret": values}
            for objective, own in found.items()
            for (beam, m), values in own.items()
        ]
        write_json(output / "synthetic.json", {"runs": runs, "seed": seed, **provenance(), "cells": cells})
        write_text(output / "synthetic.md", "\n\n".join(texts) + "\n")
    return "\n\n".join(texts)


ON_RANKINGS = {
    "ltr": "ltr_experiments",
    "diversity": "diversity_experiments",
    "parsing": "parsing_experiments",
    "treebank": "parsing_experiments",
}
"""Experiments of the stages after the beam: {name of the function: its module}, imported when asked for (extra `rerank`)."""

WITHOUT_DATA: dict[str, tuple[int, Callable[[Path, int, int], str]]] = {
    "toy": (200, _toy),
    "synthetic": (3, _synthetic),
}
"""Experiments that need no collection: {name: (runs, function of output, runs, seed)}."""


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
