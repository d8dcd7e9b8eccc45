"""What a training will cost: seconds and memory of each stage, by counts, and by short probes of the stages' own work.

A probe does a growing number of texts, rows or steps until it has taken a moment; what it took is multiplied by how many there
are. Clustering, writing and tuning, which needs the index, are not foreseen. Beyond 20,000 documents the steps of the generator
are those of 20,000. Memory is the process's own: what lies on a GPU is not counted. Knows nothing of the folders of a run.
"""

import copy
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsi.config import Config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.losses import CHUNK
from dsi.contrastive.query_tokens import QUERIES, QueryExample, count_steps, train_matrix
from dsi.contrastive.sparse import build_lexical
from dsi.contrastive.tokens import SAMPLE, TokenHead
from dsi.contrastive.trainers import CHECKPOINTS, has_bfloat16
from dsi.contrastive.training import contrastive_loss
from dsi.docids.clustering import assemble
from dsi.docids.data.collection import Collection, FullTexts
from dsi.docids.files.memory import free_memory, own_memory, watching_memory
from dsi.docids.schemes import Docids, DocidsConfig
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.generator.kinds import create_generator
from dsi.generator.pseudo_queries import extractive_queries, generate_queries
from dsi.generator.states import Embeddings, StateCache, write_states
from dsi.training.costs import Cost
from dsi.training.examples import DocidExamples, Texts
from dsi.training.teacher import Teacher
from dsi.training.trainer import train_generator

_MOMENT = 0.4
"""Seconds that a probe takes at least, unless there is less to do."""
FORESEEN = 200
"""Documents from which on a training is foreseen; a smaller one takes seconds."""
_SAMPLE = 64
"""Documents, and queries, of which probes are made."""
_BATCH, _PASS = 64, 16
"""Texts that the encoder reads at a time, and in a probe of its memory."""
_PRODUCTS = 250_000_000
"""Bytes of the compiled products that a process keeps once it has embedded texts of many lengths (see `keep_few_kernels`)."""
_NO_RATE = 1e-9
"""Learning rate of the steps that are probes: none diverges."""
_MOST_DOCUMENTS = 20_000
"""Of the trees on which steps are measured."""


def seconds_for(work: Callable[[int], object], most: int, count: float) -> float:
    """Return how long `work(count)` takes, by what smaller numbers take.

    Args:
        work: does a number of things.
        most: that it can do.
        count: how many there are.
    """
    if not most or not count:
        return 0.0
    work(1)  # the first time is slower; what one thing takes includes the loading of a model
    one = took = _timed(work, 1)
    done = 1
    while done < most and (done == 1 or took - one < _MOMENT):
        done = min(4 * done, most)
        took = _timed(work, done)
    each = (took - one) / (done - 1) if done > 1 else one
    return one + max(0.0, each) * (count - 1)


def _timed(work: Callable[[int], object], count: int) -> float:
    started = time.perf_counter()
    work(count)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a GPU is still at work when a call returns
    return time.perf_counter() - started


