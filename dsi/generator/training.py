"""Training of the generator with `transformers.Trainer`: on cached encoder states, or on texts and the encoder with it.

An example is a text (by its row) and the docid position of its document. Batches hold texts of like
length; an epoch's order depends on seed and epoch alone, so a run that was killed goes on exactly where it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers import Trainer, TrainingArguments

from contrastive.encoder import Encoder
from contrastive.training import last_checkpoint, trainer_settings
from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator, GeneratorConfig
from dsi.generator.states import StateCache
from dsi.trees.dense import DenseScores

_BATCHES_A_BUCKET = 50


@dataclass
class DocidExamples(Dataset):  # type: ignore[type-arg]
    """Texts and the documents they ask for (retrieval) or are (indexing).

    Args:
        inputs: the texts: their states, or themselves.
        positions: [n] docid position of each text's document.
        kinds: [n] what kind of text each is, from 0: documents, train queries, pseudo-queries.
        tree: the docids.
    """

    inputs: "StateCache | Texts"
    positions: NDArray[np.integer]
    kinds: NDArray[np.integer]
    tree: DocidTree

    def __post_init__(self) -> None:
        if len(self.positions) != len(self.inputs):
            raise ValueError(f"{len(self.positions)} positions for {len(self.inputs)} texts; write the states again.")
        self._parents, self._digits = self.tree.paths(np.arange(self.tree.num_documents))

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, row: int) -> int:
        return int(row)

    def log_frequencies(self, smoothing: float = 0.01) -> Tensor:
        """[kinds, documents] log of how many examples of a kind ask for each document, plus `smoothing`."""
        counts = np.zeros((int(self.kinds.max()) + 1, self.tree.num_documents), dtype=np.float32)
        np.add.at(counts, (self.kinds, self.positions), 1)
        return torch.from_numpy(np.log(counts + smoothing))

    def collate(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """What `DocidGenerator.forward` takes of some examples, and what their dense scores are made of."""
        positions = self.positions[rows]
        parents = self._parents[positions]
        num_children = np.where(parents >= 0, self.tree.num_children[parents], 1)
        return {
            **self.inputs.batch(rows),
            "digits": torch.from_numpy(self._digits[positions]).long(),
            "num_children": torch.from_numpy(num_children).long(),
            "parents": torch.from_numpy(parents).long(),
            "kinds": torch.from_numpy(self.kinds[rows]).long(),
        }


class Texts:
    """Texts for an encoder that is trained with the decoder: `texts.batch(rows)` tokenizes them.

    Args:
        encoder: whose tokenizer and prompts.
        texts: (kind, text) of each, kind "document" or "query".
    """

    def __init__(self, encoder: Encoder, texts: Sequence[tuple[str, str]]) -> None:
        self._preprocess = encoder.model.preprocess
        self._texts = [encoder.model.prompts[kind] + text for kind, text in texts]
        self.lengths = np.array([len(text) for text in self._texts])

    def __len__(self) -> int:
        return len(self._texts)

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """input_ids and attention_mask, [len(rows), longest] each, with what else the tokenizer gives."""
        features = self._preprocess([self._texts[row] for row in rows])
        return {name: value for name, value in features.items() if isinstance(value, Tensor)}


class WholeModel(nn.Module):
    """Encoder and generator as one model, trained together.

    Args:
        encoder: a sentence-transformers model; its first module gives the token states.
        generator: the decoder.
    """

    def __init__(self, encoder: nn.Sequential, generator: DocidGenerator) -> None:
        super().__init__()
        self.encoder, self.generator = encoder[0], generator

    def state_dict(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:  # type: ignore[override]
        """Tied weights once: a checkpoint refuses to hold them twice."""
        weights: dict[str, Any] = super().state_dict(*arguments, **keywords)
        names = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}
        return {name: tensor for name, tensor in weights.items() if names[tensor.data_ptr()] == name}

    def forward(self, digits: Tensor, num_children: Tensor, **features: Tensor) -> dict[str, Tensor]:
        """`DocidGenerator.forward` on the token states of the features."""
        states = self.encoder(features)["token_embeddings"]
        return self.generator(states, features["attention_mask"].bool(), digits, num_children)  # type: ignore[no-any-return]


class LengthBucketSampler(Sampler[int]):
    """A shuffle in which neighbours have like length: pools of 50 batches are sorted, their batches shuffled.

    Args:
        lengths: [n] of each example.
        batch_size: examples a batch over all processes.
        seed: with the epoch it fixes the order.
    """

    def __init__(self, lengths: NDArray[np.integer], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer at the start of each epoch."""
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


