"""The documents of files and of folders of files, as records that say where they stand.

Hidden files are left out, and those that a .gitignore names. What cannot be read is counted by kind, each with the first name,
and never ends the rest; a file that is named by itself is an error instead. Files come in the order of their names. A file is
hashed before it is read, so that one that is saved meanwhile differs from its hash, and the next update reads it again.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dsi.docids.data.locations import FILE, PLACE, VERSION
from dsi.files.texts import UnreadableError
from dsi.docids.data.records import MOST_OF_ID, Oddities, Row, document_row
from dsi.docids.data.sources import ID_KEYS, POSITIVES, QUERIES, RECORDS, TEXT_KEYS, file_records, has_pairs, reason
from dsi.docids.files.checks import printable
from dsi.docids.files.progress import Bar
from dsi.docids.files.reading import sha256

logger = logging.getLogger(__name__)

Rows = Iterator[tuple[str, Row]]
"""Documents, each after the words that name it in messages."""
_LEFT = "they are left out"
_DIGITS = 16
"""Of a file's sha256 that are kept."""
_BLOCK, _HOLES, _LARGE = 512, 1000, 2**30
"""Bytes of a block of `stat`; a file is sparse whose size is that many times what the disk holds of it, from a size on."""
_MOST_STARS = 3
"""Of a name in a pattern of a .gitignore, or ** of its path: matching tries all places for each."""
_MOST_KEYS = 100
"""Of the front matter of a file: each makes a column of the table of all documents."""


@dataclass(frozen=True)
class SourceFile:
    """A file that may be read."""

    path: Path  # of the file, absolute
    name: str  # in its folder, or its own if it was named; the ids of its documents begin with it
    is_named: bool  # by the user, so that an error of it is raised

    @cached_property
    def address(self) -> str:
        """The path as a text, also where it is not UTF-8."""
        return _shown(self.path)

    @cached_property
    def version(self) -> str:
        """Digits of the sha256 of its contents when this was first asked; "" if it was empty or could not be opened."""
        try:
            return sha256(self.path)[:_DIGITS] if self._before[3] and not self.is_sparse else ""
        except OSError:
            return ""

    @property
    def is_sparse(self) -> bool:
        """True if a large file is nearly all holes, which would take hours to read."""
        found = self.path.stat()
        held = getattr(found, "st_blocks", found.st_size) * _BLOCK
        return found.st_size > _LARGE and held * _HOLES < found.st_size

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
        found = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class Held:
    """What an index holds of files while they are read again, and what became of them.

    `unread`: addresses of the files that could not be read to their ends; `changed`: of those that were written
    meanwhile.

    `documents`: doc_id, address of the file and place there of each document; the address is empty or None if it has
    none.
    """

    def __init__(self, documents: Iterable[tuple[str, str | None, str | None]] = ()) -> None:
        self.unread, self.changed = set[str](), set[str]()
        self._files, self._owners = set[str](), dict[str, str]()
        for doc_id, file, place in documents:
            self._files.add(file or "")
            self._owners[doc_id] = self._owners[base_of(doc_id, place)] = file or ""

    def stays(self, file: SourceFile) -> bool:
        """Note that a file could not be read, and return whether the index has documents of it, which stay."""
        self.unread.add(file.address)
        return file.address in self._files

    def is_free(self, doc_id: str, file: SourceFile) -> bool:
        """True if no document of another file has this id."""
        return self._owners.get(doc_id, file.address) == file.address

    def base(self, file: SourceFile) -> str:
        """Return what the ids of a file's documents begin with: what they began with before, else a name that is free."""
        names = file.name, f"{file.path.parent.name}/{file.name}", file.address
        own = [name for name in names if self._owners.get(name) == file.address]
        return next(iter(own or filter(lambda name: self.is_free(name, file), names)), file.address)

    def take(self, doc_id: str, file: SourceFile) -> None:
        """Note whose an id is."""
        self._owners[doc_id] = file.address


def base_of(doc_id: str, place: str | None) -> str:
    """Return a doc_id without the place of the document in its file."""
    return doc_id.removesuffix(f"#{place}") if place else doc_id


