"""Processes that each hold one object and answer calls to its methods: what both back ends of a cluster provide.

A worker that dies is started again with an object of its own; a call that it was working on fails with `LostError`. Calls may
be repeated, so what they do must be idempotent. `LocalWorker` is a process on this machine that talks through its pipes; it
never imports the program that started it. Knows nothing of indexes.
"""

import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from threadpoolctl import threadpool_limits

logger = logging.getLogger(__name__)

_PROGRAM = "from dsi.cluster.workers import serve; serve()"
_PAUSES = (0.0, 0.1, 0.5, 2.0)
"""Seconds before a process is started again, by how often it died soon after its start."""
_SOON = 5.0


class LostError(RuntimeError):
    """The process that worked on a call died, or cannot be reached."""


class StartError(RuntimeError):
    """The process runs, and cannot make its object."""


class Host:
    """Holds the object of a worker, which is made at the first call, and tried again at the next one if that fails.

    Args:
        make: returns the object; an importable function or class.
        args: of it.
    """

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._make, self._args = make, args
        self._held: Any = None

    def call(self, method: str, packed: bytes) -> tuple[bool, Any]:
        """Return (True, the result of a method) or (False, what it raised); `StartError` if there is no object."""
        try:
            if self._held is None:
                self._held = self._make(*self._args)
        except Exception as error:
            return False, StartError(str(error) or type(error).__name__)
        try:
            return True, getattr(self._held, method)(*pickle.loads(packed))
        except Exception as error:  # passed on to the caller, whatever it is
            with suppress(Exception):
                pickle.loads(pickle.dumps(error))
                return False, error
            return False, RuntimeError(f"{type(error).__name__}: {error}")


class Runner:
    """Runs functions: the object of workers that build."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], threads: int) -> Any:
        """Return the result of a function, computed on a number of threads: another number changes the last bits of sums."""
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
        with threadpool_limits(threads):
            return function(*args)


class Closes(ABC):
    """What ends processes at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """End them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker(ABC):
    """A process that holds one object."""

    _told: "Callable[[str], None] | None" = None

    def on_death(self, told: Callable[[str], None]) -> None:
        """Have every end of the process told at once, with its reason; a back end that cannot see it fails the next calls."""
        self._told = told

    @abstractmethod
    def call(self, method: str, *args: Any) -> "Future[Any]":
        """Return the future result of a method of the object; it raises `LostError` if the process dies meanwhile."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, which is started again: it has hung."""

    @abstractmethod
    def stop(self) -> None:
        """End the process for good."""


class Backend(ABC):
    """Starts workers on one machine or on several.

    Attributes:
        size: tasks that it runs at a time.
        nodes: its machines, by name.
    """

    size: int
    nodes: list[str]

    @abstractmethod
    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """Return a new worker whose object is `make(*args)`; workers with other places are on other machines where possible."""

    @abstractmethod
    def close(self) -> None:
        """End what the back end itself has started."""


class LocalBackend(Backend):
    """Starts processes on this machine.

    Args:
        processes: tasks that it runs at a time; by default one per core.
    """

    def __init__(self, processes: int | None = None) -> None:
        self.size, self.nodes = processes or os.cpu_count() or 1, ["this machine"]

    def start(self, place: int, make: Callable[..., Any], *args: Any) -> Worker:
        """As in `Backend`."""
        return LocalWorker(make, args)

    def close(self) -> None:
        """As in `Backend`."""


class LocalWorker(Worker):
    """A process on this machine, in the same environment.

    Args:
        make: returns its object.
        args: of it.
    """

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._setup = pickle.dumps((make, args))
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Future[Any], bytes]] = deque()
        self._sent: dict[int, Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        threading.Thread(target=self._keep, name="cluster worker", daemon=True).start()

    def call(self, method: str, *args: Any) -> "Future[Any]":
        """As in `Worker`."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        message = pickle.dumps((number, method, pickle.dumps(args)))
        with self._changed:
            if self._stopped:
                future.set_exception(LostError("The worker was stopped."))
            else:
                self._waiting.append((number, future, message))
                self._changed.notify_all()
        return future

    def kill(self) -> None:
        """As in `Worker`."""
        process = self._process  # another thread sets it
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """As in `Worker`."""
        with self._changed:
            self._stopped = True
            lost = [future for _, future, _ in self._waiting]
            self._waiting.clear()
        self.kill()
        _fail(lost, "The worker was stopped.")

    def _keep(self) -> None:
        """Keep a process running, whatever happens."""
        deaths = 0
        while not self._stopped:
            time.sleep(_PAUSES[min(deaths, len(_PAUSES) - 1)])
            started = time.monotonic()
            try:
                self._end(f"The process died (exit status {self._run()}).")
            except Exception as error:  # such as no memory, process or file for it: that may pass
                message = f"The process cannot be run ({error})."
                logger.warning("%s", message)
                self._end(message, forget=True)
            deaths = 0 if time.monotonic() - started > _SOON else deaths + 1

    def _run(self) -> int:
        """Start a process, pass on its answers until it dies, and return its exit status."""
        process = self._process = _launch()
        try:
            if self._stopped:
                process.kill()
            threading.Thread(target=self._send, args=(process,), name="cluster sender", daemon=True).start()
            with suppress(EOFError, OSError, pickle.UnpicklingError):
                self._receive(process)
        finally:
            process.kill()
            status = process.wait()
        return status

    def _end(self, message: str, *, forget: bool = False) -> None:
        """Tell that a process is no more, and fail the calls that it had; with `forget` also those that wait for the next."""
        with self._changed:
            self._process, lost, self._sent = None, list(self._sent.values()), {}
            if forget:
                lost += [future for _, future, _ in self._waiting]
                self._waiting.clear()
            self._changed.notify_all()
        if self._told is not None:
            self._told(message)
        _fail(lost, message)

    def _receive(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        while True:
            number, good, value = pickle.load(process.stdout)
            with self._changed:
                future = self._sent.pop(number)
            if good:
                future.set_result(value)
            else:
                future.set_exception(value)

    def _send(self, process: "subprocess.Popen[bytes]") -> None:
        """Write calls into the pipe of a process until it dies; a process that does not read holds up nobody else."""
        assert process.stdin is not None
        with suppress(OSError, ValueError):
            process.stdin.write(self._setup)
            process.stdin.flush()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._process is not process)
                    if self._process is not process:
                        return
                    number, future, message = self._waiting.popleft()
                    self._sent[number] = future
                process.stdin.write(message)
                process.stdin.flush()


def _fail(futures: list["Future[Any]"], message: str) -> None:
    for future in futures:
        future.set_exception(LostError(message))


def _launch() -> "subprocess.Popen[bytes]":
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the program that started it
    )


def serve() -> None:
    """Answer the calls that come through standard input until it ends; what is printed goes to standard error."""
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = sys.stdin.buffer
    with suppress(EOFError, BrokenPipeError):
        host = Host(*pickle.load(calls))
        while True:
            number, method, packed = pickle.load(calls)
            pickle.dump((number, *host.call(method, packed)), answers)
            answers.flush()
