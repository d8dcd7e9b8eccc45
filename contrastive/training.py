"""Contrastive pre-training: from documents and their queries to a tuned encoder.

A training row is one document with V of its texts (the document itself, then queries), so that every batch holds positives;
`label` is the document. Several devices and checkpoints come from `SentenceTransformerTrainer`. Knows nothing of docids.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments

from contrastive.encoder import Encoder
from contrastive.losses import DPRLoss, SupervisedContrastiveLoss
from contrastive.trainers import SILENT, FiniteTraining, Reports, run_trainer, trainer_settings
from docids.files.checks import LARGEST, above_zero, at_least, between, plain_fields

NO_QUERIES = "There are no queries to train the encoder on; add qrels/train.tsv or set contrastive.loss to none."
_LOSSES = {"scl": SupervisedContrastiveLoss, "dpr": DPRLoss}


@dataclass(frozen=True)
class ContrastiveConfig:
    """How the encoder is pre-trained; defaults are the paper's (section 4.2)."""

    loss: str = "scl"
    """"scl" (eq. 7), "dpr" (eq. 6) or "none" (keep the encoder as it is)."""
    temperature: float = 1.0
    """Divides the dot products; 1 for unnormalised embeddings as in the paper, about 0.05 for cosines."""
    views: int = 2
    """Texts of one document in a batch, the document itself included."""
    hard_negatives: int = 0
    """For "dpr", irrelevant documents per query that the encoder ranks high before training; they join the batch's
    other documents as negatives (views must be 2)."""
    fill_with_pseudo_queries: bool = False
    """Use pseudo-queries for documents that have too few queries."""
    batch_size: int = 64
    """Texts per process and step (N of the paper); batch_size / views documents."""
    epochs: float = 50.0
    """Passes over the train queries."""
    learning_rate: float = 1e-4
    """Peak, after a linear warm-up over a tenth of the steps."""
    interpolation: float = 1.0
    """Final weights = start + interpolation * (trained - start), in (0, 1]; below 1 a good encoder keeps more of what
    it knew (WiSE-FT, Wortsman et al. 2022)."""
    bf16: bool = False
    """Compute in bfloat16 where the device has instructions for it."""
    seed: int = 0
    """Of sampling and shuffling."""

    def __post_init__(self) -> None:
        plain_fields(self, "contrastive.")
        if self.loss not in (*_LOSSES, "none"):
            raise ValueError(f'contrastive.loss must be "scl", "dpr" or "none", got {self.loss!r}.')
        above_zero(self, ["temperature", "learning_rate"], "contrastive.")
        between(self, "contrastive.", temperature=(1e-6, 1e6))
        at_least(self, "contrastive.", seed=0)
        if not 0 < self.epochs <= LARGEST:
            raise ValueError(
                f"contrastive.epochs must be above 0 and at most {LARGEST}, got {self.epochs}; "
                'loss = "none" keeps the encoder as it is.'
            )
        if not 0 < self.interpolation <= 1:
            raise ValueError(f"contrastive.interpolation must be in (0, 1] (1: as trained), got {self.interpolation}.")
        if self.views < 2 or self.batch_size < 2 * self.views:
            raise ValueError(
                f"contrastive.views must be at least 2 and batch_size at least twice that, "
                f"got views={self.views}, batch_size={self.batch_size}."
            )
        at_least(self, "contrastive.", batch_size=1, hard_negatives=0)
        if self.hard_negatives and (self.loss != "dpr" or self.views != 2):
            raise ValueError(
                f'contrastive.hard_negatives needs loss "dpr" and views 2; got '
                f"{self.hard_negatives} with loss {self.loss!r} and views {self.views}."
            )


