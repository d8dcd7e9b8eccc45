"""Compares two runs, of indexes or of files, on the same judgements. Knows nothing of how they were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsi.docids.data.judgements import by_query
from dsi.docids.files.checks import counted
from dsi.docids.types import Qrels, Run
from dsi.eval.measures import checked_values, evaluate, mean, measures_for
from dsi.eval.protocol import paired_differences, paired_tests, within
from dsi.eval.tables import markdown_table


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side; prints as a table."""

    names: tuple[str, str]
    means: dict[str, tuple[float, float]]  # {measure: (mean of the first, of the second)}, in percent
    tests: dict[str, tuple[float, float]]  # {measure: (second minus first, in points, p)}, p corrected for their number
    queries: int
    halves: dict[str, str]  # {measure: half of the difference's 95 % interval, as " ± 0.50"}
    note: str = ""  # about a run that has too few answers for a measure

    def __str__(self) -> str:
        rows = [
            [
                measure,
                *(f"{value:.2f}" for value in self.means[measure]),
                f"{difference:+.2f}{self.halves[measure]}",
                f"{p:.4f}",
            ]
            for measure, (difference, p) in self.tests.items()
        ]
        return (
            f"{markdown_table(['measure', *self.names, 'difference', 'p'], rows)}\n\n"
            f"{counted(self.queries, 'query')}; second minus first, with 95 % intervals; p of paired randomisation tests, "
            f"Holm-corrected for {counted(len(self.tests), 'measure')}.{self.note}"
        )

    __repr__ = __str__


def compare_runs(
    a: Run, b: Run, qrels: Qrels, measures: Sequence[str] = (), names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare two runs by paired randomisation tests over all judged queries; one that a run lacks counts as 0 there.

    >>> print(compare_runs({"q": {"x": 2.0, "y": 1.0}}, {"q": {"y": 1.0}}, {"q": {"y": 1}}, ["RR@10"]))
    | measure | A     | B      | difference | p      |
    | ------- | ----- | ------ | ---------- | ------ |
    | RR@10   | 50.00 | 100.00 | +50.00     | 1.0000 |
    <BLANKLINE>
    1 query; second minus first, with 95 % intervals; p of paired randomisation tests, Holm-corrected for 1 measure.

    By default the measures are those that the judgements ask for.
    """
    qrels = checked_values(qrels, "grade", finite=True)
    measures = measures or measures_for(qrels)
    a, b = by_query(a, "A"), by_query(b, "B")
    first, second = evaluate(a, qrels, measures), evaluate(b, qrels, measures)
    means = {name: (100 * mean(first[name]), 100 * mean(second[name])) for name in measures}
    halves = {name: within(paired_differences(second[name], first[name]).tolist(), 2) for name in measures}
    tests = paired_tests(second, {"first": first}, measures)["first"]
    return Comparison(
        names, means, tests, len(qrels), halves, _lacking(dict(zip(names, (a, b), strict=True)), qrels, measures)
    )


def _lacking(runs: Mapping[str, Run], qrels: Qrels, measures: Sequence[str]) -> str:
    """Return a sentence if a run lacks queries, or ends before the rank that a measure needs though relevant ones follow."""
    for name, run in runs.items():
        if unanswered := sum(not run.get(query_id) for query_id in qrels):
            return f" {name} has no answers to {unanswered:,} of the {len(qrels):,} queries, which count as 0."
    most = max((int(name.partition("@")[2]) for name in measures if "@" in name), default=0)
    for name, run in runs.items():
        depth = max(map(len, run.values()), default=0)
        if depth < most and mean(evaluate(run, qrels, [f"Recall@{most}"])[f"Recall@{most}"]) < 1:
            return f" {name} has at most {counted(depth, 'document')} a query, so its measures @{most} are too low."
    return ""
