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

PUBLISHED = {
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


@dataclass(frozen=True)
class Measured:
    """One row of a table under one seed.

    Attributes:
        name: of the row.
        values: {measure: {query_id: value}}.
        record: settings, measures by split, times.
        published: key of `PUBLISHED`, "" for none.
    """

    name: str
    values: dict[str, dict[str, float]]
    record: dict[str, Any]
    published: str = ""


def experiment_table(rows: Sequence[Sequence[Measured]], sizes: Mapping[str, int], reference: str) -> str:
    """Return a Markdown table: per row published numbers if any, means over seeds on three splits, p against a reference.

    Args:
        rows: the seeds of each row.
        sizes: queries of each split.
        reference: name of the row to test against, by each query's mean over seeds.
    """
    against = next((seeds for seeds in rows if seeds[0].name == reference), None)
    compared = any(seeds[0].published for seeds in rows)
    columns = ["system", *["published, NQ10k"][:compared], *(f"{split} ({sizes[split]:,})" for split in SPLITS)]
    columns += ["p Hit@1", "p Hit@10"]
    lines = []
    for seeds in rows:
        published = PUBLISHED.get(seeds[0].published, ("",))[0]
        cells = [" / ".join(_mean_and_deviation(seeds, split, measure) for measure in MEASURES) for split in SPLITS]
        tests = [_p_value(seeds, against, measure) for measure in MEASURES]
        lines.append([seeds[0].name, *[published][:compared], *cells, *tests])
    num_seeds = max((len(row) for row in rows), default=1)
    note = "one seed" if num_seeds == 1 else f"mean ± standard deviation over {num_seeds} seeds"
    legend = f"Hit@1 / Hit@10 in percent, {note}; p of a paired randomisation test against “{reference}”."
    return f"{markdown_table(columns, lines)}\n\n{legend}"


def _mean_and_deviation(seeds: Sequence[Measured], split: str, measure: str) -> str:
    values = [row.record["measures"][split][measure] for row in seeds]
    if any(value is None or math.isnan(value) for value in values):  # of no query; JSON has no NaN
        return "—"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


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
