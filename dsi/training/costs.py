"""What stages cost, in words. Knows nothing of what is computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """What a stage costs.

    Attributes:
        seconds: of wall time.
        memory: bytes of the process's own at most, as `own_memory` counts.
        counts: {what: how many}, such as steps and documents.
    """

    seconds: float
    memory: int
    counts: Mapping[str, int] = field(default_factory=dict)


def in_words(costs: Mapping[str, Cost]) -> str:
    """Return {stage: its cost} as one line."""
    parts = [f"{stage} {_words(cost)}" for stage, cost in costs.items()]
    whole = Cost(sum(cost.seconds for cost in costs.values()), max(cost.memory for cost in costs.values()))
    return "; ".join([*parts, f"in all {_words(whole)}"])


def _words(cost: Cost) -> str:
    counts = ", ".join(
        f"{count:,} {what.removesuffix('s') if count == 1 else what}" for what, count in cost.counts.items()
    )
    return f"{cost.seconds:.0f} s, {cost.memory / 1e9:.1f} GB{counts and f' ({counts})'}"
