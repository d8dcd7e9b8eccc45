"""What a docid decoder should be taught, measured on text: `dsi reproduce objectives`.

One encoder, one tree, one set of train queries and pseudo-queries, and a decoder for each objective, each trained on the same
number of decoder positions (a position with gradient counts as three without). Every decoder is then searched with narrow and
wide beams, alone and fused with the dense scores.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsi.config import Config
from dsi.docids.tree import DocidTree
from dsi.eval.measures import evaluate, mean
from dsi.eval.tables import markdown_table
from dsi.generator.families import FamilyTree
from dsi.measuring.runs import IndexRuns, generator_only
from dsi.search.request import SearchRequest
from dsi_experiments.laboratory import SPLIT, Laboratory, tuned_settings
from dsi_experiments.objectives.rows import ROWS, WARM_START, ObjectiveRow
from dsi_experiments.objectives.tree import BEAM_WIDTH, RANDOM_PATHS
from dsi_experiments.report import save_report
from dsi_experiments.rows import Rows
from dsi_experiments.tables import Row

NAMES = ("ce", "plt", "tdm", "otm", "otm-mix", "man", "otm-bs", "otm-optest", "dtr")
CONTROL = "ce, on as few examples as tdm"
BEAMS = (1, 2, 5, 10, 20, 50)
ANSWERS = 10
LEAST_BATCH = 16

Cell = dict[str, Any]


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Train and measure every objective; tables are written again after each."""
    base = laboratory.config(Row("", "decoder"), seed)
    tree, text = laboratory.tree(base), ""
    for name, config in equal_budgets(base, tree).items():
        laboratory.kept("objectives", name, seed, config, partial(_measure_objective, laboratory, config, tree))
        if laboratory.processes.is_main:
            text = write_report(laboratory.output, seed)
    return text


def _measure_objective(laboratory: Laboratory, config: Config, tree: DocidTree) -> dict[str, Any]:
    """The cost of one objective, and its measures by beam."""
    cells, training = measure(laboratory.index(config), SPLIT), laboratory.training(config)
    return {
        "positions an example": round(decoder_positions(tree, ROWS[config.training.objective]), 1),
        "batch": config.training.batch_size,
        "epochs": round(config.training.epochs, 2),
        "steps": training["steps"],
        "milliseconds a step": round(1000 * training["seconds"] / training["steps"], 1),
        "training seconds": round(training["seconds"]),
        "cells": cells,
    }


def equal_budgets(base: Config, tree: DocidTree) -> dict[str, Config]:
    """{objective: its configuration}, all with one budget of decoder positions.

    `base.training.epochs` are those of the objective with most positions an example; the others get more epochs. A step has
    about as many positions too: `base.training.batch_size` is that of the objective with fewest positions; the others' are
    smaller, but at least `LEAST_BATCH`. With one batch size, the former would make a twentieth of the latter's steps. One row
    more spends less: cross-entropy on the examples and steps of tdm, to tell what an objective teaches from how much it saw.
    """
    positions = {name: decoder_positions(tree, ROWS[name]) for name in NAMES}
    dearest, cheapest = max(positions.values()), min(positions.values())
    budgets = {}
    for name in NAMES:
        batch_size = max(LEAST_BATCH, round(base.training.batch_size * cheapest / positions[name]))
        epochs = base.training.epochs * dearest / positions[name]
        training = dataclasses.replace(base.training, objective=name, epochs=epochs, batch_size=batch_size)
        budgets[name] = dataclasses.replace(base, training=training)
    budgets[CONTROL] = budgets["tdm"].with_changes({"training": {"objective": "ce"}})
    return budgets


