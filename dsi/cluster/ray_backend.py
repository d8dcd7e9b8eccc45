"""Workers as actors of Ray, functions as its tasks, in a cluster that runs; needs the extra `ray`.

Ray starts actors again when they or their machines die, and runs tasks again. Where it moves them is its own decision; workers
with other places begin on other machines. Knows nothing of indexes.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from typing import Any

from dsi.cluster.backends import Backend, Items, LostError, Worker, first_line, run, this_machine

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
"""How often a function runs whose process dies."""


class RayBackend(Backend):
    """Actors and tasks in a Ray cluster.

    `address` is as `ray.init` takes it: "auto" inside a cluster, "HOST:PORT", "ray://HOST:PORT".
    """

    def __init__(self, address: str, processes: int | None = None) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            message = 'ray is not installed; run pip install "dr-scl[ray]", or use Cluster("local").'
            raise ModuleNotFoundError(message, name="ray") from None
        self._ray, self._connected = ray, not ray.is_initialized()
        if self._connected:
            _connect(ray, address)
        self.size = processes or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """As in `Backend`."""
        nodes = self._nodes()
        actor = self._ray.remote(make).options(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=_on(nodes[place % len(nodes)], soft=True),
        )
        return _RayWorker(self._ray, actor.remote(*args))

    def map(self, function: Callable[..., Any], items: Items, names: Sequence[str] = (), threads: int = 1) -> list[Any]:
        """As in `Backend`; a task whose process dies runs again, three times at most."""
        ray, results, running = self._ray, dict[int, Any](), dict[Any, int]()
        task = ray.remote(num_cpus=1, max_retries=_ATTEMPTS - 1)(run)
        queue = enumerate(items)
        while True:
            for number, item in islice(queue, self.size - len(running)):
                running[self._submitted(task, function, item, threads)] = number
            if not running:
                return [results[number] for number in range(len(results))]
            (done,), _ = ray.wait(list(running))
            number = running.pop(done)
            try:
                results[number] = ray.get(done)
            except Exception as error:
                meant = meaning(ray, error)
                if isinstance(meant, LostError):
                    name = names[number] if names else f"item {number}"
                    meant = LostError(f"{name} was given up: its process died {_ATTEMPTS} times ({meant}).")
                raise meant from None

    def _submitted(self, task: Any, *args: Any) -> Any:
        try:
            return task.remote(*args)
        except self._ray.exceptions.RayError as error:
            raise meaning(self._ray, error) from None

    def machines(self, file: str) -> list[tuple[str, str, bool]]:
        """As in `Backend`."""
        task = self._ray.remote(num_cpus=0)(this_machine)
        asked = [task.options(scheduling_strategy=_on(node, soft=False)).remote(file) for node in self._nodes()]
        machines: list[tuple[str, str, bool]] = self._ray.get(asked)
        return machines

    def _nodes(self) -> list[str]:
        return [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Leave the cluster, if this entered it: Ray then ends the tasks and actors of this process."""
        if self._connected:
            self._ray.shutdown()


def _on(node: str, *, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=soft)


def _connect(ray: Any, address: str) -> None:
    """Enter a Ray cluster; raises as `RayBackend`."""
    try:
        with _own_sigterm():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConnectionError(
            f"No Ray cluster answers at {address!r} ({first_line(error)}); run `ray start --head` first, or use "
            'Cluster("local").'
        ) from None
    except RuntimeError as error:
        if "ersion" not in str(error):
            raise
        raise ValueError(
            f"The Ray cluster at {address!r} runs other versions ({first_line(error)}); install the same Python and Ray on all "
            "machines."
        ) from None


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's answer to SIGTERM, which `ray.init` replaces by its own: a server ends in its own order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _RayWorker:
    """An actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def call(self, method: str, *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            answer = getattr(self._actor, method).remote(*args).future()
        except Exception as error:  # raised by the future, as all that happens later
            future.set_exception(meaning(self._ray, error))
        else:
            answer.add_done_callback(lambda done: self._pass_on(done, future))
        return future

    def _pass_on(self, answer: "Future[Any]", future: "Future[Any]") -> None:
        error = answer.exception()
        if error is None:
            future.set_result(answer.result())
        else:
            future.set_exception(meaning(self._ray, error))

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=False)

    def stop(self) -> None:
        self._ray.kill(self._actor)


def meaning(ray: Any, error: BaseException) -> BaseException:
    """Return the meaning of an error of Ray for the caller: that of the function, a full store, or a lost process."""
    problems = ray.exceptions
    if isinstance(error, problems.RayTaskError):
        error = error.cause
    if isinstance(error, problems.ObjectStoreFullError | problems.OutOfDiskError):
        return OSError(f"Ray's object store is full ({first_line(error)}); give its nodes more memory or disk.")
    return LostError(first_line(error)) if isinstance(error, problems.RayError) else error
