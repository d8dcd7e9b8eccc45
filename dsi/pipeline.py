"""From a collection to an index, in five stages that can be run, killed and run again.

    queries    pseudo-queries for the documents
    encoder    contrastive pre-training
    docids     embeddings -> docid tree
    generator  cached token states -> trained decoder
    lexical    words -> BM25; then the manifest, and the folder is an index

Each stage writes one folder of the run in one step, with the key of everything it depends on; a stage whose folder has the
right key is not run again. Under `accelerate launch` all processes train, and the first one writes.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from contrastive.blocks import DocumentTexts, QueryTexts, encode_blocks, in_blocks
from contrastive.encoder import Encoder
from contrastive.training import contrastive_rows, hard_negatives, train_encoder
from docids.clustering import assemble, cluster
from docids.collection import Collection
from docids.lexical import BM25
from docids.storage import digest, recover_folder, replace_folder, scratch_array, write_json
from docids.tree import DocidTree, diagnostics
from dsi.config import Config, write_config
from dsi.generator.model import DocidGenerator
from dsi.generator.pseudo_queries import generate_queries, read_queries_table
from dsi.generator.states import StateCache, write_states
from dsi.index import load_docids, load_encoder, save_docids, write_manifest
from dsi.launch import launched
from dsi.training.examples import DocidExamples, Texts, asked_for_together
from dsi.training.trainer import train_generator

logger = logging.getLogger(__name__)

_KEY_FILE = "stage.json"
_STAGES = ("queries", "encoder", "docids", "generator", "lexical")


class TrainingRun:
    """The stages over one collection into one folder.

    Args:
        folder: of the run; becomes the index.
        collection: what to index.
        config: every setting; written to `config.toml`.
        device: for the encoder and the generator; the best there is by default.
        store: a folder in which runs share what they have in common: a stage that any of them has done is not done again.

    Attributes:
        seconds: {stage: wall time} of the stages that ran.
    """

    def __init__(
        self,
        folder: Path,
        collection: Collection,
        config: Config,
        device: str | None = None,
        store: Path | None = None,
    ) -> None:
        self.folder, self.collection, self.config, self.device = folder, collection, config, device
        self.store = store
        self.processes = launched(device)
        self.seconds: dict[str, float] = {}
        self._started: dict[str, float] = {}
        if self.processes.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            write_config(config, folder / "config.toml")

    def all_stages(self) -> None:
        """Run what is not done yet, in order."""
        self.generate_queries()
        self.train_encoder()
        self.build_docids()
        self.train_generator()

    def generate_queries(self) -> None:
        """Stage `queries`: pseudo-queries for all documents."""
        if self.config.queries.method == "none":
            return
        with self._stage("queries") as key:
            if not key or not self.processes.is_main:
                return
            work = self._work("queries", key)
            held_out = [*self.collection.query_texts("dev").values(), *self.collection.query_texts("test").values()]
            documents, settings = self.collection.documents, self.config.queries
            counts = generate_queries(documents, settings, work / "queries.jsonl", held_out=held_out)
            logger.info(
                "pseudo-queries: %(written)d written, %(dropped)d dropped (equal to a dev or test query)", counts
            )
            with self._writing("queries", key) as folder:
                shutil.copy(work / "queries.jsonl", folder / "queries.jsonl")

    def train_encoder(self) -> None:
        """Stage `encoder`: contrastive pre-training; with loss "none" the encoder as it is."""
        with self._stage("encoder") as key:
            if not key:
                return
            encoder = Encoder.load(self.config.encoder, device=self.device)
            settings = self.config.contrastive
            if settings.loss != "none":
                train_encoder(encoder, self._contrastive_rows(encoder, key), settings, self._work("encoder", key))
            if self.processes.is_main:
                with self._writing("encoder", key) as folder:
                    encoder.save(folder)

    def _contrastive_rows(self, encoder: Encoder, key: str) -> datasets.Dataset:
        settings, queries, negatives = self.config.contrastive, self._train_queries(encoder), {}
        if settings.hard_negatives:
            embeddings = self._embed_documents(encoder, self._work("encoder", key) / "documents")
            negatives = hard_negatives(encoder, embeddings, queries, settings.hard_negatives)
        pseudo: dict[int, list[str]] = {}
        if settings.pseudo_queries:
            rows, texts = self._pseudo_queries()
            for row, text in zip(rows, in_blocks(texts), strict=True):
                pseudo.setdefault(int(row), []).append(text)
        texts = DocumentTexts(encoder, self.collection.documents)
        return contrastive_rows(texts, queries, pseudo, negatives, views=settings.views, seed=settings.seed)

    def build_docids(self, embeddings: NDArray[np.float32] | None = None) -> None:
        """Stage `docids`: embed the documents and cluster them.

        Args:
            embeddings: [documents, any] to cluster on instead of what the settings say.
        """
        extra = "" if embeddings is None else hashlib.sha256(np.ascontiguousarray(embeddings).data).hexdigest()
        with self._stage("docids", extra) as key:
            if not key:
                return
            encoder, cluster_on = self.encoder(), self.config.docids.cluster_on
            work = self._work("docids", key)
            documents = self._embed_documents(encoder, work / "documents")
            if embeddings is None and cluster_on == "queries":
                embeddings = self._means_with_queries(encoder, documents, work)
            if embeddings is None and cluster_on == "untrained":
                untrained = Encoder.load(self.config.encoder, device=self.device)
                embeddings = self._embed_documents(untrained, work / "untrained")
            clusters = cluster(
                documents, self.config.docids, cluster_embeddings=embeddings, progress=True, processes=self.processes
            )
            if not self.processes.is_main:
                return
            tree = assemble(clusters, documents)
            with self._writing("docids", key) as folder:
                save_docids(tree, self.collection.documents, folder)
                (folder / "diagnostics.json").write_text(json.dumps(diagnostics(tree), indent=2) + "\n")

    def _embed_documents(self, encoder: Encoder, folder: Path) -> NDArray[np.float32]:
        """Mapped from `folder`, or from the store, where every run finds what an encoder made of these documents."""
        if self.store:
            identity = [encoder.fingerprint, dataclasses.asdict(encoder.config), self.collection.digest]
            folder = self.store / "embeddings" / digest(identity)[:16]
        texts = DocumentTexts(encoder, self.collection.documents)
        return encode_blocks(encoder, texts, "document", folder, self.processes)

    def train_generator(self) -> None:
        """Stage `generator`: cache the frozen encoder's states, train the decoder; then finish the index."""
        with self._stage("generator") as key:
            if key:
                self._train_generator(key)
        self._finish()

    def _train_generator(self, key: str) -> None:
        encoder, tree = self.encoder(), self.tree()
        settings = self.config.generator
        examples = self._examples(encoder, tree)
        generator = DocidGenerator.create(settings, tree, encoder.state_dim)
        trained_too = encoder if settings.train_encoder else None
        record = train_generator(generator, examples, settings, self._work("generator", key), trained_too)
        if self.processes.is_main:
            with self._writing("generator", key) as folder:
                generator.save_pretrained(str(folder))
                write_json(folder / "training.json", record)
                if trained_too:
                    trained_too.save(folder / "encoder")

    def _finish(self) -> None:
        """What is quickly made of the collection and the settings: the lexical part, and the manifest if it is not there."""
        self._build_lexical()
        if self.processes.is_main and not (self.folder / "manifest.json").exists():
            encoder = load_encoder(self.folder, self.config.encoder, self.device)
            tree, _ = load_docids(self.folder / "docids")
            write_manifest(self.folder, encoder, tree, self.config.search)
        self.processes.wait()

    def _build_lexical(self) -> None:
        settings = self.config.lexical
        if not settings.enabled:
            if self.processes.is_main and (self.folder / "lexical").exists():
                (self.folder / "manifest.json").unlink(missing_ok=True)
                shutil.rmtree(self.folder / "lexical")
            return
        with self._stage("lexical") as key:
            if not key or not self.processes.is_main:
                return
            bm25 = BM25(self.collection.documents["doc_id"], self.collection.full_texts(), settings.k1, settings.b)
            with self._writing("lexical", key) as folder:
                bm25.save(folder)

    # What the stages read of each other.

    def encoder(self) -> Encoder:
        """The encoder that stage `encoder` left."""
        return Encoder.load(self.config.encoder, self._existing("encoder", "dsi train-encoder"), self.device)

    def tree(self) -> DocidTree:
        """The docids that stage `docids` left."""
        return load_docids(self._existing("docids", "dsi build-docids"))[0]

    def _existing(self, stage: str, command: str) -> Path:
        folder = self.folder / stage
        recover_folder(folder)
        if not (folder / _KEY_FILE).exists():
            raise FileNotFoundError(
                f"{folder} is not there yet; run `{command}` (or `dsi train` for all stages) first."
            )
        return folder

    def _train_queries(self, encoder: Encoder) -> dict[int, list[str]]:
        queries: dict[int, list[str]] = {}
        pairs = self.collection.pairs("train")
        texts = encoder.query_texts([self.collection.queries[query_id] for query_id, _ in pairs])
        for (_, row), text in zip(pairs, texts, strict=True):
            queries.setdefault(row, []).append(text)
        return queries

    def _pseudo_queries(self, most: int = sys.maxsize) -> tuple[NDArray[np.integer], Sequence[str]]:
        """At most so many of each document: the document row and the text of each, the texts on disk."""
        if self.config.queries.method == "none":
            return np.empty(0, dtype=np.int64), []
        path = self._existing("queries", "dsi generate-queries") / "queries.jsonl"
        table, rows = read_queries_table(path, most), self.collection.rows
        return np.fromiter((rows[doc_id] for doc_id in in_blocks(table["doc_id"])), dtype=np.int64), table["text"]

    def _means_with_queries(self, encoder: Encoder, documents: NDArray[np.float32], work: Path) -> NDArray[np.float32]:
        means, counts = scratch_array(documents.shape, np.float32), np.ones(len(documents), dtype=np.float32)
        means[:] = documents
        pseudo_rows, pseudo = self._pseudo_queries()
        kinds = {"train": _flat(self._train_queries(encoder)), "pseudo": (pseudo_rows, QueryTexts(encoder, pseudo))}
        for kind, (rows, texts) in kinds.items():
            if len(rows):
                np.add.at(means, rows, encode_blocks(encoder, texts, "query", work / kind, self.processes))
                np.add.at(counts, rows, 1)
        means /= counts[:, None]
        return means

    def _parts(self, encoder: Encoder) -> list["_Part"]:
        """The texts of indexing and retrieval examples."""
        settings, parts = self.config.generator, []
        if settings.document_examples:
            segments = DocumentTexts(encoder, self.collection.documents, settings.document_segments)
            parts.append(_Part("document", ["documents", settings.document_segments], segments.rows, segments))
        parts.append(_Part("query", ["train", self.config.dev_queries], *_flat(self._train_queries(encoder))))
        if settings.pseudo_queries:
            rows, texts = self._pseudo_queries(settings.pseudo_queries)
            origin = ["pseudo", _stored_key(self.folder / "queries"), settings.pseudo_queries]
            parts.append(_Part("query", origin, rows, QueryTexts(encoder, texts)))
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            raise ValueError(
                "There is nothing to train the decoder on; add qrels/train.tsv, or set generator.document_examples, "
                "or generator.pseudo_queries with queries.method."
            )
        return parts

    def _examples(self, encoder: Encoder, tree: DocidTree) -> DocidExamples:
        """Indexing and retrieval examples; the states of each kind of text are written once."""
        settings, parts = self.config.generator, self._parts(encoder)
        positions = tree.positions[np.concatenate([part.rows for part in parts])]
        kinds = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
        texts = [(part.kind, part.texts) for part in parts]
        inputs = Texts(encoder, texts) if settings.train_encoder else self._states(encoder, parts)
        relevant = {} if settings.objective == "ce" else asked_for_together(texts, positions)
        return DocidExamples(inputs, positions, kinds, tree, relevant)

    def _states(self, encoder: Encoder, parts: list["_Part"]) -> StateCache:
        """Token states of texts, a folder a part, named by all that they depend on; without a store the unused are removed."""
        states = (self.store or self.folder) / "states"
        identity = [encoder.fingerprint, dataclasses.asdict(encoder.config), self.collection.digest]
        folders = [states / digest([*identity, part.kind, part.origin])[:16] for part in parts]
        if self.processes.is_main and not self.store:
            for old in states.iterdir() if states.exists() else ():
                if old not in folders:
                    shutil.rmtree(old)
        self.processes.wait()
        named = zip(folders, parts, strict=True)
        blocks = [write_states(encoder, part.kind, part.texts, folder, self.processes) for folder, part in named]
        return StateCache([block for own in blocks for block in own])

    # Keys, folders, times.

    def _key(self, stage: str, extra: str) -> str:
        """Digest of all that a stage's output depends on: collection, settings, the keys of earlier stages."""
        needs: dict[str, list[str]] = {
            "queries": [],
            "encoder": ["queries"] if self.config.contrastive.pseudo_queries else [],
            "docids": ["encoder", "queries"] if self.config.docids.cluster_on == "queries" else ["encoder"],
            "lexical": [],
            "generator": ["docids", "queries"] if self.config.generator.pseudo_queries else ["docids"],
        }
        sections = {"encoder": ["encoder", "contrastive"]}.get(stage, [stage])
        settings = [dataclasses.asdict(getattr(self.config, section)) for section in sections]
        earlier = [_stored_key(self.folder / name) for name in needs[stage]]
        return digest([stage, settings, earlier, self.collection.digest, self.config.dev_queries, extra])

    @contextmanager
    def _stage(self, name: str, extra: str = "") -> Iterator[str]:
        """Yield the stage's key if it has to run, "" if its output is there; all processes leave together."""
        folder, started = self.folder / name, time.perf_counter()
        self._started[name] = started
        if self.processes.is_main:
            recover_folder(folder)
        self.processes.wait()
        key = self._key(name, extra)
        if self.processes.is_main and _stored_key(folder) != key:
            self._take_from_store(name, key)
        self.processes.wait()
        done = _stored_key(folder) == key
        self.processes.wait()
        if done:
            logger.info("stage %s: up to date", name)
        elif self.processes.is_main:
            (self.folder / "manifest.json").unlink(missing_ok=True)  # the folder is no finished index until the end
        yield "" if done else key
        self.processes.wait()
        if not done:
            self.seconds[name] = time.perf_counter() - started
            if self.processes.is_main:
                shutil.rmtree(self.folder / "checkpoints" / f"{name}-{key[:12]}", ignore_errors=True)

    @contextmanager
    def _writing(self, stage: str, key: str) -> Iterator[Path]:
        with replace_folder(self.folder / stage) as folder:
            yield folder
            seconds = round(time.perf_counter() - self._started[stage], 1)
            (folder / _KEY_FILE).write_text(json.dumps({"key": key, "seconds": seconds}) + "\n")
        if self.store:
            with replace_folder(self.store / stage / key[:16]) as shared:
                _link_files(self.folder / stage, shared)

    def _take_from_store(self, stage: str, key: str) -> None:
        found = self.store and self.store / stage / key[:16]
        if found and _stored_key(found) == key:
            (self.folder / "manifest.json").unlink(missing_ok=True)
            with replace_folder(self.folder / stage) as folder:
                _link_files(found, folder)

    def _work(self, stage: str, key: str) -> Path:
        folder = self.folder / "checkpoints" / f"{stage}-{key[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclasses.dataclass(frozen=True)
class _Part:
    """Texts of one kind that examples are made of: how the encoder reads them, where they are from, document rows, texts."""

    kind: str
    origin: list[Any]
    rows: NDArray[np.integer]
    texts: Sequence[str]


def _flat(queries: dict[int, list[str]]) -> tuple[NDArray[np.integer], list[str]]:
    """{document row: texts} as the row and the text of each."""
    rows = np.repeat(np.fromiter(queries, dtype=np.int64), [len(own) for own in queries.values()])
    return rows, [text for own in queries.values() for text in own]


def stage_seconds(folder: Path) -> dict[str, float]:
    """{stage: wall time of the run that finished it} of the stages in a run's folder."""
    files = {stage: folder / stage / _KEY_FILE for stage in _STAGES}
    return {stage: json.loads(file.read_text())["seconds"] for stage, file in files.items() if file.exists()}


def _link_files(source: Path, target: Path) -> None:
    """The same files in another folder; files are replaced, never changed, so both may be read and written."""
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)


def _stored_key(folder: Path) -> str:
    path = folder / _KEY_FILE
    return str(json.loads(path.read_text())["key"]) if path.exists() else ""
