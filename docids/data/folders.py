"""The documents of files and of folders of files, as records that say where they stand.

Hidden files are left out, and those that a .gitignore names. What cannot be read is counted by kind, each with the first name,
and never ends the rest; a file that is named by itself is an error instead. Files come in the order of their names.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsi.docids.data.locations import FILE, PLACE, VERSION
from dsi.docids.data.readers import UnreadableError, is_other_encoding, parts_of, reader_of
from dsi.docids.data.records import Oddities, Row, document_row
from dsi.docids.data.repeats import Repeats
from dsi.docids.data.sources import RECORDS, file_records, has_pairs, reason
from dsi.docids.files.checks import printable
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import sha256

logger = logging.getLogger(__name__)

Rows = Iterator[tuple[str, Row]]
"""Documents, each after the words that name it in messages."""
_LEFT = "they are left out"
_DIGITS = 16
"""Of a file's sha256 that are kept."""


class SourceFile(NamedTuple):
    """A file that may be read.

    Attributes:
        path: of the file, absolute.
        name: in its folder, or its own if it was named; the ids of its documents begin with it.
        is_named: by the user, so that an error of it is raised.
    """

    path: Path
    name: str
    is_named: bool

    @property
    def address(self) -> str:
        """The path as a text, also where it is not UTF-8."""
        return _shown(self.path)

    @property
    def version(self) -> str:
        """Digits of the sha256 of its contents; "" for one that cannot be opened, or is empty as endless devices are."""
        try:
            return sha256(self.path)[:_DIGITS] if self.path.stat().st_size else ""
        except OSError:
            return ""


def path_records(paths: Sequence[Path]) -> Rows:
    """Yield the documents of files and of folders of files.

    Raises:
        FileNotFoundError: no such path, or nothing that can be read.
        ValueError: a file that is named is not of its kind.
    """
    odd, count = Oddities(", ".join(map(str, paths))), 0
    found = source_files(paths, odd)
    if len(found) == 1:  # its error is the answer
        found = [found[0]._replace(is_named=True)]
    for count, record in enumerate(records_of_files(found, odd), start=1):  # noqa: B007
        yield record
    odd.warn()
    if not count and not any(file.is_named for file in found):
        held = f"{len(found)} files of such kinds, none of which can be read" if found else "no such file"
        raise FileNotFoundError(
            f"{odd.source} must hold texts, pages, source code or tables of documents ({', '.join(RECORDS)}), or a "
            f"corpus.jsonl of the BEIR layout; it holds {held}."
        )


def source_files(paths: Sequence[Path], odd: Oddities) -> list[SourceFile]:
    """Return the files that are named and those in folders; count what is left out.

    Raises:
        FileNotFoundError: no such path.
    """
    found: dict[Path, SourceFile] = {}
    for path in paths:
        if path.is_dir():
            root = path.resolve()
            for name in sorted(_walk(root, odd)):
                found.setdefault(root / name, SourceFile(root / name, _shown(name).replace(os.sep, "/"), False))
        elif path.exists():
            found.setdefault(path.resolve(), SourceFile(path.resolve(), _shown(path.name), True))
        else:
            raise FileNotFoundError(f"{path} does not exist; name a file or a folder of files.")
    return list(found.values())


# Folders.


def _walk(root: Path, odd: Oddities) -> Iterator[str]:
    """Yield the names, from a folder on, of the files in it and below it that may be read."""
    ignored, others = _Ignored(root, odd), defaultdict[str, list[str]](list)

    def forbidden(error: OSError) -> None:
        if isinstance(error, PermissionError):  # other folders have been removed meanwhile
            odd.count(f"folders that may not be read; {_LEFT}", _shown(error.filename))

    for parent, folders, names in os.walk(root, onerror=forbidden):
        place = Path(parent)
        if "manifest.json" in names and "docids" in folders:
            odd.count(f"indexes among the files; {_LEFT}", _shown(parent))
            folders.clear()
            continue
        ignored.enter(place, names)
        folders[:] = [name for name in folders if _may_enter(place / name, ignored, odd)]
        for path in (place / name for name in names if not name.startswith(".")):
            if not ignored.has(path) and _is_inside(path, root, odd):
                if _is_read(path):
                    yield os.fspath(path.relative_to(root))
                else:
                    others[path.suffix.lower() or "without a suffix"].append(_shown(path.relative_to(root)))
    if others:
        kinds = sorted(others.items(), key=lambda own: (-len(own[1]), own[0]))
        counts = ", ".join(f"{len(names):,} {_shown(kind)} ({min(names)!r})" for kind, names in kinds[:5])
        more = f" and {len(kinds) - 5} other kinds" if len(kinds) > 5 else ""
        logger.warning("%s: files of kinds that are not read, each with the first: %s%s.", root, counts, more)


def _may_enter(folder: Path, ignored: "_Ignored", odd: Oddities) -> bool:
    if folder.name.startswith(".") or ignored.has(folder, "/"):
        return False
    if folder.is_symlink():
        odd.count("links to folders; they are not followed", _shown(folder))
        return False
    return True


def _is_inside(path: Path, root: Path, odd: Oddities) -> bool:
    """True for a file, or a link to one in the folder; whatever else there is is counted."""
    if not path.is_file():
        odd.count(f"entries that are not files, or links to none; {_LEFT}", _shown(path))
        return False
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        odd.count("links out of the folder; they are not followed", _shown(path))
        return False
    return True


