"""Trains the query map of documents' scores, beside dense search with BM25: a softmax over the documents that it finds first.

A document scores (z + M z).e_d + w BM25(d), M linear and zero at first. The labels are train queries only. The logarithm of
each document's number of train queries is added in training, and left out in search, so that frequent answers get no head start
(logit adjustment, Menon et al. 2021). Knows nothing of tuning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from dsi.contrastive.trainers import SILENT, FiniteTraining, Reports, run_trainer, trainer_settings
from dsi.docids.files.progress import progress
from dsi.docids.words.bm25 import Lexical
from dsi.generator.tied import TiedGenerator
from dsi.trees.objectives import softmax_loss
from dsi.trees.places import document_scores

Floats = NDArray[np.float32]
BATCH_SIZE = 128
"""Queries per process and step."""
LEARNING_RATE = 5e-4
"""Peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero."""
WEIGHT_DECAY, DROPOUT = 0.1, 0.1
"""Of AdamW, and of embeddings on their way into the map."""
CANDIDATES = 100
"""Documents among which a query should find its own: the first of dense search with BM25."""
SMOOTHING = 0.1
"""Added to each document's number of train queries, before the logarithm that the training adds to its score."""
_BLOCK = 256
"""Queries whose scores of all documents are in memory at a time."""
_SCALE = 20.0
"""Factor of the scores in the softmax before training."""


@dataclass
class QueryMapExamples(Dataset):  # type: ignore[type-arg]
    """Train queries, and the documents among which each should find its own.

    Args:
        texts: the queries.
        embeddings: [queries, dim].
        relevant: rows of the relevant documents of each.
        documents: [documents, places, dim] their vectors in the order of the document table; the best place of each counts.
        lexical: the lexical part over them; None to rank by dense scores alone.
        lexical_weight: of the lexical scores beside the dense ones.
    """

    texts: Sequence[str]
    embeddings: Floats
    relevant: Sequence[Sequence[int]]
    documents: Floats
    lexical: Lexical | None
    lexical_weight: float

    def __post_init__(self) -> None:
        counts = np.bincount(
            np.concatenate([np.asarray(rows) for rows in self.relevant]), minlength=len(self.documents)
        )
        self._log_counts = np.log(counts + SMOOTHING).astype(np.float32)
        self.candidates, self._words = self._candidates()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> int:
        return int(row)

    def _candidates(self) -> tuple[NDArray[np.int64], Floats]:
        """Return the documents that score highest, and their weighted lexical scores, [queries, candidates] each.

        Relevant documents replace the last ones.
        """
        count = min(CANDIDATES, len(self.documents))
        candidates, words = np.empty((len(self), count), dtype=np.int64), np.zeros((len(self), count), dtype=np.float32)
        for start in progress(range(0, len(self), _BLOCK), "candidates", unit="block"):
            block = slice(start, start + _BLOCK)
            lexical = np.zeros((len(self.texts[block]), len(self.documents)), dtype=np.float32)
            if self.lexical is not None:
                lexical = np.float32(self.lexical_weight) * self.lexical.scores(list(self.texts[block]))
            scores = document_scores(self.embeddings[block], self.documents) + lexical
            best = torch.from_numpy(scores).topk(count, dim=1).indices.numpy()
            candidates[block] = [_with_relevant(*pair) for pair in zip(best, self.relevant[block], strict=True)]
            words[block] = np.take_along_axis(lexical, candidates[block], axis=1)
        return candidates, words

    def collate(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs of `QueryMapLoss.forward`."""
        candidates = self.candidates[rows]
        relevant = [
            np.isin(documents, list(self.relevant[row])) for row, documents in zip(rows, candidates, strict=True)
        ]
        return {
            "embeddings": torch.from_numpy(self.embeddings[rows]),
            "documents": torch.from_numpy(self.documents[candidates]),
            "word_scores": torch.from_numpy(self._words[rows]),
            "log_counts": torch.from_numpy(self._log_counts[candidates]),
            "relevant": torch.from_numpy(np.stack(relevant)).float(),
        }


def _with_relevant(best: NDArray[np.int64], relevant: Sequence[int]) -> NDArray[np.int64]:
    """Return documents, the last of them replaced by relevant ones that are missing."""
    missing = [document for document in relevant[: len(best)] if document not in best]
    if not missing:
        return best
    kept = [document for document in best.tolist() if document in relevant]
    others = [document for document in best.tolist() if document not in relevant]
    return np.array([*others[: len(best) - len(kept) - len(missing)], *kept, *missing])


class QueryMapLoss(nn.Module):
    """The cross-entropy of the mapped scores over each query's candidates.

    Args:
        query_map: [dim, dim] what is trained.
        dropout: rate, of embeddings on their way into the map.
    """

    def __init__(self, query_map: nn.Parameter, dropout: float) -> None:
        super().__init__()
        self.query_map, self.dropout = query_map, nn.Dropout(dropout)
        self.log_scale = nn.Parameter(torch.tensor(_SCALE).log())

    def forward(
        self, embeddings: Tensor, documents: Tensor, word_scores: Tensor, log_counts: Tensor, relevant: Tensor
    ) -> Mapping[str, Tensor]:
        """Compute the loss in nats per query.

        Args:
            embeddings: [batch, dim] of the queries.
            documents: [batch, candidates, places, dim] embeddings.
            word_scores: [batch, candidates] weighted lexical scores.
            log_counts: [batch, candidates] log frequency among the train queries.
            relevant: [batch, candidates] 1.0 at relevant documents.
        """
        queries = embeddings + self.dropout(embeddings) @ self.query_map.T
        dense = torch.einsum("bd,bcpd->bcp", queries, documents).amax(dim=2)
        logits = (dense + word_scores).float() * self.log_scale.exp() + log_counts
        return {"loss": softmax_loss(logits, relevant) / len(logits)}


class _QueryMapTrainer(FiniteTraining, Trainer):
    remedy = "set query_map.epochs to 0, which leaves the map out"


def train_query_map(
    generator: TiedGenerator,
    examples: QueryMapExamples,
    epochs: float,
    work_folder: Path,
    *,
    seed: int = 0,
    use_cpu: bool,
    reports: Reports = SILENT,
) -> None:
    """Train `generator.query_map` in place; resumes from the last checkpoint in `work_folder`, if there is one.

    How much the map counts (query_map_weight) is chosen afterwards.

    Args:
        generator: whose map is trained.
        examples: the train queries with their candidates.
        epochs: passes over the train queries.
        work_folder: for checkpoints.
        seed: of shuffling.
        use_cpu: stay on the CPU.
        reports: where losses go.

    Raises:
        ValueError: the training diverged.
    """
    shared = trainer_settings(
        work_folder,
        epochs=epochs,
        learning_rate=LEARNING_RATE,
        seed=seed,
        bf16=False,
        use_cpu=use_cpu,
        reports=reports,
    )
    arguments = TrainingArguments(
        **shared,
        per_device_train_batch_size=BATCH_SIZE,
        weight_decay=WEIGHT_DECAY,
        warmup_steps=0.05,
        remove_unused_columns=False,
    )
    trainer = _QueryMapTrainer(
        model=QueryMapLoss(generator.query_map, DROPOUT),
        args=arguments,
        train_dataset=examples,
        data_collator=examples.collate,
        callbacks=reports.callbacks("query map"),
    )
    run_trainer(trainer, "query map", work_folder)
