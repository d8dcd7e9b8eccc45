"""Trains the ranking of documents on top of dense search with BM25: a softmax over the documents that this search finds first.

The labels are train queries only. The logarithm of each document's number of train queries is added in training, and left out
in search, so that frequent answers get no head start (logit adjustment, Menon et al. 2021). Knows no trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from contrastive.callbacks import SILENT, Reports
from contrastive.encoder import Encoder
from contrastive.training import FiniteTraining, run_trainer, trainer_settings
from docids.lexical import BM25, Lexical
from docids.progress import progress
from dsi.generator.config import RankingConfig
from dsi.generator.ranking import DocumentRanking
from dsi.generator.states import StateCache
from dsi.search.words import words_of
from dsi.trees.objectives import softmax_loss
from dsi.trees.places import document_scores

Floats = NDArray[np.float32]
_BLOCK = 256
"""Queries whose scores of all documents are in memory at a time."""
_SCALE = 20.0
"""Factor of the scores in the softmax before training."""


@dataclass
class RankingExamples(Dataset):  # type: ignore[type-arg]
    """Train queries, and the documents among which each should find its own.

    Args:
        texts: the queries.
        states: their token states and embeddings.
        relevant: rows of the documents that each asks for.
        documents: [documents, places, dim] their vectors in the order of the document table; the best place of each counts.
        lexical: the lexical part over them; None to rank by dense scores alone. Only BM25's words get factors.
        lexical_weight: of the lexical scores beside the dense ones.
        encoder: for the tokens of words.
        config: how many candidates, and how much frequency is smoothed.
    """

    texts: Sequence[str]
    states: StateCache
    relevant: Sequence[Sequence[int]]
    documents: Floats
    lexical: Lexical | None
    lexical_weight: float
    encoder: Encoder
    config: RankingConfig

    def __post_init__(self) -> None:
        counts = np.bincount(np.concatenate([np.asarray(own) for own in self.relevant]), minlength=len(self.documents))
        self._log_counts = np.log(counts + self.config.smoothing).astype(np.float32)
        self.candidates = self._candidates()

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> int:
        return int(row)

    def _candidates(self) -> NDArray[np.int64]:
        """[queries, candidates] the documents that score highest; those that the query asks for replace the last ones."""
        count = min(self.config.candidates, len(self.documents))
        embeddings, found = self.states.embeddings, np.empty((len(self), count), dtype=np.int64)
        for start in progress(range(0, len(self), _BLOCK), "candidates", unit="block"):
            own = slice(start, start + _BLOCK)
            scores = document_scores(embeddings[own], self.documents)
            if self.lexical is not None:
                scores = scores + np.float32(self.lexical_weight) * self.lexical.scores(list(self.texts[own]))
            found[own] = torch.from_numpy(scores).topk(count, dim=1).indices.numpy()
        for row, relevant in enumerate(self.relevant):
            missing = [document for document in relevant[:count] if document not in found[row]]
            kept = [document for document in found[row].tolist() if document in relevant or missing]
            if missing:
                others = [document for document in kept if document not in relevant][: count - len(relevant[:count])]
                found[row] = [*others, *relevant[:count]]
        return found

    def collate(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs of `RankingLoss.forward`."""
        candidates, batch = self.candidates[rows], self.states.batch(rows)
        wanted = [np.isin(own, list(self.relevant[row])) for row, own in zip(rows, candidates, strict=True)]
        inputs = {
            "embeddings": batch["embeddings"],
            "documents": torch.from_numpy(self.documents[candidates]),
            "log_counts": torch.from_numpy(self._log_counts[candidates]),
            "wanted": torch.from_numpy(np.stack(wanted)).float(),
        }
        if self.lexical is None:
            return inputs
        texts = [self.texts[row] for row in rows]
        if not isinstance(self.lexical, BM25):
            return {**inputs, **self._whole_scores(texts, candidates, batch["token_states"])}
        words = words_of(texts, self.lexical, self.encoder, batch["token_states"].shape[1])
        parts = [torch.from_numpy(self.lexical.parts(*each)).T for each in zip(texts, candidates, strict=True)]
        return {
            **inputs,
            "word_states": words.states(batch["token_states"]),
            "rarity": words.rarity,
            "read": words.read,
            "word_scores": pad_sequence([own.T for own in parts], batch_first=True) * self.lexical_weight,
        }

    def _whole_scores(
        self, texts: Sequence[str], candidates: NDArray[np.int64], token_states: Tensor
    ) -> dict[str, Tensor]:
        """Scores of a lexical part without words, as one word that the encoder has not read."""
        assert self.lexical is not None
        scores = np.take_along_axis(self.lexical.scores(texts), candidates, axis=1)
        return {
            "word_states": torch.zeros(len(texts), 1, token_states.shape[2]),
            "rarity": torch.zeros(len(texts), 1),
            "read": torch.zeros(len(texts), 1, dtype=torch.bool),
            "word_scores": torch.from_numpy(scores)[:, None] * self.lexical_weight,
        }


