"""One thread that computes for many clients: waiting searches with equal options run as one batch, long ones in slices.

A slice has as many queries as take about half a second, by what the slices before it took. After each, the next request has its
turn, and one that its client gave up on ends. Knows nothing of HTTP or of indexes.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_SLICE = 0.5
"""Seconds that a slice may take."""
_EACH = 64
"""Characters that a query counts at least for in the size of a slice."""
_FIRST = 4 * _EACH
"""Size of the first slice, before any time is known."""
_MOST_HELD = 1 << 26
"""Characters of all requests that wait."""


class BusyError(RuntimeError):
    """Too many requests wait, or the server is stopping."""


@dataclass(eq=False)
class _Job:
    """A search (its options and queries, and the answers so far), or a function to call.

    Its future is pending until the end, so that whoever waits for it can cancel it at any time.
    """

    options: Hashable
    queries: Sequence[str] = ()
    call: "Callable[[Callable[[], None]], Any] | None" = None
    held: int = 0
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    answers: list[Any] = field(default_factory=list)

    @property
    def rest(self) -> Sequence[str]:
        return self.queries[len(self.answers) :]

    @property
    def size(self) -> float:
        """What is left to do, in characters; a function fills a slice alone."""
        return math.inf if self.call else sum(map(_size, self.rest))

    def head(self, places: int, room: float) -> Sequence[str]:
        """Return the next queries that fit into a slice, at least one."""
        count, size = 0, 0
        for query in self.rest[:places]:
            size += _size(query)
            if count and size > room:
                break
            count += 1
        return self.rest[:count]

    def check(self) -> None:
        if self.future.cancelled():
            raise CancelledError

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Give the result or the error to whoever waits, if anybody still does."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error if isinstance(error, Exception) else _failure(error))


def _size(query: str) -> int:
    """Return what a query counts for in a slice: its characters, at least some."""
    return max(_EACH, len(query))


def _failure(error: BaseException) -> RuntimeError:
    """Return an error that ends a request alone, not the thread that awaits it."""
    failure = RuntimeError(f"The search failed ({error!r}).")
    failure.__cause__ = error
    return failure


class Batcher(Generic[Answer]):
    """Runs searches and other calls, slice after slice, on a thread of its own; `observe` gets the queries of each slice."""

    def __init__(
        self,
        search: Callable[[Any, Sequence[str]], Sequence[Answer]],
        *,
        max_batch: int = 32,
        max_wait: float = 0.003,
        max_waiting: int = 1000,
        observe: Callable[[int], None] = lambda queries: None,
    ) -> None:
        self._search, self._observe = search, observe
        self._max_batch, self._max_wait, self._max_waiting = max_batch, max_wait, max_waiting
        self._jobs, self._held, self._room = deque[_Job](), 0, float(_FIRST)
        self._open, self._changed = True, threading.Condition()
        self._thread = threading.Thread(target=self._work, name="search", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._jobs)

    def submit(self, options: Hashable, queries: Sequence[str], held: int = 0) -> "Future[Sequence[Answer]]":
        """Return the future answers of some queries; if it is cancelled, those that are left are not computed.

        Requests with equal options may share a batch; `held` counts the characters of the options. BusyError if too
        many requests wait, or `close` was called.
        """
        return self._put(_Job(options, queries, held=held + sum(map(len, queries))))

    def call(self, function: Callable[[Callable[[], None]], Any], held: int = 0) -> "Future[Any]":
        """Return the future result of a function that is called between slices.

        The function is given another one to call now and then, which ends it by an error if nobody waits any more.
        """
        return self._put(_Job("", call=function, held=held))

    def close(self) -> None:
        """Take nothing more, and return when all that waits is done or cancelled."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _put(self, job: _Job) -> "Future[Any]":
        with self._changed:
            if not self._open:
                raise BusyError("The server is stopping; ask another one, or try again later.")
            if len(self._jobs) >= self._max_waiting or (self._jobs and self._held + job.held > _MOST_HELD):
                raise BusyError("Too many requests wait; try again later.")
            self._queue([job])
            self._changed.notify()
        return job.future

    def _queue(self, jobs: Sequence[_Job]) -> None:
        self._jobs.extend(jobs)
        self._held += sum(job.held for job in jobs)

    @property
    def is_alive(self) -> bool:
        """True while requests are answered."""
        return self._open and self._thread.is_alive()

    # On the thread.

    def _work(self) -> None:
        while batch := self._gather():
            try:
                self._answer_batch(batch)
            except BaseException as error:
                logger.exception("A batch of searches failed.")
                for job in batch:
                    job.end(error=error)
            with self._changed:  # what is not done goes behind the others
                self._queue([job for job in batch if not job.future.done()])

    def _gather(self) -> list[_Job]:
        """Return the jobs of the next slice; none when nothing waits any more and nothing will."""
        batch, places, room = list[_Job](), self._max_batch, self._room
        while places > 0 and room > 0 and (job := self._take(batch, places, room)):
            batch.append(job)
            places -= len(job.rest)
            room -= job.size
        return batch

    def _take(self, batch: Sequence[_Job], places: int, room: float) -> _Job | None:
        """Return the next job for a slice; None if it does not fit, or if none comes in time."""
        deadline = batch[0].arrived + self._max_wait if batch else math.inf
        with self._changed:
            while not self._jobs:
                wait = deadline - time.monotonic()
                if not self._open or wait <= 0:
                    return None
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))
            job = self._jobs[0]
            if batch and (len(job.rest) > places or job.size > room):
                return None
            self._held -= job.held
            return self._jobs.popleft()

    def _answer_batch(self, batch: Sequence[_Job]) -> None:
        groups: dict[Any, list[_Job]] = {}
        for job in batch:
            groups.setdefault(job if job.call else job.options, []).append(job)
        for group in groups.values():
            self._answer([job for job in group if not job.future.cancelled()])

    def _answer(self, group: list[_Job]) -> None:
        """Answer jobs that can be searched together; if that fails, each alone, so that only the bad ones fail."""
        try:
            if group and group[0].call:
                group[0].end(group[0].call(group[0].check))
            elif group:
                self._answer_slice(group)
        except BaseException as error:  # passed on to the client, whatever it is
            if len(group) == 1:
                group[0].end(error=error)
            else:
                for job in group:
                    self._answer([job])

    def _answer_slice(self, group: list[_Job]) -> None:
        """Search for the next queries of jobs: all, or of a single one as many as fit."""
        asked = [(job, query) for job in group for query in job.head(self._max_batch, self._room)]
        queries, started = [query for _, query in asked], time.monotonic()
        self._observe(len(queries))
        answers = self._search(group[0].options, queries)
        self._learn_pace(sum(map(_size, queries)), time.monotonic() - started)
        for (job, _), answer in zip(asked, answers, strict=True):
            job.answers.append(answer)
        for job in group:
            if not job.rest:
                job.end(job.answers)

    def _learn_pace(self, size: int, seconds: float) -> None:
        """Size the next slice by the last one: at once if it was slow, by doublings if it was fast."""
        self._room = min(2 * max(size, self._room), size * _SLICE / max(seconds, 1e-6))
