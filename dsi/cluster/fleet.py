"""The replicas of all shards, and how a question gets its answer from them while some are slow, hung or dead.

A question goes to the replica of each shard that has the fewest calls. If it takes longer than 95 % of such calls did, another
replica gets it too, and the first answer counts; so answers may repeat, and belong to the question that they were made for. At
the timeout what is there is returned. A thread watches which replicas live and which state of the index each holds. Knows
nothing of what is asked.
"""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsi.cluster.cluster import ReplicaStatus
from dsi.cluster.shards import GenerationError, Shard
from dsi.cluster.workers import Backend, Closes, LostError, Worker

logger = logging.getLogger(__name__)

_DEATHS = 2
"""A search in which a shard dies that often fails, so that a query that kills shards does not kill them all."""
_HUNG = 30.0
"""Seconds without an answer to a ping after which a replica is killed, and so started again."""
_PING, _LOST_PING = 1.0, 0.1
"""Seconds between pings of a replica that lives, and of one that does not."""
_POLL = 0.01
"""Seconds after which it is looked again for a replica that lives."""
_RECENT = 500
"""Calls whose times are kept."""
_ENOUGH = 20
"""Calls whose times tell when to hedge; before, that is a quarter of the timeout."""
_LOAD_TIME = 600.0
"""Seconds until a state of the index must be loaded."""


class ShardError(RuntimeError):
    """A search could not be answered, or not completely where that is required."""


@dataclass(eq=False)
class Replica:
    """A worker that holds a shard.

    Attributes:
        shard: its number.
        number: of the replica.
        worker: the process.
        states: {state of the index that it holds: generation}; empty while it does not live.
        born: machine, process id, and what tells the process from a later one with that id.
        calls: that it has not answered.
        restarts: how often it was started again.
        error: the last thing that went wrong.
        refusal: why it cannot load the index on disk.
        loading: whether it loads an index, which may take long.
    """

    shard: int
    number: int
    worker: Worker
    states: Mapping[str, int] = field(default_factory=dict)
    born: str = ""
    calls: int = 0
    restarts: int = 0
    error: str = ""
    refusal: str = ""
    loading: bool = True
    pinged: float = -math.inf
    ping: "Future[Any] | None" = None

    @property
    def name(self) -> str:
        """Of the replica, for people."""
        return f"shard {self.shard} replica {self.number}"


@dataclass
class Statistics:
    """What is counted of one shard: seconds of recent calls, hedges, timeouts."""

    seconds: "deque[float]" = field(default_factory=lambda: deque(maxlen=_RECENT))
    hedges: int = 0
    timeouts: int = 0

    def quantile(self, share: float) -> float:
        """Return the seconds below which a share of recent calls took; NaN without any."""
        return float(np.quantile(list(self.seconds), share)) if self.seconds else math.nan


@dataclass(eq=False)
class _Asked:
    """A question to one shard that has no answer yet."""

    args: tuple[Any, ...]
    hedge_at: float
    asked: list[Replica] = field(default_factory=list)
    open: int = 0
    deaths: int = 0


