"""Contrastive pre-training: from documents and their queries to a tuned encoder. Knows nothing of docids.

A training row is a document, a query of it, and other documents: hard negatives, among the best of BM25 for the query, or
any in turn, as in the paper.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
from torch import Tensor, nn

from dsi.contrastive.config import HARD, ContrastiveConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.losses import CHUNK, DPRLoss, SupervisedContrastiveLoss
from dsi.contrastive.trainers import FiniteTraining, GivesBack, run_trainer, trainer_settings
from dsi.docids.words.bm25 import BM25

NO_QUERIES = "There are no queries to train the encoder on; add judged train queries, or set contrastive.loss to none."
_BLOCK = 256
"""Queries whose scores of all documents are in memory at a time."""
_LOSSES = {"scl": SupervisedContrastiveLoss, "dpr": DPRLoss}


def hard_negatives(
    lexical: BM25, queries: Mapping[int, Sequence[str]], count: int, *,
    identical: Mapping[str, Collection[int]] | None = None, given: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> dict[str, list[int]]:  # fmt: skip
    """Return {query: rows of `count` documents that it neither asks for nor is}: those given, then some of BM25's best."""
    relevant = _relevant(queries)
    names = list(relevant)
    for text, rows in (identical or {}).items():
        relevant.setdefault(text, set()).update(rows)
    rng, negatives = random.Random(seed), dict[str, list[int]]()
    for start in range(0, len(names) if count else 0, _BLOCK):
        block = names[start : start + _BLOCK]
        for text, scores in zip(block, lexical.scores(block), strict=True):
            scores[list(relevant[text])] = -np.inf
            most = min(HARD, len(scores) - len(relevant[text]))
            rows = np.flatnonzero(scores >= np.partition(scores, -most)[-most])  # with ties at the last place
            best = rows[np.argsort(-scores[rows], kind="stable")[:most]].tolist()
            first = [row for row in (given or {}).get(text, ()) if row not in relevant[text]]
            drawn = [row for row in rng.sample(best, len(best)) if row not in first] if first else []
            negatives[text] = [*first, *drawn][:count] if first else rng.sample(best, min(count, most))
    return negatives


def drawn_documents(
    queries: Mapping[int, Sequence[str]], documents: int, count: int, seed: int = 0
) -> dict[str, list[int]]:
    """Return {query: rows of `count` documents that it does not ask for}: all documents in turn, in random order."""
    order = random.Random(seed).sample(range(documents), documents)
    turn, negatives = cycle(order), dict[str, list[int]]()
    for text, relevant in _relevant({row: queries[row] for row in sorted(queries)}).items():
        rest = (row for row in turn if row not in relevant)
        negatives[text] = list(islice(rest, min(count, documents - len(relevant))))
    return negatives


def _relevant(queries: Mapping[int, Sequence[str]]) -> dict[str, set[int]]:
    """Return {query: rows of its documents}."""
    relevant = dict[str, set[int]]()
    for row, texts in queries.items():
        for text in texts:
            relevant.setdefault(text, set()).add(row)
    return relevant


def contrastive_rows(
    documents: Sequence[str], queries: Mapping[int, Sequence[str]], negatives: Mapping[str, Sequence[int]] | None = None
) -> datasets.Dataset:
    """Return one row per (document, query) pair.

    `queries`: {document row: its train queries}; `negatives`: {query: rows of other documents}, of which each gets as
    many as the one with the fewest; none by default. Columns are view_0 (the document), view_1 (the query), view_2, …
    (negatives), and label: the documents of these texts, a row number for each, and at last the number of the query.
    """
    text_of = cache(documents.__getitem__)
    labels, texts, numbers, first = [], [], dict[str, int](), dict[str, int]()
    most = min(map(len, (negatives or {}).values()), default=0)  # a collection may have few other documents
    for row in sorted(queries):
        for query in queries[row]:
            rows = [row, *(negatives[query][:most] if negatives else [])]
            document, *further = map(text_of, rows)
            texts.append([document, query, *further])
            label, *more = map(first.setdefault, [document, *further], rows)  # equal texts are one document
            labels.append([label, label, *more, numbers.setdefault(query, len(numbers))])
    if not texts:
        raise ValueError(NO_QUERIES)
    columns = {f"view_{view}": list(column) for view, column in enumerate(zip(*texts, strict=True))}
    return datasets.Dataset.from_dict({**columns, "label": labels})


def contrastive_loss(
    encoder: Encoder, config: ContrastiveConfig, chunk: int = CHUNK, relevant: Mapping[int, Tensor] | None = None
) -> torch.nn.Module:
    """Return the loss of a training, a function of the features of views and their labels.

    `chunk`: tokens that are embedded at a time; `relevant`: {number of a query: labels of all documents that are
    relevant to it}, where there are several.
    """
    return _LOSSES[config.loss](encoder.model, config.temperature, chunk, relevant, encoder.comparable)


def several_relevant(rows: datasets.Dataset) -> dict[int, Tensor]:
    """Return {number of a query: labels of its documents} of the queries in `contrastive_rows` that have several."""
    by_query: dict[int, set[int]] = {}
    for labels in rows["label"][:]:
        by_query.setdefault(labels[-1], set()).add(labels[0])
    return {number: torch.tensor(sorted(labels)) for number, labels in by_query.items() if len(labels) > 1}


class _EncoderTrainer(FiniteTraining, SentenceTransformerTrainer):
    """Trains without dropout, and writes no model card, for which the library would collect examples, with a progress bar."""

    remedy = "lower contrastive.learning_rate ({rate:g})"

    def compute_loss(self, model: nn.Module, *arguments: Any, **options: Any) -> Any:
        model.eval()  # the base class has set it to training
        return super().compute_loss(model, *arguments, **options)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        pass

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write a checkpoint without a card, for which the library would ask the Hub about the name of the model's folder."""
        self.model.save_pretrained(str(output_dir or self.args.output_dir), create_model_card=False)


def train_encoder(
    encoder: Encoder, rows: datasets.Dataset, config: ContrastiveConfig, work_folder: Path, *, seed: int = 0,
    bf16: bool = False,
) -> None:  # fmt: skip
    """Train an encoder in place on `contrastive_rows`; resumes from the last checkpoint in `work_folder`, if there is one."""
    if config.loss == "none":
        return
    # 1) Settings.
    shared = trainer_settings(
        work_folder,
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        seed=seed,
        bf16=bf16,
        use_cpu=encoder.model.device.type == "cpu",
    )
    views = [name for name in rows.column_names if name != "label"]
    arguments = SentenceTransformerTrainingArguments(
        **shared,
        per_device_train_batch_size=config.rows,
        warmup_steps=0.1,
        prompts={name: encoder.model.prompts["query" if name == "view_1" else "document"] for name in views},
    )
    # 2) Training.
    parameters = list(encoder.model.parameters())  # tied weights once
    start = [parameter.detach().clone() for parameter in parameters] if config.interpolation < 1 else []
    trainer = _EncoderTrainer(
        model=encoder.model,
        args=arguments,
        train_dataset=rows,
        loss=contrastive_loss(encoder, config, relevant=several_relevant(rows)),
        callbacks=[GivesBack()],
    )
    run_trainer(trainer, "encoder", work_folder, round(config.epochs * config.views * len(rows)))
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # else it computes in bfloat16 from now on
    # 3) Weights between those before and after.
    with torch.no_grad():
        for before, parameter in zip(start, parameters, strict=False):
            parameter.copy_(torch.lerp(before.to(parameter.device), parameter, config.interpolation))
    encoder.model.eval()
