"""Trains an index on a collection, in stages that can be run, killed and resumed.

    pseudo_queries  documents -> queries that they could answer
    encoder         a copy, or contrastive pre-training if that is configured
    docids          embeddings, token vectors and their matrix for queries -> docid tree
    lexical         BM25
    generator       cached token states, or texts -> trained generator, if one is configured
    memory          train queries -> what the index remembers; then the manifest makes the folder an index

Everything that can refuse a training is checked before its first write. Each stage writes one folder of the run atomically; a
stage that is up to date is skipped. `config.toml` changes when a part of the index is replaced, and in the end. Two
trainings never write to one folder at once. Under `accelerate launch` all processes train, and rank 0 writes.
"""

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from dsi.config import Config, write_config
from dsi.contrastive.blocks import DocumentTexts, giving_back, in_blocks
from dsi.contrastive.encoder import Encoder, quiet_transformers
from dsi.contrastive.training import contrastive_rows, drawn_documents, hard_negatives, train_encoder
from dsi.docids.data.collection import Collection, check_collection
from dsi.docids.extensions import GENERATORS, OBJECTIVES, extension_room, package_of
from dsi.docids.files.checks import counted, folder_to_write
from dsi.docids.files.processes import BuildingCluster
from dsi.docids.files.progress import write_line
from dsi.docids.files.ram import keep_few_kernels
from dsi.docids.files.reading import read_record
from dsi.docids.files.storage import digest, write_json, writing_to
from dsi.docids.query_memory import QueryMemory
from dsi.docids.schemes import make_docids
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25, load_lexical
from dsi.measuring.tuning import configure, is_as_configured, is_tuned, tune_index
from dsi.store.folder.loading import load_encoder, load_tree
from dsi.store.folder.manifest import FORMAT_VERSION, PARTS, search_config
from dsi.store.folder.writing import generation_of, is_whole, retire, save_encoder, search_entries, write_manifest
from dsi.store.learning import query_terms, query_vectors
from dsi.store.retriever import Retriever, load
from dsi.training import preflight
from dsi.training.docids_stage import save_docids_stage, scheme_input, sources_digest, train_queries
from dsi.training.embedding import DocumentVectors, array_digest, pieces_line
from dsi.training.stages import STAGES, StageFolders, enabled_stages, launch, needed_stages, setting_values

logger = logging.getLogger(__name__)


def train(
    collection: Collection, output: str | Path, *, config: str | Path | Config | None = None, encoder: Any = None,
    docids: Any = None, objective: Any = None, generator: Any = None, fusion: Any = None, device: str | None = None,
    discard_updates: bool = False, replace: bool = False, cluster: BuildingCluster | None = None,
) -> Retriever:  # fmt: skip
    """Train an index on a collection, tune it on the dev queries, and load it.

    After a kill, call it again: it continues where it stopped and skips what is up to date.

    Example:
        >>> import dsi
        >>> collection = dsi.read_collection("COLLECTION")
        >>> retriever = dsi.train(collection, "INDEX")

    Args:
        collection: the documents to index. Without train queries the encoder stays as it is, whatever `config` says.
        output: folder of the run, which becomes the index.
        config: a configuration by name ("paper"), by file, or as a `Config`; by default that of the run in `output`, or what we
            recommend, `Config()`.
        encoder: a sentence-transformers model, loaded, or a Hub name or a folder: the setting `encoder.name`.
        docids: a function of your own from `SchemeInput` to `Docids` ("For researchers" has examples), kept by import path.
        objective: a subclass of `Objective`. Without `config`, this and the next two take "digits", which has a generator.
        generator: a subclass of `NodeGenerator`.
        fusion: a function of two tensors of log-probabilities and alpha, as those in `dsi.generator.fusion`.
        device: of encoder and decoder, "cpu", "cuda", …; the best available by default.
        discard_updates: train again although documents were added or removed since; the index is that of `collection` then.
        replace: train although `output` holds an index with documents that `collection` lacks; they are lost.
        cluster: embeds and clusters the documents, block by block; all its machines see `output` under this name. The same
            files come out of any number of processes.

    Raises:
        FileNotFoundError: no such configuration, or a machine of the cluster does not see `output`.
        TypeError: collection is no `Collection`.
        ValueError: a setting is out of range, the collection lacks something that training needs, the index in `output` was
            updated or has other documents.
        BlockingIOError: another process trains in `output`, or updates it.
    """
    check_collection("train", collection)
    folder = folder_to_write(output, "output")
    hooks = {"docids": docids, "objective": objective, "generator": generator, "fusion": fusion}
    named = preflight.for_collection(preflight.with_hooks(folder, config, hooks), collection)
    run = TrainingRun(
        folder, collection, named, device, discard_updates=discard_updates, replace=replace, encoder=encoder,
        cluster=cluster,
    )  # fmt: skip
    run.train()
    return load(output, device=device)