class Fleet(Closes):
    """The replicas of the shards of one index.

    Args:
        backend: starts their workers.
        folder: of the index.
        shards: how many.
        replicas: of each.
        timeout: seconds in which a question is answered.
        require_all: whether a search fails if a shard does not answer.
    """

    def __init__(
        self, backend: Backend, folder: str, shards: int, replicas: int, timeout: float, *, require_all: bool
    ) -> None:
        self.folder, self.timeout, self.require_all = folder, timeout, require_all
        self.partial, self.coverage = 0, 1.0
        self.replicas = [
            [
                Replica(shard, number, backend.start(shard + number, Shard, folder, shard, shards))
                for number in range(replicas)
            ]
            for shard in range(shards)
        ]
        self.statistics = [Statistics() for _ in range(shards)]
        self._times: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cluster watcher", daemon=True)
        self._watcher.start()

    @property
    def all(self) -> list[Replica]:
        """All replicas."""
        return [replica for own in self.replicas for replica in own]

    @property
    def is_complete(self) -> bool:
        """True if every shard has a replica that lives."""
        return all(any(replica.states for replica in own) for own in self.replicas)

    def living(self, shard: int, state: str) -> list[Replica]:
        """Return the replicas of a shard that hold a state of the index, those with the fewest calls first."""
        return sorted(
            (own for own in self.replicas[shard] if state in own.states), key=lambda own: (own.calls, own.pinged)
        )

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replica."""
        return [self._status(replica, self.statistics[replica.shard]) for replica in self.all]

    def _status(self, replica: Replica, own: Statistics) -> ReplicaStatus:
        generation = max(replica.states.values(), default=0)
        p50, p95, p99 = map(own.quantile, (0.5, 0.95, 0.99))
        counts = replica.calls, replica.restarts, own.hedges, own.timeouts
        process = replica.born.rpartition(":")[0]
        return ReplicaStatus(replica.shard, replica.number, process, generation, *counts, p50, p95, p99, replica.error)

    def close(self) -> None:
        """End all workers."""
        self._closed.set()
        self._watcher.join()
        for replica in self.all:
            replica.worker.stop()

    # Asking.

    def ask(self, method: str, state: str, questions: Mapping[int, tuple[Any, ...]], kind: int) -> dict[int, Any]:
        """Return {shard: answer} of the shards that answer within the timeout.

        Args:
            method: of `Shard`.
            state: of the index.
            questions: {shard: further arguments}.
            kind: questions of one kind take about the same time.

        Raises:
            ShardError: a shard died twice meanwhile.
        """
        started = time.monotonic()
        deadline, times = started + self.timeout, self._times[method, kind]
        patience = float(np.quantile(list(times), 0.95)) if len(times) >= _ENOUGH else self.timeout / 4
        asked = {shard: _Asked(args, started + patience) for shard, args in questions.items()}
        futures: dict[Future[Any], tuple[int, Replica, float]] = {}
        answers: dict[int, Any] = {}
        is_late = False
        while asked and not is_late:
            now = time.monotonic()
            is_late = now >= deadline  # answers may be there although this process had no time to take them
            for shard, own in asked.items():
                self._send(method, state, shard, own, futures, now)
            hedges = [own.hedge_at for own in asked.values() if own.hedge_at > now]
            idle = any(not own.open for own in asked.values())
            until = min([max(deadline, now + _POLL), *hedges, *([now + _POLL] if idle else [])])
            if not futures:
                time.sleep(until - now)
            for future in wait(futures, until - now, FIRST_COMPLETED).done:
                shard, replica, sent = futures.pop(future)
                if shard not in asked:
                    continue
                if self._take(future, replica, asked[shard]):
                    answers[shard] = future.result()
                    del asked[shard]
                    times.append(time.monotonic() - sent)
                    self.statistics[shard].seconds.append(time.monotonic() - started)
        for shard in asked:
            self.statistics[shard].timeouts += 1
        return answers

    def _send(
        self,
        method: str,
        state: str,
        shard: int,
        own: _Asked,
        futures: "dict[Future[Any], tuple[int, Replica, float]]",
        now: float,
    ) -> None:
        """Send a question to a replica that has it not, if none has it, or if the one that has it is slow."""
        is_late = now >= own.hedge_at
        if own.open and not is_late:
            return
        if is_late:
            own.hedge_at = math.inf  # one hedge a question
        fresh = [replica for replica in self.living(shard, state) if replica not in own.asked]
        if not fresh:
            own.asked = own.asked if own.open else []  # all were lost; they may be asked again when they are back
            return
        if own.open:
            self.statistics[shard].hedges += 1
        replica = fresh[0]
        own.asked.append(replica)
        own.open += 1
        with self._lock:
            replica.calls += 1
        future = replica.worker.call(method, state, *own.args)
        futures[future] = shard, replica, now
        future.add_done_callback(lambda done: self._answered(replica, done))

    def _answered(self, replica: Replica, future: "Future[Any]") -> None:
        with self._lock:
            replica.calls -= 1
        if isinstance(future.exception(), LostError):
            self._lost(replica, str(future.exception()))

    def _take(self, future: "Future[Any]", replica: Replica, own: _Asked) -> bool:
        """Return whether a call was answered; one that failed on the side of a worker is asked again elsewhere."""
        error = future.exception()
        if error is None:
            return True
        own.open -= 1
        if isinstance(error, GenerationError):
            replica.error = str(error)
            return False
        if not isinstance(error, LostError):
            raise error
        own.deaths += 1
        if own.deaths >= _DEATHS:
            raise ShardError(f"Shard {replica.shard} died {own.deaths} times during this search ({error}).")
        return False

    def count_partial(self, answers: int, coverage: float, missing: Sequence[int]) -> None:
        """Count answers that miss shards."""
        with self._lock:
            self.partial += answers
            self.coverage = coverage
        names = ", ".join(map(str, missing))
        logger.warning("%d partial answers (%.1f %% of the documents): no shard %s", answers, 100 * coverage, names)

    # Watching.

    def _lost(self, replica: Replica, message: str) -> None:
        with self._lock:
            was_there, replica.states, replica.pinged, replica.error = bool(replica.states), {}, 0.0, message
            replica.loading = True
        if was_there and not self._closed.is_set():
            logger.warning("%s is lost: %s", replica.name, message)

    def _watch(self) -> None:
        while not self._closed.wait(_LOST_PING):
            for replica in self.all:
                self._ping(replica)

    def _ping(self, replica: Replica) -> None:
        now = time.monotonic()
        if replica.ping is not None:
            if now - replica.pinged > _HUNG and not replica.loading:
                logger.warning("%s has hung for %.0f s; it is killed", replica.name, now - replica.pinged)
                replica.pinged = now
                replica.worker.kill()
            return
        if now - replica.pinged >= (_PING if replica.states else 0.0):
            replica.pinged = now
            future = replica.ping = replica.worker.call("status")
            future.add_done_callback(lambda done: self._pinged(replica, done))

    def _pinged(self, replica: Replica, future: "Future[Any]") -> None:
        replica.ping = None
        error = future.exception()
        if error is None:
            self._lives(replica, *future.result())
        elif isinstance(error, LostError):
            self._lost(replica, str(error))
        else:  # it lives, and cannot load the index
            replica.error = replica.refusal = str(error)

    def _lives(self, replica: Replica, born: str, states: Mapping[str, int]) -> None:
        with self._lock:
            is_new, is_first = born != replica.born, not replica.born
            replica.born, replica.states, replica.loading, replica.refusal = born, states, False, ""
            replica.restarts += is_new and not is_first
        if is_new and not is_first:
            logger.warning("%s is back (restart %d)", replica.name, replica.restarts)

    # States of the index.

    def load(self, state: str) -> None:
        """Make all replicas load the state of the index that is on disk, in waves: others of the same shard answer meanwhile.

        Returns as soon as every shard has a replica with that state.

        Raises:
            ShardError: a shard does not load it.
        """
        deadline = time.monotonic() + _LOAD_TIME
        for wave in zip(*self.replicas, strict=True):
            self._load([replica for replica in wave if state not in replica.states], deadline)
        self.wait_for(state)

    def _load(self, wave: Sequence[Replica], deadline: float) -> None:
        for replica in wave:
            replica.loading = True
        futures = {replica.worker.call("load"): replica for replica in wave}
        wait(futures, max(0.0, deadline - time.monotonic()))
        for future, replica in futures.items():
            replica.loading = False
            if future.done() and future.exception() is None:
                self._lives(replica, *future.result())
            elif future.done():
                replica.error = str(future.exception())
                if not isinstance(future.exception(), LostError):
                    replica.refusal = replica.error

    def wait_for(self, state: str) -> None:
        """Return when every shard has a replica that holds a state of the index.

        Raises:
            ShardError: a shard cannot load it, or has not done so in time.
        """
        deadline = time.monotonic() + _LOAD_TIME
        while missing := [shard for shard in range(len(self.replicas)) if not self.living(shard, state)]:
            problems = [self._problem(replica, state) for replica in self.replicas[missing[0]]]
            if all(problems) or time.monotonic() > deadline:
                raise ShardError(f"Shard {missing[0]} of {self.folder} cannot be searched: {problems[0] or 'too slow'}")
            time.sleep(_POLL)

    def _problem(self, replica: Replica, state: str) -> str:
        """Return why a replica will not hold a state, "" if it may soon."""
        if replica.refusal or not replica.states:
            return replica.refusal
        return (
            f"its worker holds generation {max(replica.states.values())} ({', '.join(own[:8] for own in replica.states)}), the "
            f"router needs {state[:8]}; all machines must see one folder under this name."
        )