def path_records(paths: Sequence[Path]) -> Rows:
    """Yield the documents of files and of folders of files."""
    odd, count = Oddities(", ".join(map(str, paths))), 0
    found, _ = source_files(paths, odd)
    if len(found) == 1:  # its error is the answer
        found = [replace(found[0], is_named=True)]
    for count, record in enumerate(records_of_files(found, odd, Held()), start=1):  # noqa: B007
        yield record
    odd.warn()
    if not count and not any(file.is_named for file in found):
        held = f"{len(found)} files of such kinds, none of which can be read" if found else "no such file"
        raise FileNotFoundError(
            f"{odd.source} must hold texts, pages, source code or tables of documents ({', '.join(RECORDS)}), or a "
            f"corpus.jsonl of the BEIR layout; it holds {held}."
        )


def source_files(paths: Sequence[Path], odd: Oddities) -> tuple[list[SourceFile], set[str]]:
    """Return the files that are named and those in folders, and the addresses of what is there and cannot be looked at.

    What is left out is counted.
    """
    found, closed = dict[Path, SourceFile](), set[str]()
    for path in paths:
        if path.is_dir():
            root = path.resolve()
            for name in sorted(_Walk(root, odd, closed)):
                found.setdefault(root / name, SourceFile(root / name, _shown(name).replace(os.sep, "/"), False))
        elif path.exists():
            found.setdefault(path.resolve(), SourceFile(path.resolve(), _shown(path.name), True))
        else:
            raise FileNotFoundError(f"{path} does not exist; name a file or a folder of files.")
    return list(found.values()), closed


# Folders.


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
            if "manifest.json" in names and "docids" in folders:
                self._odd.count(f"indexes among the files; {_LEFT}", _shown(parent))
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
            self._odd.count(f"{what} that may not be read; {_LEFT}", _shown(path))
            self._closed.add(_shown(path))

    def _may_enter(self, folder: Path) -> bool:
        if folder.name.startswith(".") or self._ignored.has(folder, "/"):
            return False
        if os.path.islink(folder):  # noqa: PTH114
            self._odd.count("links to folders; they are not followed", _shown(folder))
            return False
        return True

    def _may_read(self, path: Path) -> bool:
        """True for a file of a kind that is read; whatever else there is is counted."""
        try:
            if self._ignored.has(path) or not self._is_inside(path):
                return False
        except OSError as error:
            self._close(path, error)
            return False
        if _is_read(path):
            return True
        self._closed.add(_shown(path))
        self._others[path.suffix.lower() or "without a suffix"].append(_shown(path.relative_to(self._root)))
        return False

    def _is_inside(self, path: Path) -> bool:
        """True for a file, or a link to one in the folder."""
        if not path.is_file():
            self._odd.count(f"entries that are not files, or links to none; {_LEFT}", _shown(path))
            self._closed.add(_shown(path))
            return False
        if path.is_symlink() and not path.resolve().is_relative_to(self._root):
            self._odd.count("links out of the folder; they are not followed", _shown(path))
            return False
        return True

    def _tell_others(self) -> None:
        """Log the kinds that are not read, the most common first."""
        kinds = sorted(self._others.items(), key=lambda own: (-len(own[1]), own[0]))
        if kinds:
            counts = ", ".join(f"{len(names):,} {_shown(kind)} ({min(names)!r})" for kind, names in kinds[:5])
            more = f" and {len(kinds) - 5} other kinds" if len(kinds) > 5 else ""
            line = "%s: files of kinds that are not read, each with the first: %s%s."
            logger.warning(line, self._root, counts, more)


def _is_read(path: Path) -> bool:
    if _is_table(path):
        return True
    try:
        from dsi.files.readers import is_read
    except ModuleNotFoundError:  # the room can be torn off
        return False
    return is_read(path)


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
            if _is_slow(line):
                self._odd.count(f"patterns in .gitignore files with more than {_MOST_STARS} * in a name; {_LEFT}", line)
                continue
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


