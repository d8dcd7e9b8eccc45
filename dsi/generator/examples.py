"""Training examples of the generator: texts, as cached encoder states or as strings, and their relevant documents.

The order of an epoch depends on seed and epoch only, so a killed run resumes exactly where it stopped. Knows no decoder and
no objective.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from dsi.contrastive.blocks import in_blocks
from dsi.docids.tree import DocidTree
from dsi.generator.states import StateCache

_BATCHES_A_BUCKET = 50


@dataclass
class DocidExamples(Dataset):  # type: ignore[type-arg]
    """Texts and their documents: the relevant ones of a query (retrieval), or the document itself (indexing)."""

    inputs: "StateCache | Texts"
    positions: NDArray[np.integer]  # [n] docid position of each text's document
    tree: DocidTree
    relevant: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """{row: docid positions of all relevant documents}, for texts with several."""

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, row: int) -> int:
        return int(row)

    def collate(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the model's inputs, and `relevant` [batch, m] docid positions (-1 at padding)."""
        relevant = [torch.tensor(self.relevant.get(row, [int(self.positions[row])])) for row in rows]
        return {**self.inputs.batch(rows), "relevant": pad_sequence(relevant, batch_first=True, padding_value=-1)}


class Texts:
    """Texts for a model that reads them while it is trained; `texts.batch(rows)` tokenizes some of them.

    `prompts`: {kind: what precedes a text}; `parts`: (kind, texts) of each, "document" or "query"; rows count through them.
    """

    def __init__(
        self, tokenize: Callable[[list[str]], Mapping[str, Any]], prompts: Mapping[str, str],
        parts: Sequence[tuple[str, Sequence[str]]],
    ) -> None:  # fmt: skip
        self._tokenize, self._prompts, self._parts = tokenize, prompts, parts
        self._first_rows = np.concatenate([[0], np.cumsum([len(texts) for _, texts in parts])])
        self.lengths = np.fromiter((len(text) for _, texts in parts for text in in_blocks(texts)), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def _text(self, row: int) -> str:
        part = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        kind, texts = self._parts[part]
        return self._prompts[kind] + texts[int(row - self._first_rows[part])]

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return input_ids and attention_mask, [len(rows), longest] each, and the tokenizer's other tensors."""
        features = self._tokenize([self._text(row) for row in rows])
        return {name: value for name, value in features.items() if isinstance(value, Tensor)}


def group_relevant(parts: Sequence[tuple[str, Sequence[str]]], positions: NDArray[np.integer]) -> dict[int, list[int]]:
    """Return {row: docid positions of all documents with the same text}, for texts that occur with several."""
    keys = np.fromiter((hash((kind, text)) for kind, texts in parts for text in in_blocks(texts)), dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    several = counts > 1
    groups = [order[start : start + count] for start, count in zip(starts[several], counts[several], strict=True)]
    return {int(row): sorted(set(positions[rows].tolist())) for rows in groups for row in rows}


class LengthBucketSampler(Sampler[int]):
    """A shuffle in which examples of similar length share a batch: sorts pools of 50 batches, then shuffles the batches.

    A batch is that of all processes together; seed and epoch determine the order.
    """

    def __init__(self, lengths: NDArray[np.integer], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer calls this at the start of each."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self.seed, self.epoch))
        order = rng.permutation(len(self.lengths))
        pool = self.batch_size * _BATCHES_A_BUCKET
        batches: list[NDArray[np.integer]] = []
        for start in range(0, len(order), pool):
            part = order[start : start + pool]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[i : i + self.batch_size] for i in range(0, len(part), self.batch_size)]
        # Only the last pool can have a short batch, and it must stay last.
        short = [batches.pop(b) for b in range(len(batches) - 1, -1, -1) if len(batches[b]) < self.batch_size]
        rng.shuffle(batches)  # type: ignore[arg-type]
        for batch in [*batches, *short]:
            yield from batch.tolist()
