"""Workers that each hold one object, and functions that many processes run: a cluster needs no more. Knows nothing of indexes.

`LocalBackend` holds the objects in this process, for trying, and runs functions in processes of joblib; `ray_backend` does both
on the machines of a Ray cluster.
"""

import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self

from threadpoolctl import threadpool_limits

Items = Iterable[tuple[Any, ...]]
"""Arguments of a function, a tuple a call."""


class LostError(RuntimeError):
    """The process that worked on a call died, or cannot be reached."""


class Closes(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """End all that was started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(Protocol):
    """Holds one object, and answers calls in their order; started again with a new object when its process dies."""

    def call(self, method: str, *args: Any) -> "Future[Any]":
        """Return the future result of a method of the object; it raises `LostError` if the process dies meanwhile."""

    def kill(self) -> None:
        """Kill the process, which has hung; it is started again."""

    def stop(self) -> None:
        """End the process for good."""


class Backend(Closes):
    """Runs workers and functions."""

    size: int  # functions that it runs at a time

    @abstractmethod
    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """Return a new worker that holds `make(*args)`; workers with other places begin on other machines where possible."""

    @abstractmethod
    def map(self, function: Callable[..., Any], items: Items, names: Sequence[str] = (), threads: int = 1) -> list[Any]:
        """Return the results of a function of each item's values, in order; the work is done by all processes.

        A result must depend on the item alone: Ray works again on an item whose process dies, three times at most.
        Items are drawn as processes become free; `names` are for messages. LostError if the process of an item died, on
        Ray three times.
        """

    @abstractmethod
    def machines(self, file: str) -> list[tuple[str, str, bool]]:
        """Return (name, versions, whether it sees a file) of each machine."""


class LocalBackend(Backend):
    """Objects in this process, and functions in processes of this machine."""

    def __init__(self, processes: int | None = None) -> None:
        self.size, self._has_processes = processes or os.cpu_count() or 1, False

    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """As in `Backend`."""
        return _LocalWorker(make(*args))

    def map(self, function: Callable[..., Any], items: Items, names: Sequence[str] = (), threads: int = 1) -> list[Any]:
        """As in `Backend`."""
        from joblib import Parallel, delayed  # its processes do not import the program that starts them

        self._has_processes = self.size > 1
        work = (delayed(run)(function, item, threads) for item in items)
        try:
            results: list[Any] = Parallel(self.size, backend="loky", batch_size=1, max_nbytes=None)(work)
        except BrokenExecutor as error:
            raise LostError(f"A process died ({first_line(error)}); run again: finished work is kept.") from None
        return results

    def machines(self, file: str) -> list[tuple[str, str, bool]]:
        """As in `Backend`."""
        return [this_machine(file)]

    def close(self) -> None:
        """End the processes."""
        if self._has_processes:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)
            self._has_processes = False


class _LocalWorker:
    """An object in this process: a call is answered when it returns."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def call(self, method: str, *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self._held, method)(*args))
        except Exception as error:  # passed on to the caller, whatever it is
            future.set_exception(error)
        return future

    def kill(self) -> None:
        """Do nothing: it would end this process."""

    def stop(self) -> None:
        """Do nothing: it has no process to end."""


def run(function: Callable[..., Any], args: tuple[Any, ...], threads: int) -> Any:
    """Return the result of a function, computed on a number of threads: another number changes the last bits of sums."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    with threadpool_limits(threads):
        return function(*args)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def this_machine(file: str) -> tuple[str, str, bool]:
    """Return (name, versions, whether it sees a file) of the machine that this runs on."""
    return f"{platform.node()} (process {os.getpid()})", versions(), Path(file).exists()


def versions() -> str:
    """Return the versions of Python and this package."""
    return f"Python {platform.python_version()} and dr-scl {version('dr-scl')}"
