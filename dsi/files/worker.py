"""Reads files in a process of its own: one that hangs, fills the memory or breaks a parser ends that process and nothing else.

The parent writes the path of a file as a line of JSON; the child answers with a line for each document, and one that ends them.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from dsi.files.texts import Part, UnreadableError
from dsi.files.readers import parts_of

_SECONDS, _SECONDS_A_MEGABYTE = 5, 2
"""Of the processor that a file may take."""
_MEMORY = 3 * 2**28
"""Bytes of the child, at most."""
_CHARACTERS = 2**26
"""Of the documents of a file, at most."""
_PAUSE = 0.05
"""Seconds after which the child is measured again."""


class Worker:
    """Reads files in a child process, which starts with the first one, and again after one that ended it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: Path | None = None
        self._end, self._why = 0.0, ""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def read(self, path: Path, following: Path | None = None) -> Iterator[Part]:
        """Yield the documents of a file; the child reads the following one meanwhile.

        Raises:
            UnreadableError: it is not read to its end; the message says why.
            ModuleNotFoundError: a library that reads it is not installed.
            OSError: it cannot be opened.
        """
        if self._asked != path:
            self._ask(path)
        parts, ending = self._answers()
        self._asked = None
        if following is not None:
            with suppress(OSError):  # of which its own turn tells
                self._ask(following)
        yield from parts
        if "needs" in ending:
            raise ModuleNotFoundError(name=ending["needs"])
        if "closed" in ending:
            raise OSError(ending["closed"])
        if "error" in ending:
            raise UnreadableError(ending["error"])

    def _ask(self, path: Path) -> None:
        """Have the child read a file."""
        if self._asked is not None:  # another one, which nobody wants
            self._stop()
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
        child, self._asked = self._running(), path
        with suppress(psutil.Error, BrokenPipeError):  # if it has ended, its answers end
            self._end = _seconds(psutil.Process(child.pid)) + _SECONDS + _SECONDS_A_MEGABYTE * size / 2**20
            child.stdin.write(json.dumps(os.fspath(path)).encode() + b"\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]

    def _answers(self) -> tuple[list[Part], dict[str, str]]:
        """Return the documents of the file that was asked for, and how it ended."""
        parts = list[Part]()
        for line in self._running().stdout or ():
            answer = json.loads(line)
            if isinstance(answer, dict):
                return parts, answer
            parts.append(Part(*answer))
        self._stop()
        return parts, {"error": self._why or "broken (they crash the parser)"}

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

    def _stop(self) -> None:
        child, self._child, self._asked = self._child, None, None
        if child is not None:
            child.kill()
            child.communicate()

    def _watch(self, child: "subprocess.Popen[bytes]") -> None:
        """End the child when it takes more than it may."""
        try:
            seen = psutil.Process(child.pid)
            while child.poll() is None:
                if seen.memory_info().rss > _MEMORY:
                    self._why = f"too large once unpacked (over {_MEMORY >> 20} MB of memory)"
                elif _seconds(seen) > self._end:
                    self._why = f"too slow to read (over {_SECONDS} seconds, and {_SECONDS_A_MEGABYTE} more a megabyte)"
                if self._why:
                    return child.kill()
                time.sleep(_PAUSE)
        except psutil.Error:
            return None  # it has ended


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _answers(path: Path) -> Iterator[Any]:
    """Yield the documents of a file as lists, and how it ended."""
    characters = 0
    try:
        for part in parts_of(path):
            characters += len(part.text)
            if characters > _CHARACTERS:
                raise UnreadableError(f"with more than {_CHARACTERS >> 20} million characters of text")
            yield part
    except ModuleNotFoundError as error:
        yield {"needs": error.name}
    except UnreadableError as error:
        yield {"error": str(error)}
    except OSError as error:
        yield {"closed": str(error)}
    except Exception:  # the libraries raise nearly anything
        yield {"error": "broken"}
    else:
        yield {}


def main() -> None:
    """Read the files that the parent names, until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin.buffer:
        for answer in _answers(Path(json.loads(line))):
            answers.write(json.dumps(answer, default=str, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