def contrastive_rows(
    documents: Sequence[str],
    queries: Mapping[int, Sequence[str]],
    pseudo_queries: Mapping[int, Sequence[str]],
    negatives: Mapping[str, Sequence[int]] | None = None,
    *,
    views: int = 2,
    seed: int = 0,
) -> datasets.Dataset:
    """Return one row per (document, query) pair, filled up to `views` texts of the document, with the document as `label`.

    Args:
        documents: text of each document.
        queries: {document row: its train queries}.
        pseudo_queries: {document row: its pseudo-queries}; a document without queries gets one row from these.
        negatives: {query: document rows, equally many for each} from `hard_negatives`; queries without them get no row.
        views: columns; a document with too few texts repeats its queries.
        seed: of the queries that fill a row.

    Returns:
        A table with the columns view_0 (the document) .. view_{views-1}, negative_0 … if there are negatives, and label: the
        document, or a list of it and the negatives.

    Raises:
        ValueError: there are no queries.
    """
    rng = random.Random(seed)
    rows = []
    for label in sorted({*queries, *pseudo_queries}):
        real, pseudo = list(queries.get(label, ())), list(pseudo_queries.get(label, ()))
        document = documents[label]
        for query in real or rng.sample(pseudo, min(1, len(pseudo))):
            others = [text for text in real + pseudo if text != query] or [query]
            rest = rng.sample(others, min(views - 2, len(others)))
            rest += rng.choices(others, k=views - 2 - len(rest))
            if not negatives:
                rows.append((document, query, *rest, label))
            elif query in negatives:
                irrelevant = negatives[query]
                rows.append((document, query, *rest, *(documents[row] for row in irrelevant), [label, *irrelevant]))
    if not rows:
        raise ValueError(NO_QUERIES)
    names = [f"view_{view}" for view in range(views)]
    names += [f"negative_{number}" for number in range(len(rows[0]) - views - 1)] + ["label"]
    return datasets.Dataset.from_dict(
        {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    )


def hard_negatives(
    encoder: Encoder, embeddings: NDArray[np.float32], queries: Mapping[int, Sequence[str]], count: int
) -> dict[str, list[int]]:
    """Return for each query the top `count` documents that do not answer it (Karpukhin et al. 2020, section 3.2).

    Args:
        encoder: before training.
        embeddings: [documents, dim] by that encoder, perhaps memory-mapped.
        queries: {document row: its train queries}.
        count: document rows per query.
    """
    answers: dict[str, set[int]] = {}
    for row, texts in queries.items():
        for text in texts:
            answers.setdefault(text, set()).add(row)
    k = min(count + max(len(rows) for rows in answers.values()), len(embeddings))
    encoded = encoder.encode(list(answers), "query", progress=True)
    ranked = faiss.knn(encoded, embeddings, k, faiss.METRIC_INNER_PRODUCT)[1]
    return {
        text: [int(row) for row in rows if row not in relevant][:count]
        for (text, relevant), rows in zip(answers.items(), ranked, strict=True)
    }


class _EncoderTrainer(FiniteTraining, SentenceTransformerTrainer):
    """Writes no model card, for which the library would collect examples, with a progress bar."""

    section = "contrastive."

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        pass


def train_encoder(
    encoder: Encoder,
    rows: datasets.Dataset,
    config: ContrastiveConfig,
    work_folder: Path,
    reports: Reports = SILENT,
) -> None:
    """Train an encoder in place; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        encoder: to be trained.
        rows: from `contrastive_rows`.
        config: of the training.
        work_folder: of the checkpoints.
        reports: of the losses.

    Raises:
        ValueError: the training diverged.
    """
    if config.loss == "none":
        return
    columns = [name for name in rows.column_names if name != "label"]
    document_columns = [name for name in columns if name == "view_0" or name.startswith("negative")]
    arguments = SentenceTransformerTrainingArguments(
        **trainer_settings(config, work_folder, use_cpu=encoder.model.device.type == "cpu", reports=reports),
        per_device_train_batch_size=config.batch_size // config.views,
        warmup_steps=0.1,
        prompts={
            **dict.fromkeys(columns, encoder.config.query_prompt),
            **dict.fromkeys(document_columns, encoder.config.document_prompt),
        },
    )
    parameters = list(encoder.model.parameters())  # tied weights once
    start = [parameter.detach().clone() for parameter in parameters] if config.interpolation < 1 else []
    trainer = _EncoderTrainer(
        model=encoder.model,
        args=arguments,
        train_dataset=rows,
        loss=_LOSSES[config.loss](encoder.model, config.temperature),
        callbacks=reports.callbacks("encoder"),
    )
    run_trainer(trainer, "encoder", work_folder)
    with torch.no_grad():
        for before, parameter in zip(start, parameters, strict=False):
            parameter.copy_(torch.lerp(before.to(parameter.device), parameter, config.interpolation))
    encoder.model.eval()