def decoder_positions(tree: DocidTree, row: ObjectiveRow, samples: int = 256) -> float:
    """Estimate the decoder positions that an example costs under an objective; one with gradient counts three times."""
    families, rng = FamilyTree(tree, torch.device("cpu")), torch.Generator().manual_seed(0)
    searched = sum(min(BEAM_WIDTH, level.stop - level.start) for level in tree.levels)

    def cost(row: ObjectiveRow) -> float:
        documents = 1 + (RANDOM_PATHS if "random" in row.candidates else 0)
        drawn = torch.randint(tree.num_places, (samples, documents), generator=rng)
        paths = (families.pack(families.above(drawn)).parents >= 0).sum(dim=1).float().mean().item()
        return 3 * paths + (4 * searched if "beam" in row.candidates else 0)

    share = WARM_START if row.needs_warm_start else 0.0
    return share * cost(row.warm_up) + (1 - share) * cost(row)


def _scores(index: IndexRuns, split: str, doc_ids: Mapping[str, str], **changes: Any) -> dict[str, float]:
    """{query_id: score of its document in `doc_ids`}, whether or not a search finds it."""
    own, encoded = index.retriever.snapshot, index.encode(split, index.collection.query_texts(split))
    rows = own.documents.rows_of([doc_ids[query_id] for query_id in encoded.query_ids], "doc_ids")
    request = SearchRequest(1, dataclasses.replace(own.search_config, **changes))
    followed = own.engine.follow_all(encoded, request, np.array(rows)[:, None])
    return dict(zip(encoded.query_ids, followed.scores[:, 0].tolist(), strict=True))


def measure(index: IndexRuns, split: str) -> list[Cell]:
    """Hit@1, Hit@10 and search errors by beam width, decoder alone and fused; a beam below ten gives as many answers.

    A search error is a query whose document was not returned though it scores higher than the last answer.
    """
    qrels = index.collection.qrels[split]
    right = {query_id: max(judged, key=lambda doc_id: judged[doc_id]) for query_id, judged in qrels.items()}
    cells = []
    for system, options in (
        ("decoder alone", generator_only(index.retriever)),
        ("fused", tuned_settings(index, lexical=False)),
    ):
        scores = _scores(index, split, right, **options)
        for beam_width in BEAMS:
            run = index.run(split, min(ANSWERS, beam_width), beam_width=beam_width, **options)
            values = evaluate(run, qrels, ["Hit@1", "Hit@10"])
            errors = [
                right[query_id] not in found and scores[query_id] > min(found.values())
                for query_id, found in run.items()
            ]
            hits = {name: round(100 * mean(own), 2) for name, own in values.items()}
            cells.append(
                {
                    "system": system,
                    "beam": beam_width,
                    **hits,
                    "search errors": round(100 * sum(errors) / len(errors), 2),
                }
            )
    return cells


def write_report(output: Path, seed: int) -> str:
    """Tables of OUTPUT/objectives.json."""
    rows = Rows(output / "objectives.json")
    records = {record["row"]: record for record in rows.records() if record["seed"] == seed}
    if not records:
        raise ValueError(f"{rows.path} has no rows of seed {seed}; `dsi reproduce objectives` measures them.")
    found = {name: records[name]["found"] for name in (*NAMES, CONTROL) if name in records}
    systems, quantities = ("decoder alone", "fused"), ("Hit@1", "Hit@10", "search errors")
    parts = [_table(found, system, quantity) for system in systems for quantity in quantities]
    text = "\n\n".join([*parts, _costs(found)])
    save_report(output, "objectives", text)
    return text


def _table(found: Mapping[str, Mapping[str, Any]], system: str, quantity: str) -> str:
    rows = []
    for name, record in found.items():
        values = {cell["beam"]: cell[quantity] for cell in record["cells"] if cell["system"] == system}
        rows.append([name, *(f"{values[beam]:.2f}" for beam in BEAMS)])
    return markdown_table([f"{system}, {quantity}", *(f"beam {beam}" for beam in BEAMS)], rows)


def _costs(found: Mapping[str, Mapping[str, Any]]) -> str:
    columns = ("positions an example", "batch", "epochs", "steps", "milliseconds a step", "training seconds")
    rows = ([name, *(f"{record[column]:g}" for column in columns)] for name, record in found.items())
    return markdown_table(["cost", *columns], rows)
