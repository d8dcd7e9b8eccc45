"""Trains a query generator: a seq2seq model fine-tuned on train pairs, document -> query (as in DSI-QG).

The output is a plain transformers folder. `dsi train --stage pseudo_queries --set pseudo_queries.method=FOLDER` writes
pseudo-queries with it, and gives it documents in the same format as in training. Knows nothing of docids.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from dsi.contrastive.trainers import FiniteTraining, run_trainer, trainer_settings
from dsi.docids.files.declarations import Count, Positive, Whole, settings
from dsi.docids.files.storage import replace_folder
from dsi.generator.pseudo_queries import reading_text

Pair = tuple[str, str, str]
"""(title of the document, its text, a query for it)."""


@settings()
class QueryTrainingConfig:
    """How the query generator is fine-tuned; learning rate and lengths are docT5query's.

    Attributes:
        model: seq2seq model to start from (Hub name or folder).
        document_tokens: tokens read of a document, at most.
        query_tokens: tokens of a query, at most.
        batch_size: pairs per process and step.
        epochs: passes over the pairs.
        learning_rate: peak; warmed up linearly over 5 % of the steps, then decayed linearly to zero.
        bf16: compute in bfloat16 if the device has instructions for it.
        seed: of shuffling.
    """

    model: str = "google-t5/t5-base"
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
        ValueError: there are no train pairs.
    """
    if not train:
        raise ValueError("There are no train pairs to learn queries from; add qrels/train.tsv.")
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(config.model)
    stored = model.dtype
    model = model.float()  # steps of AdamW are lost in half precision
    work = output.with_name(f"{output.name}.checkpoints")
    arguments = Seq2SeqTrainingArguments(
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
        train_dataset=_examples(train, tokenizer, config),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    held_out = _examples(dev, tokenizer, config)
    before = _loss(trainer, held_out)
    run_trainer(trainer, "query generator", work, round(config.epochs * len(train)))
    after = _loss(trainer, held_out)
    if trainer.is_world_process_zero():
        with replace_folder(output) as folder:
            model.to(stored).save_pretrained(str(folder))
            tokenizer.save_pretrained(str(folder))
        shutil.rmtree(work, ignore_errors=True)
    return before, after


def _examples(
    pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, config: QueryTrainingConfig
) -> list[dict[str, list[int]]]:
    examples = []
    for title, text, query in pairs:
        read = tokenizer(reading_text(title, text), truncation=True, max_length=config.document_tokens)
        labels = tokenizer(text_target=query, truncation=True, max_length=config.query_tokens)["input_ids"]
        examples.append({"input_ids": read["input_ids"], "attention_mask": read["attention_mask"], "labels": labels})
    return examples


class _QueryTrainer(FiniteTraining, Seq2SeqTrainer):
    """Ends a training that diverges."""


def _loss(trainer: Seq2SeqTrainer, examples: list[dict[str, list[int]]]) -> float:
    return float(trainer.evaluate(examples)["eval_loss"]) if examples else float("nan")  # type: ignore[arg-type]
