"""What changed in files and folders since an index was made of them. Changes no index."""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dsi.docids.data.locations import FILE, PLACE, VERSION
from dsi.docids.data.records import COLUMNS, EMPTY_DOCUMENTS, Oddities, Row
from dsi.docids.files.checks import shown, user_path
from dsi.files.documents import Held, records_of_files
from dsi.files.folders import source_files
from dsi.store.documents.table import DocumentTable
from dsi.store.updating import FileChanges, fitted


def tell_returning(before: DocumentTable, rows: Sequence[int], now: DocumentTable) -> None:
    """Warn of documents, rows of a table of files, that were removed while their files stay: updates bring them back."""
    odd, left = Oddities("remove"), {*now.column(FILE)}
    doc_ids, files = (before.column(name).take(np.array(rows)) for name in ("doc_id", FILE))
    replaced = now.find(doc_ids)
    for doc_id, file in zip(doc_ids, files, strict=True):
        if doc_id in replaced or not file or _is_absent(Path(file)):
            continue
        if file in left:
            odd.count("documents of files of which others stay; they come back when the file changes", doc_id)
        else:
            back = "the next update of the folder brings them back, unless the files are deleted or a .gitignore names them"
            odd.count(f"documents whose files are still there; {back}", doc_id)
    odd.warn()


def changed_files(documents: DocumentTable, paths: Sequence[str | Path]) -> tuple[FileChanges, list[Row], list[int]]:
    """Return how many files have changed, the documents of new and changed ones, and the rows of documents that go.

    Files and folders are compared with the index that was made of them, by their contents; its other files are left alone.
    What is there and cannot be read keeps its documents.
    """
    if FILE not in documents.column_names:
        raise ValueError("The index was not made of files, so no folder can be compared with it; use --add or add().")
    # 1) Compare.
    roots, odd = [user_path(path) for path in paths], Oddities(", ".join(map(str, paths)))
    sources, closed = source_files(roots, odd)
    doc_ids, files, places, versions = (documents.column(name)[:] for name in ("doc_id", FILE, PLACE, VERSION))
    known = {file: version for file, version in zip(files, versions, strict=True) if file}
    present = {file.address: file.version for file in sources}
    unchanged = {file for file, version in present.items() if version and known.get(file) == version}
    gone, unseen = _gone(known, present, [root.resolve() for root in roots], closed)
    stays = {version for file, version in known.items() if file not in gone}
    for file, version in present.items():
        if version and file not in known and version in stays:
            odd.count("files whose content the index has from another path; both are kept", file)
    read_before = {*filter(None, known.values())}
    for root in roots:
        folder = str(root.resolve())
        own = [] if folder in present else [file for file in present if file.startswith(folder + os.sep)]
        if 2 * sum(file in known or present[file] in read_before for file in own) < len(own):
            odd.count("folders most of whose files are new to the index; they are added", str(root))
    for file in unseen:
        odd.count("files that cannot be looked at; what the index has of them stays", file)
    # 2) Read.
    held = Held(document for document in zip(doc_ids, files, places, strict=True) if document[1] not in gone)
    read = [row for _, row in records_of_files([file for file in sources if file.address not in unchanged], odd, held)]
    unread = held.unread | _losing(held.changed, read, doc_ids, files)
    unchanged |= unread & known.keys()
    schema = documents.table.schema
    rows = [_fitting(row, schema, odd) for row in read if row[FILE] not in unchanged]
    if twice := [doc_id for doc_id, count in Counter(row["doc_id"] for row in rows).items() if count > 1]:
        raise ValueError(f"{odd.source}: duplicate doc_id {shown(twice[0])}; ids must be unique.")
    for row in rows:
        if not (row["title"].strip() or row["text"].strip()):
            odd.count(EMPTY_DOCUMENTS, row["doc_id"])
    odd.warn()
    changed = (known.keys() & present.keys()) - unchanged
    going = [row for row, file in enumerate(files) if file in gone or file in changed]
    new = {row[FILE] for row in rows} - changed - gone
    return FileChanges(len(new), len(changed), len(gone), len(unchanged) + len(unseen)), rows, going


def _gone(
    known: Mapping[str, str], present: Mapping[str, str], roots: Sequence[Path], closed: Collection[str]
) -> tuple[set[str], list[str]]:
    """Return the files of an index that left the folders, and those that cannot be looked at."""
    moved = {version: file for file, version in present.items() if version and file not in known}
    gone, unseen, folders = set[str](), list[str](), [*roots, *_left(known, moved)]
    for file, version in known.items():
        path = Path(file)
        if file in present:
            continue
        if any(path.is_relative_to(folder) for folder in folders):
            if any(str(place) in closed for place in (path, *path.parents)):
                unseen.append(file)
            else:
                gone.add(file)
        elif version in moved and _is_absent(path):
            gone.add(file)
    return gone, unseen


def _left(known: Mapping[str, str], moved: Mapping[str, str]) -> list[Path]:
    """Return folders that were moved: they are not there, and at least half of what an index has of them is somewhere else.

    `known`: {file: version} of the index; `moved`: {version: file} of what is new.
    """
    found = Counter[Path]()
    for file, version in known.items():
        here, there = Path(file), Path(moved.get(version, ""))
        while here.name == there.name and _is_absent(here.parent):
            here, there = here.parent, there.parent
        if here != Path(file):
            found[here] += 1
    below = Counter(folder for file in known for folder in Path(file).parents if found[folder])
    return [folder for folder, files in below.items() if 2 * found[folder] >= files]


def _is_absent(path: Path) -> bool:
    """True if there is no such file; one that cannot be looked at is there."""
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _losing(changed: Collection[str], read: Sequence[Row], doc_ids: Sequence[str], files: Sequence[str]) -> set[str]:
    """Return those of some files, which were written while they were read, of which documents of the index were not read."""
    if not changed:
        return set()
    again = {row["doc_id"] for row in read if row[FILE] in changed}
    return {file for doc_id, file in zip(doc_ids, files, strict=True) if file in changed and doc_id not in again}


def _fitting(row: Row, schema: pa.Schema, odd: Oddities) -> Row:
    """Return a row without the metadata that the columns of an index cannot hold, which is counted.

    Where one cell of a table is no number, its column has texts: the others are numbers still.
    """
    fitting = {}
    for name, value in row.items():
        try:
            kind = None if name in COLUMNS else schema.field(name).type
            fitting[name] = value if kind is None else fitted(row["doc_id"], name, _as_number(value, kind), kind)
        except (KeyError, ValueError):
            odd.count("values for which the index has no column; no filter finds them", f"{name}: {value}")
    return fitting


def _as_number(value: Any, arrow: pa.DataType) -> Any:
    """Return the number, or truth value, that a text in a column of these writes; any other value as it is."""
    of_numbers = pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_boolean(arrow)
    return pa.scalar(value).cast(arrow).as_py() if of_numbers and isinstance(value, str) else value
