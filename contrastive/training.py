"""Contrastive pre-training: from documents and their queries to a tuned encoder.

A training row is one document with V of its texts (the document itself, then queries), so every batch holds positives by
construction; `label` is the document. Several devices and checkpoints come from `SentenceTransformerTrainer`. Knows nothing of
docids.
"""

import json
import random
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import datasets
import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from transformers import PrinterCallback

from contrastive.callbacks import SILENT, ProgressLine, Reports
from contrastive.encoder import Encoder
from contrastive.inference import has_bfloat16
from contrastive.losses import DPRLoss, SupervisedContrastiveLoss
from docids.files.declarations import LARGEST, Positive, Remedy, settings

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
    """One row per (document, query) pair, with the document as `label`.

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
        own = queries.get(label) or rng.sample(pseudo, min(1, len(pseudo)))
        rows += [(documents[label], query, label) for query in own]
    if not rows:
        raise ValueError(NO_QUERIES)
    columns = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({name: list(column) for name, column in zip(_COLUMNS, columns, strict=True)})


def trainer_settings(
    work_folder: Path,
    *,
    epochs: float,
    learning_rate: float,
    seed: int,
    bf16: bool,
    use_cpu: bool,
    reports: Reports = SILENT,
) -> dict[str, Any]:
    """Trainer arguments that all our trainings share: a loss and a checkpoint every tenth, the last two checkpoints kept.

    Args:
        work_folder: of the checkpoints.
        epochs: passes over the data.
        learning_rate: at its peak.
        seed: of sampling and shuffling.
        bf16: compute in bfloat16 if the device has instructions for it.
        use_cpu: stay on the CPU; otherwise the trainer chooses the device.
        reports: if losses are reported, there is one every hundredth.
    """
    return {
        "output_dir": str(work_folder),
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "bf16": bf16 and has_bfloat16(use_cpu=use_cpu),
        "seed": seed,
        "save_strategy": "steps",
        "save_steps": 0.1,
        "save_total_limit": 2,
        "logging_steps": 0.1 if reports.to == "none" else 0.01,
        "logging_nan_inf_filter": False,  # `FiniteTraining` looks at the loss itself
        "report_to": "none",  # `Reports` has the callbacks
        "disable_tqdm": True,  # `run_trainer` shows the progress
        "use_cpu": use_cpu,
        "dataloader_pin_memory": False,
    }


def run_trainer(trainer: Any, description: str, work_folder: Path) -> None:
    """Train, with our progress bar; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        trainer: of transformers or sentence-transformers, with `trainer_settings`.
        description: of the training, a few words.
        work_folder: of the checkpoints.
    """
    shown = ProgressLine(description)
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    trainer.add_callback(shown)
    try:
        trainer.train(resume_from_checkpoint=last_checkpoint(work_folder))
    finally:
        shown.close()


def last_checkpoint(work_folder: Path) -> str | None:
    """The last whole checkpoint, from which a killed training resumes; those that a kill cut off are removed."""
    folders = [folder for folder in work_folder.glob("checkpoint-*") if folder.name.rpartition("-")[2].isdigit()]
    whole = [folder for folder in folders if _is_whole(folder)]
    for folder in set(folders) - set(whole):
        shutil.rmtree(folder, ignore_errors=True)  # several processes may do so at once
    return str(max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]))) if whole else None


def _is_whole(checkpoint: Path) -> bool:
    """True if all files of a checkpoint were written to their ends; the trainer writes its own state last."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        for weights in checkpoint.rglob("*.safetensors"):
            with safe_open(weights, "numpy"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    has_weights = any(checkpoint.rglob("*.safetensors"))
    return has_weights and all(zipfile.is_zipfile(path) for path in checkpoint.glob("*.pt*"))


class FiniteTraining:
    """A base, before the trainer's own, that ends a training whose loss or weights are no longer finite numbers.

    The loss is looked at in every step on a CPU, and elsewhere when it is logged: to look at it there is to wait for it.

    Attributes:
        remedy: what to do about it; {rate} stands for the learning rate.
    """

    remedy = "lower the learning rate ({rate:g})"

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Do one step.

        Raises:
            ValueError: the loss is infinite or not a number.
        """
        trainer: Any = self
        loss: torch.Tensor = super().training_step(*arguments, **keywords)  # type: ignore[misc]
        step = trainer.state.global_step + 1
        if (loss.device.type == "cpu" or step % trainer.state.logging_steps == 0) and not loss.isfinite():
            self._stop(step, f"the loss is {loss.item():g}")
        return loss

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """Train.

        Raises:
            ValueError: a loss, or in the end a weight, is infinite or not a number.
        """
        trainer: Any = self
        output = super().train(*arguments, **keywords)  # type: ignore[misc]
        if not all(weights.isfinite().all() for weights in trainer.model.parameters()):
            self._stop(trainer.state.global_step, "there are weights that are not finite")
        return output

    def _stop(self, step: int, reason: str) -> NoReturn:
        rate = self.args.learning_rate  # type: ignore[attr-defined]
        raise ValueError(f"The training diverged at step {step}: {reason}; {self.remedy.format(rate=rate)}.")


class _EncoderTrainer(FiniteTraining, SentenceTransformerTrainer):
    """Leaves out the model card, whose examples are looked for with a progress bar of their own."""

    remedy = "lower contrastive.learning_rate ({rate:g})"

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        pass


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
    """Train `encoder` in place on `contrastive_rows`; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        encoder: to be trained.
        rows: what it is trained on.
        config: how it is trained.
        work_folder: for checkpoints.
        reports: where the losses go.
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
        loss=_LOSSES[config.loss](encoder.model, config.temperature),
        callbacks=reports.callbacks("encoder"),
    )
    run_trainer(trainer, "encoder", work_folder)
    with torch.no_grad():
        for before, parameter in zip(start, parameters, strict=False):
            parameter.copy_(torch.lerp(before.to(parameter.device), parameter, config.interpolation))
    encoder.model.eval()
