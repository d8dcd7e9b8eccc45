"""Work shared by several processes: its division, and the exchange of results. Knows nothing of launchers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, from the view of one of them; by default there is one.

    Work is cut into pieces that do not depend on the number of processes, so any number gives the same result.

    >>> half = Processes(rank=1, count=2, gather=lambda value: [["a", "c"], value])
    >>> half.share(["a", "b", "c"])
    ['b']
    >>> half.collect(["B"])
    ['a', 'B', 'c']
    """

    rank: int = 0  # of this process, from 0
    count: int = 1  # of all processes
    # returns, on every process, the list by rank of the values that processes pass in; waits for all
    gather: Callable[[Any], list[Any]] = field(default=lambda value: [value], repr=False)

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes shared output."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have called it."""
        self.gather(None)

    def first(self, value: T) -> T:
        """Return the value of rank 0 on every process; waits for all."""
        main: T = self.gather(value)[0]
        return main

    def share(self, pieces: Sequence[T]) -> list[T]:
        """Return the pieces that this process works on."""
        return list(pieces[self.rank :: self.count])

    def collect(self, results: Sequence[Any]) -> list[Any]:
        """Return the results of all processes in the order of the pieces, from the results of each process's share."""
        shares = self.gather(list(results))
        total = sum(map(len, shares))
        return [shares[number % self.count][number // self.count] for number in range(total)]

    @property
    def are_remote(self) -> bool:
        """True if others do the work that this process gives to `map`."""
        return False

    def map(self, work: Callable[..., U], pieces: Sequence[T], values: Callable[[T], tuple[Any, ...]]) -> list[U]:
        """Return, in order, what an importable function makes of the arguments that `values` returns for each piece."""
        return self.collect([work(*values(piece)) for piece in self.share(pieces)])

    def merge(self, items: Mapping[str, T], work: Callable[[dict[str, T]], Mapping[str, U]]) -> dict[str, U]:
        """Return {key: result of `work`} in the order of the items; each process works on its share."""
        share = work({key: items[key] for key in self.share(list(items))})
        results = {key: value for part in self.gather(dict(share)) for key, value in part.items()}
        return {key: results[key] for key in items}


ALONE = Processes()


class BuildingCluster(Protocol):
    """A cluster that builds an index, such as `dsi.cluster.cluster.Cluster`."""

    @property
    def processes(self) -> Processes:
        """The processes of a run that gives its work to the cluster."""

    def check(self, folder: Path) -> None:
        """Make a folder, and raise an error unless all machines see it and have our versions."""


@dataclass(frozen=True, eq=False)
class MatrixRows:
    """Some rows of a matrix, for work that another process may do: rows of a mapped file are sent as their numbers."""

    matrix: NDArray[Any]  # [n, dim], perhaps memory-mapped
    rows: Any  # numbers of the rows

    def read(self) -> NDArray[Any]:
        """Return the rows [m, dim] in memory."""
        return np.ascontiguousarray(self.matrix[self.rows])

    def __reduce__(self) -> tuple[Any, ...]:
        mapped: Any = self.matrix
        while mapped is not None and getattr(mapped, "filename", None) is None:
            mapped = getattr(mapped, "base", None)
        matrix = self.matrix
        is_whole = mapped is not None and mapped.shape == matrix.shape and mapped.ctypes.data == matrix.ctypes.data
        if not is_whole or mapped.dtype != matrix.dtype or not matrix.flags.c_contiguous:
            return MatrixRows, (self.read(), slice(None))
        return _map_rows, (Path(mapped.filename), mapped.dtype, mapped.shape, mapped.offset, self.rows)


def _map_rows(path: Path, dtype: Any, shape: tuple[int, int], offset: int, rows: Any) -> MatrixRows:
    return MatrixRows(np.memmap(path, dtype, "r", offset, shape), rows)
