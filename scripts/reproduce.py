"""`dsi reproduce table3|table4|table5|figure5`: the experiments of DR-SCL on a collection, and what the paper lacks.

Stages are shared: what two rows have in common is trained once (OUTPUT/store). Each row and seed is written down as soon as it
is measured, so a killed command goes on with the next; what is there and up to date is not measured again. OUTPUT gets a JSON
a row and seed, a Markdown table, and for figure5 a picture.

`dsi reproduce toy` and `dsi reproduce synthetic` are the experiments of "Learning Optimal Tree Models under Beam Search"
(Tables 1, A.1 and 2), without data.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contrastive.blocks import DocumentTexts
from contrastive.encoder import Encoder
from docids.collection import Collection, read_collection
from docids.storage import digest, write_json, write_text
from docids.tree import DocidTree
from dsi.config import Config, from_dict, read_config
from dsi.index import package_versions
from dsi.pipeline import TrainingRun, collection_digest, stage_seconds
from dsi.retriever import GenerativeRetriever
from dsi.training.objective import decoder_positions
from eval.figures import grid_figure
from eval.fusion import reciprocal_rank_fusion
from eval.measures import evaluate, mean
from eval.protocol import measure_system, overlap_splits
from eval.report import Measured, experiment_table, grid_table
from scripts.arguments import quiet_libraries, with_encoder
from scripts.experiments import REFERENCES, TABLES, Row
from scripts.hardware import hardware
from scripts.main import run_command
from scripts.objectives import equal_budgets
from scripts.objectives import measure as measure_objective
from scripts.objectives import write_report as objectives_report
from scripts.synthetic import PUBLISHED, SETTINGS, synthetic, synthetic_table
from scripts.systems import DECODER_ALONE, DenseSystems, IndexSystems, Run, WordSystems
from scripts.tree_experiments import toy, toy_table

SPLIT = "test"
FIGURE_ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FIGURE_BETAS = (0.0, 1.0, 2.0, 3.0, float("inf"))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then print and write the table."""
    arguments = _parse(argv)
    quiet_libraries()
    if arguments.what in WITHOUT_DATA:
        default_runs, experiment = WITHOUT_DATA[arguments.what]
        print(experiment(arguments.output, arguments.runs or default_runs, arguments.seeds[0]))
        return
    if not arguments.data or not arguments.config:
        raise ValueError(f"{arguments.what} is measured on a collection: give --data and --config.")
    config = read_config(arguments.config)
    config = with_encoder(config, arguments.encoder)
    collection = read_collection(arguments.data, dev_queries=config.dev_queries)
    laboratory = Laboratory(collection, config, arguments.output, arguments.device)
    if arguments.what in FIGURES:
        print(FIGURES[arguments.what](laboratory, arguments.seeds[0]))
        return
    rows = _chosen(TABLES[arguments.what], arguments.rows)
    for seed in arguments.seeds:  # one seed of every row before the next seed of any
        for row in rows:
            laboratory.measure(arguments.what, row, seed)
        table = laboratory.table(arguments.what, arguments.seeds)
    print(table)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dsi reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*TABLES, *FIGURES, *WITHOUT_DATA])
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


