"""The documents of files, as records that say where they stand.

What cannot be read is counted by kind, each with the first name, and never ends the rest; a file that is named by itself is an
error instead.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dsi.docids.data.locations import FILE, PLACE, VERSION, base_of
from dsi.docids.data.records import MOST_OF_ID, Oddities, Row, document_row
from dsi.docids.data.sources import RECORDS, reason
from dsi.docids.files.checks import printable
from dsi.docids.files.progress import Bar
from dsi.files.folders import LEFT, SourceFile, source_files
from dsi.files.tables import is_table, table_documents
from dsi.files.texts import UnreadableError, what_it_is
from dsi.files.worker import Answer, Worker

logger = logging.getLogger(__name__)

Rows = Iterator[tuple[str, Row]]
"""Documents, each after the words that name it in messages."""
_TOGETHER, _BYTES_TOGETHER = 32, 2**20
"""Files that are read at once, and bytes of them, about, at most."""
_MOST_KEYS = 100
"""Of the front matter of a file: each makes a column of the table of all documents."""


class Held:
    """What an index holds of files while they are read again, and what became of them.

    `unread`: addresses of the files that could not be read to their ends; `changed`: of those that were written meanwhile.

    `documents`: doc_id, address of the file and place there of each document; the address is empty or None if it has none.
    """

    def __init__(self, documents: Iterable[tuple[str, str | None, str | None]] = ()) -> None:
        self.unread, self.changed = set[str](), set[str]()
        self._files, self._owners, self._roots = set[str](), dict[str, str](), set[str]()
        for doc_id, file, place in documents:
            base = base_of(doc_id, place)
            self._files.add(file or "")
            self._owners[doc_id] = self._owners[base] = file or ""
            if file and file.endswith(f"/{base}"):
                self._roots.add(file.removesuffix(base))

    def stays(self, file: SourceFile) -> bool:
        """Note that a file could not be read, and return whether the index has documents of it, which stay."""
        self.unread.add(file.address)
        return file.address in self._files

    def is_free(self, doc_id: str, file: SourceFile) -> bool:
        """True if no document of another file has this id."""
        return self._owners.get(doc_id, file.address) == file.address

    def free_id(self, row: Row, base: str, file: SourceFile, seen: Set[str]) -> str:
        """Return the id of a row, else its place in its file; "" if others have both, in this file (`seen`) or elsewhere."""
        names = row["doc_id"], f"{base}#{row[PLACE]}"
        return next((name for name in names if name not in seen and self.is_free(name, file)), "")

    def base(self, file: SourceFile) -> str:
        """Return what the ids of a file's documents begin with: what they began with before, else a name that is free."""
        root = min(filter(file.address.startswith, self._roots), key=len, default="")
        names = (
            file.address.removeprefix(root) if root else file.name,
            f"{file.path.parent.name}/{file.name}",
            file.address,
        )
        before = [name for name in names if self._owners.get(name) == file.address]
        return next(iter(before or filter(lambda name: self.is_free(name, file), names)), file.address)

    def take(self, doc_id: str, file: SourceFile) -> None:
        """Note whose an id is."""
        self._owners[doc_id] = file.address


def path_records(paths: Sequence[Path]) -> Rows:
    """Yield the documents of files and of folders of files."""
    odd, count = Oddities(", ".join(map(str, paths))), 0
    files, _ = source_files(paths, odd)
    if len(files) == 1:  # its error is the answer
        files = [replace(files[0], is_named=True)]
    for count, record in enumerate(records_of_files(files, odd, Held()), start=1):  # noqa: B007
        yield record
    odd.warn()
    if not count and not any(file.is_named for file in files):
        held = f"{len(files)} files of such kinds, none of which can be read" if files else "no such file"
        raise FileNotFoundError(
            f"{odd.source} must hold texts, pages, source code or tables of documents ({', '.join(RECORDS)}), or a "
            f"corpus.jsonl of the BEIR layout; it holds {held}."
        )


def records_of_files(files: Sequence[SourceFile], odd: Oddities, held: Held) -> Rows:
    """Yield the documents of files, each with its file, its place there and the version of the file.

    `held`: what an index holds of files; the ids that documents get and the files that cannot be read are noted there.
    """
    with Bar("files", unit="file", total=len(files)) as bar:
        for file, answer in _answered(files):
            base, seen = held.base(file), set[str]()
            for source, row in _readable(file, answer, base, odd, held):
                doc_id = row["doc_id"] if file.is_named else held.free_id(row, base, file, seen)
                if not doc_id:
                    odd.count(f"documents whose ids others have; {LEFT}", row["doc_id"])
                    continue
                seen.add(doc_id)
                held.take(doc_id, file)
                yield source, row | {"doc_id": doc_id}
            held.take(base, file)
            bar.update()


