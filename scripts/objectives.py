"""What a docid decoder should be taught, measured on text: `dsi reproduce objectives`.

One encoder, one tree, one set of train queries and pseudo-queries; a decoder an objective, each trained with the same budget of
decoder positions (a position with gradient counts three times one without). Then every decoder is searched with narrow and
wide beams, alone and fused with the dense scores.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docids.storage import write_text
from docids.tree import DocidTree
from dsi.config import Config
from dsi.training.objective import decoder_positions
from eval.figures import lines_figure
from eval.measures import evaluate, mean
from eval.report import markdown_table
from scripts.systems import DECODER_ALONE, IndexSystems

NAMES = ("ce", "plt", "tdm", "otm", "otm-mix", "man", "otm-bs", "otm-optest")
CONTROL = "ce, on as few examples as tdm"
BEAMS = (1, 2, 5, 10, 20, 50)
ANSWERS = 10
LEAST_BATCH = 16

Cell = dict[str, Any]


def equal_budgets(base: Config, tree: DocidTree) -> dict[str, Config]:
    """The configuration of each objective: `base.generator.epochs` are those of the dearest, the others get more.

    A step has about as many positions too: `base.generator.batch_size` is that of the cheapest, the others' are smaller, but
    at least `LEAST_BATCH`. With one batch size the dearest would make a twentieth of the cheapest's steps. One row more spends
    less: cross-entropy on the examples and steps of tdm, to tell what an objective teaches from how much it has seen.
    """
    generators = {name: dataclasses.replace(base.generator, objective=name) for name in NAMES}
    positions = {name: decoder_positions(tree, config) for name, config in generators.items()}
    dearest, cheapest = max(positions.values()), min(positions.values())
    budgets = {}
    for name, config in generators.items():
        batch_size = max(LEAST_BATCH, round(config.batch_size * cheapest / positions[name]))
        epochs = config.epochs * dearest / positions[name]
        budgets[name] = dataclasses.replace(
            base, generator=dataclasses.replace(config, epochs=epochs, batch_size=batch_size)
        )
    few = budgets["tdm"].generator
    budgets[CONTROL] = dataclasses.replace(base, generator=dataclasses.replace(few, objective="ce"))
    return budgets


def measure(index: IndexSystems, split: str) -> list[Cell]:
    """Hit@1, Hit@10 and search errors by beam, decoder alone and fused; with a beam below ten, of that many answers.

    A search error is a query whose document was not returned though it scores higher than the last answer.
    """
    qrels = index.collection.qrels[split]
    right = {query_id: max(judged, key=lambda doc_id: judged[doc_id]) for query_id, judged in qrels.items()}
    cells = []
    for system, settings in (("decoder alone", DECODER_ALONE), ("fused", index.tuned("bound"))):
        scores = index.scores(split, right, **settings)
        for beam_width in BEAMS:
            run = index.run(split, min(ANSWERS, beam_width), beam_width=beam_width, **settings)
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


def write_report(found: Mapping[str, Mapping[str, Any]], title: str, output: Path) -> str:
    """Markdown tables and figures of {objective: record with cells}."""
    systems, quantities = ("decoder alone", "fused"), ("Hit@1", "Hit@10", "search errors")
    parts = [_table(found, system, quantity) for system in systems for quantity in quantities]
    text = "\n\n".join([*parts, _costs(found)])
    write_text(output / "objectives.md", text + "\n")
    for system in systems:
        series = {
            name: {cell["beam"]: cell["Hit@1"] for cell in record["cells"] if cell["system"] == system}
            for name, record in found.items()
        }
        path = output / f"objectives-{system.replace(' ', '-')}"
        lines_figure(series, "beam width", "Hit@1", f"{title}, {system}", path)
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