@dataclass
class Laboratory:
    """Trains and measures rows over one collection into one folder.

    Args:
        collection: trained and tested on.
        base: settings of DR-SCL+QG.
        output: where everything goes.
        device: of encoder and generator.
    """

    collection: Collection
    base: Config
    output: Path
    device: str | None = None

    def __post_init__(self) -> None:
        self._index: tuple[Config, IndexSystems] | None = None

    def measure(self, table: str, row: Row, seed: int) -> None:
        """Train and measure one row under one seed, unless that has been done."""
        config = self.config(row, seed)
        key = digest([row.method, dataclasses.asdict(config), self._data])
        path = self._path(table, row, seed)
        if path.exists() and json.loads(path.read_text())["key"] == key:
            return
        print(f"{table}, seed {seed}: {row.name}", flush=True)
        started = time.perf_counter()
        run, settings = METHODS[row.method](self, config)
        result = measure_system(row.name, run, self.collection.qrels[SPLIT], **settings)
        write_json(path.with_suffix(".values.json"), result.values)
        record = {
            "row": row.name,
            "seed": seed,
            "key": key,
            "collection": {"name": self.collection.folder.name, "digest": self._data},
            "measures": result.means(self._splits),
            "settings": settings,
            "seconds": {"in all": round(time.perf_counter() - started), **self._seconds(config)},
            "hardware": f"{hardware()}, {torch.get_num_threads()} threads",
            "versions": package_versions(),
            "commit": _commit(),
            "config": dataclasses.asdict(config),
        }
        write_json(path, record)

    def table(self, table: str, seeds: Sequence[int]) -> str:
        """The Markdown of all rows that have been measured under these seeds; written beside them."""
        measured = []
        for row in TABLES[table]:
            paths = [self._path(table, row, seed) for seed in seeds]
            found = [
                Measured(
                    row.name,
                    json.loads(path.with_suffix(".values.json").read_text()),
                    json.loads(path.read_text()),
                    row.published,
                )
                for path in paths
                if path.exists()
            ]
            if found:
                measured.append(found)
        sizes = {split: len(query_ids) for split, query_ids in self._splits.items()}
        text = experiment_table(measured, sizes, REFERENCES[table])
        write_text(self.output / f"{table}.md", text + "\n")
        return text

    def config(self, row: Row, seed: int) -> Config:
        """The base with a row's changes; rows without pseudo-queries train as many steps as those with them."""
        settings = dataclasses.asdict(self.base)
        for section in ("queries", "contrastive", "docids", "generator"):
            settings[section]["seed"] = seed
        for section, changes in row.changes.items():
            settings[section].update(changes)
        generator = settings["generator"]
        if not generator["pseudo_queries"] and not generator["dense_temperature"]:
            generator["epochs"] *= self._examples(self.base.generator.pseudo_queries) / self._examples(0)
        return from_dict(Config, settings, row.name)

    def _examples(self, pseudo_queries: int) -> int:
        return (1 + pseudo_queries) * len(self.collection.documents) + len(self.collection.pairs("train"))

    # What methods are made of.

    @cached_property
    def words(self) -> WordSystems:
        """BM25 over the whole texts."""
        return WordSystems(self.collection)

    def cut_words(self, config: Config) -> WordSystems:
        """BM25 over what the encoder reads of the texts."""
        encoder = Encoder.load(config.encoder, device=self.device)
        return WordSystems(self.collection, DocumentTexts(encoder, self.collection.documents)[:])

    def dense(self, config: Config) -> DenseSystems:
        """The encoder of a configuration and its embeddings; its decoder is not trained."""
        tree, encoder = self.tree(config), self._training(config).encoder()
        return DenseSystems(self.collection, encoder, tree.embeddings[tree.positions])

    def index(self, config: Config) -> IndexSystems:
        """The index of a configuration; the last one stays in memory."""
        if self._index is None or self._index[0] != config:
            run = self._training(config)
            run.all_stages()
            retriever = GenerativeRetriever.from_pretrained(run.folder, device=self.device)
            self._index = config, IndexSystems(self.collection, retriever)
        return self._index[1]

    def tree(self, config: Config) -> DocidTree:
        """The docids of a configuration; its decoder is not trained."""
        run = self._training(config)
        run.generate_queries()
        run.train_encoder()
        run.build_docids()
        return run.tree()

    def training(self, config: Config) -> dict[str, float]:
        """Loss, steps and seconds of the decoder's training."""
        record: dict[str, float] = json.loads((self._folder(config) / "generator" / "training.json").read_text())
        return record

    def _folder(self, config: Config) -> Path:
        return self.output / "runs" / digest(dataclasses.asdict(config))[:16]

    def _training(self, config: Config) -> TrainingRun:
        return TrainingRun(self._folder(config), self.collection, config, self.device, store=self.output / "store")

    def _seconds(self, config: Config) -> dict[str, float]:
        return stage_seconds(self._folder(config))

    def _path(self, table: str, row: Row, seed: int) -> Path:
        name = "".join(c if c.isalnum() else "-" for c in row.name.lower()).strip("-")
        return self.output / table / f"{'-'.join(filter(None, name.split('-')))}-seed{seed}.json"

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        return overlap_splits(self.collection.qrels[SPLIT], self.collection.overlap_documents(SPLIT))

    @cached_property
    def _data(self) -> str:
        return collection_digest(self.collection)


Method = Callable[[Laboratory, Config], tuple[Run, Mapping[str, Any]]]


