"""Workers as actors of Ray, in a cluster that runs already or is started on this machine; needs the extra `ray`.

Ray core alone: actors, which Ray starts again when they or their machines die. Where Ray moves them then is its own decision;
workers with other places begin on other machines. Knows nothing of indexes.
"""

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from dsi.cluster.workers import Backend, Host, LostError, Worker

logger = logging.getLogger(__name__)


class RayBackend(Backend):
    """Starts actors in a Ray cluster.

    Args:
        address: as `ray.init` takes it: "auto" inside a cluster, "HOST:PORT", "ray://HOST:PORT".
        processes: tasks that run at a time; by default one per CPU of the cluster.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: there is no such cluster.
        ValueError: it runs another version of Python or Ray.
    """

    def __init__(self, address: str, processes: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves the machine
        try:
            import ray
        except ModuleNotFoundError:
            message = 'ray is not installed; run pip install "dr-scl[ray]", or use Cluster("local").'
            raise ModuleNotFoundError(message, name="ray") from None
        self._ray = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            try:
                with _own_sigterm():
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError as error:
                raise ConnectionError(
                    f"There is no Ray cluster at {address!r} ({_line(error)}); run `ray start --head` first, or use "
                    'Cluster("local").'
                ) from None
            except RuntimeError as error:
                if "ersion" not in str(error):
                    raise
                raise ValueError(
                    f"The Ray cluster at {address!r} runs other versions ({_line(error)}); install the same Python and Ray on "
                    "all machines."
                ) from None
        self.nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        self.size = processes or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """As in `Backend`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self.nodes[place % len(self.nodes)]
        actor = self._ray.remote(Host).options(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
        )
        return RayWorker(self._ray, actor.remote(make, args))

    def close(self) -> None:
        """As in `Backend`."""
        if self._connected:
            self._ray.shutdown()


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


class RayWorker(Worker):
    """An actor.

    Args:
        ray: the library.
        actor: of `Host`.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def call(self, method: str, *args: Any) -> "Future[Any]":
        """As in `Worker`."""
        future: Future[Any] = Future()
        try:
            answer = self._actor.call.remote(method, pickle.dumps(args)).future()
        except Exception as error:  # told by the future, as all that happens later
            future.set_exception(self._meaning(error))
        else:
            answer.add_done_callback(lambda done: self._pass_on(done, future))
        return future

    def _pass_on(self, answer: "Future[Any]", future: "Future[Any]") -> None:
        error = answer.exception()
        if error is not None:
            future.set_exception(self._meaning(error))
            return
        good, value = answer.result()
        if good:
            future.set_result(value)
        else:
            future.set_exception(value)

    def _meaning(self, error: BaseException) -> BaseException:
        """Return what an error of Ray means for the caller."""
        problems = self._ray.exceptions
        if isinstance(error, problems.ObjectStoreFullError | problems.OutOfDiskError):
            cause = getattr(error, "cause", error)  # where the worker could not store its answer
            return OSError(f"Ray's object store is full ({_line(cause)}); give its nodes more memory or disk.")
        if isinstance(error, problems.RayError):
            return LostError(_line(error))
        return error

    def kill(self) -> None:
        """As in `Worker`."""
        self._ray.kill(self._actor, no_restart=False)

    def stop(self) -> None:
        """As in `Worker`."""
        self._ray.kill(self._actor)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
