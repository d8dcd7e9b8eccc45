"""Finds texts that repeat earlier ones, wholly or nearly, without keeping them: by the least hashes of their word triples."""

import hashlib
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

_KEPT, _LOOKED_UP = 32, 4
"""Hashes of a text that are kept, and those of them by which similar texts are found."""
_FEWEST = 30
"""Words of a text, at least, that may nearly repeat another one."""
_SHARED = 0.8
"""Estimated share of common triples from which on two texts are nearly the same."""
_MIXED = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)


class Repeats:
    """The texts that came, as hashes."""

    def __init__(self) -> None:
        self._texts: set[bytes] = set()
        self._rows: dict[int, int] = {}
        self._sketches: list[NDArray[np.uint64]] = []

    def add(self, text: str) -> str:
        """Return whether an earlier text is "the same", "nearly the same", or none is (""); remember this one.

        >>> repeats, words = Repeats(), " ".join(map(str, range(200)))
        >>> repeats.add(words), repeats.add(words), repeats.add(f"{words} more"), repeats.add("others")
        ('', 'the same', 'nearly the same', '')
        """
        words = text.lower().split()
        whole = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
        if whole in self._texts:
            return "the same"
        self._texts.add(whole)
        if len(words) < _FEWEST:
            return ""
        hashes = np.array([crc32(word.encode()) for word in words], dtype=np.uint64)
        triples = (hashes[:-2] * _MIXED[0]) ^ (hashes[1:-1] * _MIXED[1]) ^ (hashes[2:] * _MIXED[2])
        sketch = np.unique(triples * _MIXED[0])[:_KEPT]
        near = {self._rows[value] for value in sketch[:_LOOKED_UP].tolist() if value in self._rows}
        found = any(_share(sketch, self._sketches[row]) >= _SHARED for row in near)
        self._rows.update(dict.fromkeys(sketch[:_LOOKED_UP].tolist(), len(self._sketches)))
        self._sketches.append(sketch)
        return "nearly the same" if found else ""


def _share(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Return an estimate of the share of triples that two texts have in common, of their smallest hashes."""
    smallest = np.union1d(one, other)[:_KEPT]
    return float(np.isin(smallest, one, assume_unique=True)[np.isin(smallest, other)].sum() / len(smallest))
