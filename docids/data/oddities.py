"""Counts what is odd in a collection but read all the same, and says so in one line a kind. Knows nothing of what is read."""

import logging
from collections.abc import Iterable

logger = logging.getLogger(__name__)


class Oddities:
    """The odd things of a source, counted by kind.

    >>> odd = Oddities("corpus.jsonl")
    >>> for doc_id in ("a", "b"):
    ...     odd.count("empty documents; no query finds them", doc_id)
    >>> odd.lines()
    ["corpus.jsonl: empty documents: 2, the first 'a'; no query finds them."]

    Args:
        source: the file or argument that is read, for the lines.
    """

    def __init__(self, source: object) -> None:
        self.source = source
        self._found: dict[str, tuple[int, str]] = {}

    def count(self, kind: str, first: object) -> None:
        """Count one thing of a kind, "what it is; what follows"; `first` is shown of the first one."""
        number, example = self._found.get(kind) or (0, f"{first!r:.99}")
        self._found[kind] = number + 1, example

    def number(self, kind: str) -> int:
        """Return how many things of a kind were counted."""
        return self._found[kind][0] if kind in self._found else 0

    def lines(self) -> list[str]:
        """Return a line for each kind."""
        parts = ((*kind.split("; ", 1), number, first) for kind, (number, first) in self._found.items())
        return [f"{self.source}: {what}: {number:,}, the first {first}; {then}." for what, then, number, first in parts]

    def warn(self) -> None:
        """Log a warning for each kind."""
        warn_all(self.lines())


def warn_all(lines: Iterable[str]) -> None:
    """Log lines as warnings."""
    for line in lines:
        logger.warning("%s", line)
