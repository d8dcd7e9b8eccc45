"""A cache of a frozen encoder's outputs, computed once and read by every epoch.

A block of texts (documents, train queries, …) is a folder: token states as a memory-mapped float16 file, embeddings as a
float32 array. Knows nothing of docids or decoders.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.contrastive.encoder import Encoder
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.files.storage import replace_folder

_BLOCK = 16_384
"""Texts of a part."""


class StateCache:
    """The states of n texts, in one or more parts, as `write_states` wrote them; rows count through them in order."""

    def __init__(self, folders: Sequence[Path]) -> None:
        spans = [np.load(folder / "spans.npy") for folder in folders]
        self._spans = np.concatenate(spans)  # [n, 2] first token of each text in its part, and number of tokens
        self._parts = np.repeat(np.arange(len(folders)), [len(part) for part in spans])
        self._first_rows = np.concatenate([[0], np.cumsum([len(part) for part in spans])])
        self._embeddings = [np.load(folder / "embeddings.npy", mmap_mode="r") for folder in folders]
        files = [np.memmap(folder / "states.f16", dtype=np.float16, mode="r") for folder in folders]
        self._states = [file.reshape(int(part[:, 1].sum()), -1) for file, part in zip(files, spans, strict=True)]

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def lengths(self) -> np.ndarray:
        """[n] number of tokens of each text."""
        return self._spans[:, 1]

    @property
    def embeddings(self) -> NDArray[np.float32]:
        """[n, embedding_dim] of all texts."""
        return np.concatenate(self._embeddings)

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return `token_states` of some texts, `states_mask`, True at real tokens, and `embeddings`."""
        spans, parts = self._spans[rows], self._parts[rows]
        longest = int(spans[:, 1].max())
        states = np.zeros((len(spans), longest, self._states[0].shape[1]), dtype=np.float16)
        for target, part, (start, length) in zip(states, parts, spans, strict=True):
            target[:length] = self._states[part][start : start + length]
        part_rows = np.asarray(rows) - self._first_rows[parts]
        embeddings = np.stack([self._embeddings[part][row] for part, row in zip(parts, part_rows, strict=True)])
        return {
            "token_states": torch.from_numpy(states).float(),  # [len(rows), longest, width]
            "states_mask": torch.arange(longest) < torch.from_numpy(spans[:, 1:]),  # [len(rows), longest]
            "embeddings": torch.from_numpy(embeddings),  # [len(rows), embedding_dim]
        }


def write_states(
    encoder: Encoder, kind: str, texts: Sequence[str], folder: Path, processes: Processes = ALONE
) -> list[Path]:
    """Encode texts and write their states and embeddings, one folder per block; blocks already written are kept."""
    parts = {start: folder / f"{start:012}" for start in range(0, len(texts), _BLOCK)}
    for start in processes.share(list(parts)):
        if not parts[start].exists():
            _write_block(encoder, kind, texts[start : start + _BLOCK], parts[start])
    processes.wait()
    return list(parts.values())


def _write_block(encoder: Encoder, kind: str, texts: Sequence[str], folder: Path) -> None:
    spans = np.zeros((len(texts), 2), dtype=np.int64)
    embeddings = np.zeros((len(texts), encoder.embedding_dim), dtype=np.float32)
    with replace_folder(folder) as partial:
        start = 0
        with (partial / "states.f16").open("wb") as file:
            for row, states, embedding in encoder.token_states(texts, kind, progress=f"states of {kind} texts"):
                states.astype(np.float16).tofile(file)
                spans[row] = start, len(states)
                embeddings[row] = embedding
                start += len(states)
        np.save(partial / "spans.npy", spans)
        np.save(partial / "embeddings.npy", embeddings)
