"""Progress: tqdm's bar on a terminal, elsewhere a line every half minute while work goes on, and one for each stage."""

import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from time import monotonic
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

T = TypeVar("T")

_SILENCE = 30.0
"""Seconds from one line to the next where stderr is not a terminal; what is done sooner has none."""
_SHORTEST = 1.0
"""Seconds that a stage must take to get a line."""


class _Lines:
    """Takes what tqdm writes, and writes each state of a bar to stderr as a line."""

    encoding = "utf-8"

    def write(self, text: str) -> None:
        """Write a line, unless there is nothing to show."""
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        """Flush stderr."""
        sys.stderr.flush()


class Bar(tqdm):
    """A `tqdm` that writes lines where stderr is no terminal. While a `whole` one is open, others count into it."""

    _whole: ClassVar["Bar | None"] = None
    _lock: ClassVar[Any] = threading.RLock()  # tqdm's own is shared with forks, and a fork that is killed keeps it

    def __init__(
        self, description: str, *, unit: str = "it", total: int | None = None, done: int = 0, enabled: bool = True,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self._into = Bar._whole if enabled else None
        enabled = enabled and self._into is None
        if whole and enabled:
            Bar._whole = self
        silence = 0.0 if sys.stderr.isatty() else _SILENCE
        super().__init__(
            desc=description,
            total=total,
            initial=done,
            unit=unit,
            leave=False if silence else None,
            disable=not enabled,
            mininterval=max(silence, 0.1),
            maxinterval=max(silence, 10.0),
            delay=silence,
            file=_Lines() if silence else None,
        )

    def moveto(self, n: int) -> None:
        """Move the cursor to the place of the bar on a terminal."""
        if not isinstance(self.fp, _Lines):
            super().moveto(n)

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more as done."""
        return self._into.update(n) if self._into is not None else super().update(n)

    def close(self) -> None:
        """End the work; calling it again is harmless."""
        super().close()
        if Bar._whole is self:
            Bar._whole = None


def write_line(line: str) -> None:
    """Write a line to stderr, above an open bar."""
    Bar.write(line, file=sys.stderr)


def progress(
    iterable: Iterable[T], description: str, *, unit: str = "it", total: int | None = None, enabled: bool = True
) -> Iterator[T]:
    """Yield the items, moving a `Bar` after each; `total` is `len(iterable)` by default, where it has one."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Bar(description, unit=unit, total=total, enabled=enabled) as bar:
        for item in iterable:
            yield item
            bar.update()


@contextmanager
def stage_line(name: str, *, enabled: bool = True) -> Iterator[None]:
    """Write how long a stage took, where stderr is not a terminal; on a terminal the bars of its parts show."""
    started = monotonic()
    try:
        yield
    finally:
        seconds = monotonic() - started
        if enabled and seconds >= _SHORTEST and not sys.stderr.isatty():
            write_line(f"{name}: {seconds:.0f} s")
