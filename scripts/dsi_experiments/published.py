"""Tables of an experiment: means ± deviations over seeds, published numbers, significance.

Knows nothing of how rows are made.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsi.eval.protocol import randomisation_test
from dsi.eval.tables import markdown_table

SPLITS = ("Total", "Overlap", "No Overlap")
MEASURES = ("Hit@1", "Hit@10")

NQ10K = {
    "BM25": ("51.60 / 73.70", "49.39 / 73.84", "52.17 / 73.66"),
    "DPR": ("61.25 / 83.80", "62.71 / 88.13", "60.86 / 82.67"),
    "DSI": ("13.10 / 30.10", "44.06 / 67.79", "5.04 / 20.28"),
    "DSI+QG": ("56.35 / 73.90", "63.92 / 82.08", "54.37 / 71.77"),
    "DR-SCL (beta=0)": ("25.80 / 52.20", "56.17 / 77.23", "17.89 / 45.68"),
    "DR-SCL+QG (beta=0)": ("56.75 / 75.40", "62.95 / 86.19", "55.13 / 72.58"),
    "DR-SCL+QG": ("61.70 / 79.80", "65.85 / 87.89", "59.16 / 77.63"),
    "T5": ("13.10 / 30.10",),
    "Sentence-T5": ("16.90 / 40.75",),
    "+ DPR loss": ("22.95 / 46.00",),
    "+ SCL loss": ("24.00 / 48.30",),
    "docids by Sentence-T5": ("24.00 / 48.30",),
    "docids by the SCL encoder": ("25.80 / 52.20",),
}
"""Hit@1 / Hit@10 of DR-SCL on NQ10k (Wang et al. 2022, Tables 3, 4 and 5): Total, Overlap, No Overlap."""

NQ100K = {
    "BM25": ("35.31 / 59.99", "32.03 / 59.48", "40.41 / 60.77"),
    "DPR": ("53.84 / 79.18", "53.78 / 81.00", "53.94 / 76.33"),
    "DSI": ("33.09 / 50.71", "52.11 / 72.55", "3.47 / 16.69"),
    "DSI+QG": ("51.62 / 72.13", "59.42 / 80.33", "39.48 / 59.36"),
    "DR-SCL (beta=0)": ("37.58 / 57.47", "56.06 / 75.93", "8.79 / 28.71"),
    "DR-SCL+QG (beta=0)": ("52.14 / 73.34", "60.00 / 81.29", "39.90 / 60.96"),
    "DR-SCL+QG": ("53.40 / 77.12", "58.78 / 83.31", "45.00 / 67.48"),
}
"""The same on NQ100k (Table 3)."""

PUBLISHED: Mapping[str, Mapping[str, tuple[str, ...]]] = {"NQ10k": NQ10K, "NQ100k": NQ100K}
OVERLAP = {"NQ10k": 20.65, "NQ100k": 60.89}
"""Percent of the test queries whose document has a train query (Table 2)."""


def published_on(collection: str) -> str:
    """Return the collection of the paper whose numbers stand beside ours.

    >>> published_on("nq100k"), published_on("nq10k"), published_on("squad2k")
    ('NQ100k', 'NQ10k', 'NQ10k')
    """
    return "NQ100k" if "nq100k" in collection.lower() else "NQ10k"


@dataclass(frozen=True)
class Measured:
    """One row of a table under one seed."""

    name: str
    values: dict[str, dict[str, float]]  # {measure: {query_id: value}}
    record: dict[str, Any]  # settings, measures by split, times
    published: str = ""  # key of `NQ10K` and `NQ100K`, "" for none
    stages: tuple[str, ...] = ()  # of its training, whose seconds are in the record


def experiment_table(
    rows: Sequence[Sequence[Measured]],
    sizes: Mapping[str, int],
    reference: str,
    not_run: Sequence[tuple[str, str, str]] = (),
) -> str:
    """Return a Markdown table: per row published numbers if any, means over seeds on three splits, p against a reference.

    Of rows that were trained, it also says for how many epochs, in how many hours, and with which commit. `rows`: the
    seeds of each row; `not_run`: (name, key of the published numbers, reason) of rows that come first and have no
    numbers of ours.
    """
    on = published_on(rows[0][0].record.get("collection", {}).get("name", "")) if rows else "NQ10k"
    against = next((seeds for seeds in rows if seeds[0].name == reference), None)
    compared = bool(not_run) or any(seeds[0].published for seeds in rows)
    columns = ["system", *[f"published, {on}"][:compared], *(f"{split} ({sizes[split]:,})" for split in SPLITS)]
    columns += ["p Hit@1", "p Hit@10"]
    trained = any(seeds[0].stages for seeds in rows)
    columns += ["epochs", "hours", "commit"] if trained else []
    absent = [""] * (len(columns) - 3)
    lines = [[name, *PUBLISHED[on].get(key, ("",))[:1], reason, *absent] for name, key, reason in not_run]
    for seeds in rows:
        published = PUBLISHED[on].get(seeds[0].published, ("",))[0]
        cells = [" / ".join(_mean_and_deviation(seeds, split, measure) for measure in MEASURES) for split in SPLITS]
        tests = [_p_value(seeds, against, measure) for measure in MEASURES]
        lines.append([seeds[0].name, *[published][:compared], *cells, *tests, *(_effort(seeds) if trained else [])])
    num_seeds = max((len(row) for row in rows), default=1)
    note = "one seed" if num_seeds == 1 else f"mean ± standard deviation over {num_seeds} seeds"
    legend = f"Hit@1 / Hit@10 in percent, {note}; p of a paired randomisation test against “{reference}”."
    if trained:
        machines = sorted({row.record["hardware"] for seeds in rows for row in seeds})
        legend += f" Epochs of the generator, hours of all stages; on {' and on '.join(machines)}."
    if compared:
        share = 100 * sizes["Overlap"] / max(sizes["Total"], 1)
        legend += f" Overlap is {share:.2f} % of the queries, {OVERLAP[on]:.2f} % in the paper's {on}."
    return f"{markdown_table(columns, lines)}\n\n{legend}"


def _mean_and_deviation(seeds: Sequence[Measured], split: str, measure: str) -> str:
    values = [row.record["measures"][split][measure] for row in seeds]
    if any(value is None or math.isnan(value) for value in values):  # of no query; JSON has no NaN
        return "—"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def _effort(seeds: Sequence[Measured]) -> list[str]:
    """Return epochs, hours, a mean over the seeds, and commits of a row's training, "" of what there is none."""
    first, commits = seeds[0], sorted({row.record["commit"][:8] for row in seeds})
    if not first.stages:
        return ["", "", ", ".join(commits)]
    spent = [sum(row.record["seconds"].get(stage, 0.0) for stage in row.stages) for row in seeds]
    passes = first.record["config"]["training"]["epochs"]
    epochs = f"{passes:.3g}" if passes and "generator" in first.stages else ""
    return [epochs, f"{statistics.mean(spent) / 3600:.2f}", ", ".join(commits)]


