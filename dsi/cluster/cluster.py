"""A cluster: where work is done by several processes, on this machine or on those of a Ray cluster.

Its workers run functions over a shared folder, block by block, and its fleets serve indexes. Knows nothing of either.
"""

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from dsi.cluster.workers import Backend, Closes, LocalBackend, LostError, Runner, Worker
from dsi.docids.files.checks import plain
from dsi.docids.files.processes import Processes

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")
_ATTEMPTS = 3
"""How often a block is tried whose worker dies."""
_RESTART, _PAUSE = 60.0, 0.1
"""Seconds in which a worker must be there again, and between two questions whether it is."""


class ReplicaStatus(NamedTuple):
    """One replica of one shard.

    Attributes:
        shard: its number.
        replica: its number.
        process: its machine and process id; "" before it was there.
        generation: of the index that it serves; 0 while it does not live.
        queue: calls that it has not answered.
        restarts: how often it was started again.
        hedges: how often another replica of the shard was asked too.
        timeouts: how often the shard did not answer in time.
        p50: seconds of half of the shard's recent calls; NaN before the first.
        p95: seconds of 95 % of them.
        p99: seconds of 99 % of them.
        error: the last thing that went wrong.
    """

    shard: int
    replica: int
    process: str
    generation: int
    queue: int
    restarts: int
    hedges: int
    timeouts: int
    p50: float
    p95: float
    p99: float
    error: str


class Served(Protocol):
    """The replicas of an index that a cluster serves."""

    @property
    def is_closed(self) -> bool:
        """True when they were ended."""

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replica."""

    def close(self) -> None:
        """End all of them."""


class Cluster(Closes):
    """Processes that work together.

    Example:
        >>> cluster = dsi.Cluster("local", processes=2)
        >>> dsi.train(collection, "RUN", cluster=cluster)

    Args:
        address: "local" for processes on this machine; else a Ray cluster, as `ray.init` takes it: "auto" inside one,
            "HOST:PORT", or "ray://HOST:PORT".
        processes: tasks that run at a time; by default one per core of the cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: there is no such cluster.
        ValueError: it runs another version of Python or Ray, or `processes` is below 1.
    """

    def __init__(self, address: str = "local", *, processes: int | None = None) -> None:
        if processes is not None and plain(int, processes, "processes") < 1:
            raise ValueError(f"processes must be at least 1, got {processes}.")
        self.address, self._fleets = plain(str, address, "address"), list[Served]()
        self._runners: list[Worker] = []
        self.backend: Backend
        if address == "local":
            self.backend = LocalBackend(processes)
        else:
            from dsi.cluster.ray_backend import RayBackend

            self.backend = RayBackend(address, processes)

    def __repr__(self) -> str:
        return f"Cluster({self.address!r}, processes={self.backend.size})"

    @property
    def fleets(self) -> list[Served]:
        """The indexes that it serves; to be appended to, and without those that were closed."""
        for fleet in [*self._fleets]:
            if fleet.is_closed:
                with suppress(ValueError):  # another thread has removed it
                    self._fleets.remove(fleet)
        return self._fleets

    def close(self) -> None:
        """End all processes that this cluster has started."""
        for fleet in [*self.fleets]:
            fleet.close()
        for runner in self._runners:
            runner.stop()
        self._runners = []
        self.backend.close()

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replica that serves an index."""
        return [status for fleet in [*self.fleets] for status in fleet.status()]

    @property
    def processes(self) -> Processes:
        """The cluster as what builds an index: this process gives the work away."""
        return _Workers(cluster=self)

    def map(
        self,
        function: Callable[..., Any],
        items: Iterable[tuple[Any, ...]],
        *,
        names: Sequence[str] = (),
        threads: int = 1,
    ) -> list[Any]:
        """Return the results of a function of each item's values, in order; the work is done by all processes.

        A result must depend on the item alone: an item whose worker dies is done again, three times at most.

        Args:
            function: importable by workers.
            items: the arguments of each call; drawn as workers become free.
            names: of the items, for messages.
            threads: that each call computes on.

        Raises:
            LostError: the worker of an item died three times.
        """
        if not self._runners:
            self._runners = [self.backend.start(place, Runner) for place in range(self.backend.size)]
        queue, results, attempts = enumerate(items), dict[int, Any](), dict[int, int]()
        again: list[tuple[int, tuple[Any, ...]]] = []
        idle, running = list(self._runners), dict[Future[Any], tuple[int, tuple[Any, ...], Worker]]()
        while True:
            while idle and (item := again.pop() if again else next(queue, None)) is not None:
                worker = idle.pop()
                running[worker.call("run", function, item[1], threads)] = *item, worker
            if not running:
                return [results[number] for number in range(len(results))]
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number, item_of_call, worker = running.pop(future)
                error = future.exception()
                if error is None:
                    results[number] = future.result()
                    idle.append(worker)
                    continue
                if not isinstance(error, LostError):
                    raise error
                attempts[number] = attempts.get(number, 0) + 1
                name = names[number] if names else f"item {number}"
                if attempts[number] == _ATTEMPTS:
                    raise LostError(f"{name} was given up: its worker died {_ATTEMPTS} times ({error}).")
                logger.warning("the worker of %s is lost (%s); it is done again", name, error)
                again.append((number, item_of_call))
                self._await(worker)
                idle.append(worker)

    def _await(self, worker: Worker) -> None:
        """Return when a worker that died is there again.

        Raises:
            LostError: it does not come back.
        """
        deadline = time.monotonic() + _RESTART
        while True:
            try:
                error = worker.call("run", os.getpid, (), 1).exception(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise LostError(f"A worker that died was not back after {_RESTART:.0f} s.") from None
            if error is None:
                return
            if not isinstance(error, LostError) or time.monotonic() > deadline:
                raise error
            time.sleep(_PAUSE)

    def check(self, folder: Path) -> None:
        """Raise unless all machines see a folder and have our versions.

        Raises:
            FileNotFoundError: a machine does not see the folder.
            ValueError: a machine has other versions.
        """
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        seen = folder / f".cluster-{uuid4().hex}"
        seen.touch()
        workers = [self.backend.start(place, Runner) for place in range(len(self.backend.nodes))]
        try:
            answers = [worker.call("run", _about, (str(seen),), 1) for worker in workers]
            for answer in answers:
                name, versions, sees = answer.result()
                if versions != _versions():
                    raise ValueError(
                        f"The machine {name} has {versions}, this one has {_versions()}; install the same."
                    )
                if not sees:
                    raise FileNotFoundError(
                        f"The machine {name} does not see {folder}; put it on a folder that all machines share."
                    )
        finally:
            seen.unlink(missing_ok=True)
            for worker in workers:
                worker.stop()


@dataclass(frozen=True, kw_only=True)
class _Workers(Processes):
    """One process that has its work done by a cluster.

    Attributes:
        cluster: does it.
    """

    cluster: Cluster

    @property
    def are_remote(self) -> bool:
        """As in `Processes`."""
        return True

    def map(self, work: Callable[..., U], pieces: Sequence[T], values: Callable[[T], tuple[Any, ...]]) -> list[U]:
        """As in `Processes`."""
        names = [f"{work.__name__.strip('_')} {piece}" for piece in pieces]
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else 1
        return self.cluster.map(work, map(values, pieces), names=names, threads=threads)


def _versions() -> str:
    return f"Python {platform.python_version()} and dr-scl {version('dr-scl')}"


def _about(file: str) -> tuple[str, str, bool]:
    """Return name and versions of the machine that this runs on, and whether it sees a file."""
    return f"{platform.node()} (process {os.getpid()})", _versions(), Path(file).exists()