def _is_slow(pattern: str) -> bool:
    """True if matching a pattern of a .gitignore may take minutes."""
    names = pattern.strip().split("/")
    stars = [len(re.findall(r"\*+", name)) for name in names]
    return not pattern.startswith("#") and max(max(stars), names.count("**")) > _MOST_STARS


# Files.


def records_of_files(files: Sequence[SourceFile], odd: Oddities, held: Held) -> Rows:
    """Yield the documents of files, each with its file, its place there and the version of the file.

    `held`: what an index holds of files; the ids that documents get and the files that cannot be read are noted there.
    """
    with Bar("files", unit="file", total=len(files)) as bar, _worker(files) as worker:
        for file, following in zip_longest(files, files[1:]):
            base, seen = held.base(file), set[str]()
            for source, row in _readable(file, following, base, odd, held, worker):
                if not file.is_named and not _is_new(row["doc_id"], file, held, seen):
                    row["doc_id"] = f"{base}#{row[PLACE]}"
                    if not _is_new(row["doc_id"], file, held, seen):
                        odd.count(f"documents whose ids others have; {_LEFT}", row["doc_id"])
                        continue
                seen.add(row["doc_id"])
                held.take(row["doc_id"], file)
                yield source, row
            held.take(base, file)
            bar.update()


def _is_new(doc_id: str, file: SourceFile, held: Held, seen: set[str]) -> bool:
    """True if no document of another file has an id, nor one of this file that was read before."""
    return doc_id not in seen and held.is_free(doc_id, file)


def _worker(files: Sequence[SourceFile]) -> AbstractContextManager[Any]:
    """Return what reads files in a process of its own, if some are no tables."""
    if all(_is_table(file.path) for file in files):
        return nullcontext()
    from dsi.files.worker import Worker

    return Worker()


def _readable(
    file: SourceFile, following: SourceFile | None, base: str, odd: Oddities, held: Held, worker: Any
) -> Rows:
    """Yield the documents of a file, and count it if it cannot be read to its end, or changes meanwhile."""
    count, version = 0, file.version  # before it is read
    try:
        if file.is_sparse:
            raise UnreadableError("sparse: nearly all of their bytes are holes")
        rows = _rows(file, base, odd) if _is_table(file.path) else _documents(file, following, base, odd, worker)
        for count, (source, row) in enumerate(rows, start=1):
            if count == 1 and file.is_changed:
                version = ""  # of none of its versions: the next update reads it again
            yield source, row | {VERSION: version}
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise nearly anything
        if file.is_named and type(error) is ValueError:
            raise
        why = _reason(error)
        if file.is_named:
            raise ValueError(f"{file.path} is {why}; leave it out, or save it as a file that can be read.") from None
        stays = held.stays(file)
        left = "what the index has of them stays" if stays else "what was read before is kept" if count else _LEFT
        odd.count(f"files that are {why}; {left}", file.name)
        logger.debug("%s: %s", file.path, reason(error))
    else:
        if file.is_changed:
            held.changed.add(file.address)
            odd.count("files that were written while they were read; the next update reads them again", file.name)


def _reason(error: Exception) -> str:
    """Return what a file is that cannot be read, because of an error."""
    if isinstance(error, ModuleNotFoundError):
        return f'of a kind that needs {error.name} (pip install "dr-scl[files]")'
    if isinstance(error, UnreadableError):
        return str(error)
    return "not to be opened" if isinstance(error, OSError) else "broken"


def _documents(file: SourceFile, following: SourceFile | None, base: str, odd: Oddities, worker: Any) -> Rows:
    """Yield the rows of the documents of a text, of pages or the like; the following file is read meanwhile."""
    ahead = following.path if following and following.version and not _is_table(following.path) else None
    place = {FILE: file.address, PLACE: "", VERSION: ""}
    for part in worker.read(file.path, ahead):
        if part.odd:
            odd.count(part.odd, file.name)
        doc_id = base if part.place.partition("=")[0] in ("", "line") else f"{base}#{printable(part.place)}"
        if len(doc_id.encode()) > MOST_OF_ID:
            odd.count(f"documents whose paths have more than {MOST_OF_ID:,} bytes; {_LEFT}", doc_id)
            continue
        text = part.text.encode(errors="replace").decode()  # without surrogates, which no column can hold
        own = {"doc_id": doc_id, "title": printable(part.title), "text": text, **place, PLACE: printable(part.place)}
        if len(part.metadata) > _MOST_KEYS:
            odd.count(f"front matter of more than {_MOST_KEYS} keys; it is left out", file.name)
            part = part._replace(metadata={})
        try:
            row = document_row({**own, "metadata": {**part.metadata}}, file.address, odd)
        except ValueError:
            odd.count("front matter that no column can hold; it is left out", file.name)
            row = own
        yield file.address, row


