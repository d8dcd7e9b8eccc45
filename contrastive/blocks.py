"""Embeddings of large collections: block by block, on disk, by any number of processes. Knows nothing of their use."""

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.config import LONGEST_INPUT
from dsi.contrastive.cutting import piece_text
from dsi.contrastive.readable import LEAST_SHARE
from dsi.contrastive.text_encoder import PLURALS, TextEncoder
from dsi.contrastive.tokens import TokenHead
from dsi.docids.data.collection import MadeTexts
from dsi.docids.files.processes import Processes
from dsi.docids.files.progress import Bar
from dsi.docids.files.ram import give_back_memory
from dsi.docids.files.reading import map_tensors
from dsi.docids.files.storage import scratch_blocks, write_array, write_tensors
from dsi.docids.token_vectors import TokenCodes
from dsi.docids.types import Floats
from dsi.docids.words.analyzer import ENGLISH
from dsi.docids.words.languages import language_of, sample

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)

E = TypeVar("E")
_TOKEN_BLOCKS = "*.tokens.safetensors"
_BEGINNING = 500
"""Characters of a document by which its language is judged."""
_HARDLY, _FEWEST = 0.5, 5
"""An encoder hardly reads a language of which it reads less: all-MiniLM-L6-v2 reads .37 of German, .47 of Spanish. Documents in
one, at least."""
_GUESSED = (ENGLISH, "la", "zxx")
"""Languages that names, codes and numbers are taken for."""
_TAKE = "Take a multilingual one, such as --encoder intfloat/multilingual-e5-small."
BLOCK = 2_048
"""Texts in memory at a time, and the most that a killed run loses."""


class DocumentTexts(MadeTexts):
    """The texts of documents for an encoder: the pieces of each, cut to what the encoder reads."""

    def __init__(self, encoder: TextEncoder, documents: "datasets.Dataset", pieces: int = 1) -> None:
        self._encoder, self._documents, self._pieces = encoder, documents, pieces

    @cached_property
    def _cuts(self) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
        """[texts, 3] first and last character of each piece and characters of the title; [documents] pieces; documents cut."""
        numbers, counts, num_cut = [np.empty((0, 3), np.int32)], list[int](), 0
        for start in range(0, len(self._documents), BLOCK):
            table = self._documents[start : start + BLOCK]
            cuts = self._encoder.cut(table["title"], table["text"], self._pieces)
            numbers.append(np.array([(*span, cut.title_end) for cut in cuts for span in cut.spans], dtype=np.int32))
            counts += [len(cut.spans) for cut in cuts]
            num_cut += sum(not cut.is_whole for cut in cuts)
        return np.concatenate(numbers), np.array(counts, dtype=np.int64), num_cut

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[texts] document row of each text."""
        return np.repeat(np.arange(len(self._documents)), self._cuts[1])

    @property
    def spans(self) -> NDArray[np.int32] | None:
        """[texts, 2] first character, and one past the last, of the document's text; None if every document is one text."""
        return self._cuts[0][:, :2] if len(self) > len(self._documents) else None

    @property
    def count_cut(self) -> int:
        """How many documents the encoder does not read to their ends."""
        return self._cuts[2]

    def __len__(self) -> int:
        return len(self._cuts[0])

    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""
        rows = self.rows[start:stop]
        table = self._documents[int(rows[0]) : int(rows[-1]) + 1]
        titles, texts = table["title"], table["text"]
        cuts = zip((rows - rows[0]).tolist(), self._cuts[0][start:stop].tolist(), strict=True)
        return [piece_text(titles[row], texts[row], (first, last), end) for row, (first, last, end) in cuts]


def warn_cut(cut: int, documents: int, pieces: int, encoder: TextEncoder) -> None:
    """Warn that an encoder does not read some documents to their ends, in at most this many pieces each."""
    if cut:
        read = min(encoder.config.document_length, encoder.max_length or LONGEST_INPUT)
        most = f"{pieces} pieces of at most {read} tokens" if pieces > 1 else f"{read} tokens"
        logger.warning(
            "%d of %d documents are longer than the encoder reads (%s; docids.pieces): the rest of each has no vector.",
            cut, documents, most,
        )  # fmt: skip


