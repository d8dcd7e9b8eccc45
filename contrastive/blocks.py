"""Embeddings of large collections: block by block, on disk, by any number of processes. Knows nothing of what they are for."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
from numpy.typing import NDArray

from contrastive.encoder import PLURALS, Encoder
from contrastive.tokens import TokenHead
from docids.data.collection import LazyTexts
from docids.files.processes import Processes
from docids.files.progress import progress
from docids.files.storage import save_tensors, scratch_array
from docids.files.untrusted import map_tensors
from docids.token_vectors import TokenCodes

_TOKEN_BLOCKS = "*.tokens.safetensors"
BLOCK = 16_384
"""Texts in memory at a time."""


class DocumentTexts(LazyTexts):
    """What an encoder reads of documents: the first segments of each, cut to the encoder's length.

    Args:
        encoder: that will read them.
        documents: a table with title and text.
        segments: per document, at most; a short one has fewer.

    Attributes:
        rows: [texts] the document row of each text.
    """

    def __init__(self, encoder: Encoder, documents: datasets.Dataset, segments: int = 1) -> None:
        self._encoder, self._documents, self._segments = encoder, documents, segments
        self.rows = np.arange(len(documents))
        if segments > 1:
            starts = range(0, len(documents), BLOCK)
            counts = [len(own) for start in starts for own in self._of_documents(start, start + BLOCK)]
            self.rows = np.repeat(self.rows, counts)

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, start: int, stop: int) -> list[str]:
        """The texts start..stop."""
        first, last = self.rows[start], self.rows[stop - 1]
        skipped = start - int(np.searchsorted(self.rows, first))
        texts = [text for own in self._of_documents(int(first), int(last) + 1) for text in own]
        return texts[skipped : skipped + stop - start]

    def _of_documents(self, start: int, stop: int) -> list[list[str]]:
        chosen = self._documents[start:stop]
        return self._encoder.segment_texts(chosen["title"], chosen["text"], self._segments)


class QueryTexts(LazyTexts):
    """What an encoder reads of queries, cut to the encoder's length.

    Args:
        encoder: that will read them.
        queries: a list, or a column of a table.
    """

    def __init__(self, encoder: Encoder, queries: Sequence[str]) -> None:
        self._encoder, self._queries = encoder, queries

    def __len__(self) -> int:
        return len(self._queries)

    def between(self, start: int, stop: int) -> list[str]:
        """The texts start..stop."""
        return self._encoder.query_texts(self._queries[start:stop])


def in_blocks(texts: Sequence[str]) -> Iterator[str]:
    """Every text, reading one block at a time."""
    for start in range(0, len(texts), BLOCK):
        yield from texts[start : start + BLOCK]


def encode_blocks(
    encoder: Encoder,
    texts: Sequence[str],
    kind: str,
    folder: Path,
    processes: Processes,
    head: TokenHead | None = None,
) -> NDArray[np.float32]:
    """Return embeddings [len(texts), embedding_dim], mapped into memory from `folder`; reuses the blocks of a killed run.

    Args:
        encoder: of the texts.
        texts: made by `document_texts` or `query_texts`.
        kind: "document" or "query".
        folder: of the blocks; for these texts alone.
        processes: that share the work; all of them get the result.
        head: also writes the codes of the texts' tokens, for `read_token_blocks`.
    """
    whole = folder / "all.npy"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        blocks = {start: folder / f"{start:012}.npy" for start in range(0, len(texts), BLOCK)}
        own, shown = processes.share(list(blocks)), processes.is_main
        several = shown and len(own) > 1  # one block shows its own bar
        for start in progress(own, f"embeddings of {PLURALS[kind]}", unit="block", enabled=several):
            if not blocks[start].exists():
                block = texts[start : start + BLOCK]
                if head is None:
                    embeddings = encoder.encode(block, kind, progress=shown)
                else:
                    embeddings, tokens = head.encode(encoder, block, progress=shown)
                    counts = tokens.counts.astype(np.int32)
                    save_tensors({"codes": tokens.codes, "counts": counts}, _token_block(folder, start))
                _save(embeddings, blocks[start])
        processes.wait()
        if processes.is_main:
            _join(list(blocks.values()), (len(texts), encoder.embedding_dim), whole)
    processes.wait()
    return np.load(whole, mmap_mode="r")  # type: ignore[no-any-return]


def read_token_blocks(folder: Path) -> TokenCodes:
    """Return the codes of all texts that `encode_blocks` wrote into a folder with a head; they stay on disk."""
    blocks = [map_tensors(path) for path in sorted(folder.glob(_TOKEN_BLOCKS))]
    counts = np.concatenate([block["counts"] for block in blocks])
    codes, end = scratch_array((int(counts.sum(dtype=np.int64)), blocks[0]["codes"].shape[1]), np.uint8), 0
    for block in blocks:
        codes[end : end + len(block["codes"])] = block["codes"]
        end += len(block["codes"])
    return TokenCodes.from_counts(codes, counts)


def _token_block(folder: Path, start: int) -> Path:
    return folder / _TOKEN_BLOCKS.replace("*", f"{start:012}")


def _save(array: NDArray[np.float32], path: Path) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
    partial.replace(path)


def _join(blocks: Sequence[Path], shape: tuple[int, int], path: Path) -> None:
    """Move all blocks into one file, in their order."""
    partial, start = path.with_suffix(".partial"), 0
    joined = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
    for block in map(np.load, blocks):
        joined[start : start + len(block)] = block
        start += len(block)
    joined.flush()
    partial.replace(path)
    for file in blocks:
        file.unlink()
