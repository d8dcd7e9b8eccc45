"""A disk that loses power: what it holds is what was synced, in the two worst orders of the rest."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
"""Changes of names; before each of them the power may go."""


class Disk:
    """Watches what this process does below a folder.

    Args:
        folder: as it is now, on the disk.
        lost: called with no arguments before every change of names, and after every sync; may call `write`.
    """

    def __init__(self, folder: Path, lost: Callable[[], None]) -> None:
        self.folder, self.lost = folder, lost
        self._files: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._open: list[int] = []  # so that no number of a file is used again
        self._is_on = False
        for path in [folder, *folder.rglob("*")]:
            self._note(os.open(path, os.O_RDONLY))

    def _note(self, descriptor: int) -> None:
        self._open.append(descriptor)
        place, number = f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_ino
        if Path(place).is_dir():
            with os.scandir(place) as entries:
                self._names[number] = {entry.name: entry.inode() for entry in entries}
        else:
            self._files[number] = Path(place).read_bytes()

    def write(self, target: Path, *, only_synced_names: bool) -> None:
        """Write what is left after a loss of power: synced content, with all names as they are or only the synced ones."""
        self._write(self.folder, self.folder.stat().st_ino, target, only_synced_names)

    def _write(self, source: Path, number: int, target: Path, only_synced_names: bool) -> None:
        target.mkdir()
        names = self._names.get(number, {})
        if not only_synced_names:
            names = {path.name: path.lstat().st_ino for path in source.iterdir()}
        for name, own in names.items():
            if own in self._names or (source / name).is_dir():
                self._write(source / name, own, target / name, only_synced_names)
            else:
                (target / name).write_bytes(self._files.get(own, b""))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch during the block."""
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self._note(os.dup(descriptor))
            self._lose()

        def hook(event: str, arguments: tuple) -> None:
            if event in EVENTS:
                self._lose()

        sys.addaudithook(hook)  # stays, and does nothing when the block has ended
        os.fsync, self._is_on = fsync, True
        try:
            yield
            self._lose()
        finally:
            os.fsync, self._is_on = sync, False
            for descriptor in self._open:
                os.close(descriptor)

    def _lose(self) -> None:
        if self._is_on:
            self._is_on = False
            self.lost()
            self._is_on = True
