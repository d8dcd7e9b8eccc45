"""Docid schemes: their input and output, and their names; the module of a scheme is imported when it is used.

A scheme gives every document a path of numbers. Documents whose paths have a common prefix share a node of the docid tree.
Everything after that (digits, files, search, updates) is the same for all schemes.
"""

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dsi.docids import extensions
from dsi.docids.files.checks import and_more, shown
from dsi.docids.files.declarations import Count, NameOrPath, Whole, settings
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.tree import MOST_LEVELS, MOST_PLACES
from dsi.docids.types import Floats, Ints, Numbers
from dsi.docids.vectors import BLOCK

FILE = "file"
"""The scheme of docids in a file; a configuration names the file."""

BUILT_IN = {
    "kmeans": ("branching", "max_leaf_size", "pieces"),  # hierarchical k-means (DR-SCL section 3.4)
    FILE: ("pieces",),  # read from a file, which is the method
}
"""{`DocidsConfig.scheme`: settings that it reads}; the scheme is the function `make` in `dsi.docids.schemes.SCHEME`."""

MOST_CLUSTERS = 64
"""A split makes at most this many clusters if `branching` is 0."""
_LARGEST = 2**31 - 1


@settings("docids")
class DocidsConfig:
    """How docids are made (section `[docids]`). A setting that the method does not read keeps its default."""

    method: NameOrPath = "kmeans"
    """The scheme: "kmeans" (the paper), one that another package adds, or, in Python, the import path of a function. Or a file
    NAME.tsv of docids: a line a docid, the doc_id, a tab, and digits with spaces between them. A document may have several
    lines; with `pieces` they are those of its pieces, in order."""
    branching: Whole = 0
    """Clusters a split; digits a level. 0 chooses: as many as clusters half as large as `max_leaf_size` need, so that few
    are split again, and at most 64."""
    max_leaf_size: Count = 20
    """A cluster of at most this many documents is not split."""
    pieces: Annotated[int, Field(ge=0, le=MOST_PLACES)] = 0
    """The most pieces of a document's text, each after the title, that get a docid each; a text that the encoder reads whole is
    one (`encoder.document_length`, `encoder.piece_length`). A document scores as its best piece does. 1 reads the beginning of
    each text alone. 0 chooses: as many as a text needs where docids are clusters, up to 65,536, and 1 where they are a file or
    another package's."""

    def __post_init__(self) -> None:
        built_in = self.scheme in BUILT_IN and self.method != FILE
        if not built_in and not extensions.is_import_path(self.method) and self.method not in (names := scheme_names()):
            raise ValueError(
                f"docids.method must be one of {', '.join(names)}, or a file NAME.tsv of docids, got {shown(self.method)}; "
                "docids=function takes your own, and the scheme of another package needs that package."
            )
        if self.branching == 1:
            raise ValueError("docids.branching must be at least 2, or 0 to choose, got 1.")
        self._check_unused()

    @property
    def scheme(self) -> str:
        """Name of the scheme that makes the docids; "file" if they are read from one."""
        return FILE if self.method.endswith(".tsv") else self.method

    @property
    def most_pieces(self) -> int:
        """The most pieces of a document, chosen where `pieces` is 0."""
        return self.pieces or (MOST_PLACES if "branching" in BUILT_IN.get(self.scheme, ()) else 1)

    def clusters(self, documents: int) -> int:
        """Return the number of clusters into which a cluster of `documents` is split.

        >>> DocidsConfig(max_leaf_size=20).clusters(100)
        10
        """
        clusters = self.branching or min(MOST_CLUSTERS, -(-2 * documents // self.max_leaf_size))
        return min(max(2, clusters), documents)

    def _check_unused(self) -> None:
        """Raise ValueError if a setting that the method does not read is not its default."""
        read = BUILT_IN.get(self.scheme)
        if read is None:  # what another package's method reads is unknown
            return
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if setting.name not in ("method", *read) and value != setting.default:
                raise ValueError(
                    f'docids.{setting.name} is not read by the docid method "{self.method}"; leave it at '
                    f"{setting.default!r}, got {shown(value)}."
                )


@dataclass(frozen=True)
class SchemeInput:
    """The input of a scheme: documents in collection order, already checked.

    If documents have several pieces, N counts pieces, and each entry is that of a piece or of its document.

    Attributes:
        embeddings: [N, dim] vectors of the documents, perhaps memory-mapped.
        config: the settings.
        doc_ids: [N] the user's keys, for a scheme that needs them; otherwise empty.
        titles: [N] for a scheme that reads them.
        texts: [N] title and text, read by slices, for a scheme that reads them.
        rows: [N] the document of each piece, ascending from 0; None if each document is one.
        tokenizer: of the encoder; that of `generator.decoder` where another package adds its docid tokens.
        seed: of k-means, or of what is drawn at random; one seed gives one tree.
        processes: share the work; each calls the scheme and gets the same docids.
        progress: show a progress bar over documents.

    Raises:
        ValueError: fewer documents than `branching`, or values that are not finite.
    """

    embeddings: Floats
    config: DocidsConfig
    doc_ids: Sequence[str] = ()
    titles: Sequence[str] = ()
    texts: Sequence[str] = ()
    rows: Ints | None = None
    tokenizer: Any = None
    seed: int = 0
    processes: Processes = ALONE
    progress: bool = False

    def __post_init__(self) -> None:
        bad = ~np.isfinite(np.concatenate([block.sum(axis=1, dtype=np.float32) for block in _blocks(self.embeddings)]))
        if bad.any():
            raise ValueError(f"embeddings must be finite; row {bad.argmax()}{and_more(bad.sum() - 1)} is not.")
        check_branching(len(self.embeddings), self.config)


@dataclass(frozen=True, eq=False)
class Docids:
    """The output of a scheme: one or more paths per document. Documents with equal paths get one more number each.

    Attributes:
        paths: [N, longest] the numbers of each document in collection order, from 0 to 2**31 - 1; -1 past the end; kept in the
            smallest type that holds them. A digit of the tree is the rank of the number among its siblings.
        rows: [N] the document of each path, ascending from 0, each at least once; None if each has one.

    Raises:
        ValueError: the paths are not of this form.
    """

    paths: Ints
    rows: Ints | None = None

    def __post_init__(self) -> None:
        _check_paths(self.paths)
        if self.rows is not None:
            _check_rows(self.rows, len(self.paths))
        longest = int(path_lengths(self.paths).max())
        if longest >= MOST_LEVELS:  # documents with equal paths get one more
            raise ValueError(f"A path of a docid scheme must have fewer than {MOST_LEVELS} numbers, got {longest}.")
        paths = self.paths[:, :longest].astype(_smallest(self.paths), copy=False)
        object.__setattr__(self, "paths", _separate(paths))

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> "Docids":
        """Return docids of paths of any lengths.

        >>> Docids.from_paths([[0, 7], [3], [3]]).paths.tolist()
        [[0, 7], [3, 0], [3, 1]]

        Raises:
            ValueError: a path is not a sequence of such numbers.
        """
        return cls(pad_paths(paths))

    def with_rows(self, rows: Ints) -> "Docids":
        """Return the docids with the document of each path, `rows` [N]."""
        _check_rows(rows, len(self.paths))
        same = copy.copy(self)  # the paths are checked, and different
        object.__setattr__(same, "rows", rows)
        return same


def pad_paths(paths: Sequence[Sequence[int]]) -> Ints:
    """Return paths of any lengths as one array [paths, longest], -1 past their ends."""
    numbers = []
    for document, path in enumerate(paths):
        try:
            # a cast would cut 0.9 to 0 and read "12" as a number
            numbers.append(np.fromiter(map(index, path), np.int64))
        except (TypeError, OverflowError):
            values = path.tolist() if isinstance(path, np.ndarray) else path
            raise ValueError(
                f"A path of a docid scheme must be integers from 0 to {_LARGEST}; document {document} has {shown(values)}."
            ) from None
    rows = np.full((len(numbers), max(map(len, numbers), default=0)), -1, dtype=np.int64)
    for row, digits in zip(rows, numbers, strict=True):
        row[: len(digits)] = digits
    return rows  # type: ignore[return-value]


def path_lengths(paths: Ints) -> NDArray[np.int16]:
    """Return the length [N] of each path [N, longest]."""
    return np.concatenate([(block >= 0).sum(axis=1, dtype=np.int16) for block in _blocks(paths)])


def _blocks(rows: Numbers) -> Iterator[Numbers]:
    return (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))


Scheme = Callable[[SchemeInput], Docids]
"""A docid scheme: any function from documents to docids that returns the same on every process."""


def make_docids(documents: SchemeInput) -> Docids:
    """Make docids by the scheme that the config names."""
    method, expected, scheme = documents.config.method, len(documents.embeddings), find_scheme(documents.config.scheme)
    docids = scheme(documents)
    counted = isinstance(docids, Docids) and (
        len(docids.paths) if docids.rows is None or documents.rows is not None else int(docids.rows[-1]) + 1
    )
    if counted != expected:
        raise ValueError(
            f"The docid scheme {method!r} must give Docids with a path for each of {expected} documents, "
            f"got {counted if isinstance(docids, Docids) else shown(docids)}; Docids.from_paths makes them of lists of numbers."
        )
    return docids if documents.rows is None else docids.with_rows(documents.rows)


def find_scheme(name: str) -> Scheme:
    """Return the scheme of that name: one of `BUILT_IN`, or an entry point of another package.

    >>> find_scheme("kmeans").__module__
    'dsi.docids.schemes.kmeans'
    """
    if name in BUILT_IN:
        scheme: Scheme = importlib.import_module(f"dsi.docids.schemes.{name}").make
        return scheme
    foreign: Scheme | None = extensions.load_extension(extensions.SCHEMES, name)
    if foreign is None:
        raise ValueError(f"{name!r} is not a docid scheme; use one of {', '.join(scheme_names())}.")
    if not extensions.takes(foreign, "documents"):
        raise ValueError(
            f"The docid scheme {name!r} must be a function of one argument, a SchemeInput, got {shown(foreign)}."
        )
    return foreign


def scheme_names() -> list[str]:
    """Return the names of all schemes that make docids, those of other packages last."""
    return extensions.extension_names(extensions.SCHEMES, [name for name in BUILT_IN if name != FILE])


def check_branching(documents: int, config: DocidsConfig) -> None:
    """Raise ValueError if there are too few documents for one split."""
    if "branching" in BUILT_IN.get(config.scheme, ()) and documents < config.branching:
        raise ValueError(
            f"The collection has {documents} documents, fewer than docids.branching = {config.branching}; "
            f"set branching to at most {documents}."
        )


def _check_paths(paths: Ints) -> None:
    if not _are_integers(paths, 2) or not paths.size:
        raise ValueError(f"The paths of a docid scheme must be integers [documents, 1 or more], got {_kind(paths)}.")
    for start in range(0, len(paths), BLOCK):
        block = paths[start : start + BLOCK]
        inside = block >= 0
        bad = (block < -1).any(axis=1) | (block > _LARGEST).any(axis=1) | ~inside[:, 0]
        if (bad := bad | (inside[:, 1:] & ~inside[:, :-1]).any(axis=1)).any():
            row = start + int(np.argmax(bad))
            raise ValueError(
                f"A path of a docid scheme must be numbers from 0 to {_LARGEST}, then -1 past its end; document {row} has "
                f"{shown(paths[row].tolist())}."
            )


def _check_rows(rows: Ints, paths: int) -> None:
    ascends = _are_integers(rows, 1) and len(rows) == paths and rows[0] == 0 and np.isin(np.diff(rows), (0, 1)).all()
    if not ascends or np.bincount(rows.astype(np.int64)).max() > MOST_PLACES:
        raise ValueError(
            f"The rows of a docid scheme must say whose each of its {paths} paths is, ascending from 0 without a gap and with "
            f"at most {MOST_PLACES:,} paths each, got {_kind(rows)}."
        )


def _are_integers(value: object, ndim: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == ndim and value.dtype.kind in "iu"


def _kind(value: object) -> str:
    """Return a value for a message, on one line even if it is an array."""
    return f"an array of {value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else shown(value)


def _smallest(numbers: Ints) -> np.dtype[np.signedinteger]:
    """Return the smallest type that holds numbers from -1 on; NumPy sorts those of one or two bytes in linear time."""
    return np.min_scalar_type(-int(numbers.max()) - 1)


def _separate(paths: Ints) -> Ints:
    """Return paths with one more number where several are equal."""
    order = np.lexsort(paths.T[::-1])
    first = np.zeros(len(paths), dtype=bool)
    first[0] = True
    for column in paths.T:
        ordered = column[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    if first.all():
        return paths
    starts = np.flatnonzero(first)
    sizes = np.diff(starts, append=len(paths))
    numbers, shared = np.arange(len(paths)) - np.repeat(starts, sizes), np.repeat(sizes > 1, sizes)
    rows = order[shared]
    kind = np.promote_types(paths.dtype, _smallest(numbers))
    longer = np.pad(paths.astype(kind, copy=False), ((0, 0), (0, 1)), constant_values=-1)
    longer[rows, (paths[rows] >= 0).sum(axis=1)] = numbers[shared]
    longer = longer[:, : longer.shape[1] - int((longer[:, -1] < 0).all())]
    return _separate(longer)  # again: a longer path may now equal another
