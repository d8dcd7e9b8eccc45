"""The replicas of all shards, and how a question gets its answer from them while some are slow, hung or dead.

A question goes to the replica of each shard that has the fewest calls. If it takes longer than 95 % of such calls did, another
replica gets it too, and the first answer counts; so answers may repeat, and belong to the question that they were made for. At
the timeout the answers that are there are returned. A thread probes the replicas: which of them live, and which states of the
index they hold; it has those that lack the served one load it. Knows nothing of the questions.
"""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from dsi.cluster.backends import Backend, Closes, LostError, Worker
from dsi.cluster.shards import GenerationError, Shard
from dsi.search.results import ShardError

logger = logging.getLogger(__name__)

_DEATHS = 2
"""A search in which a shard dies that often fails, so that a query that kills shards does not kill them all."""
_HUNG = 30.0
"""Seconds without an answer to a probe after which a replica that lives is killed, and so started again."""
_SLOWER, _LOAD_TIME = 5.0, 600.0
"""A replica that starts or loads is killed after this many times the time of the slowest, after these seconds at most."""
_PING, _LOST_PING = 1.0, 0.1
"""Seconds between probes of a replica that lives, and of one that does not."""
_POLL = 0.01
"""Seconds between two checks of replicas that somebody waits for."""
_RECENT = 500
"""Calls whose times are kept."""
_ENOUGH = 20
"""Calls whose times decide when to hedge; before, that is a quarter of the timeout."""
_OF_REPLICAS = {
    "queue": "Calls that a replica has not answered.",
    "generation": "Of the index; 0 if the replica is dead.",
    "restarts": "Restarts of a replica.",
}
_OF_SHARDS = {
    "hedges": "Questions that went to a second replica.",
    "timeouts": "Questions without an answer in time.",
    "p50": "Seconds of half of the recent calls.",
    "p95": "Seconds of 95 % of them.",
    "p99": "Seconds of 99 % of them.",
}
"""{field of `ReplicaStatus`: what Prometheus is told of it}."""
_COUNTED = ("restarts", "hedges", "timeouts")


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
        error: the last error.
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


@dataclass(eq=False)
class Replica:
    """A worker that holds a shard."""

    shard: int
    number: int
    worker: Worker
    # {state of the index that it holds: generation}; empty while it does not live
    states: Mapping[str, int] = field(default_factory=dict)
    born: str = ""  # machine, process id, and a mark of the process that no later one has
    calls: int = 0  # questions that it has not answered
    restarts: int = 0
    error: str = ""
    refusal: str = ""  # why it cannot hold the state that is wanted
    probe: str = ""  # the method of the watcher's call that it has not answered, "" without one
    # when that call was made; while it does not live, when it ceased to
    since: float = field(default_factory=time.monotonic)
    due: float = -math.inf  # when it is probed next
    # when the last call was made whose end is known; ends of earlier calls may be those of another process
    heard: float = -math.inf

    @property
    def name(self) -> str:
        """Of the replica, for people."""
        return f"shard {self.shard} replica {self.number}"

    @property
    def is_loading(self) -> bool:
        """Whether it loads an index, which may take long."""
        return self.probe == "load" or not self.states


@dataclass(eq=False)
class HeldState:
    """A state of the index that replicas keep for as long as somebody holds this, and so may search it."""

    name: str


class _Wanted(NamedTuple):
    """The state of the index that replicas are to hold, and from when on."""

    state: str = ""
    since: float = -math.inf


@dataclass
class _Statistics:
    """What is counted of one shard: seconds of recent calls, hedges, timeouts."""

    seconds: "deque[float]" = field(default_factory=lambda: deque(maxlen=_RECENT))
    hedges: int = 0
    timeouts: int = 0

    def quantile(self, share: float) -> float:
        """Return the seconds below which a share of recent calls took; NaN without any."""
        return float(np.quantile(list(self.seconds), share)) if self.seconds else math.nan