def _p_value(seeds: Sequence[Measured], against: Sequence[Measured] | None, measure: str) -> str:
    if against is None or seeds is against:
        return ""
    a, b = (_over_seeds(rows, measure) for rows in (seeds, against))
    return f"{randomisation_test(a, b, rounds=10_000)[1]:.4f}"


def _over_seeds(seeds: Sequence[Measured], measure: str) -> dict[str, float]:
    return {
        query_id: statistics.mean(row.values[measure][query_id] for row in seeds)
        for query_id in seeds[0].values[measure]
    }


def grid_table(values: Mapping[tuple[float, float], float], columns: str, rows: str) -> str:
    r"""Return a Markdown table of {(column, row): value}.

    >>> print(grid_table({(0.5, 1.0): 61.7, (0.7, 1.0): 61.25}, "alpha", "beta"))
    | beta \ alpha | 0.5   | 0.7   |
    | ------------ | ----- | ----- |
    | 1            | 61.70 | 61.25 |
    """
    first = sorted({column for column, _ in values})
    second = sorted({row for _, row in values})
    lines = [[f"{row:g}", *(f"{values[column, row]:.2f}" for column in first)] for row in second]
    return markdown_table([f"{rows} \\ {columns}", *(f"{column:g}" for column in first)], lines)
