"""Finds texts that repeat earlier ones, wholly or nearly, without keeping them: by the least hashes of what 16 bytes hold."""

import hashlib

import numpy as np
from numpy.typing import NDArray

_KEPT, _LOOKED_UP = 32, 4
"""Hashes of a text that are kept, and those of them by which similar texts are found."""
_SHORTEST = 200
"""Bytes of a text, at least, that may nearly repeat another one."""
_BLOCK = 2**20
"""Bytes that are hashed at a time."""
_SHARED = 0.8
"""Estimated share of common pieces of 16 bytes from which on two texts are nearly the same."""
_ONE, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


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
        content = " ".join(text.lower().split()).encode()
        whole = hashlib.blake2b(content, digest_size=8).digest()
        if whole in self._texts:
            return "the same"
        self._texts.add(whole)
        if len(content) < _SHORTEST:
            return ""
        sketch = _least(content)
        looked_up = sketch[:_LOOKED_UP].tolist()
        near = {self._rows[value] for value in looked_up if value in self._rows}
        found = any(_share(sketch, self._sketches[row]) >= _SHARED for row in near)
        self._rows.update(dict.fromkeys(looked_up, len(self._sketches)))
        self._sketches.append(sketch)
        return "nearly the same" if found else ""


def _least(content: bytes) -> NDArray[np.uint64]:
    """Return the least hashes of the pieces of 16 bytes that begin at each byte, sorted."""
    blocks = (content[start : start + _BLOCK + 16] for start in range(0, max(1, len(content) - 16), _BLOCK))
    return np.unique(np.concatenate([_least_of_block(block) for block in blocks]))[:_KEPT]


def _least_of_block(content: bytes) -> NDArray[np.uint64]:
    """Return what `_least` does, of few bytes."""
    eights = np.lib.stride_tricks.as_strided(np.frombuffer(content, np.uint8), (len(content) - 7, 8), (1, 1))
    numbers = np.ascontiguousarray(eights).view("<u8")[:, 0]
    mixed = (numbers[:-8] * _ONE) ^ (numbers[8:] * _OTHER)
    hashes = (mixed ^ (mixed >> np.uint64(29))) * _ONE
    most = min(4 * _KEPT, len(hashes) - 1)  # some come several times
    return np.unique(np.partition(hashes, most)[: most + 1])[:_KEPT]


def _share(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Return an estimate of the share of pieces that two texts have in common, of their least hashes."""
    least = np.union1d(one, other)[:_KEPT]
    return float((np.isin(least, one) & np.isin(least, other)).mean())