@dataclass(eq=False)
class _Question:
    """A question to one shard that has no answer yet."""

    args: tuple[Any, ...]  # of the method of `ShardIndex`
    hedge_at: float = math.inf  # when a second replica gets the call; infinite once it was
    asked: list[Replica] = field(default_factory=list)  # the replicas that have it, or had it
    # {future answer: (replica, when it was asked)} of those that have not answered
    calls: "dict[Future[Any], tuple[Replica, float]]" = field(default_factory=dict)
    deaths: int = 0  # replicas that died with it


class Fleet(Closes):
    """The replicas of the shards of one index.

    `state` is that of the index that is served: the last that all shards were seen to hold.
    """

    def __init__(
        self, backend: Backend, folder: str, shards: int, replicas: int, timeout: float, *, require_all: bool
    ) -> None:
        self.folder, self.timeout, self.require_all = folder, timeout, require_all
        self.partial, self.coverage, self.state, self._wanted = 0, 1.0, "", _Wanted()
        self._held = WeakSet[HeldState]()
        self._slowest = 0.0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.replicas = [
            [
                Replica(shard, number, backend.start(shard + number, Shard, folder, shard, shards))
                for number in range(replicas)
            ]
            for shard in range(shards)
        ]
        self.statistics = [_Statistics() for _ in range(shards)]
        self._times: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._watcher = threading.Thread(target=self._watch, name="cluster watcher", daemon=True)
        self._watcher.start()

    @property
    def all(self) -> list[Replica]:
        """All replicas."""
        return [replica for replicas in self.replicas for replica in replicas]

    @property
    def is_complete(self) -> bool:
        """True if every shard has a replica that lives, and holds the state that is served."""
        return not self._lacking(self.state)

    @property
    def is_closed(self) -> bool:
        """True from the call of `close` on."""
        return self._closed.is_set()

    def _lacking(self, state: str) -> list[list[Replica]]:
        """Return the replicas of each shard of which none holds a state of the index."""
        return [replicas for replicas in self.replicas if not any(state in replica.states for replica in replicas)]

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replica."""
        return [self._status(replica, self.statistics[replica.shard]) for replica in self.all]

    def _status(self, replica: Replica, statistics: _Statistics) -> ReplicaStatus:
        generation = max(replica.states.values(), default=0)
        counts = replica.calls, replica.restarts, statistics.hedges, statistics.timeouts
        p50, p95, p99 = map(statistics.quantile, (0.5, 0.95, 0.99))
        process = replica.born.rpartition(":")[0]
        return ReplicaStatus(replica.shard, replica.number, process, generation, *counts, p50, p95, p99, replica.error)

    def collect(self) -> Iterator[object]:
        """Yield the numbers of all replicas, and of answers that miss shards, as a collector of `prometheus_client` does."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self.status()
        for numbers, labels in ((_OF_REPLICAS, ["shard", "replica"]), (_OF_SHARDS, ["shard"])):
            for name, meaning in numbers.items():
                kind = CounterMetricFamily if name in _COUNTED else GaugeMetricFamily
                family = kind(f"dsi_shard_{name}", meaning, labels=labels)
                for entry in status:
                    if numbers is _OF_REPLICAS or not entry.replica:
                        family.add_metric([str(getattr(entry, label)) for label in labels], getattr(entry, name))
                yield family
        yield CounterMetricFamily("dsi_partial_answers", "Answers that miss shards.", value=self.partial)
        yield GaugeMetricFamily("dsi_coverage", "Share of the documents in the last such answer.", value=self.coverage)

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

        `questions`: {shard: further arguments of a method of `ShardIndex`}; those of one `kind` take about the same
        time. ShardError if a shard died twice meanwhile.
        """
        # 1) After which time a second replica gets the call.
        started, times = time.monotonic(), self._times[method, kind]
        deadline = started + self.timeout
        patience = float(np.quantile(list(times), 0.95)) if len(times) >= _ENOUGH else self.timeout / 4
        # 2) Ask, and take answers, until all are there or it is late.
        waiting, answers = {shard: _Question(args) for shard, args in questions.items()}, dict[int, Any]()
        is_late = False
        while waiting and not is_late:
            self._check_open()
            now = time.monotonic()
            is_late = now >= deadline  # answers may be there although this process had no time to take them
            for shard, question in waiting.items():
                self._send(shard, question, method, state, now, patience)
            _wait(waiting.values(), deadline, now)
            for shard, question in list(waiting.items()):
                if (answer := self._take(question)) is not None:
                    answers[shard], sent = answer
                    del waiting[shard]
                    times.append(time.monotonic() - sent)
                    self.statistics[shard].seconds.append(time.monotonic() - started)
        # 3) Count those that did not answer.
        for shard in waiting:
            self.statistics[shard].timeouts += 1
        return answers

    def _send(self, shard: int, question: _Question, method: str, state: str, now: float, patience: float) -> None:
        """Send a question to a replica that does not have it: if none has it, or once more if the one that has it is slow."""
        if question.calls and now < question.hedge_at:
            return
        holding = [replica for replica in self.replicas[shard] if state in replica.states]
        fresh = [replica for replica in holding if replica not in question.asked]
        if not fresh:
            question.asked = question.asked if question.calls else []  # all were lost; they may be asked when back
            return
        self.statistics[shard].hedges += len(question.calls) > 0
        question.hedge_at = math.inf if question.calls else now + patience
        replica, sent = min(fresh, key=lambda candidate: (candidate.is_loading, candidate.calls)), time.monotonic()
        question.asked.append(replica)
        with self._lock:
            replica.calls += 1
        future = replica.worker.call("answer", method, state, *question.args)
        question.calls[future] = replica, sent
        future.add_done_callback(lambda done: self._answered(replica, sent, done.exception()))

    def _answered(self, replica: Replica, asked: float, error: BaseException | None) -> None:
        with self._lock:
            replica.calls -= 1
        if isinstance(error, LostError):
            self._lost(replica, str(error), asked)
        elif error is not None:
            replica.error = str(error)

    def _take(self, question: _Question) -> tuple[Any, float] | None:
        """Return the answer to a question and when it was asked, if it is there; forget calls that failed in their worker."""
        for future in [future for future in question.calls if future.done()]:
            (replica, sent), error = question.calls.pop(future), future.exception()
            if error is None:
                return future.result(), sent
            if isinstance(error, LostError):
                question.deaths += 1
                if question.deaths >= _DEATHS:
                    raise ShardError(
                        f"Shard {replica.shard} died {question.deaths} times during this search ({error})."
                    )
            elif not isinstance(error, GenerationError):
                raise error
        return None

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
                    self._visit(replica, time.monotonic())
            except Exception:
                logger.exception("watching the shards of %s failed; it goes on", self.folder)

    def _visit(self, replica: Replica, now: float) -> None:
        """Probe a replica if it is time, or kill it if it has not answered for too long."""
        if replica.probe:
            if (seconds := now - replica.since) > (self._load_limit if replica.is_loading else _HUNG):
                logger.warning("%s has hung for %.0f s; it is killed", replica.name, seconds)
                self._slowest = max(self._slowest, seconds * replica.is_loading)  # the next one may be slow indeed
                replica.since = now
                replica.worker.kill()
            return
        loads = self._should_load(replica, now)
        is_due = now >= replica.due or (replica.states and replica.heard < self._wanted.since)
        if not loads and not is_due:
            return
        with self._lock:
            searched = [[held.name for held in self._held]] if loads else []
        replica.probe, wanted = "load" if loads else "status", self._wanted
        if replica.states:
            replica.since = now
        future = replica.worker.call(replica.probe, *searched)
        future.add_done_callback(lambda done: self._probed(replica, now, wanted, done))

    @property
    def _load_limit(self) -> float:
        """Seconds in which a replica should have started, or loaded a state."""
        return min(_LOAD_TIME, max(_HUNG, _SLOWER * self._slowest or _LOAD_TIME))

    def _should_load(self, replica: Replica, now: float) -> bool:
        """Return whether a replica is to load the index on disk: of a shard one after another."""
        state, since = self._wanted
        if not state or not replica.states or state in replica.states or replica.heard < since:
            return False
        if replica.refusal and now < replica.due:
            return False
        peers = [peer for peer in self.replicas[replica.shard] if peer is not replica]
        starting = any(not peer.states and not peer.refusal and now - peer.since < self._load_limit for peer in peers)
        return not starting and not any(peer.probe == "load" for peer in peers)

    def _probed(self, replica: Replica, asked: float, wanted: _Wanted, future: "Future[Any]") -> None:
        method, error, refusal = replica.probe, future.exception(), ""
        if error is None:
            self._lives(replica, asked, *future.result())
            if method == "load" and wanted.state not in replica.states:
                refusal = _other_state(replica, wanted.state)
        elif isinstance(error, LostError):
            self._lost(replica, str(error), asked)
        elif method == "load":  # it goes on with the states that it holds
            refusal = str(error)
        else:
            refusal = str(error) or type(error).__name__
            self._lost(replica, refusal, asked)
        with self._lock:
            if wanted == self._wanted:
                replica.refusal = refusal
            replica.error = refusal or replica.error
            replica.due = asked + (_PING if replica.states or refusal else _LOST_PING)
            replica.probe = ""

    def _lost(self, replica: Replica, message: str, asked: float) -> None:
        """Note that a replica does not live: its process is lost, or cannot load its shard."""
        with self._lock:
            if asked < replica.heard:
                return
            now, was_there, replica.states = time.monotonic(), bool(replica.states), {}
            replica.error, replica.heard = message, now
            if was_there:
                replica.since = replica.due = now
        if was_there and not self.is_closed:
            logger.warning("%s is lost: %s", replica.name, message)

    def _lives(self, replica: Replica, asked: float, born: str, states: Mapping[str, int]) -> None:
        """Note which process a replica is, and the states that it holds."""
        with self._lock:
            if asked < replica.heard or self.is_closed:
                return
            if replica.is_loading:
                self._slowest = max(self._slowest, time.monotonic() - replica.since)
            is_back = born != replica.born and replica.born != ""
            replica.heard, replica.born, replica.states = asked, born, states
            replica.restarts += is_back
        if is_back:
            logger.warning("%s is back (restart %d)", replica.name, replica.restarts)

    # States of the index.

    def hold(self, state: str) -> HeldState:
        """Return what has the replicas keep a state."""
        with self._lock:
            self._held.add(held := HeldState(state))
        return held

    def load(self, state: str) -> None:
        """Serve the state of the index that is on disk: replicas load it while others of the same shard answer.

        Returns as soon as every shard has a replica with that state; the others follow. ShardError if a shard does not
        load it; then the state before is served.
        """
        with self._lock:
            self._wanted = _Wanted(state, time.monotonic())
            for replica in self.all:
                replica.refusal, replica.due = "", -math.inf
        deadline = time.monotonic() + _LOAD_TIME
        try:
            while lacking := self._lacking(state):
                self._check_open()
                refusing = [replicas for replicas in lacking if all(replica.refusal for replica in replicas)]
                if refusing or time.monotonic() > deadline:
                    first = (refusing or lacking)[0][0]
                    problem = first.refusal or ("" if first.states else first.error) or "too slow"
                    raise ShardError(f"Shard {first.shard} of {self.folder} cannot be searched: {problem}")
                time.sleep(_POLL)
            self.state = state
        finally:
            self._wanted = self._wanted._replace(state=self.state)


def _wait(questions: Collection[_Question], deadline: float, now: float) -> None:
    """Return when a question is answered, or has to be sent again, or it is late."""
    futures = [future for question in questions for future in question.calls]
    hedges = [question.hedge_at for question in questions if question.hedge_at > now]
    is_stuck = any(not question.calls or question.hedge_at <= now for question in questions)  # no replica could take it
    until = min([max(deadline, now + _POLL), *hedges, *([now + _POLL] if is_stuck else [])])
    if futures:
        wait(futures, until - now, FIRST_COMPLETED)
    else:
        time.sleep(until - now)


def _other_state(replica: Replica, state: str) -> str:
    """Return why a replica that has loaded the index on disk does not hold a state."""
    held = ", ".join(f"generation {generation} ({other[:8]})" for other, generation in replica.states.items())
    return f"its worker holds {held}, the router needs {state[:8]}; all machines must see one folder under this name."
