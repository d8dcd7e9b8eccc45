"""Progress: tqdm's bar on a terminal, one line per stage elsewhere. Knows nothing of the work.

Elsewhere (a log file, continuous integration) a stage that took at least a second writes a line when it ends: `docids: 23 s`.
Stages inside another one write nothing there.
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


class Bar(tqdm):
    """A `tqdm` that replaces the bar by a line where stderr is no terminal.

    `set_postfix_str` shows a few words beside the bar, such as the loss; the line ends with the last of them.

    Args:
        description: of the stage, a few words.
        unit: what is counted.
        total: how many there are, if known.
        done: how many an earlier run has done.
        enabled: False shows nothing; for processes other than the first.
    """

    _logged: ClassVar[int] = 0  # open stages that write lines
    _lock: ClassVar[Any] = threading.RLock()  # tqdm's own is shared with forks, and a fork that is killed keeps it

    def __init__(
        self, description: str, *, unit: str = "it", total: int | None = None, done: int = 0, enabled: bool = True
    ) -> None:
        self._is_logged = enabled and not sys.stderr.isatty()
        self._description, self._started, self.postfix = description, monotonic(), ""
        Bar._logged += self._is_logged
        disable = self._is_logged or not enabled
        super().__init__(desc=description, total=total, initial=done, unit=unit, leave=None, disable=disable)

    def close(self) -> None:
        """End the stage; calling it again is harmless."""
        super().close()
        if self._is_logged:
            self._is_logged = False
            Bar._logged -= 1
            seconds, note = monotonic() - self._started, self.postfix and f", {self.postfix}"
            if not Bar._logged and seconds >= _SHORTEST:
                sys.stderr.write(f"{self._description}: {seconds:.0f} s{note}\n")


def tell(line: str) -> None:
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
    """Return one line of text for a stage where there is no terminal; on a terminal the bars of its parts show."""
    return Bar(name, enabled=enabled and not sys.stderr.isatty())
