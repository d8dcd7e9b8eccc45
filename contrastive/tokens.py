"""Token vectors of an encoder's states: the head that maps them, and the codes of a collection. Knows nothing of search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dsi.contrastive.config import TokensConfig
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.reading import map_tensors
from dsi.docids.files.storage import write_tensors
from dsi.docids.token_vectors import TokenCodes, encode_states
from dsi.docids.types import Floats, Ints, Numbers

SAMPLE = 500
"""Texts whose states the head is fitted to: some 60,000 tokens."""
_HELD = 2**26
"""Numbers of their states in memory at most: 256 MB. Texts beyond that are encoded again."""
_BATCH = 64


class Sample(NamedTuple):
    """Texts that were encoded when a head was fitted, and are not encoded again."""

    rows: Ints  # [n] ascending
    embeddings: Floats  # [n, embedding_dim]
    codes: TokenCodes


@dataclass(frozen=True, eq=False)
class TokenHead:
    """Makes token vectors of token states."""

    matrix: Floats  # [dim, state_dim]
    bits: int  # of a dimension
    sample: Sample | None = None  # of the texts that `encode` gets

    @classmethod
    def fit(cls, encoder: TextEncoder, texts: Sequence[str], config: TokensConfig) -> "TokenHead":
        """Return the principal directions of a sample of token states, rotated, so that none is more important."""
        # 1) the states of the sample
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)).tolist()
        moments, size = np.zeros((encoder.state_dim, encoder.state_dim), dtype=np.float64), 0
        held: dict[int, tuple[Floats, Floats]] = {}
        sample = [texts[row] for row in rows]
        encoded = encoder.for_search().token_states(sample, "document", progress="first embeddings")
        for place, states, embedding in encoded:
            moments += states.T @ states
            if (size := size + states.size) <= _HELD or not held:
                held[rows[place]] = states, embedding
        # 2) the matrix
        dim = min(config.dim, encoder.state_dim // 8 * 8)
        directions = np.linalg.eigh(moments)[1][:, ::-1][:, :dim]  # [state_dim, dim]
        rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]  # always the same
        matrix = (rotation @ directions.T).astype(np.float32)
        # 3) what it makes of the sample
        states_of, embeddings = zip(*(held[row] for row in sorted(held)), strict=True)
        codes = TokenCodes.join([encode_states(matrix, config.bits, [states]) for states in states_of])
        return cls(matrix, config.bits, Sample(np.array(sorted(held), dtype=np.int32), np.stack(embeddings), codes))

    def between(self, start: int, stop: int) -> "TokenHead":
        """Return the head for the texts start..stop of those that it was fitted to."""
        if self.sample is None:
            return self
        few = np.arange(*np.searchsorted(self.sample.rows, [start, stop]))
        rows, embeddings, codes = self.sample
        return replace(self, sample=Sample(rows[few] - start, embeddings[few], codes.gather(few)))

    def encode(
        self, encoder: TextEncoder, texts: Sequence[str], *, progress: bool = False
    ) -> tuple[Floats, TokenCodes]:
        """Return embeddings [n, embedding_dim] and token codes of documents, of one pass."""
        embeddings = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
        codes, order = [encode_states(self.matrix, self.bits, [])], list[int]()
        if self.sample is not None:
            codes, order = [self.sample.codes], self.sample.rows.tolist()
            embeddings[order] = self.sample.embeddings
        rest = np.setdiff1d(np.arange(len(texts)), order)
        others = [texts[row] for row in rest.tolist()]
        encoded = encoder.token_states(others, "document", progress="embeddings and tokens" if progress else "")
        while batch := list(islice(encoded, _BATCH)):
            places, states, embedded = zip(*batch, strict=True)
            embeddings[rest[[*places]]] = np.stack(embedded)
            codes.append(encode_states(self.matrix, self.bits, states))
            order += rest[[*places]].tolist()
        return embeddings, TokenCodes.join(codes).gather(np.argsort(order))

    def save(self, path: Path) -> None:
        """Write a head that was fitted."""
        assert self.sample is not None
        rows, embeddings, codes = self.sample
        arrays: dict[str, Numbers] = {"matrix": self.matrix, "rows": rows, "embeddings": embeddings}
        write_tensors(path, {**arrays, "codes": codes.codes, "counts": codes.counts.astype(np.int32)})

    @classmethod
    def load(cls, path: Path, bits: int) -> "TokenHead":
        """Return what `save` wrote."""
        arrays = {name: np.array(array) for name, array in map_tensors(path).items()}
        codes = TokenCodes.from_counts(arrays["codes"], arrays["counts"])
        return cls(arrays["matrix"], bits, Sample(arrays["rows"], arrays["embeddings"], codes))
