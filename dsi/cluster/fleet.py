"""The replicas of all shards, and how a question gets its answer from them while some are slow, hung or dead.

A question goes to the replica of each shard that has the fewest calls. If it takes longer than 95 % of such calls did, another
replica gets it too, and the first answer counts; so answers may repeat, and belong to the question that they were made for. At
the timeout what is there is returned. A thread watches which replicas live and which state of the index each holds, and tells
those that lack the one to be served to load it. Knows nothing of what is asked.
"""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dsi.cluster.cluster import ReplicaStatus
from dsi.cluster.shards import GenerationError, Shard
from dsi.cluster.workers import Backend, Closes, LostError, StartError, Worker

logger = logging.getLogger(__name__)

_DEATHS = 2
"""A search in which a shard dies that often fails, so that a query that kills shards does not kill them all."""
_HUNG = 30.0
"""Seconds without an answer to a ping after which a replica is killed, and so started again."""
_SLOWER = 5.0
"""A replica that starts or loads is killed after this many times what the slowest took."""
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
_AGAIN = 5.0
"""Seconds after which a replica that could not load a state is told again."""


class ShardError(RuntimeError):
    """A search could not be answered, or not completely where that is required."""


@dataclass(eq=False)
class Replica:
    """A worker that holds a shard: it starts until it first answers, lives until its process is lost, and loads when told.

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
        told: whether it was told to load the index on disk, and has not answered.
        ping: that it has not answered.
        pinged: when it was asked last whether it lives.
        heard: when what we know of it was asked; answers to what was asked before tell of an earlier process.
        since: when that began for which it is waited: a ping, a load, or its start.
        gone: when it last ceased to live.
        kills: how often it was killed because it loaded for too long, since it last began to live.
        again: when it may be told again to load.
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
    told: bool = False
    ping: "Future[Any] | None" = None
    pinged: float = -math.inf
    heard: float = -math.inf
    since: float = field(default_factory=time.monotonic)
    gone: float = field(default_factory=time.monotonic)
    kills: int = 0
    again: float = -math.inf

    @property
    def name(self) -> str:
        """Of the replica, for people."""
        return f"shard {self.shard} replica {self.number}"

    @property
    def loading(self) -> bool:
        """Whether it loads an index, which may take long."""
        return self.told or not self.states


class _Wanted(NamedTuple):
    """The state of the index that replicas are to hold, and from when on."""

    state: str = ""
    since: float = -math.inf


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
    patience: float
    hedge_at: float = math.inf
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

    Attributes:
        state: of the index that is served: the last that all shards were seen to hold.
    """

    def __init__(
        self, backend: Backend, folder: str, shards: int, replicas: int, timeout: float, *, require_all: bool
    ) -> None:
        self.folder, self.timeout, self.require_all = folder, timeout, require_all
        self.partial, self.coverage, self.state = 0, 1.0, ""
        self._wanted, self._slowest = _Wanted(), 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.replicas = [
            [
                Replica(shard, number, backend.start(shard + number, Shard, folder, shard, shards))
                for number in range(replicas)
            ]
            for shard in range(shards)
        ]
        self.statistics = [Statistics() for _ in range(shards)]
        self._times: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        for replica in self.all:
            replica.worker.on_death(partial(self._lost, replica))
        self._watcher = threading.Thread(target=self._watch, name="cluster watcher", daemon=True)
        self._watcher.start()

    @property
    def all(self) -> list[Replica]:
        """All replicas."""
        return [replica for own in self.replicas for replica in own]

    @property
    def is_complete(self) -> bool:
        """True if every shard has a replica that lives, and holds the state that is served."""
        return self.covers(self.state)

    @property
    def is_closed(self) -> bool:
        """True from the call of `close` on."""
        return self._closed.is_set()

    def covers(self, state: str = "") -> bool:
        """Return whether every shard has a replica that holds a state of the index; without one, that lives."""
        return all(any(own.states and (not state or state in own.states) for own in group) for group in self.replicas)

    def living(self, shard: int, state: str) -> list[Replica]:
        """Return the replicas of a shard that hold a state of the index: those that load last, then by their calls."""
        holding = (own for own in self.replicas[shard] if state in own.states)
        return sorted(holding, key=lambda own: (own.loading, own.calls, own.pinged))

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
            with self._lock:
                replica.states = {}

    def _check_open(self) -> None:
        if self.is_closed:
            raise ShardError(f"The shards of {self.folder} were closed.")

    # Asking.

    def ask(self, method: str, state: str, questions: Mapping[int, tuple[Any, ...]], kind: int) -> dict[int, Any]:
        """Return {shard: answer} of the shards that answer within the timeout.

        Args:
            method: of `Shard`.
            state: of the index.
            questions: {shard: further arguments}.
            kind: questions of one kind take about the same time.

        Raises:
            ShardError: a shard died twice meanwhile, or the shards were closed.
        """
        started = time.monotonic()
        deadline, times = started + self.timeout, self._times[method, kind]
        patience = float(np.quantile(list(times), 0.95)) if len(times) >= _ENOUGH else self.timeout / 4
        asked = {shard: _Asked(args, patience) for shard, args in questions.items()}
        futures: dict[Future[Any], tuple[int, Replica, float]] = {}
        answers: dict[int, Any] = {}
        is_late = False
        while asked and not is_late:
            self._check_open()
            now = time.monotonic()
            is_late = now >= deadline  # answers may be there although this process had no time to take them
            for shard, own in asked.items():
                self._send(method, state, shard, own, futures, now)
            hedges = [own.hedge_at for own in asked.values() if own.hedge_at > now]
            idle = any(not own.open or own.hedge_at <= now for own in asked.values())  # nobody could take it
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
        """Send a question to a replica that has it not, if none has it, or once if the one that has it is slow."""
        if own.open and now < own.hedge_at:
            return
        fresh = [replica for replica in self.living(shard, state) if replica not in own.asked]
        if not fresh:
            own.asked = own.asked if own.open else []  # all were lost; they may be asked again when they are back
            return
        self.statistics[shard].hedges += own.open > 0
        own.hedge_at = math.inf if own.open else now + own.patience
        replica = fresh[0]
        own.asked.append(replica)
        own.open += 1
        with self._lock:
            replica.calls += 1
        sent = time.monotonic()
        future = replica.worker.call(method, state, *own.args)
        futures[future] = shard, replica, sent
        future.add_done_callback(lambda done: self._answered(replica, sent, done))

    def _answered(self, replica: Replica, asked: float, future: "Future[Any]") -> None:
        with self._lock:
            replica.calls -= 1
        self._failed(replica, asked, future.exception())

    def _take(self, future: "Future[Any]", replica: Replica, own: _Asked) -> bool:
        """Return whether a call was answered; one that failed on the side of a worker is asked again elsewhere."""
        error = future.exception()
        if error is None:
            return True
        own.open -= 1
        if isinstance(error, GenerationError | StartError):
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

    def _watch(self) -> None:
        while not self._closed.wait(_LOST_PING if self._wanted.state == self.state else _POLL):
            try:
                for replica in self.all:
                    self._ping(replica)
                self._spread()
            except Exception:
                logger.exception("watching the shards of %s failed; it goes on", self.folder)

    def _ping(self, replica: Replica) -> None:
        """Ask a replica whether it lives, or kill it if it did not answer for too long."""
        now = time.monotonic()
        if replica.ping is not None or replica.told:
            if now - replica.since > self._limit(replica):
                logger.warning("%s has hung for %.0f s; it is killed", replica.name, now - replica.since)
                replica.kills, replica.since = replica.kills + replica.loading, now
                replica.worker.kill()
            return
        pause = _PING if replica.states and replica.pinged >= self._wanted.since else _LOST_PING
        if now - replica.pinged >= pause:
            replica.pinged = now
            if replica.states:
                replica.since = now
            future = replica.ping = replica.worker.call("status")
            future.add_done_callback(lambda done: self._pinged(replica, now, done))

    def _limit(self, replica: Replica) -> float:
        """Return the seconds after which a replica that does not answer has hung."""
        if not replica.loading:
            return _HUNG
        return min(_LOAD_TIME, self._load_limit * 2 ** min(replica.kills, 10))  # it may be slow indeed

    @property
    def _load_limit(self) -> float:
        """Seconds in which a replica should have started, or loaded."""
        return min(_LOAD_TIME, max(_HUNG, _SLOWER * self._slowest or _LOAD_TIME))

    def _pinged(self, replica: Replica, asked: float, future: "Future[Any]") -> None:
        replica.ping = None
        if not self._failed(replica, asked, future.exception()):
            self._lives(replica, asked, *future.result())

    def _failed(self, replica: Replica, asked: float, error: BaseException | None) -> bool:
        """Return whether a call failed; note if so that a process is lost, or cannot make its shard."""
        if isinstance(error, LostError):
            self._lost(replica, str(error), asked)
        elif isinstance(error, StartError):
            self._lost(replica, str(error), asked, refusal=str(error))
        elif error is not None:
            replica.error = str(error)
        return error is not None

    def _lost(self, replica: Replica, message: str, asked: float = math.inf, *, refusal: str = "") -> None:
        """Note that a replica does not live: its process is lost, or refuses to load a shard."""
        with self._lock:
            if asked < replica.heard:
                return
            now, was_there, replica.states = time.monotonic(), bool(replica.states), {}
            replica.error, replica.refusal = message, refusal
            replica.heard = replica.since = now
            if was_there:
                replica.gone = now
        if was_there and not self.is_closed:
            logger.warning("%s is lost: %s", replica.name, message)

    def _lives(self, replica: Replica, asked: float, born: str, states: Mapping[str, int]) -> None:
        """Note which process a replica is, and what it holds."""
        with self._lock:
            if asked < replica.heard or self.is_closed:
                return
            if replica.loading:
                self._slowest = max(self._slowest, time.monotonic() - replica.since)
            if not replica.states:
                replica.refusal, replica.kills = "", 0
            is_back = born != replica.born and replica.born != ""
            replica.heard, replica.born, replica.states = asked, born, states
            replica.restarts += is_back
        if is_back:
            logger.warning("%s is back (restart %d)", replica.name, replica.restarts)

    # States of the index.

    def load(self, state: str) -> None:
        """Serve the state of the index that is on disk: replicas load it while others of the same shard answer.

        Returns as soon as every shard has a replica with that state; the others follow.

        Raises:
            ShardError: a shard does not load it, and the state before is served; or the shards were closed.
        """
        self._wanted = _Wanted(state, time.monotonic())
        for replica in self.all:
            replica.refusal, replica.again = "", -math.inf
        try:
            self._wait(state)
            self.state = state
        finally:
            self._wanted = self._wanted._replace(state=self.state)

    def _wait(self, state: str) -> None:
        """Return when every shard has a replica that holds a state of the index."""
        deadline = time.monotonic() + _LOAD_TIME
        while missing := [own for own in self.replicas if not any(state in replica.states for replica in own)]:
            self._check_open()
            refusing = [own for own in missing if all(replica.refusal for replica in own)]
            if refusing or time.monotonic() > deadline:
                first = (refusing or missing)[0][0]
                problem = first.refusal or ("" if first.states else first.error) or "too slow"
                raise ShardError(f"Shard {first.shard} of {self.folder} cannot be searched: {problem}")
            time.sleep(_POLL)

    def _spread(self) -> None:
        """Tell replicas that lack the wanted state to load what is on disk, those of a shard one after another."""
        wanted, now = self._wanted, time.monotonic()
        for own in self.replicas if wanted.state else ():
            lacking = [replica for replica in own if replica.states and wanted.state not in replica.states]
            # One that has just answered does not hang.
            ready = [replica for replica in lacking if replica.heard >= wanted.since and now >= replica.again]
            if ready and not any(self._is_coming(replica, now) for replica in own):
                self._load(ready[0], wanted)

    def _is_coming(self, replica: Replica, now: float) -> bool:
        """Return whether a replica is about to hold what is on disk, so that another of its shard should answer meanwhile."""
        if replica.states:
            return replica.told
        return not replica.refusal and now - replica.gone < self._load_limit

    def _load(self, replica: Replica, wanted: _Wanted) -> None:
        replica.told, replica.since = True, time.monotonic()
        future = replica.worker.call("load")
        future.add_done_callback(partial(self._loaded, replica, replica.since, wanted))

    def _loaded(self, replica: Replica, asked: float, wanted: _Wanted, future: "Future[Any]") -> None:
        error = future.exception()
        if not self._failed(replica, asked, error):
            self._lives(replica, asked, *future.result())
        with self._lock:
            replica.told = False
            if replica.states and asked >= replica.heard and wanted == self._wanted:
                replica.refusal = str(error or self._problem(replica, wanted.state))
                replica.error = replica.refusal or replica.error
                replica.again = time.monotonic() + _AGAIN

    def _problem(self, replica: Replica, state: str) -> str:
        """Return why a replica that has loaded what is on disk does not hold a state, "" if it does."""
        if state in replica.states:
            return ""
        return (
            f"its worker holds generation {max(replica.states.values())} ({', '.join(own[:8] for own in replica.states)}), the "
            f"router needs {state[:8]}; all machines must see one folder under this name."
        )