def _searched(lexical: bool, fusion: str) -> Method:
    def method(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
        index = laboratory.index(config)
        settings = index.tuned(fusion, lexical=lexical)
        return index.run(SPLIT, **settings), settings

    return method


def _dense_and_bm25(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    index = laboratory.index(config)
    settings = index.tuned("bound", lexical=True, decoder=False)
    return index.run(SPLIT, **settings), settings


def _post_hoc(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    index = laboratory.index(config)
    return index.post_hoc(SPLIT), {"weight": index.post_hoc_weight}


def _bm25_cut(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    words = laboratory.cut_words(config)
    return words.run(SPLIT), words.settings


def _rrf(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    runs = [laboratory.words.run(SPLIT), laboratory.dense(config).run(SPLIT)]
    return reciprocal_rank_fusion(runs), {"k": 60}


METHODS: dict[str, Method] = {
    "bm25": lambda laboratory, _: (laboratory.words.run(SPLIT), laboratory.words.settings),
    "bm25-cut": _bm25_cut,
    "dense": lambda laboratory, config: (laboratory.dense(config).run(SPLIT), {}),
    "hnsw": lambda laboratory, config: (laboratory.dense(config).run(SPLIT, approximate=True), {}),
    "rrf": _rrf,
    "decoder": lambda laboratory, config: (laboratory.index(config).run(SPLIT, **DECODER_ALONE), DECODER_ALONE),
    "paper": _searched(lexical=False, fusion="paper"),
    "bound": _searched(lexical=False, fusion="bound"),
    "hybrid": _searched(lexical=True, fusion="bound"),
    "dense+bm25": _dense_and_bm25,
    "post-hoc": _post_hoc,
}
"""How a row answers the test queries: {name: function of laboratory and configuration -> run, settings worth knowing}."""


def figure5(laboratory: Laboratory, seed: int) -> str:
    """Hit@1 over alpha and beta of "paper" fusion, DR-SCL+QG, test queries (nothing is chosen by it): table and picture."""
    base = next(row for row in TABLES["table3"] if row.published == "DR-SCL+QG")
    index = laboratory.index(laboratory.config(base, seed))
    temperature = index.tuned("paper").get("ann_temperature", 1.0)
    qrels, values = laboratory.collection.qrels[SPLIT], {}
    for beta in FIGURE_BETAS:
        for alpha in FIGURE_ALPHAS:
            run = index.run(SPLIT, 10, fusion="paper", alpha=alpha, beta=beta, ann_temperature=temperature)
            values[alpha, beta] = 100 * mean(evaluate(run, qrels, ["Hit@1"])["Hit@1"])
    grid_figure(values, "alpha", "beta", "Hit@1, DR-SCL+QG, paper fusion", laboratory.output / "figure5")
    cells = [{"alpha": a, "beta": b, "Hit@1": round(v, 2)} for (a, b), v in values.items()]
    write_json(laboratory.output / "figure5.json", {"seed": seed, "ann_temperature": temperature, "cells": cells})
    text = f"{grid_table(values, 'alpha', 'beta')}\n\nHit@1 in percent, seed {seed}, ann_temperature {temperature:g}."
    write_text(laboratory.output / "figure5.md", text + "\n")
    return text


def objectives(laboratory: Laboratory, seed: int) -> str:
    """Every objective of a docid decoder under one budget of decoder positions, by beam width: tables and pictures."""
    base = laboratory.config(Row("", "decoder"), seed)
    tree, found = laboratory.tree(base), {}
    for name, config in equal_budgets(base, tree).items():
        print(f"objectives, seed {seed}: {name}", flush=True)
        cells = measure_objective(laboratory.index(config), SPLIT)
        training = laboratory.training(config)
        found[name] = {
            "positions an example": round(decoder_positions(tree, config.generator), 1),
            "epochs": round(config.generator.epochs, 2),
            "steps": training["steps"],
            "milliseconds a step": round(1000 * training["seconds"] / training["steps"], 1),
            "training seconds": round(training["seconds"]),
            "cells": cells,
        }
        text = objectives_report(found, laboratory.collection.folder.name, laboratory.output)
    record = {"seed": seed, "hardware": hardware(), "commit": _commit(), "versions": package_versions(), "found": found}
    write_json(laboratory.output / "objectives.json", record)
    return text


FIGURES: dict[str, Callable[[Laboratory, int], str]] = {"figure5": figure5, "objectives": objectives}
"""Experiments with a picture: {name: function of laboratory and seed}."""


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
        found = synthetic(setting, runs, seed)
        texts.append(synthetic_table(found, name, None if setting.one_relevant else PUBLISHED))
        cells += [
            {"setting": name, "objective": objective, "beam": beam, "m": m, "regret": values}
            for objective, own in found.items()
            for (beam, m), values in own.items()
        ]
        write_json(output / "synthetic.json", {"runs": runs, "seed": seed, "hardware": hardware(), "cells": cells})
        write_text(output / "synthetic.md", "\n\n".join(texts) + "\n")
    return "\n\n".join(texts)


WITHOUT_DATA: dict[str, tuple[int, Callable[[Path, int, int], str]]] = {
    "toy": (200, _toy),
    "synthetic": (3, _synthetic),
}
"""Experiments that need no collection: {name: (runs, function of output, runs, seed)}."""


def _commit() -> str:
    """The checkout's commit, "" outside one."""
    folder = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
