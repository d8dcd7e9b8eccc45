"""Pairs of an earlier query and a document, as arrays and as files; `rows` are always of the document table."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.files.storage import save_tensors
from dsi.docids.types import Bools, Floats, Ints

TIMES = 3
"""How often a pair counts at most: twice as much as one that was learned once (docs/experiments/queries.md)."""
NEVER = np.iinfo(np.int64).max
"""Stands for a missing time."""
_LATEST = 253_402_300_799_999_999
"""Microseconds from 1970 to the end of the year 9999."""
HASHED = 8
"""Bytes of a hash."""


class Period(NamedTuple):
    """A time, in microseconds since 1970: `since` belongs to it, `before` does not; by default always."""

    since: int = 0
    before: int = NEVER


ALWAYS = Period()


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of an earlier query and a document, ascending by key and then by row."""

    keys: NDArray[np.uint64]  # [n] hashes of the queries
    rows: NDArray[np.int32]  # [n] of the documents
    # [n, 3] when each was learned the first times, ascending, in microseconds since 1970; then NEVER
    times: NDArray[np.int64]
    vectors: Floats  # [n, dim] of the queries, of length 1
    texts: NDArray[np.object_]  # [n] of the queries; "" where it is not kept
    terms: NDArray[np.object_]  # [n] the hashes of each query's terms, 8 bytes each
    file: str = ""  # that they were read from

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def counts(self) -> Ints:
        """[n] how often each was learned, up to `TIMES`."""
        return (self.times < NEVER).sum(axis=1)

    @cached_property
    def name(self) -> str:
        """The name of a file that holds these pairs and nothing else."""
        if self.file:
            return self.file
        content = hashlib.sha256(json.dumps(self.texts.tolist()).encode())
        for array in (self.keys, self.rows, self.times, self.vectors, self.num_terms, self.all_terms):
            content.update(np.ascontiguousarray(array).data)
        return f"{content.hexdigest()[:32]}.safetensors"

    def select(self, which: "Ints | Bools | slice") -> "Pairs":
        """Return some of the pairs."""
        return Pairs(*(column[which] for column in self._columns))  # type: ignore[arg-type]

    @property
    def _columns(self) -> tuple[NDArray[np.generic], ...]:
        return self.keys, self.rows, self.times, self.vectors, self.texts, self.terms

    @cached_property
    def num_terms(self) -> NDArray[np.int32]:
        """[n] how many terms each query has."""
        return np.array([len(hashes) // HASHED for hashes in self.terms.tolist()], dtype=np.int32)

    @cached_property
    def all_terms(self) -> NDArray[np.uint64]:
        """Hashes of the terms of all queries, one query after another."""
        return np.frombuffer(b"".join(self.terms.tolist()), dtype=np.uint64)

    @classmethod
    def join(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Return all pairs in order, each once: as it was learned first, with the first of all its times."""
        columns = zip(*(part._columns for part in parts), strict=True)
        every = cls(*(np.concatenate(column) for column in columns))  # type: ignore[arg-type]
        every = every.select(np.lexsort((every.times[:, 0], every.rows, every.keys)))
        is_new = np.ones(len(every), dtype=bool)
        is_new[1:] = (np.diff(every.keys) != 0) | (np.diff(every.rows) != 0)
        if is_new.all():
            return every
        times = every.times.ravel()
        order = np.lexsort((times, np.repeat(np.cumsum(is_new), TIMES)))
        first = TIMES * np.flatnonzero(is_new)[:, None] + np.arange(TIMES)
        return replace(every.select(is_new), times=times[order][first])

    def without(self, which: Bools, period: Period) -> "Pairs":
        """Return the pairs less what was learned of some [n] in a period."""
        in_period = (self.times >= period.since) & (self.times < period.before) & (self.times < NEVER)
        gone = in_period & which[:, None]
        if not gone.any():
            return self
        times = np.sort(np.where(gone, NEVER, self.times), axis=1)
        return replace(self, times=times, file="").select(times[:, 0] < NEVER)

    def moved(self, rows: Ints) -> "Pairs":
        """Return the pairs by new rows of documents [documents], without those whose row is -1."""
        new_rows = rows[self.rows].astype(np.int32)
        if np.array_equal(new_rows, self.rows):
            return self
        return Pairs.join([replace(self, rows=new_rows).select(new_rows >= 0)])

    def save(self, path: Path) -> None:
        """Write the pairs as one safetensors file."""
        arrays: dict[str, NDArray[Any]] = {
            "keys": self.keys[:, None].view(np.uint8),
            "times": np.ascontiguousarray(self.times).view(np.uint8),
        }
        texts = np.frombuffer(json.dumps(self.texts.tolist()).encode(), dtype=np.uint8)
        arrays |= {"terms": self.all_terms.view(np.uint8), "term_counts": self.num_terms}
        save_tensors({**arrays, "texts": texts, "rows": self.rows, "vectors": self.vectors}, path)

    @classmethod
    def load(cls, path: Path) -> "Pairs":
        """Return what `save` wrote."""
        arrays = read_tensors(path, _ARRAYS)
        keys, rows, times, vectors = (np.array(arrays[name]) for name in ("keys", "rows", "times", "vectors"))
        try:
            texts = np.fromiter(json.loads(arrays["texts"].tobytes()), np.object_)
            terms = _cut(arrays["terms"].tobytes(), arrays["term_counts"])
            pairs = cls(keys.view(np.uint64)[:, 0], rows, times.view(np.int64), vectors, texts, terms)
            fits = len({len(column) for column in pairs._columns}) == 1 and len(pairs) > 0
            if not fits or not all(isinstance(text, str) for text in texts):
                raise ValueError("columns of different lengths")
        except (ValueError, IndexError, RecursionError):
            raise ValueError(f"{path} does not hold pairs of queries and documents; {RESTORE}.") from None
        return replace(pairs, file=path.name)


_ARRAYS: dict[str, tuple[type[np.generic], int]] = {
    "keys": (np.uint8, 2), "rows": (np.int32, 1), "times": (np.uint8, 2), "vectors": (np.float32, 2),
    "texts": (np.uint8, 1), "terms": (np.uint8, 1), "term_counts": (np.int32, 1),
}  # fmt: skip


def is_sound(block: Pairs, dim: int, documents: int) -> bool:
    """True if pairs are in order, and fit embeddings of a width and a number of documents."""
    in_order = Pairs.join([block]).keys if len(block) > 1 else block.keys
    times = np.where(block.times < NEVER, block.times, _LATEST)
    return bool(
        np.array_equal(in_order, block.keys)
        and block.vectors.shape[1] == dim
        and is_finite(block.vectors)
        and block.times.shape[1] == TIMES
        and 0 <= times.min() <= times.max() <= _LATEST
        and (block.times[:, 0] < NEVER).all()
        and (np.diff(block.times) >= 0).all()
        and 0 <= block.rows.min() <= block.rows.max() < documents
    )


NOTHING = Pairs(
    np.zeros(0, np.uint64), np.zeros(0, np.int32), np.zeros((0, TIMES), np.int64), np.zeros((0, 0), np.float32),
    np.zeros(0, np.object_), np.zeros(0, np.object_),
)  # fmt: skip


def hashes_of(texts: Sequence[str], key: bytes = b"") -> NDArray[np.uint64]:
    """[n] hashes of texts."""
    digests = (hashlib.blake2b(text.encode(), digest_size=HASHED, key=key).digest() for text in texts)
    return np.array([int.from_bytes(digest) for digest in digests], dtype=np.uint64)


def _cut(hashes: bytes, counts: Ints) -> NDArray[np.object_]:
    """Return the hashes of each of some texts, given how many each has."""
    edges = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) * HASHED
    if counts.min(initial=0) < 0 or edges[-1] != len(hashes):
        raise ValueError("terms of another number")
    return np.fromiter((hashes[start:end] for start, end in pairwise(edges.tolist())), np.object_)
