"""Trains a query generator: a seq2seq or causal model fine-tuned on train pairs, document -> query (as in DSI-QG).

The output is a plain transformers folder. `dsi train --config digits --set pseudo_queries.method=FOLDER` writes
pseudo-queries with it, and gives it documents in the same format as in training. Knows nothing of docids.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments

from dsi.config import PseudoQueriesConfig
from dsi.contrastive.trainers import FiniteTraining, run_trainer, trainer_settings
from dsi.docids.files.declarations import Count, Positive, Whole, settings
from dsi.docids.files.storage import replace_folder
from dsi.pseudo_queries import load_query_model, prompt_text, reading_text

Pair = tuple[str, str, str]
"""(title of the document, its text, a query for it)."""
Example = dict[str, list[int]]
"""input_ids, attention_mask and labels."""
_UNREAD = -100
"""Label of a token that the loss leaves out."""


@settings()
class QueryTrainingConfig:
    """How the query generator is fine-tuned; learning rate and lengths are docT5query's.

    Attributes:
        model: seq2seq or causal model to start from (Hub name or folder).
        layers: train only this many upper layers of a causal model, and nothing below them; 0 trains all weights.
        document_tokens: tokens read of a document, at most.
        query_tokens: tokens of a query, at most.
        batch_size: pairs per process and step.
        epochs: passes over the pairs.
        learning_rate: peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero.
        bf16: compute in bfloat16 if the device has instructions for it.
        seed: of shuffling.
    """

    model: str = "google-t5/t5-base"
    layers: Whole = 0
    document_tokens: Count = 512
    query_tokens: Count = 32
    batch_size: Count = 16
    epochs: Positive = 4.0
    learning_rate: Positive = 1e-4
    bf16: bool = False
    seed: Whole = 0


def train_query_generator(
    train: Sequence[Pair], dev: Sequence[Pair], config: QueryTrainingConfig, output: Path, *, device: str | None = None
) -> tuple[float, float]:
    """Fine-tune the model and write it to `output` atomically; a killed run continues from its last checkpoint.

    Args:
        train: (title, text, query) of each pair.
        dev: pairs whose loss is reported; may be empty.
        config: how it is trained.
        output: folder of the model; until the end, checkpoints lie in `<output>.checkpoints`.
        device: "cpu" keeps the training on the CPU.

    Returns:
        Loss (nats per token) on dev before and after training; NaN without dev pairs.

    Raises:
        FileNotFoundError: there is no such model, or it writes nothing.
        ValueError: there are no train pairs, or fewer layers than are to be trained.
    """
    if not train:
        raise ValueError("There are no train pairs to learn queries from; add qrels/train.tsv.")
    tokenizer, model = load_query_model(config.model, "model")
    tokenizer.padding_side = "right"
    if config.layers:
        _freeze_below(model, config.layers)
    stored, causal = model.dtype, not model.config.is_encoder_decoder
    model = model.float()  # steps of AdamW are lost in half precision
    work = output.with_name(f"{output.name}.checkpoints")
    arguments = TrainingArguments(
        **trainer_settings(
            work,
            epochs=config.epochs,
            learning_rate=config.learning_rate,
            seed=config.seed,
            bf16=config.bf16,
            use_cpu=device == "cpu",
        ),
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        warmup_steps=0.05,
    )
    trainer = _QueryTrainer(
        model=model,
        args=arguments,
        train_dataset=_examples(train, tokenizer, config, causal),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    held_out = _examples(dev, tokenizer, config, causal)
    before = _loss(trainer, held_out)
    run_trainer(trainer, "query generator", work, round(config.epochs * len(train)))
    after = _loss(trainer, held_out)
    if trainer.is_world_process_zero():
        _save(model.to(stored), tokenizer, output)
        shutil.rmtree(work, ignore_errors=True)
    return before, after


def _save(model: Any, tokenizer: Any, output: Path) -> None:
    """Write the model, which ends where it learned to."""
    if not model.config.is_encoder_decoder:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    with replace_folder(output) as folder:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))


def _freeze_below(model: Any, count: int) -> None:
    """Leave only the upper layers of a causal model to training.

    Raises:
        ValueError: the model has fewer layers, or an encoder.
    """
    lists = [own for own in model.base_model.children() if isinstance(own, nn.ModuleList)]
    stack: Any = [] if model.config.is_encoder_decoder or not lists else lists[0]
    if count > len(stack):
        raise ValueError(
            f"layers must be at most the {len(stack)} of a causal model, got {count}; 0 trains all weights."
        )
    model.requires_grad_(False)
    for layer in stack[-count:]:
        layer.requires_grad_(True)


def _examples(pairs: Sequence[Pair], tokenizer: Any, config: QueryTrainingConfig, causal: bool) -> list[Example]:
    """Return what the model reads, and the query as labels; a causal model reads both, and its labels mask the document."""
    return [(_continuation if causal else _answer)(*pair, tokenizer, config) for pair in pairs]


def _answer(title: str, text: str, query: str, tokenizer: Any, config: QueryTrainingConfig) -> Example:
    read = tokenizer(reading_text(title, text), truncation=True, max_length=config.document_tokens)
    labels = tokenizer(text_target=query, truncation=True, max_length=config.query_tokens)["input_ids"]
    return {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"], "labels": labels}


def _continuation(title: str, text: str, query: str, tokenizer: Any, config: QueryTrainingConfig) -> Example:
    template = PseudoQueriesConfig().prompt
    prompt = tokenizer(prompt_text(tokenizer, template, reading_text(title, text), config.document_tokens))["input_ids"]
    most = {"truncation": True, "max_length": config.query_tokens, "add_special_tokens": False}
    written = [*tokenizer(f" {query}", **most)["input_ids"], tokenizer.eos_token_id]
    ids = [*prompt, *written]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [_UNREAD] * len(prompt) + written}


class _QueryTrainer(FiniteTraining, Trainer):
    """Ends a training that diverges."""


def _loss(trainer: Trainer, examples: list[Example]) -> float:
    return float(trainer.evaluate(examples)["eval_loss"]) if examples else float("nan")  # type: ignore[arg-type]
