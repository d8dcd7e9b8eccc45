"""Contrastive pre-training: from documents and their queries to a tuned encoder.

A training row is one document with V of its texts (the document itself, then queries), so that every batch holds positives;
`label` is the document. Several devices and checkpoints come from `SentenceTransformerTrainer`. Knows nothing of docids.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import datasets
import torch
from pydantic import Field
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments

from dsi.contrastive.encoder import Encoder
from dsi.contrastive.losses import CHUNK, DPRLoss, SupervisedContrastiveLoss
from dsi.contrastive.trainers import SILENT, FiniteTraining, Reports, run_trainer, trainer_settings
from dsi.docids.files.declarations import LARGEST, Positive, Remedy, settings

NO_QUERIES = "There are no queries to train the encoder on; add qrels/train.tsv or set contrastive.loss to none."
VIEWS = 2
"""V of the paper: texts of one document in a batch, the document itself included."""
_COLUMNS = ("view_0", "view_1", "label")
_LOSSES = {"scl": SupervisedContrastiveLoss, "dpr": DPRLoss}


@settings("contrastive")
class ContrastiveConfig:
    """How the encoder is pre-trained (section `[contrastive]`)."""

    loss: Literal["scl", "dpr", "none"] = "scl"
    """"scl" (DR-SCL eq. 7), "dpr" (eq. 6) or "none" (keep the encoder as it is)."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.05
    """Divides the dot products; about 0.05 for cosines, 1 for unnormalised embeddings as in the paper."""
    fill_with_pseudo_queries: bool = True
    """Use pseudo-queries for documents that have too few queries."""
    batch_size: Annotated[int, Field(ge=2 * VIEWS, le=LARGEST)] = 128
    """Texts per process and step (N of the paper); each document has two, the document itself and a query."""
    epochs: Annotated[float, Field(gt=0, le=LARGEST), Remedy('loss = "none" keeps the encoder as it is')] = 1.0
    """Passes over the train queries."""
    learning_rate: Positive = 1e-5
    """Peak, after a linear warm-up over a tenth of the steps."""
    interpolation: Annotated[float, Field(gt=0, le=1), Remedy("1 keeps the encoder as trained")] = 0.5
    """Final weights = start + interpolation * (trained - start); below 1 a good encoder keeps more of what it knew
    (WiSE-FT, Wortsman et al. 2022)."""


def contrastive_rows(
    documents: Sequence[str],
    queries: Mapping[int, Sequence[str]],
    pseudo_queries: Mapping[int, Sequence[str]],
    *,
    seed: int = 0,
) -> datasets.Dataset:
    """Return one row per (document, query) pair, with the document as `label`.

    Args:
        documents: text of each document.
        queries: {document row: its train queries}.
        pseudo_queries: {document row: its pseudo-queries}; a document without queries gets one row from these.
        seed: of the pseudo-queries that are taken.

    Returns:
        A table with the columns view_0 (the document), view_1 (the query) and label.

    Raises:
        ValueError: there are no queries.
    """
    rng = random.Random(seed)
    rows = []
    for label in sorted({*queries, *pseudo_queries}):
        pseudo = list(pseudo_queries.get(label, ()))
        chosen = queries.get(label) or rng.sample(pseudo, min(1, len(pseudo)))
        rows += [(documents[label], query, label) for query in chosen]
    if not rows:
        raise ValueError(NO_QUERIES)
    columns = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({name: list(column) for name, column in zip(_COLUMNS, columns, strict=True)})


def contrastive_loss(encoder: Encoder, config: ContrastiveConfig, chunk: int = CHUNK) -> torch.nn.Module:
    """Return the loss of a training, a function of the features of views and their labels.

    Args:
        encoder: to be trained.
        config: of the training.
        chunk: tokens that are embedded at a time.
    """
    return _LOSSES[config.loss](encoder.model, config.temperature, chunk)


class _EncoderTrainer(FiniteTraining, SentenceTransformerTrainer):
    """Writes no model card, for which the library would collect examples, with a progress bar."""

    remedy = "lower contrastive.learning_rate ({rate:g})"

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        pass

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write a checkpoint without a card, for which the library would ask the Hub about the name of the model's folder."""
        self.model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)


def train_encoder(
    encoder: Encoder,
    rows: datasets.Dataset,
    config: ContrastiveConfig,
    work_folder: Path,
    reports: Reports = SILENT,
    *,
    seed: int = 0,
    bf16: bool = False,
) -> None:
    """Train an encoder in place; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        encoder: to be trained.
        rows: from `contrastive_rows`.
        config: of the training.
        work_folder: of the checkpoints.
        reports: of the losses.
        seed: of shuffling.
        bf16: compute in bfloat16 if the device has instructions for it.

    Raises:
        ValueError: the training diverged.
    """
    if config.loss == "none":
        return
    shared = trainer_settings(
        work_folder,
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        seed=seed,
        bf16=bf16,
        use_cpu=encoder.model.device.type == "cpu",
        reports=reports,
    )
    arguments = SentenceTransformerTrainingArguments(
        **shared,
        per_device_train_batch_size=config.batch_size // VIEWS,
        warmup_steps=0.1,
        prompts={"view_0": encoder.config.document_prompt, "view_1": encoder.config.query_prompt},
    )
    parameters = list(encoder.model.parameters())  # tied weights once
    start = [parameter.detach().clone() for parameter in parameters] if config.interpolation < 1 else []
    trainer = _EncoderTrainer(
        model=encoder.model,
        args=arguments,
        train_dataset=rows,
        loss=contrastive_loss(encoder, config),
        callbacks=reports.callbacks("encoder"),
    )
    run_trainer(trainer, "encoder", work_folder)
    with torch.no_grad():
        for before, parameter in zip(start, parameters, strict=False):
            parameter.copy_(torch.lerp(before.to(parameter.device), parameter, config.interpolation))
    encoder.model.eval()
