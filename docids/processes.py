"""Work that several processes share: who does what, and how they tell each other. Knows nothing of launchers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, this one among them; by default it is alone.

    What is shared is cut into pieces that do not depend on how many processes there are, so that any number of them gives the
    same result.

    Attributes:
        rank: of this process, from 0.
        count: of all.
        gather: {what each process gives} -> the list of it by rank, on every process; waits for all.
    """

    rank: int = 0
    count: int = 1
    gather: Callable[[Any], list[Any]] = lambda own: [own]

    @property
    def is_main(self) -> bool:
        """Is this the one that writes what all have made?"""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all processes are here."""
        self.gather(None)

    def first(self, own: T) -> T:
        """What the first process gives, on every process; waits for all."""
        given: T = self.gather(own)[0]
        return given

    def share(self, pieces: Sequence[T]) -> list[T]:
        """The pieces that are this process's to do."""
        return list(pieces[self.rank :: self.count])

    def collect(self, own: Sequence[Any]) -> list[Any]:
        """What all processes made of their pieces, in the order of the pieces; `own` is what this one made of its share."""
        parts = self.gather(list(own))
        total = sum(map(len, parts))
        return [parts[number % self.count][number // self.count] for number in range(total)]

    def merge(self, items: Mapping[str, T], work: Callable[[dict[str, T]], Mapping[str, U]]) -> dict[str, U]:
        """{key: what `work` makes of it}, in the items' order: each process works on its share, all get the whole."""
        own = work({key: items[key] for key in self.share(list(items))})
        found = {key: value for part in self.gather(dict(own)) for key, value in part.items()}
        return {key: found[key] for key in items}


ALONE = Processes()