def _answered(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, Answer]]:
    """Yield files with what stands in them, unless they are tables; those that follow are read meanwhile."""
    with closing(Worker()) as worker:
        asked, paths = list[SourceFile](), list[Path]()
        for batch in (*_batches(files), []):
            # `version` hashes a file before it is read
            following = [file.path for file in batch if file.version and not is_table(file.path)]
            answers = dict(zip(paths, worker.answers(paths), strict=True))
            worker.ask(following)
            yield from ((file, answers.get(file.path, Answer([]))) for file in asked)
            asked, paths = batch, following


def _batches(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield files some at a time: fewer where they are large."""
    batch, size = list[SourceFile](), 0
    for file in files:
        if batch and (len(batch) == _TOGETHER or size + file.size > _BYTES_TOGETHER):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    yield batch


def _readable(file: SourceFile, answer: Answer, base: str, odd: Oddities, held: Held) -> Rows:
    """Yield the documents of a file, and count it if it cannot be read to its end, or changes meanwhile."""
    count, version = 0, file.version
    try:
        if file.is_sparse:
            raise UnreadableError("sparse: nearly all of their bytes are holes")
        rows = _table_rows(file, base, odd) if is_table(file.path) else _rows(file, answer, base, odd)
        for count, (source, row) in enumerate(rows, start=1):
            if count == 1 and file.is_changed:
                version = ""  # of none of its versions: the next update reads it again
            yield source, row | {VERSION: version}
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise nearly anything
        if file.is_named and type(error) is ValueError:
            raise
        why = what_it_is(error)
        if file.is_named:
            raise ValueError(f"{file.path} is {why}; leave it out, or save it as a file that can be read.") from None
        stays = held.stays(file)
        left = "what the index has of them stays" if stays else "what was read before is kept" if count else LEFT
        odd.count(f"files that are {why}; {left}", file.name)
        logger.debug("%s: %s", file.path, reason(error))
    else:
        if file.is_changed:
            held.changed.add(file.address)
            odd.count("files that were written while they were read; the next update reads them again", file.name)


def _rows(file: SourceFile, answer: Answer, base: str, odd: Oddities) -> Rows:
    """Yield the rows of the documents of a text, of pages or the like."""
    for part in answer.parts:
        if part.odd:
            odd.count(part.odd, file.name)
        doc_id = base if part.place.partition("=")[0] in ("", "line") else f"{base}#{printable(part.place)}"
        if len(doc_id.encode()) > MOST_OF_ID:
            odd.count(f"documents whose paths have more than {MOST_OF_ID:,} bytes; {LEFT}", doc_id)
            continue
        place = {FILE: file.address, PLACE: printable(part.place), VERSION: ""}
        row = {"doc_id": doc_id, "title": printable(part.title), "text": part.text, **place}
        if len(part.metadata) > _MOST_KEYS:
            odd.count(f"front matter of more than {_MOST_KEYS} keys; it is left out", file.name)
            part = part._replace(metadata={})
        try:
            yield file.address, document_row({**row, "metadata": part.metadata}, file.address, odd)
        except ValueError:
            odd.count("front matter that no column can hold; it is left out", file.name)
            yield file.address, row
    if answer.error:
        raise answer.error
    if not file.version:
        raise OSError if file.size else UnreadableError("empty")


def _table_rows(file: SourceFile, base: str, odd: Oddities) -> Rows:
    """Yield the rows of a table of documents; where it was found in a folder, faults are counted."""
    count = 0
    for source, place, record in table_documents(file.path, base, odd, is_named=file.is_named):
        count += 1
        row: Row = {**record, FILE: file.address, PLACE: place, VERSION: ""}
        if isinstance(metadata := record.get("metadata"), dict):
            row["metadata"] = {key: value for key, value in metadata.items() if key not in row}
        try:
            yield source, document_row(row, source, odd)
        except ValueError:
            if file.is_named:
                raise
            odd.count(f"rows of tables that are not documents with an id and a text; {LEFT}", source)
    if not count and not file.is_named:
        raise UnreadableError("empty")
