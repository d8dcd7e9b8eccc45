"""Reads files in a process of its own: one that hangs, fills the memory or breaks a parser ends that process and nothing else.

The parent writes the paths of some files as a line of JSON; the child answers with a line for each document, and one that ends
each file.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from dsi.files.readers import parts_of
from dsi.files.texts import Part, UnreadableError, what_it_is

_SECONDS, _SECONDS_A_MEGABYTE = 5, 2
"""Of the processor that the files of one call may take, and more a megabyte; those behind a slow one are asked for again."""
_MEMORY = 3 * 2**28
"""Bytes of the child, at most."""
_CHARACTERS = 2**26
"""Of the documents of a file, at most."""
_PAUSE = 0.05
"""Seconds after which the child is measured again."""


class Answer(NamedTuple):
    """The documents of a file, and why it was not read to its end."""

    parts: list[Part]
    error: Exception | None = None


class Worker:
    """Reads files in a child process, which starts with the first ones, and again after one that ended it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._end, self._why = float("inf"), ""

    def ask(self, paths: Sequence[Path]) -> None:
        """Have the child read files, whose answers are taken before others are asked for."""
        if not paths:
            return
        size = 0
        for path in paths:
            with suppress(OSError):  # the child tells
                size += path.stat().st_size
        child = self._running()
        with suppress(psutil.Error, BrokenPipeError):  # if it has ended, its answers end
            self._end = _seconds(psutil.Process(child.pid)) + _SECONDS + _SECONDS_A_MEGABYTE * size / 2**20
            child.stdin.write(json.dumps([*map(os.fspath, paths)]).encode() + b"\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]

    def answers(self, paths: Sequence[Path]) -> list[Answer]:
        """Return what stands in the files that were asked for; one that ends the child as the first of them is left out."""
        answers = list[Answer]()
        while len(answers) < len(paths):
            answered = self._take(len(paths) - len(answers))
            why = self._why or "broken (they crash the parser)"
            answers += answered or [Answer([], UnreadableError(why))]
            if self._child is None:
                self.ask(paths[len(answers) :])
        return answers

    def _take(self, number: int) -> list[Answer]:
        """Return the answers of some files, fewer if the child ends."""
        answers, parts = list[Answer](), list[Part]()
        for line in self._running().stdout or ():
            if not line.endswith(b"\n"):  # it ended within an answer
                break
            if not isinstance(answer := json.loads(line), str):
                parts.append(Part(*answer))
                continue
            answers.append(Answer(parts, UnreadableError(answer) if answer else None))
            parts = []
            if len(answers) == number:
                return answers
        self.close()
        return answers

    def _running(self) -> "subprocess.Popen[bytes]":
        """Return the child, started if there is none."""
        if self._child is None:
            variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-m", "dsi.files.worker"]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            self._end, self._why = float("inf"), ""
            threading.Thread(target=self._watch, args=(self._child,), daemon=True).start()
        return self._child

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _watch(self, child: "subprocess.Popen[bytes]") -> None:
        """End the child when it takes more than it may."""
        with suppress(psutil.Error):  # it has ended
            seen = psutil.Process(child.pid)
            while child.poll() is None:
                if seen.memory_info().rss > _MEMORY:
                    self._why = f"too large once unpacked (over {_MEMORY >> 20} MB of memory)"
                elif _seconds(seen) > self._end:
                    self._why = f"too slow to read (over {_SECONDS} seconds, and {_SECONDS_A_MEGABYTE} more a megabyte)"
                if self._why:
                    return child.kill()
                time.sleep(_PAUSE)
        return None


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _answers(path: Path) -> Iterator[Any]:
    """Yield the documents of a file as lists, and what it is if it cannot be read to its end, else ""."""
    characters = 0
    try:
        for part in parts_of(path):
            characters += len(part.text)
            if characters > _CHARACTERS:
                raise UnreadableError(f"with more than {_CHARACTERS >> 20} million characters of text")
            # Without surrogates, which no column can hold.
            yield part._replace(text=part.text.encode(errors="replace").decode())
        yield ""
    except Exception as error:  # the libraries raise nearly anything
        yield what_it_is(error)


def main() -> None:
    """Read the files that the parent names, until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin.buffer:
        for path in json.loads(line):
            for answer in _answers(Path(path)):
                answers.write(
                    json.dumps(answer, default=str, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
                )
            answers.flush()


if __name__ == "__main__":
    main()
