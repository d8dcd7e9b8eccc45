"""The files of folders that may be read: hidden files are left out, those that a .gitignore names, and links out of them.

What is left out is counted by kind, each with the first name. Files come in the order of their names.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dsi.docids.data.records import Oddities
from dsi.docids.files.checks import printable
from dsi.docids.files.reading import sha256
from dsi.files.readers import is_read
from dsi.files.tables import is_table

logger = logging.getLogger(__name__)

LEFT = "they are left out"
_DIGITS = 16
"""Of a file's sha256 that are kept."""
_BLOCK, _HOLES, _LARGE = 512, 1000, 2**30
"""Bytes of a block of `stat`; a file is sparse whose size is that many times what the disk holds of it, from a size on."""
_MOST_STARS = 3
"""Of a name in a pattern of a .gitignore, or ** of its path: matching tries all places for each."""
_LARGEST_IGNORE = 2**16
"""Bytes of a .gitignore, at most: each file is compared with all of its patterns."""


@dataclass(frozen=True)
class SourceFile:
    """A file that may be read. It is hashed before it is read: one that is saved meanwhile differs from its hash."""

    path: Path  # of the file, absolute
    name: str  # path in its folder, or file name if it was named; the ids of its documents begin with it
    is_named: bool  # by the user, so that an error of it is raised

    @cached_property
    def address(self) -> str:
        """The path as a text, also where it is not UTF-8."""
        return shown_path(self.path)

    @cached_property
    def version(self) -> str:
        """Digits of the sha256 of its contents when this was first asked; "" if it was empty or could not be opened."""
        try:
            return sha256(self.path)[:_DIGITS] if self.size and not self.is_sparse else ""
        except OSError:
            return ""

    @property
    def size(self) -> int:
        """Bytes of the file when it was first looked at."""
        return self._before[3]

    @property
    def is_sparse(self) -> bool:
        """True if a large file is nearly all holes, which would take hours to read."""
        return self.size > _LARGE and getattr(self.path.stat(), "st_blocks", self.size) * _BLOCK * _HOLES < self.size

    @property
    def is_changed(self) -> bool:
        """True if the file was written since its version was first asked."""
        return self._before != _state(self.path)

    @cached_property
    def _before(self) -> tuple[int, ...]:
        return _state(self.path)


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes with every write to a file; its size comes fourth."""
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_ctime_ns


def source_files(paths: Sequence[Path], odd: Oddities) -> tuple[list[SourceFile], set[str]]:
    """Return the files that are named and those in folders, and the addresses of what is there and cannot be looked at.

    What is left out is counted.
    """
    files, closed = dict[Path, SourceFile](), set[str]()
    for path in paths:
        root = path.resolve()
        if path.is_dir():
            for name in sorted(_Walk(root, odd, closed)):
                files.setdefault(root / name, SourceFile(root / name, shown_path(name).replace(os.sep, "/"), False))
        elif path.exists():
            files.setdefault(root, SourceFile(root, shown_path(path.name), True))
        else:
            raise FileNotFoundError(f"{path} does not exist; name a file or a folder of files.")
    return list(files.values()), closed


class _Walk:
    """The names, from a folder on, of the files in it and below it that may be read.

    `closed`: gets the addresses of folders and entries that are there and cannot be looked at.
    """

    def __init__(self, root: Path, odd: Oddities, closed: set[str]) -> None:
        self._root, self._odd, self._closed = root, odd, closed
        self._ignored, self._others = _Ignored(root, odd), defaultdict[str, list[str]](list)

    def __iter__(self) -> Iterator[str]:
        for parent, folders, names in os.walk(self._root, onerror=lambda error: self._close(error.filename, error)):
            place = Path(parent)
            if "manifest.json" in names and any(name.partition("-")[0] == "docids" for name in folders):
                self._odd.count(f"indexes among the files; {LEFT}", shown_path(parent))
                folders.clear()
                continue
            try:
                self._ignored.enter(place, names)
            except OSError as error:  # what it names must not be read
                self._close(parent, error)
                folders.clear()
                continue
            folders[:] = [name for name in folders if self._may_enter(place / name)]
            for path in (place / name for name in names if not name.startswith(".")):
                if self._may_read(path):
                    yield os.fspath(path.relative_to(self._root))
        self._tell_others()

    def _close(self, path: str | Path, error: OSError) -> None:
        """Note what cannot be looked at, unless it was removed meanwhile."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            what = "folders" if os.path.isdir(path) else "entries"  # noqa: PTH112  # False for a name that is too long, too
            self._odd.count(f"{what} that may not be read; {LEFT}", shown_path(path))
            self._closed.add(shown_path(path))

    def _may_enter(self, folder: Path) -> bool:
        if folder.name.startswith(".") or self._ignored.has(folder, "/"):
            return False
        if os.path.islink(folder):  # noqa: PTH114
            self._odd.count("links to folders; they are not followed", shown_path(folder))
            return False
        return True

    def _may_read(self, path: Path) -> bool:
        """True for a file, or a link to one in the folder, of a kind that is read; whatever else there is is counted."""
        try:
            if self._ignored.has(path):
                return False
            if not path.is_file():
                self._odd.count(f"entries that are not files, or links to none; {LEFT}", shown_path(path))
            elif path.is_symlink() and not path.resolve().is_relative_to(self._root):
                self._odd.count("links out of the folder; they are not followed", shown_path(path))
                return False
            elif is_table(path) or is_read(path):
                return True
            else:
                kind = path.suffix.lower() or "without a suffix"
                self._others[kind].append(shown_path(path.relative_to(self._root)))
            self._closed.add(shown_path(path))
        except OSError as error:
            self._close(path, error)
        return False

    def _tell_others(self) -> None:
        """Log the kinds that are not read, the most common first."""
        kinds = sorted(self._others.items(), key=lambda kind: (-len(kind[1]), kind[0]))
        if kinds:
            counts = ", ".join(f"{len(names):,} {shown_path(kind)} ({min(names)!r})" for kind, names in kinds[:5])
            more = f" and {len(kinds) - 5} other kinds" if len(kinds) > 5 else ""
            line = "%s: files of kinds that are not read, each with the first: %s%s."
            logger.warning(line, self._root, counts, more)


