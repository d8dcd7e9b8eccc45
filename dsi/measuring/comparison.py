"""Compares two runs, of indexes or of files, on the same judgements. Knows nothing of how they were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dsi.docids.types import Qrels, Run
from dsi.eval.measures import evaluate, mean, measures_for
from dsi.eval.protocol import holm, randomisation_test
from dsi.eval.tables import html_table, markdown_table


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side; prints as a table.

    Attributes:
        names: of the two.
        means: {measure: (mean of the first, of the second)}, in percent.
        differences: {measure: second less first, in points}.
        p: {measure: p-value of a paired randomisation test}.
        corrected: {measure: p-value after Holm's correction for the number of measures}.
        queries: how many were compared.
    """

    names: tuple[str, str]
    means: dict[str, tuple[float, float]]
    differences: dict[str, float]
    p: dict[str, float]
    corrected: dict[str, float]
    queries: int

    def __str__(self) -> str:
        return f"{self._table}\n\n{self._below}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return f"{html_table(self._table)}<p>{escape(self._below)}</p>"

    @property
    def _below(self) -> str:
        return (
            f"{self.queries:,} queries; p of paired randomisation tests, corrected for {len(self.differences)} measures by "
            "Holm's method."
        )

    @property
    def _table(self) -> str:
        rows = [
            [
                measure, *(f"{value:.2f}" for value in self.means[measure]), f"{difference:+.2f}", f"{self.p[measure]:.4f}",
                f"{self.corrected[measure]:.4f}",
            ]
            for measure, difference in self.differences.items()
        ]  # fmt: skip
        return markdown_table(["measure", *self.names, "difference", "p", "p, corrected"], rows)


def compare_runs(
    a: Run, b: Run, qrels: Qrels, measures: Sequence[str] = (), names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare two runs by paired randomisation tests over all judged queries; one that a run lacks counts as 0 there.

    >>> print(compare_runs({"q": {"x": 2.0, "y": 1.0}}, {"q": {"y": 1.0}}, {"q": {"y": 1}}, ["RR@10"]))
    | measure | A     | B      | difference | p      | p, corrected |
    | ------- | ----- | ------ | ---------- | ------ | ------------ |
    | RR@10   | 50.00 | 100.00 | +50.00     | 1.0000 | 1.0000       |
    <BLANKLINE>
    1 queries; p of paired randomisation tests, corrected for 1 measures by Holm's method.

    Args:
        a: {query_id: {doc_id: score}}.
        b: the same of the other system.
        qrels: judgements.
        measures: names of measures; by default those that the judgements ask for.
        names: of the two systems.

    Raises:
        ValueError: an unknown measure, no judged query, or a run without one of them.
    """
    measures = measures or measures_for(qrels)
    first, second = evaluate(a, qrels, measures), evaluate(b, qrels, measures)
    tests = {name: randomisation_test(second[name], first[name], rounds=10_000) for name in measures}
    p = {name: own for name, (_, own) in tests.items()}
    return Comparison(
        names,
        {name: (100 * mean(first[name]), 100 * mean(second[name])) for name in measures},
        {name: 100 * difference for name, (difference, _) in tests.items()},
        p,
        dict(zip(p, holm(list(p.values())), strict=True)),
        len(qrels),
    )
