"""Tables of documents as Arrow, whoever made them, read where they stand. Knows nothing of what columns mean."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from dsi.docids.types import Ints


def as_table(documents: Any) -> pa.Table:
    """Return an Arrow table as it is, and a data set of `datasets` as its table."""
    table: pa.Table = documents if isinstance(documents, pa.Table) else documents.with_format("arrow")[:]
    return table


class Column(Sequence[Any]):
    """A column of a table, whose values are read when they are asked for."""

    def __init__(self, values: pa.ChunkedArray) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: int | slice) -> Any:
        return self._values[at].to_pylist() if isinstance(at, slice) else self._values[at].as_py()

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(len(chunk) for chunk in self._values.chunks)])

    def take(self, rows: Ints) -> list[Any]:
        """Return the values at some rows; Arrow's `take` would first join chunks of long texts."""
        chunks = self._values.chunks
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        places = rows - self._starts[numbers]
        return [chunks[number][place].as_py() for number, place in zip(numbers.tolist(), places.tolist(), strict=True)]