class _Ignored:
    """The files that the .gitignore files of a folder, and of those below it, name."""

    def __init__(self, root: Path, odd: Oddities) -> None:
        self._root, self._odd = root, odd
        self._patterns: dict[Path, Any] = {}

    def enter(self, folder: Path, names: Sequence[str]) -> None:
        """Read the .gitignore of a folder that holds files of some names."""
        path = folder / ".gitignore"
        if ".gitignore" not in names or not path.is_file():
            return
        if path.stat().st_size > _LARGEST_IGNORE:
            self._odd.count(f".gitignore files larger than {_LARGEST_IGNORE >> 10} KB; they are not heeded", str(path))
            return
        try:
            from pathspec import GitIgnoreSpec
        except ModuleNotFoundError:
            kind = '.gitignore files; they are not heeded without pathspec (pip install "dr-scl[files]")'
            self._odd.count(kind, shown_path(folder))
            return
        patterns: list[Any] = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if _is_slow(line):
                self._odd.count(f"patterns in .gitignore files with more than {_MOST_STARS} * in a name; {LEFT}", line)
                continue
            try:
                patterns += GitIgnoreSpec.from_lines([line]).patterns
            except (ValueError, re.error):
                self._odd.count(f"patterns in .gitignore files that are none; {LEFT}", line)
        self._patterns[folder] = GitIgnoreSpec(patterns)

    def has(self, path: Path, end: str = "") -> bool:
        """True if the nearest pattern that names a path excludes it; `end` is "/" for a folder."""
        for folder in path.parents if self._patterns else ():
            if folder in self._patterns:
                excludes = self._patterns[folder].check_file(path.relative_to(folder).as_posix() + end).include
                if excludes is not None:
                    return bool(excludes)
            if folder == self._root:
                break
        return False


def _is_slow(pattern: str) -> bool:
    """True if matching a pattern of a .gitignore may take minutes."""
    names = pattern.strip().split("/")
    stars = [len(re.findall(r"\*+", name)) for name in names]
    return not pattern.startswith("#") and max(max(stars), names.count("**")) > _MOST_STARS


def shown_path(path: str | Path) -> str:
    """Return a path as a text that can be printed, with escapes for what is not UTF-8."""
    return printable(os.fspath(path))