def _is_read(path: Path) -> bool:
    try:
        return _is_table(path) or reader_of(path) is not None
    except (OSError, UnreadableError):
        return True  # reading it counts it


class _Ignored:
    """The files that the .gitignore files of a folder, and of those below it, name."""

    def __init__(self, root: Path, odd: Oddities) -> None:
        self._root, self._odd = root, odd
        self._patterns: dict[Path, Any] = {}

    def enter(self, folder: Path, names: Sequence[str]) -> None:
        """Read the .gitignore of a folder that holds files of some names."""
        if ".gitignore" not in names or not (folder / ".gitignore").is_file():
            return
        try:
            from pathspec import GitIgnoreSpec
        except ModuleNotFoundError:
            kind = '.gitignore files; they are not heeded without pathspec (pip install "dr-scl[files]")'
            self._odd.count(kind, _shown(folder))
            return
        patterns: list[Any] = []
        for line in (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                patterns += GitIgnoreSpec.from_lines([line]).patterns
            except (ValueError, re.error):
                self._odd.count(f"patterns in .gitignore files that are none; {_LEFT}", line)
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


# Files.


def records_of_files(files: Sequence[SourceFile], odd: Oddities, taken: set[str] | None = None) -> Rows:
    """Yield the documents of files, each with its file, its place there and the version of the file.

    Args:
        files: to read, one after another.
        odd: counts what cannot be read, and documents that repeat another one.
        taken: ids that documents of folders do not get; theirs are added.

    Raises:
        ValueError: a file that is named cannot be read.
    """
    taken, repeats = set() if taken is None else taken, Repeats()
    with Bar("files", unit="file", total=len(files)) as bar:
        for file in files:
            names = file.name, f"{file.path.parent.name}/{file.name}", file.address
            base = next((name for name in names if name not in taken), file.address)
            for source, row in _readable(file, base, odd):
                if row["doc_id"] in taken and not file.is_named:
                    row["doc_id"] = f"{base}#{row[PLACE]}"
                if same := repeats.add(row["text"]):
                    odd.count(f"documents with {same} text as another one; they are kept", row["doc_id"])
                taken.add(row["doc_id"])
                yield source, row
            taken.add(base)
            bar.update()


def _readable(file: SourceFile, base: str, odd: Oddities) -> Rows:
    """Yield the documents of a file, and count it if it cannot be read to its end.

    Raises:
        ValueError: it is named, and cannot be read.
    """
    count = 0
    try:
        for count, row in enumerate((_rows if _is_table(file.path) else _documents)(file, base, odd), start=1):  # noqa: B007
            yield row
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise nearly anything
        if file.is_named and type(error) is ValueError:
            raise
        why = _reason(error)
        if file.is_named:
            raise ValueError(f"{file.path} is {why}; leave it out, or save it as a file that can be read.") from None
        odd.count(f"files that are {why}; {'what was read before is kept' if count else _LEFT}", file.name)
        logger.debug("%s: %s", file.path, reason(error))


def _reason(error: Exception) -> str:
    """Return what a file is that cannot be read, because of an error."""
    if isinstance(error, ModuleNotFoundError):
        return f'of a kind that needs {error.name} (pip install "dr-scl[files]")'
    if isinstance(error, UnreadableError):
        return str(error)
    return "not to be opened" if isinstance(error, OSError) else "broken"


def _documents(file: SourceFile, base: str, odd: Oddities) -> Rows:
    """Yield the rows of the documents of a text, of pages or the like."""
    for number, part in enumerate(parts_of(file.path)):
        if not number:
            place = _place(file)
            if is_other_encoding(file.path):
                odd.count("texts in other encodings than UTF-8; they are read as UTF-16 or Windows-1252", file.name)
        is_first = not number and part.place.partition("=")[0] in ("", "line")
        doc_id = base if is_first else f"{base}#{part.place}"
        text = part.text.encode(errors="replace").decode()  # without surrogates, which no column can hold
        own = {"doc_id": doc_id, "title": printable(part.title), "text": text, **place, PLACE: part.place}
        try:
            row = document_row({**own, "metadata": {**part.metadata}}, file.address, odd)
        except ValueError:
            odd.count("front matter that no column can hold; it is left out", file.name)
            row = own
        yield file.address, row


def _rows(file: SourceFile, base: str, odd: Oddities) -> Rows:
    """Yield the rows of a table of documents; where it was found in a folder, faults are counted."""
    place = _place(file)
    if not file.is_named and file.path.suffix.lower() == ".tsv" and not has_pairs(file.path):
        raise UnreadableError("tables without an id and a text")
    for source, record in file_records(file.path):
        own = {**record, **place, PLACE: f"row={source.rpartition(' ')[2]}"}
        if isinstance(metadata := record.get("metadata"), dict):
            own["metadata"] = {key: value for key, value in metadata.items() if key not in place}
        try:
            yield source, document_row(own, source, odd)
        except ValueError:
            if file.is_named:
                raise
            odd.count(f"rows of tables that are not documents with an id and a text; {_LEFT}", source)


def _place(file: SourceFile) -> dict[str, str]:
    return {FILE: file.address, PLACE: "", VERSION: file.version}


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(RECORDS)


def _shown(path: str | Path) -> str:
    """Return a path as a text that can be printed, with escapes for what is not UTF-8."""
    return printable(os.fspath(path))
