"""One thread that computes for many clients: waiting searches with equal options run as one batch.

Knows nothing of HTTP or of indexes.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class BusyError(RuntimeError):
    """Too many requests wait, or the server is stopping."""


@dataclass(frozen=True, eq=False)
class _Job:
    """A search (its options and queries), or a function to call."""

    options: str
    queries: Sequence[str]
    call: Callable[[], Any] | None = None
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


def _failure(error: BaseException) -> RuntimeError:
    """Return an error that ends a request alone, not the thread that awaits it."""
    failure = RuntimeError(f"The search failed ({error!r}).")
    failure.__cause__ = error
    return failure


class Batcher(Generic[Answer]):
    """Runs searches and other calls, one after another, on a thread of its own.

    Args:
        search: a function of options and queries that returns an answer for each query.
        max_batch: queries of a batch; a request with more is searched alone.
        max_wait: seconds that a request waits for others.
        max_waiting: requests that may wait.
        observe: called with the number of queries of every batch.
    """

    def __init__(
        self,
        search: Callable[[str, Sequence[str]], Sequence[Answer]],
        *,
        max_batch: int = 32,
        max_wait: float = 0.003,
        max_waiting: int = 1000,
        observe: Callable[[int], None] = lambda queries: None,
    ) -> None:
        self._search, self._observe = search, observe
        self._max_batch, self._max_wait = max_batch, max_wait
        self._jobs: queue.Queue[_Job | None] = queue.Queue(max_waiting)
        self._open, self._closing = True, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="search", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._jobs.qsize()

    def submit(self, options: str, queries: Sequence[str]) -> "Future[Sequence[Answer]]":
        """Return the future answers of some queries.

        Args:
            options: of the search; requests with equal options may share a batch.
            queries: one or more.

        Raises:
            BusyError: too many requests wait, or `close` was called.
        """
        return self._put(_Job(options, queries))

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Return the future result of a function that is called between batches.

        Raises:
            BusyError: as in `submit`.
        """
        return self._put(_Job("", (), function))

    def close(self) -> None:
        """Take nothing more, and return when all that waits is done."""
        with self._closing:
            stopping, self._open = self._open, False
        if stopping:
            self._jobs.put(None)
        self._thread.join()

    def _put(self, job: _Job) -> "Future[Any]":
        with self._closing:
            if not self._open:
                raise BusyError("The server is stopping; ask another one, or try again later.")
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                raise BusyError("Too many requests wait; try again later.") from None
        return job.future

    @property
    def is_alive(self) -> bool:
        """True while requests are answered."""
        return self._open and self._thread.is_alive()

    def _work(self) -> None:
        after: _Job | None = None
        while (first := after or self._jobs.get()) is not None:
            batch, after = self._gather(first)
            try:
                self._answer_batch(batch)
            except BaseException as error:
                logger.exception("A batch of searches failed.")
                for job in batch:
                    with suppress(InvalidStateError):  # it has its answer
                        job.future.set_exception(_failure(error))

    def _answer_batch(self, batch: Sequence[_Job]) -> None:
        groups: dict[Any, list[_Job]] = {}
        for job in batch:
            groups.setdefault(job if job.call else job.options, []).append(job)
        for group in groups.values():
            self._answer([job for job in group if job.future.set_running_or_notify_cancel()])

    def _gather(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """Return a batch that begins with a job, and the next job if it was taken and does not fit."""
        batch, queries = [first], len(first.queries)
        deadline = first.arrived + self._max_wait
        while queries < self._max_batch:
            try:
                job = self._jobs.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if job is None:  # the end, to be found again
                self._jobs.put(None)
                break
            if queries + len(job.queries) > self._max_batch:
                return batch, job
            batch.append(job)
            queries += len(job.queries)
        return batch, None

    def _answer(self, group: list[_Job]) -> None:
        """Answer jobs that can be searched together; if that fails, each alone, so that only the bad ones fail."""
        if not group:
            return
        queries = [query for job in group for query in job.queries]
        try:
            if group[0].call:
                group[0].future.set_result(group[0].call())
                return
            self._observe(len(queries))
            answers = self._search(group[0].options, queries)
        except BaseException as error:  # passed on to the client, whatever it is
            if len(group) == 1:
                group[0].future.set_exception(error if isinstance(error, Exception) else _failure(error))
            else:
                for job in group:
                    self._answer([job])
            return
        start = 0
        for job in group:
            job.future.set_result(answers[start : start + len(job.queries)])
            start += len(job.queries)