class RankingLoss(nn.Module):
    """The cross-entropies of the learned scores over each query's candidates: of dense scores alone, and of those beside BM25.

    Args:
        ranking: what is trained.
        dropout: rate, of embeddings and states on their way into the maps.
    """

    def __init__(self, ranking: DocumentRanking, dropout: float) -> None:
        super().__init__()
        self.ranking, self.dropout = ranking, nn.Dropout(dropout)
        self.log_scales = nn.Parameter(torch.full((2,), _SCALE).log())

    def forward(
        self,
        embeddings: Tensor,
        documents: Tensor,
        log_counts: Tensor,
        wanted: Tensor,
        word_states: Tensor | None = None,
        rarity: Tensor | None = None,
        read: Tensor | None = None,
        word_scores: Tensor | None = None,
    ) -> Mapping[str, Tensor]:
        """Compute the loss in nats per query.

        Args:
            embeddings: [batch, dim] of the queries.
            documents: [batch, candidates, places, dim] embeddings.
            log_counts: [batch, candidates] log frequency among the train queries.
            wanted: [batch, candidates] 1.0 at documents that the query asks for.
            word_states: [batch, words, state_dim].
            rarity: [batch, words].
            read: [batch, words] False at words that the encoder has not read.
            word_scores: [batch, words, candidates] each word's part of the weighted BM25 score.
        """
        loss = self._loss(self._dense(embeddings, documents, lexical=False), 0, log_counts, wanted)
        if word_scores is None:
            return {"loss": loss}
        assert word_states is not None
        assert rarity is not None
        assert read is not None
        factors = self.ranking.factors(self.dropout(word_states), rarity).masked_fill(~read, 1.0)
        of_words = torch.einsum("bw,bwc->bc", factors, word_scores)
        scores = self._dense(embeddings, documents, lexical=True) + of_words
        return {"loss": loss + self._loss(scores, 1, log_counts, wanted)}

    def _dense(self, embeddings: Tensor, documents: Tensor, *, lexical: bool) -> Tensor:
        """Return the dense part of the scores, [batch, candidates]: of each document's best place."""
        queries = self.ranking.queries(embeddings, lexical=lexical, mapped=self.dropout(embeddings))
        return torch.einsum("bd,bcpd->bcp", queries, documents).amax(dim=2)

    def _loss(self, scores: Tensor, kind: int, log_counts: Tensor, wanted: Tensor) -> Tensor:
        logits = scores.float() * self.log_scales[kind].exp() + log_counts
        return softmax_loss(logits, wanted) / len(logits)


class _RankingTrainer(FiniteTraining, Trainer):
    section = "ranking."


def train_ranking(
    ranking: DocumentRanking,
    examples: RankingExamples,
    config: RankingConfig,
    work_folder: Path,
    *,
    use_cpu: bool,
    reports: Reports = SILENT,
) -> None:
    """Train `ranking` in place; resumes from the last checkpoint in `work_folder`, if there is one.

    No quality is measured meanwhile: how much the ranking counts in a search (alpha) is chosen after it.

    Args:
        ranking: what is trained.
        examples: the train queries with their candidates.
        config: how it is trained.
        work_folder: for checkpoints.
        use_cpu: stay on the CPU.
        reports: where losses go.

    Raises:
        ValueError: the training diverged.
    """
    arguments = TrainingArguments(
        **trainer_settings(config, work_folder, use_cpu=use_cpu, reports=reports),
        per_device_train_batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        warmup_steps=0.05,
        remove_unused_columns=False,
    )
    loss = RankingLoss(ranking, config.dropout)
    trainer = _RankingTrainer(
        model=loss,
        args=arguments,
        train_dataset=examples,
        data_collator=examples.collate,
        callbacks=reports.callbacks("ranking"),
    )
    run_trainer(trainer, "ranking", work_folder)
    ranking.eval()
