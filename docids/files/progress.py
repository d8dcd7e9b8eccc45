"""Progress: tqdm's bar on a terminal, lines elsewhere. Knows nothing of the work.

Elsewhere (a log file, continuous integration) a stage that took at least a second writes a line when it ends: `docids: 23 s`.
Stages inside another one write no such line. While work goes on, a line after the first hundred items, and then one at most
every half minute, says how far it is and how long the rest will take: `docids: embeddings of documents, 12,288 of 20,000, 03:20
left`; short work writes none.
"""

import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

T = TypeVar("T")

_SHORTEST = 1.0
"""Seconds that a stage must take to get a line."""
_SILENCE = 30.0
"""Seconds from one line to the next, at least, while work goes on; what is done sooner has no line of its own."""
_FIRST = 100
"""Items after which a line says how long the rest will take, without waiting for the silence to end."""


class Bar(tqdm):
    """A `tqdm` that writes lines in place of the bar where stderr is not a terminal.

    `set_postfix_str` shows a few words beside the bar, such as the loss; the line ends with the last of them.

    Args:
        description: of the stage, a few words.
        unit: what is counted.
        total: how many there are, if known.
        done: how many an earlier run has done.
        enabled: False shows nothing; for processes other than the first.
        whole: while it is open, others count their items here, and show nothing themselves.

    Attributes:
        done: how many are done.
    """

    _whole: ClassVar["Bar | None"] = None
    _open: ClassVar[list["Bar"]] = []  # those that write lines, the outermost first
    _spoken: ClassVar[float] = 0.0  # when a line was written, or the outermost was opened
    _lock: ClassVar[Any] = threading.RLock()  # tqdm's own is shared with forks, and a fork that is killed keeps it

    def __init__(
        self,
        description: str,
        *,
        unit: str = "it",
        total: int | None = None,
        done: int = 0,
        enabled: bool = True,
        whole: bool = False,
    ) -> None:
        self._into = Bar._whole if enabled else None
        enabled = enabled and self._into is None
        if whole and enabled:
            Bar._whole = self
        self._is_logged = enabled and not sys.stderr.isatty()
        self._description, self._started, self.postfix = description, monotonic(), ""
        self._before, self.done = done, done
        if self._is_logged:
            Bar._spoken = Bar._spoken if Bar._open else self._started
            Bar._open.append(self)
        disable = self._is_logged or not enabled
        super().__init__(desc=description, total=total, initial=done, unit=unit, leave=None, disable=disable)
        self.total = total  # a disabled bar forgets it

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more as done."""
        if self._into is not None:
            return self._into.update(n)
        was_early = self.done - self._before < _FIRST
        self.done += int(n or 0)
        if self._is_logged and self.total and self.done > self._before:
            now, done = monotonic(), self.done - self._before
            left = (now - self._started) / done * max(0, self.total - self.done)
            is_first = was_early and done >= _FIRST and left >= _SILENCE
            if is_first or now - Bar._spoken >= _SILENCE:
                Bar._spoken = now
                self._say_how_far(self.total, left)
        return super().update(n)  # type: ignore[no-any-return]

    def _say_how_far(self, total: int, left: float) -> None:
        """Write how many are done, and the seconds that the rest will take."""
        outermost = Bar._open[0]._description
        outer = "" if outermost == self._description else f"{outermost}: "
        far = f"{self.done:,} of {total:,}, {self.format_interval(left)} left"
        sys.stderr.write(f"{outer}{self._description}, {far}\n")

    def close(self) -> None:
        """End the stage; calling it again is harmless."""
        super().close()
        if Bar._whole is self:
            Bar._whole = None
        if self._is_logged:
            self._is_logged = False
            Bar._open[:] = [bar for bar in Bar._open if bar is not self]  # tqdm compares bars by their places
            seconds, note = monotonic() - self._started, self.postfix and f", {self.postfix}"
            if not Bar._open and seconds >= _SHORTEST:
                sys.stderr.write(f"{self._description}: {seconds:.0f} s{note}\n")


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


def stage_line(name: str, *, enabled: bool = True) -> Bar:
    """Return one line of text for a stage without a terminal; on a terminal the bars of its parts show."""
    return Bar(name, enabled=enabled and not sys.stderr.isatty())