def _rows(file: SourceFile, base: str, odd: Oddities) -> Rows:
    """Yield the rows of a table of documents; where it was found in a folder, faults are counted."""
    place = {FILE: file.address, PLACE: "", VERSION: ""}
    if not file.is_named and file.path.suffix.lower() == ".tsv" and not has_pairs(file.path):
        raise UnreadableError("tables without an id and a text" if file.path.stat().st_size else "empty")
    number, columns, is_whole = 0, list[str](), True
    for number, (source, record) in enumerate(file_records(file.path), start=1):
        row = f"row={source.rpartition(' ')[2]}"
        record = _with_plain_names(record)
        if number == 1:
            columns, is_whole = _columns(record), _needs_nothing(record, file.path)
        if not is_whole:
            record = _whole(record, f"{base}#{row}", columns, odd)
        own: Row = {**record, **place, PLACE: row}
        if isinstance(metadata := record.get("metadata"), dict):
            own["metadata"] = {key: value for key, value in metadata.items() if key not in place}
        try:
            yield source, document_row(own, source, odd)
        except ValueError:
            if file.is_named:
                raise
            odd.count(f"rows of tables that are not documents with an id and a text; {_LEFT}", source)
    if not number and not file.is_named:
        raise UnreadableError("empty")


def _with_plain_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a sheet whose columns ID, Title and Text, however they are written, are id, title and text."""
    plain = (*ID_KEYS, *TEXT_KEYS, "title")
    return {low if (low := key.lower()) in plain and low not in record else key: own for key, own in record.items()}


def _needs_nothing(record: Mapping[str, Any], path: Path) -> bool:
    """True if the first row of a table has an id and a text, or is of queries or pairs, which are no documents."""
    if not record.keys().isdisjoint({*QUERIES, *POSITIVES[:2]}) and path.suffix.lower() not in (".csv", ".parquet"):
        return True
    has_text = not record.keys().isdisjoint(TEXT_KEYS)
    return (has_text and not record.keys().isdisjoint(ID_KEYS)) or not (has_text or _columns(record))


def _columns(record: Mapping[str, Any]) -> list[str]:
    """Return the columns of texts of a sheet by its first row; all if there are none."""
    others = [key for key in record if key not in (*ID_KEYS, *TEXT_KEYS, "title")]
    return [key for key in others if isinstance(record[key], str)] or others


def _whole(record: dict[str, Any], doc_id: str, columns: Sequence[str], odd: Oddities) -> dict[str, Any]:
    """Return a row of a sheet as a document; what it has no column for is made of its place, and of the columns of texts."""
    whole = dict(record)
    if record.keys().isdisjoint(ID_KEYS):
        whole["doc_id"] = doc_id
        odd.count("rows of tables without a column id; file and row are their ids", doc_id)
    if record.keys().isdisjoint(TEXT_KEYS):
        found = [(key, str(record[key])) for key in columns if record.get(key) is not None]
        whole["text"] = "\n".join(f"{key}: {own}" for key, own in found)
        whole.setdefault("title", found[0][1] if found else "")
        names = ", ".join(map(printable, columns[:10]))
        odd.count(f"rows of tables without a column text; these columns are their texts: {names}", doc_id)
    return whole


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(RECORDS)


def _shown(path: str | Path) -> str:
    """Return a path as a text that can be printed, with escapes for what is not UTF-8."""
    return printable(os.fspath(path))