class TrainingRun:
    """The training of one run, with the arguments of `train`.

    `embeddings`: [documents, dim] in place of the encoder's.
    """

    def __init__(
        self, folder: Path, collection: Collection, config: Config, device: str | None = None, *,
        discard_updates: bool = False, replace: bool = False, encoder: Any = None,
        cluster: BuildingCluster | None = None, embeddings: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self._given, self._given_digest = embeddings, "" if embeddings is None else array_digest(embeddings)
        self.folder, self.collection, self._encoder, self.device = folder, collection, encoder, device
        self.config = preflight.with_encoder(config, encoder, folder)
        preflight.check_apart(folder, collection.name)
        if cluster is not None:
            cluster.check(folder)
            self.folder = folder = folder.resolve()
        self.processes = cluster.processes if cluster else launch(device)
        self._stages = StageFolders(folder, self.processes)
        self.seconds = self._stages.seconds
        """{stage: wall time} of the stages that ran."""
        self._discard_updates, self._replace = discard_updates, replace
        self.keys: dict[str, str] = {}
        """{stage: digest of all that its output depends on}."""

    def train(self) -> None:
        """Run all stages, then tune the index; a line says before the work how much there is."""
        keep_few_kernels()
        with self._writing() as missing:
            if missing and self.processes.is_main:
                train, dev = (
                    counted(len(self.collection.qrels[split]), f"{split} query") for split in ("train", "dev")
                )
                amount = f"{counted(len(self.collection.documents), 'document')}, {train}"
                amount += f", {dev} to tune on" if self.collection.qrels["dev"] else ""
                write_line(f"{amount}: {', '.join(missing)}")
            self._run_stages()
            self._tune()

    def run_stages(self, last: str = "memory") -> None:
        """Run the stages that are not up to date, down to the last one; after "memory" the folder is an index."""
        with self._writing():
            self._run_stages(last)

    @contextmanager
    def _writing(self) -> Iterator[list[str]]:
        """Keep others from writing to the folder of the run; yields the stages that have to run, after all checks.

        All processes raise what the first one is refused for. In the end `config.toml` holds the settings of this run.
        """
        refusal = None
        with ExitStack() as stack:
            if self.processes.is_main:
                try:
                    stack.enter_context(writing_to(self.folder, wait=False))
                    preflight.check_index(self.folder, self.collection, self._discard_updates, self._replace)
                    preflight.write_encoder(self._encoder, self.folder)
                except (OSError, ValueError) as error:
                    refusal = error
            if refusal := self.processes.first(refusal):
                raise refusal
            stack.enter_context(quiet_transformers())
            missing = self._check()
            self._write_config(over_index=False)
            yield missing
            self._write_config()

    def _check(self) -> list[str]:
        """Return the stages that have to run, after raising what one of them would be refused for."""
        preflight.check_settings(self.config, self.collection)
        self._set_keys()
        finished = self.processes.first(
            {stage: self._stages.find(stage, key) for stage, key in self.keys.items()} if self.processes.is_main else {}
        )
        missing = [stage for stage, folder in finished.items() if folder is None]
        if missing:
            trained = finished["encoder"]
            encoder = Encoder.load(self.config.encoder, trained, self.device)
            if trained is None:
                preflight.check_storable(self.config.encoder.name, encoder, self.processes)
            preflight.check_encoder(self.config, encoder)
        return missing

    def _set_keys(self) -> None:
        """Digest what each stage depends on: the collection, its settings, files and code, and the stages before it."""
        self.keys = {}
        for stage in enabled_stages(self.config):
            earlier = [self.keys[name] for name in needed_stages(stage, self.config)]
            settings = [*setting_values(stage, self.config), *preflight.model_sums(self.config, STAGES[stage].settings)]
            is_as_made = stage == "encoder" and self.config.contrastive.loss == "none"
            texts = "" if is_as_made else self.collection.digest
            version = [FORMAT_VERSION] if STAGES[stage].is_versioned else []
            self.keys[stage] = digest([stage, settings, earlier, texts, self._sources(stage), *version])
        self.keys = self.processes.first(self.keys)  # machines may hold other models by the same name

    def _sources(self, stage: str) -> str:
        """Return what a stage reads beside the collection, settings and earlier stages: files, arrays, code of others."""
        config = self.config
        if stage == "docids":
            return sources_digest(config.docids, self.collection) + self._given_digest
        if stage == "generator":
            objective, tokens = config.training.objective, config.generator.docid_tokens
            return package_of(OBJECTIVES, objective) + package_of(GENERATORS, tokens)
        return ""

    def _write_config(self, *, over_index: bool = True) -> None:
        if self.processes.is_main and (over_index or not (self.folder / "manifest.json").exists()):
            write_config(self.config, self.folder / "config.toml")

    # Stages.

    def _run_stages(self, last: str = "memory") -> None:
        """Run the stages of the configuration, in order; parts of the index that it does not have are removed."""
        names = [*STAGES]
        for name in names[: names.index(last) + 1]:
            if name in self.keys:
                self.run_stage(name)
            elif name in PARTS:
                self._drop(name)
        if last == "memory":
            self._finish()

    def run_stage(self, name: str) -> None:
        """Run a stage unless it is up to date."""
        makers = {
            "pseudo_queries": self._make_queries,
            "encoder": self._make_encoder,
            "docids": self._make_docids,
            "lexical": self._make_lexical,
            "generator": self._make_generator,
            "memory": self._make_memory,
        }
        with self._stages.stage(name, self.keys[name], needed_stages(name, self.config)) as has_to_run:
            if has_to_run:
                makers[name]()
        self._write_config(over_index=False)

    def _work(self, stage: str) -> Path:
        """Return the folder for what a killed stage needs to go on."""
        return self._stages.work(stage, self.keys[stage])

    def _output(self, stage: str) -> AbstractContextManager[Path]:
        """Return a context that gives the folder into which the first process writes a stage's output."""
        return self._stages.writing(stage, self.keys[stage])

    def _drop(self, part: str) -> None:
        """Remove a part that the index is configured without."""
        if self.processes.is_main and (self.folder / part).exists():
            retire(self.folder)
            shutil.rmtree(self.folder / part)

    def _make_queries(self) -> None:
        if not self.processes.is_main:
            return
        with extension_room():
            from dsi.pseudo_queries import generate_queries
        written = self._work("pseudo_queries") / "queries.jsonl"
        held_out = [*self.collection.query_texts("dev").values(), *self.collection.query_texts("test").values()]
        generate_queries(
            self.collection.documents, self.config.pseudo_queries, written,
            held_out=held_out, seed=self.config.seed, device=self.device,
        )  # fmt: skip
        with self._output("pseudo_queries") as folder:
            shutil.copy(written, folder / "queries.jsonl")

    def _make_encoder(self) -> None:
        """Pre-train the encoder by contrast; with loss "none" it is kept as it is."""
        encoder = Encoder.load(self.config.encoder, device=self.device)
        config, work = self.config.contrastive, self._work("encoder")
        if config.loss != "none":
            rows = self._contrastive_rows(encoder)
            train_encoder(encoder, rows, config, work, seed=self.config.seed, bf16=self.config.bf16)
        if self.processes.is_main:
            with self._output("encoder") as folder:
                save_encoder(encoder, folder)

    def _contrastive_rows(self, encoder: Encoder) -> datasets.Dataset:
        queries, count, negatives = train_queries(self.collection, encoder), self.config.contrastive.negatives, None
        if self.config.contrastive.texts == "all":
            rows, generated = self.pseudo_queries()
            for row, text in zip(rows.tolist(), encoder.query_texts(list(generated)), strict=True):
                queries.setdefault(row, []).append(text)
            negatives = drawn_documents(queries, len(self.collection.documents), count, self.config.seed)
        elif count:
            texts, language = self.collection.full_texts(), self.config.lexical.language
            words = BM25(self.collection.documents["doc_id"], texts, language=language)
            identical, judged = self.collection.identical_rows, self.collection.judged_negatives()
            identical = dict(zip(encoder.query_texts(list(identical)), identical.values(), strict=True))
            given = dict(zip(encoder.query_texts(list(judged)), judged.values(), strict=True))
            negatives = hard_negatives(words, queries, count, identical=identical, given=given, seed=self.config.seed)
        return contrastive_rows(DocumentTexts(encoder, self.collection.documents), queries, negatives)

    def _make_docids(self) -> None:
        """Embed the documents and cluster them."""
        config, encoder = self.config, self.encoder()
        vectors = self._vectors(encoder)
        if self.processes.is_main:
            vectors.tell_cut()
            if len(vectors.texts) > len(self.collection.documents):
                write_line(pieces_line(np.bincount(vectors.texts.rows)))
        documents = vectors.embeddings()
        docids = make_docids(
            scheme_input(
                self.collection, encoder, config.docids, documents, processes=self.processes,
                checkpoint=config.docid_tokenizer, seed=config.seed, pieces=vectors.texts,
            )
        )  # fmt: skip
        if self.processes.is_main:
            with self._output("docids") as folder:
                save_docids_stage(
                    docids, documents, self.collection.documents, folder, config.vectors, config.docids.most_pieces,
                    vectors.texts.spans, vectors.tokens(documents), text_megabytes=config.text_megabytes,
                )  # fmt: skip

    def _vectors(self, encoder: Encoder) -> DocumentVectors:
        """Return the vectors of the documents; those that an earlier stage or run has made are read."""
        states = self._stages.states
        return DocumentVectors(self.config, self.collection, encoder, states, self.processes, given=self._given)

    def _make_lexical(self) -> None:
        if self.processes.is_main:
            doc_ids, texts = self.collection.documents["doc_id"], self.collection.full_texts()
            lexical = BM25(doc_ids, texts, language=self.config.lexical.language)
            with self._output("lexical") as folder:
                lexical.save(folder)

    def _make_generator(self) -> None:
        with extension_room():
            from dsi.generator.stage import GeneratorStage
        config, encoder = self.config, self.encoder()
        queries = (*self.pseudo_queries(), self.keys.get("pseudo_queries", ""))
        stage = GeneratorStage(
            config, self.collection, encoder, self.tree(), queries, self._stages, self._vectors(encoder).folder
        )
        generator, record = stage.train(self._work("generator"))
        if self.processes.is_main:
            with self._output("generator") as folder:
                generator.save_pretrained(str(folder))
                write_json(folder / "training.json", record)
                if config.training.train_encoder:
                    save_encoder(encoder, folder / "encoder")

    def _make_memory(self) -> None:
        """Learn the train queries and their documents, as the index's encoder reads them."""
        if not self.processes.is_main:
            return
        memory, wanted = QueryMemory(self.config.memory), self.config.memory.train_queries
        pairs = self.collection.pairs("train") if wanted and not self.config.generator.exists else []
        if pairs:
            encoder = load_encoder(self.folder, self.config.encoder, self.device)
            known, vectors = query_vectors(encoder, [self.collection.queries[query_id] for query_id, _ in pairs])
            pairs = [pairs[number] for number in known]
        if pairs:
            queries = [self.collection.queries[query_id] for query_id, _ in pairs]
            lexical = load_lexical(self.folder / "lexical", self.collection.documents["doc_id"])
            rows, terms = np.array([row for _, row in pairs]), query_terms(lexical, queries)
            memory = memory.learn(queries, rows, vectors, terms=terms)
        with self._output("memory") as folder:
            memory.save(folder)

    def _finish(self) -> None:
        """Write the manifest if it is missing or does not fit the files or `[search]`; the index has to be tuned then."""
        if self.processes.is_main:
            if generation_of(self.folder) > 1:
                retire(self.folder)
            if not is_whole(self.folder):
                encoder = load_encoder(self.folder, self.config.encoder, self.device)
                (self.folder / "tuning.json").unlink(missing_ok=True)
                write_manifest(self.folder, encoder, self.tree(), search_entries(self.config.search))
            elif not is_as_configured(self.folder, self.config.search):
                configure(self.folder, self.config.search)
                logger.info("search: as [search] says now")
        self.processes.wait()

    # Tuning.

    def _tune(self) -> None:
        """Choose the weights of the finished index; where train queries get none, it is tuned again without them."""
        self._tune_once()
        if not self.processes.first(self.processes.is_main and self._has_idle_queries()):
            return
        if self.processes.is_main:
            write_line("Train queries do not help dev queries, so the index keeps none: memory.train_queries = false.")
        self.config = self.config.with_changes({"memory": {"train_queries": False}})
        self._set_keys()
        self.run_stage("memory")
        self._finish()
        self._tune_once()

    def _tune_once(self) -> None:
        if self.config.dev_queries and self.processes.is_main and not is_tuned(self.folder):
            started = time.perf_counter()
            if tune_index(self.folder, self.collection, self.device):
                self.seconds["tuning"] = time.perf_counter() - started
        self.processes.wait()

    def _has_idle_queries(self) -> bool:
        """True if the index holds train queries that a tuning has given no weight."""
        config = self.config
        learned = config.memory.train_queries and not config.generator.exists and self.collection.pairs("train")
        tuned = learned and is_tuned(self.folder)
        return bool(tuned) and search_config(read_record(self.folder / "manifest.json")).memory_weight == 0

    # Outputs of earlier stages.

    def encoder(self) -> Encoder:
        """Load the encoder that stage `encoder` wrote."""
        return giving_back(Encoder.load(self.config.encoder, self.folder / "encoder", self.device))

    def tree(self) -> DocidTree:
        """Load the docids that stage `docids` wrote."""
        return load_tree(self.folder / "docids")

    def pseudo_queries(self) -> tuple[NDArray[np.integer], Sequence[str]]:
        """Return document row and text of the pseudo-queries; the texts stay on disk."""
        if self.config.pseudo_queries.method == "none":
            return np.empty(0, dtype=np.int64), []
        with extension_room():
            from dsi.pseudo_queries import read_queries_table
        table, rows = read_queries_table(self.folder / "pseudo_queries" / "queries.jsonl"), self.collection.rows
        return np.fromiter((rows[doc_id] for doc_id in in_blocks(table["doc_id"])), dtype=np.int64), table["text"]
