"""Progress of what takes long: a bar on a terminal, one line of text elsewhere. Knows nothing of the work.

Elsewhere (a log file, continuous integration) a bar is its description, a dot about every five seconds, then the seconds it
took: `docids.... 23 s`. Work of less than a second writes nothing. Within another line an inner one writes nothing of its own;
its steps keep the dots of the outer one coming.
"""

import sys
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from types import TracebackType
from typing import ClassVar, TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")

_SHOWN_AFTER = 1.0
_SECONDS_A_DOT = 5.0


class Bar:
    """A progress bar that its user moves; a context manager.

    Args:
        description: of the work, a few words.
        unit: what is counted.
        total: how many there are, if that is known.
        done: how many of them an earlier run has done.
        enabled: False shows nothing; for processes other than the first.
    """

    _open: ClassVar[list["Bar"]] = []
    """The bars that are shown now, outermost first."""

    def __init__(
        self, description: str, *, unit: str = "it", total: int | None = None, done: int = 0, enabled: bool = True
    ) -> None:
        self._description, self._last_note, self._enabled = description, "", enabled
        self._written = False
        self._started = self._last_dot = monotonic()
        self._terminal: tqdm | None = None
        if enabled:
            if sys.stderr.isatty():
                inner = bool(Bar._open)
                self._terminal = tqdm(total=total, initial=done, desc=description, unit=unit, leave=not inner)
            Bar._open.append(self)

    def update(self, count: int = 1) -> None:
        """Move on by so many."""
        if self._terminal is not None:
            self._terminal.update(count)
        elif self._enabled:
            Bar._open[0]._write_dot()

    def note(self, text: str) -> None:
        """Show a few words beside the bar, such as the loss; a line of text ends with the last of them."""
        self._last_note = text
        if self._terminal is not None:
            self._terminal.set_postfix_str(text)

    def close(self) -> None:
        """End the bar; again is harmless."""
        if self not in Bar._open:
            return
        if self._terminal is not None:
            self._terminal.close()
        elif self is Bar._open[0]:
            self._write_end()
        Bar._open.remove(self)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_dot(self) -> None:
        now = monotonic()
        if not self._written and now - self._started >= _SHOWN_AFTER:
            self._write(self._description)
        if now - self._last_dot >= _SECONDS_A_DOT:
            self._last_dot = now
            self._write(".")

    def _write_end(self) -> None:
        seconds = monotonic() - self._started
        if self._written or seconds >= _SHOWN_AFTER:
            description = "" if self._written else self._description
            note = f", {self._last_note}" if self._last_note else ""
            self._write(f"{description} {seconds:.0f} s{note}\n")

    def _write(self, text: str) -> None:
        self._written = True
        sys.stderr.write(text)
        sys.stderr.flush()


def progress(
    iterable: Iterable[T], description: str, *, unit: str = "it", total: int | None = None, enabled: bool = True
) -> Iterator[T]:
    """The same items, with a `Bar` that moves after each.

    Args:
        iterable: of the items.
        description: of the work, a few words.
        unit: what an item is.
        total: how many there are; by default `len(iterable)` where it has one.
        enabled: False shows nothing.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Bar(description, unit=unit, total=total, enabled=enabled) as bar:
        for item in iterable:
            yield item
            bar.update()
