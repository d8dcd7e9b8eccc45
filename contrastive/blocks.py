"""Embeddings of large collections: block by block, on disk, by any number of processes. Knows nothing of their use."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy as np
import torch
from numpy.typing import NDArray

from dsi.contrastive.encoder import PLURALS, Encoder, TokenModel, has_words
from dsi.contrastive.multi_vector import MultiVectorModel
from dsi.contrastive.tokens import TokenHead
from dsi.docids.data.collection import LazyTexts
from dsi.docids.files.processes import Processes
from dsi.docids.files.progress import Bar
from dsi.docids.files.ram import give_back_memory
from dsi.docids.files.reading import map_tensors
from dsi.docids.files.storage import replacing, save_tensors, scratch_blocks, write_array
from dsi.docids.token_vectors import TokenCodes

E = TypeVar("E", Encoder, MultiVectorModel)
_TOKEN_BLOCKS = "*.tokens.safetensors"
BLOCK = 16_384
"""Texts in memory at a time."""


class DocumentTexts(LazyTexts):
    """The texts of documents for an encoder: the first segments of each, cut to the encoder's length.

    Args:
        encoder: reads the texts.
        documents: a table with title and text.
        segments: per document, at most.
    """

    def __init__(self, encoder: Encoder, documents: datasets.Dataset, segments: int = 1) -> None:
        self._encoder, self._documents, self._segments = encoder, documents, segments

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[texts] document row of each text; with several segments a document, found by cutting all of them."""
        rows = np.arange(len(self._documents))
        if self._segments == 1:
            return rows
        starts = range(0, len(rows), BLOCK)
        return np.repeat(
            rows, [len(texts) for start in starts for texts in self._segments_between(start, start + BLOCK)]
        )

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""
        first, last = self.rows[start], self.rows[stop - 1]
        skipped = start - int(np.searchsorted(self.rows, first))
        texts = [text for segments in self._segments_between(int(first), int(last) + 1) for text in segments]
        return texts[skipped : skipped + stop - start]

    def count_cut(self, most: int = 1000) -> tuple[int, int]:
        """Return how many documents of an even sample have words that the encoder does not read, and the size of the sample."""
        count = min(len(self._documents), most)
        table = self._documents[np.linspace(0, len(self._documents) - 1, count).astype(int)]
        return sum(map(self._is_cut, table["title"], table["text"])), count

    def _is_cut(self, title: str, text: str) -> bool:
        if has_words(text[sum(map(len, self._encoder.bodies(text, self._segments))) :]):
            return True
        (pieces,) = self._encoder.segment_texts([title], [text], self._segments)
        return not all(map(self._encoder.reads_whole, pieces))

    def _segments_between(self, start: int, stop: int) -> list[list[str]]:
        table = self._documents[start:stop]
        return self._encoder.segment_texts(table["title"], table["text"], self._segments)


class QueryTexts(LazyTexts):
    """The texts of queries for an encoder, cut to the encoder's length.

    Args:
        encoder: reads the texts.
        queries: a list, or a column of a table.
    """

    def __init__(self, encoder: Encoder, queries: Sequence[str]) -> None:
        self._encoder, self._queries = encoder, queries

    def __len__(self) -> int:
        return len(self._queries)

    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""
        return self._encoder.query_texts(self._queries[start:stop])


def giving_back(encoder: E) -> E:
    """Return an encoder after letting it give freed memory back to the system with every batch, its copies for search too.

    Texts are read by length, so that the pieces of one batch do not fit the tensors of the next: 1,400 abstracts held 1.1 GB.
    """
    encoder.model[0].register_forward_hook(lambda *_: give_back_memory())
    return encoder


def in_blocks(texts: Sequence[str]) -> Iterator[str]:
    """Yield every text, reading one block at a time."""
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
    """Return embeddings [len(texts), embedding_dim], memory-mapped from `folder`; reuses the blocks of a killed run.

    Args:
        encoder: of the texts.
        texts: `DocumentTexts` or `QueryTexts`.
        kind: "document" or "query".
        folder: of the blocks; only for these texts.
        processes: share the work; each gets the result.
        head: also writes the codes of the texts' tokens, for `read_token_blocks`.
    """
    joined = folder / "all.npy"
    if not joined.exists():
        what = f"embeddings of {PLURALS[kind]}"
        blocks = _write_blocks(_write_block, (encoder, kind, head), texts, folder, ".npy", what, processes)
        if processes.is_main:
            _join(blocks, (len(texts), encoder.embedding_dim), joined)
    processes.wait()
    return np.load(joined, mmap_mode="r")  # type: ignore[no-any-return]