def warn_unread(texts: Sequence[str], encoder: TextEncoder) -> None:
    """Warn of languages that an encoder hardly reads, or else of documents of whose beginnings it reads next to nothing."""
    some = sample(texts)
    shares = encoder.shares_read(some)
    is_odd = (shares < _HARDLY).sum() >= max(_FEWEST, len(some) / 10)
    names = np.array([language_of(text) if is_odd else ENGLISH for text in some])
    by_name = {name: shares[names == name] for name in dict.fromkeys(names.tolist()) if name not in _GUESSED}
    hardly = {name: len(read) for name, read in by_name.items() if len(read) >= _FEWEST and np.median(read) < _HARDLY}
    if 10 * sum(hardly.values()) >= len(some) > 0:
        logger.warning(
            "%.0f %% of the documents are in a language that the encoder hardly reads (%s); searches rely on BM25. %s",
            100 * sum(hardly.values()) / len(some), ", ".join(hardly), _TAKE,
        )  # fmt: skip
        return
    documents, unread, rest = 0, 0, iter(texts)
    while block := [text[:_BEGINNING] for text in islice(rest, BLOCK)]:
        documents, unread = documents + len(block), unread + int((encoder.shares_read(block) < LEAST_SHARE).sum())
    if unread:
        line = "The encoder cannot read the words of %d of %d documents; searches for these rely on BM25. %s"
        logger.warning(line, unread, documents, _TAKE)


def giving_back(encoder: E) -> E:
    """Return an encoder that gives freed memory back with every batch; 1,400 abstracts left 1.1 GB."""
    first = encoder.model[0]  # type: ignore[attr-defined]
    if not first._forward_hooks:  # a model that is shared has it
        first.register_forward_hook(lambda *_: give_back_memory())
    return encoder


def in_blocks(texts: Sequence[str]) -> Iterator[str]:
    """Yield every text, reading one block at a time."""
    for start in range(0, len(texts), BLOCK):
        yield from texts[start : start + BLOCK]


def encode_blocks(
    encoder: TextEncoder, texts: Sequence[str], kind: str, folder: Path, processes: Processes,
    head: TokenHead | None = None,
) -> Floats:  # fmt: skip
    """Return embeddings [texts, dim], mapped from a folder, where a killed run left blocks; a head adds token codes."""
    joined = folder / "all.npy"
    if not joined.exists():
        blocks = _write_blocks(encoder, texts, kind, folder, processes, head)
        if processes.is_main:
            _join(blocks, (len(texts), encoder.embedding_dim), joined)
    processes.wait()
    return np.load(joined, mmap_mode="r")  # type: ignore[no-any-return]


def _write_blocks(
    encoder: TextEncoder, texts: Sequence[str], kind: str, folder: Path, processes: Processes, head: TokenHead | None
) -> list[Path]:
    """Write every block by `_write_block`, and return their paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = {start: folder / f"{start:012}.npy" for start in range(0, len(texts), BLOCK)}
    shows = processes.is_main and not processes.are_remote
    starts = [start for start in processes.share(list(blocks)) if not blocks[start].exists()]
    total = sum(min(BLOCK, len(texts) - start) for start in starts)
    bar = Bar(f"embeddings of {PLURALS[kind]}", unit="text", total=total, enabled=processes.is_main, whole=True)

    def values(start: int) -> tuple[Any, ...]:
        block = [] if blocks[start].exists() else texts[start : start + BLOCK]
        some = head and head.between(start, start + len(block))
        known = len(some.sample.rows) if some and some.sample else 0
        bar.update(len(block) if processes.are_remote else known)  # which other processes do, or which are done
        return encoder, kind, some, len(texts), block, blocks[start], shows

    with bar:
        processes.map(_write_block, list(blocks), values)
    processes.wait()
    if processes.is_main:
        for orphan in folder.glob("*.partial"):  # of workers that died
            orphan.unlink()
    return list(blocks.values())


def _write_block(
    encoder: TextEncoder, kind: str, head: TokenHead | None, total: int, texts: Sequence[str], path: Path, shows: bool
) -> None:
    """Write the embeddings of texts, of a `total`, and with a head the codes of their tokens; nothing if they exist."""
    if path.exists():
        return
    fast = encoder.for_documents(total)
    if head is None:
        embeddings = fast.encode(texts, kind, progress=shows)
    else:
        embeddings, tokens = head.encode(fast, texts, progress=shows)
        token_block = path.with_name(_TOKEN_BLOCKS.replace("*", path.stem))
        write_tensors(token_block, {"codes": tokens.codes, "counts": tokens.counts.astype(np.int32)})
    write_array(path, embeddings)


def read_token_blocks(folder: Path) -> TokenCodes:
    """Return the codes of all texts that `encode_blocks` wrote into a folder; they stay on disk."""
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
