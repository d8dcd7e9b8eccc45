"""What a fleet does when processes die, hang, refuse or do not start, with workers that do so when a test wants it."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from dsi.cluster import fleet as fleets
from dsi.cluster.backends import LocalBackend, LostError
from dsi.cluster.cluster import Cluster
from dsi.cluster.fleet import Fleet
from dsi.cluster.shards import GenerationError
from dsi.search.results import ShardError

SECONDS = 20.0
"""Seconds that no test waits for if all is well."""


class Disk:
    """A folder with an index in one state, which may be unreadable."""

    def __init__(self) -> None:
        self.state, self.generation, self.problem = "one", 1, ""

    def update(self, state: str) -> None:
        """Write another state."""
        self.state, self.generation = state, self.generation + 1


class FakeWorker:
    """A shard in this process: it answers calls in their order, but stops before a call of a method in `held`."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.process, self.kills, self.loads = disk, 1, 0, 0
        self.held: set[str] = set()
        self.errors: list[Exception] = []
        self.states: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []
        self.lock, self.is_dead = threading.RLock(), False

    def call(self, method: str, *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        with self.lock:
            if self.is_dead:
                self.is_dead = False
                future.set_exception(LostError("it died"))
                return future
            self.calls.append((method, args, future))
            self.go_on()
        return future

    def go_on(self, *held: str) -> None:
        """Answer until a call of a held method."""
        with self.lock:
            self.held = set(held) or self.held
            while self.calls and self.calls[0][0] not in self.held:
                method, args, future = self.calls.pop(0)
                try:
                    future.set_result(self._answer(method, *args))
                except Exception as error:
                    future.set_exception(error)

    def release(self) -> None:
        """Answer all calls."""
        self.held = set()
        self.go_on()

    def _answer(self, method: str, *args: Any) -> Any:
        if not self.states and method == "answer":
            raise GenerationError("none")
        if not self.states and self.disk.problem:
            raise FileNotFoundError(self.disk.problem)
        if not self.states or method == "load":
            self.loads += method == "load"
            if self.errors:
                raise self.errors.pop()
            self.states[self.disk.state] = self.disk.generation
        if method == "answer":
            if args[1] not in self.states:
                raise GenerationError("another state")
            return self.process
        return f"machine:{id(self)}:{self.process}", dict(self.states)

    def die(self, *held: str) -> None:
        """Lose the process and its calls, or else the next one; the next process holds calls of some methods."""
        with self.lock:
            lost, self.calls = self.calls, []
            self.is_dead = not lost
            self.process, self.states, self.held = self.process + 1, {}, set(held)
            for _, _, future in lost:
                future.set_exception(LostError("it died"))

    def kill(self) -> None:
        self.kills += 1
        self.die()

    def stop(self) -> None:
        with self.lock:
            lost, self.calls = self.calls, []
        for _, _, future in lost:
            future.set_exception(LostError("stopped"))


class FakeBackend(LocalBackend):
    """Starts such workers."""

    def __init__(self) -> None:
        super().__init__(1)
        self.disk = Disk()
        self.workers: list[FakeWorker] = []

    def start(self, place: int, make: Callable[..., Any], *args: Any) -> FakeWorker:
        self.workers.append(FakeWorker(self.disk))
        return self.workers[-1]


@pytest.fixture(autouse=True)
def frequent_probes(monkeypatch):
    monkeypatch.setattr(fleets, "_PING", 0.1)


@contextmanager
def served(shards: int = 1, replicas: int = 2, timeout: float = SECONDS) -> Iterator[tuple[Fleet, FakeBackend]]:
    """A fleet that serves the state "one", all of its replicas living."""
    backend = FakeBackend()
    with Fleet(backend, "INDEX", shards, replicas, timeout, require_all=False) as fleet:
        fleet.load("one")
        wait_until(lambda: all(replica.states for replica in fleet.all))
        wait_until(lambda: all(not replica.probe for replica in fleet.all))
        yield fleet, backend


def wait_until(true: Callable[[], Any], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def in_thread(call: Callable[[], Any]) -> "Future[Any]":
    """Return the future result of a call in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


# Replicas.


def test_a_replica_that_dies_idle_does_not_live():
    with served(replicas=1) as (fleet, backend):
        backend.workers[0].die("status")
        wait_until(lambda: not fleet.is_complete)
        assert fleet.status()[0].generation == 0
        backend.workers[0].release()
        wait_until(lambda: fleet.is_complete)
        assert fleet.status()[0].restarts == 1


def test_a_replica_that_cannot_load_its_shard_again_is_replaced_by_the_other():
    with served() as (fleet, backend):
        backend.disk.problem = "no such file"
        fleet.replicas[0][1].calls += 1  # so that the first would be asked first
        backend.workers[0].die()
        wait_until(lambda: not fleet.all[0].states)
        for _ in range(20):
            assert fleet.ask("gather", "one", {0: ()}, 1) == {0: 1}
        wait_until(lambda: fleet.all[0].refusal)
        assert fleet.is_complete
        assert [(own.generation, own.error) for own in fleet.status()] == [(0, "no such file"), (1, "")]
        backend.disk.problem = ""
        wait_until(lambda: fleet.all[0].states)
        assert not fleet.all[0].refusal


def test_a_question_to_a_process_that_cannot_load_its_shard_is_asked_elsewhere():
    with served() as (fleet, backend):
        backend.workers[0].held = {"status", "answer"}
        fleet.replicas[0][1].calls += 1
        answer = in_thread(lambda: fleet.ask("gather", "one", {0: ()}, 1))
        wait_until(lambda: any(method == "answer" for method, _, _ in backend.workers[0].calls))
        with backend.workers[0].lock:  # another process has come for this one, unseen
            backend.disk.problem, backend.workers[0].states = "no such file", {}
            backend.workers[0].release()
        assert answer.result(SECONDS) == {0: 1}
        wait_until(lambda: not fleet.all[0].states)


def test_a_process_that_still_loads_its_shard_is_not_taken_for_hung(monkeypatch):
    with served() as (fleet, backend):
        monkeypatch.setattr(fleets, "_HUNG", 0.1)
        fleet._slowest = 100.0
        backend.workers[0].held = {"status"}
        wait_until(lambda: fleet.all[0].probe)
        backend.workers[0].die("status")  # a ping waits for the next process
        wait_until(lambda: fleet.all[0].probe)
        time.sleep(0.4)
        assert backend.workers[0].kills == 0
        backend.workers[0].release()
        wait_until(lambda: fleet.all[0].states)


def test_a_process_that_hangs_while_it_starts_is_killed(monkeypatch):
    with served() as (fleet, backend):
        monkeypatch.setattr(fleets, "_HUNG", 0.1)
        backend.workers[0].die("status")
        wait_until(lambda: backend.workers[0].kills and fleet.all[0].states)


def test_a_slow_question_goes_to_a_replica_that_comes_back_after_the_time_to_hedge():
    with served() as (fleet, backend):
        fleet._times["gather", 1].extend([0.01] * 20)
        backend.workers[0].die("status")
        wait_until(lambda: not fleet.all[0].states)
        backend.workers[1].held = {"answer"}
        answer = in_thread(lambda: fleet.ask("gather", "one", {0: ()}, 1))
        time.sleep(0.2)
        assert not answer.done()
        backend.workers[0].release()
        assert answer.result(SECONDS / 2) == {0: 2}
        assert fleet.statistics[0].hedges == 1


# Updates.


def test_a_replica_that_dies_while_it_loads_has_the_state_when_it_is_back():
    with served(replicas=1) as (fleet, backend):
        backend.workers[0].held = {"load"}
        backend.disk.update("two")
        loading = in_thread(lambda: fleet.load("two"))
        wait_until(lambda: fleet.all[0].probe == "load")
        backend.workers[0].die("status")
        time.sleep(0.1)
        assert not loading.done()
        backend.workers[0].release()
        loading.result(SECONDS)
        assert fleet.state == "two"
        assert fleet.all[0].restarts == 1


def test_an_index_is_complete_if_the_state_that_is_served_is_there():
    with served(shards=2, replicas=1) as (fleet, backend):
        backend.disk.update("two")  # by others
        backend.workers[0].die()
        wait_until(lambda: fleet.all[0].states == {"two": 2})
        assert not fleet.is_complete
        fleet.load("two")
        assert (fleet.state, fleet.is_complete) == ("two", True)


def test_what_a_replica_has_loaded_counts_at_once_and_only_for_its_process():
    with served(shards=2, replicas=1) as (fleet, backend):
        backend.workers[1].held = {"load"}
        backend.disk.update("two")
        loading = in_thread(lambda: fleet.load("two"))
        wait_until(lambda: "two" in fleet.all[0].states)
        backend.workers[0].die()
        wait_until(lambda: fleet.all[0].restarts)
        backend.workers[1].release()
        loading.result(SECONDS)
        time.sleep(0.1)
        assert [own.restarts for own in fleet.status()] == [1, 0]
        assert fleet.status()[0].process == f"machine:{id(backend.workers[0])}"
        assert fleet.all[0].born.endswith(":2")


def test_answers_of_an_earlier_process_are_ignored():
    with served(replicas=1) as (fleet, backend):
        replica, asked, born = fleet.all[0], time.monotonic(), fleet.all[0].born
        backend.workers[0].die("status")
        wait_until(lambda: not replica.states)
        fleet._lives(replica, asked, born, {"one": 1})
        fleet._lost(replica, "late", asked)
        assert not replica.states
        assert replica.error == "it died"


def test_a_replica_that_was_pinged_when_it_was_to_load_is_not_killed_while_it_loads(monkeypatch):
    with served(replicas=1) as (fleet, backend):
        monkeypatch.setattr(fleets, "_HUNG", 0.2)
        fleet._slowest = 100.0
        backend.workers[0].held = {"status"}
        wait_until(lambda: fleet.all[0].probe)
        backend.disk.update("two")
        loading = in_thread(lambda: fleet.load("two"))
        backend.workers[0].go_on("load")
        wait_until(lambda: fleet.all[0].probe == "load")
        time.sleep(0.6)
        assert fleet.all[0].is_loading
        backend.workers[0].release()
        loading.result(SECONDS)
        time.sleep(0.3)
        assert backend.workers[0].kills == 0
        assert fleet.all[0].restarts == 0


def test_an_update_does_not_wait_for_a_replica_that_hangs(monkeypatch):
    with served(shards=2) as (fleet, backend):
        hung = backend.workers[0]
        hung.held = {"status", "load", "answer"}
        backend.disk.update("two")
        in_thread(lambda: fleet.load("two")).result(SECONDS)
        assert (fleet.state, fleet.is_complete) == ("two", True)
        assert (hung.kills, hung.loads) == (0, 0)
        monkeypatch.setattr(fleets, "_HUNG", 0.1)
        wait_until(lambda: all("two" in replica.states for replica in fleet.all))
        assert hung.kills


def test_a_replica_that_hangs_in_its_load_is_killed(monkeypatch):
    with served() as (fleet, backend):
        monkeypatch.setattr(fleets, "_HUNG", 0.2)
        backend.workers[0].held = {"load"}
        backend.disk.update("two")
        in_thread(lambda: fleet.load("two")).result(SECONDS)
        wait_until(lambda: all("two" in replica.states for replica in fleet.all))
        assert [own.kills for own in backend.workers] == [1, 0]


def test_replicas_of_a_shard_load_one_after_another_and_one_is_enough():
    with served() as (fleet, backend):
        for own in backend.workers:
            own.held = {"load"}
        backend.disk.update("two")
        loading = in_thread(lambda: fleet.load("two"))
        wait_until(lambda: fleet.all[0].probe == "load")
        time.sleep(0.3)
        assert [replica.probe == "load" for replica in fleet.all] == [True, False]
        assert fleet.ask("gather", "one", {0: ()}, 1) == {0: 1}
        backend.workers[0].release()
        loading.result(SECONDS)
        wait_until(lambda: fleet.all[1].probe == "load")
        assert "two" not in fleet.all[1].states
        backend.workers[1].release()
        wait_until(lambda: "two" in fleet.all[1].states)


def test_closing_ends_an_update_and_leaves_nothing_that_lives():
    backend = FakeBackend()
    fleet = Fleet(backend, "INDEX", 1, 1, SECONDS, require_all=False)
    with Cluster("local", processes=1) as cluster:
        cluster._fleets.append(fleet)
        fleet.load("one")
        backend.workers[0].held = {"load", "status"}
        loading = in_thread(lambda: fleet.load("two"))
        time.sleep(0.1)
        assert [own.generation for own in cluster.status()] == [1]
        fleet.close()
        with pytest.raises(ShardError, match="The shards of INDEX were closed"):
            loading.result(SECONDS)
        with pytest.raises(ShardError, match="The shards of INDEX were closed"):
            fleet.ask("gather", "one", {0: ()}, 1)
        assert [own.generation for own in fleet.status()] == [0]
        assert not fleet.is_complete
        assert cluster.status() == []


def test_a_replica_whose_load_failed_loads_again():
    with served() as (fleet, backend):
        backend.workers[0].errors = [OSError(errno.ESTALE, "Stale file handle")]
        backend.disk.update("two")
        fleet.load("two")
        wait_until(lambda: all("two" in replica.states for replica in fleet.all))
        assert backend.workers[0].loads == 2
        assert not fleet.all[0].refusal


def test_a_state_that_no_replica_of_a_shard_can_load_is_not_served():
    with served() as (fleet, backend):
        for own in backend.workers:
            own.errors = [OSError(errno.ESTALE, "Stale file handle")]
        backend.disk.update("two")
        with pytest.raises(ShardError, match=r"Shard 0 of INDEX cannot be searched: .*Stale file handle"):
            fleet.load("two")
        assert fleet.is_complete
        assert fleet.ask("gather", "one", {0: ()}, 1) == {0: 1}
        fleet.load("two")
        assert (fleet.state, fleet.is_complete) == ("two", True)
