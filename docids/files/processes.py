"""Work shared by several processes: which does what, and how results are exchanged. Knows nothing of launchers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them; by default it is alone.

    Work is cut into pieces that do not depend on the number of processes, so any number gives the same result.

    >>> half = Processes(rank=1, count=2, gather=lambda own: [["a", "c"], own])
    >>> half.share(["a", "b", "c"])
    ['b']
    >>> half.collect(["B"])
    ['a', 'B', 'c']

    Attributes:
        rank: of this process, from 0.
        count: of all processes.
        gather: gives, on every process, the list by rank of what each passes in; waits for all.
    """

    rank: int = 0
    count: int = 1
    gather: Callable[[Any], list[Any]] = lambda own: [own]

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes shared output."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when all processes have called it."""
        self.gather(None)

    def first(self, own: T) -> T:
        """The value of rank 0, on every process; waits for all."""
        given: T = self.gather(own)[0]
        return given

    def share(self, pieces: Sequence[T]) -> list[T]:
        """The pieces that this process works on."""
        return list(pieces[self.rank :: self.count])

    def collect(self, own: Sequence[Any]) -> list[Any]:
        """The results of all processes, in the order of the pieces; `own` holds the results of this one's share."""
        parts = self.gather(list(own))
        total = sum(map(len, parts))
        return [parts[number % self.count][number // self.count] for number in range(total)]

    def merge(self, items: Mapping[str, T], work: Callable[[dict[str, T]], Mapping[str, U]]) -> dict[str, U]:
        """{key: result of `work`}, in the items' order; each process works on its share, all get the whole."""
        own = work({key: items[key] for key in self.share(list(items))})
        found = {key: value for part in self.gather(dict(own)) for key, value in part.items()}
        return {key: found[key] for key in items}


ALONE = Processes()
