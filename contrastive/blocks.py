"""Embeddings of more texts than one process should hold or encode: block by block, on disk, by any number of processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import datasets
import numpy as np
from numpy.typing import NDArray

from contrastive.encoder import Encoder
from docids.processes import Processes

BLOCK = 16_384


class DocumentTexts(Sequence[str]):
    """What an encoder reads of documents, cut to its length; a slice is made when it is asked for.

    Args:
        encoder: that will read them.
        documents: with title and text.
    """

    def __init__(self, encoder: Encoder, documents: datasets.Dataset) -> None:
        self._encoder, self._documents = encoder, documents

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, rows: int) -> str: ...
    @overload
    def __getitem__(self, rows: slice) -> list[str]: ...
    def __getitem__(self, rows: int | slice) -> str | list[str]:
        if isinstance(rows, int):
            return self[rows : rows + 1][0]
        chosen = self._documents[rows]
        return self._encoder.document_texts(chosen["title"], chosen["text"])


def encode_blocks(
    encoder: Encoder, texts: Sequence[str], kind: str, folder: Path, processes: Processes, block: int = BLOCK
) -> NDArray[np.float32]:
    """Embeddings [len(texts), embedding_dim], mapped into memory from `folder`; the blocks of a killed run are kept.

    Args:
        encoder: of the texts.
        texts: as `document_texts` or `query_texts` made them.
        kind: "document" or "query".
        folder: of the blocks; belongs to these texts alone.
        processes: that share the work; all of them get the result.
        block: texts at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), block)
    for start in processes.share(starts):
        path = folder / f"{start:012}.npy"
        if not path.exists():
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                np.save(file, encoder.encode(texts[start : start + block], kind, progress=True))
            partial.replace(path)
    processes.wait()
    whole = folder / "all.npy"
    if processes.is_main:
        joined = np.lib.format.open_memmap(
            whole, mode="w+", dtype=np.float32, shape=(len(texts), encoder.embedding_dim)
        )
        for start in starts:
            joined[start : start + block] = np.load(folder / f"{start:012}.npy")
        joined.flush()
    processes.wait()
    return np.load(whole, mmap_mode="r")  # type: ignore[no-any-return]