class Forecast:
    """What stages of a run will cost.

    Args:
        config: of the run.
        collection: what is indexed.
        encoder: as it is before the training; it is not changed.
        done: {stage: steps that a killed run has made}.
        work: folder for what the probes write.
    """

    def __init__(
        self, config: Config, collection: Collection, encoder: Encoder, done: Mapping[str, int], work: Path
    ) -> None:
        self._config, self._collection, self._encoder = config, collection, encoder
        self._done, self._work, self._total = done, work, len(collection.documents)
        rows = np.unique(np.linspace(0, self._total - 1, min(_SAMPLE, self._total)).astype(int))
        self._documents = collection.documents.select(rows)
        self._texts = DocumentTexts(encoder, self._documents)[:]
        self._pairs = collection.pairs("train")

    def costs(self, stages: Sequence[str]) -> dict[str, Cost]:
        """Return {stage: its cost}, of those that will run."""
        foreseers = {
            "pseudo_queries": self._pseudo_stage,
            "encoder": self._encoder_stage,
            "token_model": self._token_model_stage,
            "docids": self._docids_stage,
            "lexical": self._lexical_stage,
            "generator": self._generator_stage,
        }
        foreseen = {name: foreseers[name]() for name in stages}
        free_memory()  # as each stage begins
        return {name: replace(cost, memory=own_memory() + cost.memory) for name, cost in foreseen.items()}

    # The stages; memory is what comes to that of now, the encoder included.

    def _pseudo_stage(self) -> Cost:
        def generate(count: int) -> None:
            path = self._work / f"pseudo-{time.perf_counter_ns()}.jsonl"
            device = str(self._encoder.model.device)
            generate_queries(self._documents.select(range(count)), self._config.pseudo_queries, path, device=device)

        seconds = seconds_for(generate, len(self._documents), self._total)
        return Cost(seconds, 0, {"documents": self._total})

    def _encoder_stage(self) -> Cost:
        """Time of steps, whose rows are as many as in training, and of checkpoints, which hold the weights three times."""
        config, size = self._config.contrastive, self._config.contrastive.rows
        saving = _timed(lambda _: self._encoder.save(self._work / "encoder"), 1)
        if config.loss == "none":
            return Cost(saving, self._weights, {})
        rows = len(self._pairs)
        steps = config.steps(rows)
        left = max(0, steps - self._done.get("encoder", 0))
        a_step = seconds_for(self._step, min(size, len(self._texts)), min(size, rows))
        share = min(1.0, config.epochs * rows / (steps * min(size, rows)))  # the last batch of an epoch is smaller
        checkpoints = ceil(min(CHECKPOINTS, steps) * left / steps)
        # Weights, those before, gradients, two moments, about two more in oneDNN's kernels; what is kept of a chunk, and
        # about twice as much while gradients go through it.
        memory = 7 * self._weights + 3 * self._kept_for_gradients()
        return Cost(left * a_step * share + (3 * checkpoints + 1) * saving, memory, {"steps": left})

    def _step(self, rows: int) -> None:
        """Compute the gradients of some rows, in the way of a whole batch."""
        texts, size = self._texts[:rows], self._config.contrastive.rows
        if self._tokens(rows) <= CHUNK < self._tokens(size):
            with torch.no_grad():
                self._loss(texts)  # a batch of several chunks computes them again
        self._loss(texts).backward()
        self._encoder.model.zero_grad(set_to_none=True)

    def _tokens(self, rows: int) -> float:
        """Return how many tokens the documents of some rows have."""
        return rows * self._document_tokens

    @cached_property
    def _document_tokens(self) -> float:
        return float(self._encoder.model.preprocess(self._texts)["attention_mask"].sum(dim=1).float().mean())

    def _loss(self, texts: Sequence[str], chunk: int = CHUNK) -> Tensor:
        encoder, config = self._encoder, self._config
        queries = [self._queries[row % len(self._queries)] for row in range(len(texts))]
        prompts, device = encoder.model.prompts, encoder.model.device
        views = [
            encoder.model.preprocess(list(texts), prompt=prompts["document"]),
            encoder.model.preprocess(queries, prompt=prompts["query"]),
        ]
        views += [views[0]] * config.contrastive.negatives
        bf16 = config.bf16 and has_bfloat16(use_cpu=device.type == "cpu")
        views = [{k: v.to(device) if isinstance(v, Tensor) else v for k, v in view.items()} for view in views]
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = contrastive_loss(encoder, config.contrastive, chunk)
            labels = torch.arange(len(texts), device=device)[:, None].expand(-1, len(views))
            return loss(views, labels)  # type: ignore[no-any-return]

    def _kept_for_gradients(self) -> int:
        """Return the bytes that a chunk of the longest document keeps for its gradients."""
        if self._is_elsewhere:
            return 0
        longest, sizes = max(self._texts, key=len), dict[int, int]()
        own = {parameter.data_ptr() for parameter in self._encoder.model.parameters()}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        kept = []
        for rows in (1, 2):
            sizes.clear()
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                loss = self._loss([longest] * rows, 10**9)
            kept.append(sum(sizes.values()))
            del loss
        tokens = int(self._encoder.model.preprocess([longest])["attention_mask"].sum())
        size = self._config.contrastive.rows
        return kept[0] + (kept[1] - kept[0]) * (min(size, max(1, CHUNK // tokens)) - 1)

    def _token_model_stage(self) -> Cost:
        """Time of writing the multi-vector model, which is loaded once more for that."""
        model = self._encoder.token_model
        assert model is not None
        return Cost(_timed(lambda _: model.save(self._work / "token_model"), 1), model.nbytes, {})

    def _docids_stage(self) -> Cost:
        config, count, model = self._config, round(self._total * self._segments), self._fast.token_model
        own_tokens = config.has_token_vectors and not model
        head = TokenHead(np.eye(config.tokens.dim, self._encoder.token_dim, dtype=np.float32), config.tokens.bits)

        def encode(many: int) -> None:
            if own_tokens:
                head.encode(self._fast, self._texts[:many])
            else:
                self._fast.encode(self._texts[:many], "document")

        seconds = seconds_for(encode, len(self._texts), count + (min(SAMPLE, count) if own_tokens else 0))
        if model:  # reads whole texts, in a pass of its own
            whole = FullTexts(self._documents)[:] if config.docids.segments == 1 else self._texts
            seconds += seconds_for(lambda many: head.encode_with(model, whole[:many]), len(whole), count)
        if own_tokens:
            seconds += self._query_token_seconds(head)
        memory = self._pass_memory + 2 * self._vectors + (model.nbytes if model else 0)
        return Cost(seconds, memory + (0 if self._is_elsewhere else _PRODUCTS), {"documents": self._total})

    def _query_token_seconds(self, head: TokenHead) -> float:
        """Time of learning how queries become token vectors."""
        count = min(QUERIES, len({query for query, _ in self._pairs}))
        steps = count_steps(count, self._config.tokens.epochs)
        if not steps:
            return 0.0
        rows = np.arange(len(self._texts))
        tokens = TokenVectors(head.matrix, head.bits, (head.encode(self._fast, self._texts)[1],), rows.astype(np.int32))
        states = [own.float().numpy(force=True) for _, own, _ in self._fast.token_states(self._queries, "query")]
        examples = [QueryExample(own.astype(np.float16), rows[:1], rows[:1], rows[1:]) for own in states]
        return self._query_seconds(count) + seconds_for(lambda some: train_matrix(tokens, examples, some), steps, steps)

    def _lexical_stage(self) -> Cost:
        texts = self._collection.full_texts()[:_SAMPLE]
        ids = [str(row) for row in range(len(texts))]

        def build(count: int) -> None:
            build_lexical(self._config.lexical, ids[:count], texts[:count])

        return Cost(seconds_for(build, len(texts), self._total), 0, {"documents": self._total})

    def _generator_stage(self) -> Cost:
        config, training = self._config, self._config.training
        pseudo = self._pseudo_count
        queries, documents = len(self._pairs) + pseudo, round(self._total * self._segments) if training.documents else 0
        seconds, steps, memory = 0.0, 0, 2 * self._vectors
        if not training.train_encoder and training.epochs:
            seconds, memory = self._query_seconds(queries), memory + self._pass_memory
            if config.generator.reads_states:
                seconds += self._document_seconds(documents)
        tree = self._tree
        if training.epochs and not (config.generator.docid_tokens == "tied" and tree.depth == 1):
            steps = ceil(training.epochs * ceil((queries + documents) / training.batch_size))
            steps = max(0, steps - self._done.get("generator", 0))
            seconds += seconds_for(self._generator_steps, steps, steps)
        width = 4 * self._encoder.embedding_dim
        return Cost(seconds, memory + queries * width, {"steps": steps})

    def _generator_steps(self, steps: int) -> None:
        config, encoder, tree = self._config, self._encoder, self._tree
        numbers = tree.paths(tree.positions)[1] if config.generator.docid_tokens == "words" else None
        generator = create_generator(
            config.generator, tree, encoder.state_dim, config.objective, config.seed, numbers
        ).to(encoder.model.device)
        inputs = self._inputs(steps * config.training.batch_size)
        positions = np.random.default_rng(0).integers(0, tree.num_places, len(inputs))
        teacher = None
        if config.objective.distillation and not isinstance(inputs, Texts):
            temperature, device = config.contrastive.temperature, encoder.model.device
            teacher = Teacher.dense(inputs.embeddings, tree.embeddings[:], temperature, device=device)
        train_generator(
            generator,
            DocidExamples(inputs, positions, tree, {}, teacher),
            config.objective,
            replace(config.training, epochs=1.0, learning_rate=_NO_RATE),
            self._work / "generator",
            encoder if config.training.train_encoder else None,
            seed=config.seed,
            bf16=config.bf16,
            checkpoints=False,
        )

    def _inputs(self, count: int) -> StateCache | Embeddings | Texts:
        """Return at least `count` inputs of the generator, those of the sample again and again."""
        repeats = ceil(count / len(self._texts))
        if self._config.training.train_encoder:
            return Texts(copy.deepcopy(self._encoder), [("document", self._texts)] * repeats)
        if self._config.generator.reads_states:
            return StateCache(write_states(self._encoder, "document", self._texts, self._work / "states") * repeats)
        return Embeddings([self._random_vectors(len(self._texts))] * repeats)

    # What the stages have in common.

    @cached_property
    def _tree(self) -> DocidTree:
        """A tree as large as that of the collection, of random vectors."""
        count = min(round(self._total * self._segments), _MOST_DOCUMENTS)
        return assemble(Docids(_paths(count, self._config.docids)), self._random_vectors(count))

    def _random_vectors(self, count: int) -> Floats:
        vectors = np.random.default_rng(0).normal(size=(count, self._encoder.embedding_dim)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    @cached_property
    def _pseudo(self) -> list[list[str]]:
        """Pseudo-queries of the sample, by the method that needs no model."""
        config, rng = self._config.pseudo_queries, random.Random(0)
        if config.method == "none":
            return []
        return [
            extractive_queries(title, text, config.per_document, rng)
            for title, text in zip(self._documents["title"], self._documents["text"], strict=True)
        ]

    @cached_property
    def _queries(self) -> list[str]:
        """Queries like those of the training, as the encoder reads them."""
        texts = [self._collection.queries[query] for query, _ in self._pairs[:_SAMPLE]]
        return self._encoder.query_texts(texts or [text for own in self._pseudo for text in own[:1]] or ["a query"])

    @cached_property
    def _pseudo_count(self) -> int:
        """How many pseudo-queries there are."""
        return round(sum(map(len, self._pseudo)) / max(1, len(self._pseudo)) * self._total)

    def _query_seconds(self, count: int) -> float:
        return seconds_for(lambda n: self._fast.encode(self._queries[:n], "query"), len(self._queries), count)

    def _document_seconds(self, count: int) -> float:
        return seconds_for(lambda n: self._encoder.encode(self._texts[:n], "document"), len(self._texts), count)

    @cached_property
    def _segments(self) -> float:
        """Segments a document, on average."""
        return len(DocumentTexts(self._encoder, self._documents, self._config.docids.segments)) / len(self._documents)

    @cached_property
    def _fast(self) -> Encoder:
        """The encoder as `encode_blocks` uses it."""
        return self._encoder.for_search()

    @cached_property
    def _pass_memory(self) -> int:
        """Bytes that the encoder takes for a batch of the longest texts."""
        if self._is_elsewhere:
            return 0
        longest = sorted(self._texts, key=len)[-_PASS:]
        self._fast.forward(longest[:1], "document")  # the first time more is loaded
        with watching_memory() as most:
            before = own_memory()
            self._fast.forward(longest, "document")
            return (most() - before) * _BATCH // len(longest)

    @property
    def _is_elsewhere(self) -> bool:
        """True if weights, and what is computed of them, are not in the process's own memory."""
        return self._encoder.model.device.type != "cpu"

    @property
    def _weights(self) -> int:
        return 0 if self._is_elsewhere else sum(parameter.nbytes for parameter in self._encoder.model.parameters())

    @property
    def _vectors(self) -> int:
        return round(4 * self._total * self._segments * self._encoder.embedding_dim)


def _paths(count: int, config: DocidsConfig) -> Ints:
    """Return paths [count, depth] of a tree whose clusters are as large as each other."""
    rows, size, digits = np.arange(count), count, []
    while size > config.max_leaf_size:
        size = ceil(size / config.clusters(size))
        digits.append(rows // size)
        rows = rows % size
    return np.stack([*digits, rows], axis=1).astype(np.int32)
