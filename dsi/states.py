"""What the frozen encoder says of texts, computed once and read by every epoch.

Token states are a memory-mapped file of float16, embeddings an array of float32. Knows nothing of docids or decoders.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contrastive.encoder import Encoder
from docids.storage import replace_folder


class StateCache:
    """States of n texts: `cache.batch(rows)` pads them into a tensor.

    Args:
        folder: where `write_states` put them.

    Attributes:
        spans: [n, 2] where each text's tokens start, and how many they are.
        embeddings: [n, embedding_dim] of the texts.
    """

    def __init__(self, folder: Path) -> None:
        self.spans = np.load(folder / "spans.npy")
        self.embeddings = np.load(folder / "embeddings.npy", mmap_mode="r")
        width = json.loads((folder / "shape.json").read_text())["width"]
        self._states = np.memmap(folder / "states.f16", dtype=np.float16, mode="r").reshape(-1, width)

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def lengths(self) -> np.ndarray:
        """[n] tokens of each text."""
        return self.spans[:, 1]

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Padded float32 states [len(rows), longest, width] and their mask [len(rows), longest]."""
        spans = self.spans[rows]
        longest = int(spans[:, 1].max())
        states = np.zeros((len(spans), longest, self._states.shape[1]), dtype=np.float16)
        for target, (start, length) in zip(states, spans, strict=True):
            target[:length] = self._states[start : start + length]
        mask = torch.arange(longest) < torch.from_numpy(spans[:, 1:])
        return torch.from_numpy(states).float(), mask


def write_states(encoder: Encoder, parts: Sequence[tuple[str, Sequence[str]]], folder: Path) -> None:
    """Encode texts and write their states and embeddings, in one step, to `folder`.

    Args:
        encoder: the frozen encoder.
        parts: (kind, texts) pairs; kind is "document" or "query". Rows are numbered through the parts in order.
        folder: replaced as a whole.
    """
    rows = sum(len(texts) for _, texts in parts)
    spans, embeddings = np.zeros((rows, 2), dtype=np.int64), np.zeros((rows, encoder.embedding_dim), dtype=np.float32)
    with replace_folder(folder) as partial:
        start = first_row = 0
        with (partial / "states.f16").open("wb") as file:
            for kind, texts in parts:
                for row, states, embedding in encoder.token_states(texts, kind, progress=f"states of {kind} texts"):
                    states.to(torch.float16).cpu().numpy().tofile(file)
                    spans[first_row + row] = start, len(states)
                    embeddings[first_row + row] = embedding.cpu().numpy()
                    start += len(states)
                first_row += len(texts)
        np.save(partial / "spans.npy", spans)
        np.save(partial / "embeddings.npy", embeddings)
        (partial / "shape.json").write_text(json.dumps({"width": encoder.state_dim}))