class _GeneratorTrainer(Trainer):
    """Knows how to shuffle, and adds the dense scores of a batch to its inputs where the settings want them."""

    def __init__(self, dense: "DenseLogits | None", config: GeneratorConfig, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.dense, self.config = dense, config

    def _get_train_sampler(self, train_dataset: DocidExamples | None = None) -> LengthBucketSampler:
        examples: DocidExamples = train_dataset or self.train_dataset
        batch_size = self.args.train_batch_size * self.args.world_size
        return LengthBucketSampler(examples.inputs.lengths, batch_size, self.args.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *arguments: Any, **keywords: Any) -> Any:
        of_dense = {name: inputs.pop(name) for name in ("embeddings", "parents", "kinds") if name in inputs}
        taught: dict[str, Any] = {}
        if self.dense is not None:
            taught = {"dense_logits": self.dense(**of_dense), "distillation": self.config.distillation}
        if self.config.state_dropout and model.training and "states_mask" in inputs:
            inputs["states_mask"] = drop_states(inputs["states_mask"], self.config.state_dropout)
        return super().compute_loss(model, {**inputs, **taught}, *arguments, **keywords)


def drop_states(mask: Tensor, share: float) -> Tensor:
    """Mask [batch, length] without a random share of its tokens; the first token stays."""
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= share)
    kept[:, 0] = mask[:, 0]
    return kept


class DenseLogits:
    """Flat dense search as logits over children: their softmaxes along a path multiply to the document's probability.

    A document's score is z.e_d / temperature, plus the log of how often it is asked for by training examples of the same kind:
    what frequency explains the decoder need not learn, and without it at search time frequent documents get no head start
    (logit adjustment, Menon et al. 2021).

    Args:
        tree: the docids.
        temperature: divides the dot products.
        log_frequencies: [kinds, documents] in docid order.
        device: where the scores are computed.
    """

    def __init__(self, tree: DocidTree, temperature: float, log_frequencies: Tensor, device: torch.device) -> None:
        self.scores, self.temperature = DenseScores(tree, device), temperature
        self.log_frequencies = log_frequencies.to(device)
        self._digits = torch.arange(max(tree.fan_out), device=device)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, parents: Tensor, kinds: Tensor) -> Tensor:
        """[batch, depth, largest fan-out] from embeddings [batch, dim], the path's inner nodes [batch, depth], kinds [batch].

        Entries past a node's last child, or past the path's end (parent -1), are of no meaning.
        """
        documents = self.scores.document_scores(embeddings.float()) / self.temperature + self.log_frequencies[kinds]
        nodes = torch.cat([self.scores.log_sum_below(documents), documents], dim=1)
        children = self.scores.first_child[parents.clamp(min=0)][:, :, None] + self._digits
        return nodes.gather(1, children.clamp(max=nodes.shape[1] - 1).flatten(1)).view(children.shape)


def train_generator(
    generator: DocidGenerator,
    examples: DocidExamples,
    config: GeneratorConfig,
    work_folder: Path,
    encoder: Encoder | None = None,
) -> float:
    """Train `generator` in place; resumes from the last checkpoint in `work_folder`, if there is one.

    Args:
        generator: the decoder.
        examples: on cached states, or on `Texts` where the encoder is trained too.
        config: the settings.
        work_folder: of the checkpoints.
        encoder: trained in place with it (`config.train_encoder`).

    Returns:
        The mean training loss (nats a docid) of the whole run.
    """
    arguments = TrainingArguments(
        **trainer_settings(config, work_folder, use_cpu=generator.device.type == "cpu"),
        per_device_train_batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        warmup_steps=0.05,
        remove_unused_columns=False,
    )
    dense = None
    if config.dense_temperature > 0:
        frequencies = examples.log_frequencies()
        if config.distillation:
            frequencies = torch.zeros_like(frequencies)  # the teacher is dense search as it is
        dense = DenseLogits(examples.tree, config.dense_temperature, frequencies, arguments.device)
    trainer = _GeneratorTrainer(
        dense,
        config,
        model=generator if encoder is None else WholeModel(encoder.model, generator),
        args=arguments,
        train_dataset=examples,
        data_collator=examples.collate,
    )
    result = trainer.train(resume_from_checkpoint=last_checkpoint(work_folder))
    trainer.model.eval()
    return float(result.training_loss)