def encode_token_blocks(
    model: TokenModel, head: TokenHead, texts: Sequence[str], folder: Path, processes: Processes
) -> None:
    """Write the codes of documents' tokens by a multi-vector model, for `read_token_blocks`; reuses the blocks of a killed run.

    Args:
        model: of the documents.
        head: makes codes of its vectors.
        texts: title and text of each document, or of each of its segments.
        folder: of the blocks; only for these texts.
        processes: share the work.
    """
    _write_blocks(_write_token_block, (model, head), texts, folder, _TOKEN_BLOCKS[1:], "tokens of documents", processes)


def _write_blocks(
    write: Callable[..., None],
    makers: tuple[Any, ...],
    texts: Sequence[str],
    folder: Path,
    ending: str,
    what: str,
    processes: Processes,
) -> list[Path]:
    """Call `write(*makers, texts of a block, its path, progress)` for every block, and return their paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = {start: folder / f"{start:012}{ending}" for start in range(0, len(texts), BLOCK)}
    shows = processes.is_main and not processes.are_remote
    total = len(processes.share(list(blocks)))
    shows_blocks = processes.is_main and len(blocks) > 1  # one block shows its own
    bar = Bar(f"{what}, blocks", unit="block", total=total, enabled=shows_blocks)

    def values(start: int) -> tuple[Any, ...]:
        if start:
            bar.update()  # the one before is written, or given away
        block = [] if blocks[start].exists() else texts[start : start + BLOCK]
        return *makers, block, blocks[start], shows

    with bar:
        processes.map(write, list(blocks), values)
        bar.update()
    processes.wait()
    if processes.is_main:
        for orphan in folder.glob("*.partial"):  # of workers that died
            orphan.unlink()
    return list(blocks.values())


def _write_block(
    encoder: Encoder, kind: str, head: TokenHead | None, texts: Sequence[str], path: Path, progress: bool
) -> None:
    """Write the embeddings of texts, and with a head the codes of their tokens; nothing if they are there."""
    if path.exists():
        return
    fast = encoder.for_search()
    if head is None:
        embeddings = fast.encode(texts, kind, progress=progress)
    else:
        embeddings, tokens = head.encode(fast, texts, progress=progress)
        _save_tokens(tokens, path.with_name(_TOKEN_BLOCKS.replace("*", path.stem)))
    write_array(path, embeddings)


def _write_token_block(model: TokenModel, head: TokenHead, texts: Sequence[str], path: Path, progress: bool) -> None:
    """Write the codes of the tokens of texts; nothing if they are there."""
    if not path.exists():
        _save_tokens(head.encode_with(model.for_search(torch.float32), texts, progress=progress), path)


def _save_tokens(tokens: TokenCodes, path: Path) -> None:
    with replacing(path) as partial:
        save_tensors({"codes": tokens.codes, "counts": tokens.counts.astype(np.int32)}, partial)


def read_token_blocks(folder: Path) -> TokenCodes:
    """Return the codes of all texts that `encode_blocks` or `encode_token_blocks` wrote into a folder; they stay on disk."""
    blocks = [map_tensors(path) for path in sorted(folder.glob(_TOKEN_BLOCKS))]
    counts = np.concatenate([block["counts"] for block in blocks])
    shape = int(counts.sum(dtype=np.int64)), blocks[0]["codes"].shape[1]
    return TokenCodes.from_counts(scratch_blocks(shape, np.uint8, (block["codes"] for block in blocks)), counts)


def _join(blocks: Sequence[Path], shape: tuple[int, int], path: Path) -> None:
    """Join all blocks into one file, in order."""
    partial, start = path.with_suffix(".partial"), 0
    array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
    for block in map(np.load, blocks):
        array[start : start + len(block)] = block
        start += len(block)
    array.flush()
    del array  # Windows renames no mapped file
    partial.replace(path)
    for file in blocks:
        file.unlink()
