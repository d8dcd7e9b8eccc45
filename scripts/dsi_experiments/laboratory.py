"""Trains and measures the rows of `dsi_experiments.tables` over one collection; rows share the stages they have in common.

Under `accelerate launch` all processes train and search, and the first one writes and prints. Knows nothing of what is compared
with what: tables and experiments say that.
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
import torch
from transformers import AutoModel

from dsi.commands.arguments import with_settings
from dsi.config import Config, dev_cut
from dsi.contrastive.blocks import DocumentTexts, encode_blocks
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.collection import Collection, MadeTexts, read_collection
from dsi.docids.data.identical import most_identical, without_identical
from dsi.docids.files.storage import digest, replace_folder
from dsi.docids.schemes import DocidsConfig, make_docids
from dsi.docids.schemes.file import write_docids
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Run
from dsi.eval.fusion import aligned, fit_weights, reciprocal_rank_fusion
from dsi.eval.measures import STANDARD_MEASURES, cutoff, evaluate
from dsi.eval.protocol import SystemResult, overlap_splits
from dsi.measuring.provenance import provenance
from dsi.measuring.runs import BM25Runs, IndexRuns, dense_run, generator_only
from dsi.measuring.tuning import DEPTH, choose
from dsi.search.engine import Engine
from dsi.search.engine import Method as SearchMethod
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.request import SearchRequest
from dsi.search.results import Trace
from dsi.search.vector_search import DenseAndWords
from dsi.store.retriever import Retriever, load
from dsi.training.docids_stage import scheme_input
from dsi.training.embedding import DocumentVectors
from dsi.training.stages import STAGES, launch, stage_record
from dsi_experiments.rows import Rows, write_table
from dsi_experiments.shared_runs import SharedRun
from dsi_experiments.tables import Row, t5_of

FRESH = "fresh:"
"""In a record, before the name of the model in whose shape an encoder has fresh weights."""
SPLIT = "test"
ANSWERS = 10


def _write_fresh(name: str, folder: Path) -> None:
    """Write a model with fresh weights, always the same, in the shape of another one."""
    model = Encoder.load(EncoderConfig(name=name), device="cpu").model
    torch.manual_seed(0)
    transformer = model[0].auto_model
    transformer.load_state_dict(AutoModel.from_config(transformer.config).state_dict(), strict=False)
    with replace_folder(folder) as new:
        model.save(str(new), create_model_card=False)


class DenseRuns:
    """Flat dense search with an encoder over the documents of a tree, whose rows `doc_ids` names."""

    def __init__(self, collection: Collection, encoder: TextEncoder, tree: DocidTree, doc_ids: Sequence[str]) -> None:
        self.collection, self.encoder, self.doc_ids, self._tree = collection, encoder, doc_ids, tree
        self.embeddings = tree.embeddings[tree.by_row]

    def run(self, split: str, encoded: Floats | None = None, k: int = DEPTH) -> Run:
        """Return the top k documents of each query of a split; `encoded`: [queries, dim], if computed already."""
        queries, identical = self.collection.query_texts(split), self.collection.identical
        if encoded is None:
            encoded = self.encoder.encode(self.encoder.query_texts(list(queries.values())), "query")
        run = dense_run(list(queries), encoded, self._tree, self.doc_ids, k + most_identical(identical))
        return without_identical(run, identical, k)


@dataclass
class Laboratory:
    """Trains and measures rows over one collection into one folder."""

    collection: Collection  # what is trained and tested on
    base: Config  # configuration of DR-SCL+QG
    output: Path  # the folder of everything that is written
    device: str | None = None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Return the laboratory that --config, --set, --data, --output and --device describe."""
        config = with_settings(Config.named(arguments.config), arguments.settings)
        collection = read_collection(arguments.data, **dev_cut(config))
        return cls(collection, config, arguments.output, arguments.device)

    def __post_init__(self) -> None:
        if not self.collection.pairs(SPLIT):
            raise ValueError(
                f"{self.collection.name} has no queries to measure on; add qrels/{SPLIT}.tsv with relevant documents."
            )
        self.processes = launch(self.device)
        self._index: tuple[Config, IndexRuns] | None = None

    def say(self, text: str) -> None:
        """Print on the first process only."""
        if self.processes.is_main:
            print(text, flush=True)

    def measure(self, table: str, row: Row, seed: int) -> None:
        """Train and measure one row under one seed, unless OUTPUT/TABLE.json has it."""
        own, rows = self.config(row, seed), Rows(self.output / f"{table}.json")
        key = digest([row.method, row.points, dataclasses.asdict(own), self.collection.digest])
        if self.processes.first(rows.find(row.name, seed, key) is not None and (row.name, seed) in rows.values()):
            return
        self.say(f"{table}, seed {seed}: {row.name}")
        started = time.perf_counter()
        config = self.trained_as(row, own)
        run, options = METHODS[row.method](self, config)
        if not self.processes.is_main:
            return
        deepest = max(ANSWERS, *map(len, run.values()))  # of fewer answers, Hit@10 is what they hold
        measures = [name for name in STANDARD_MEASURES if cutoff(name) <= deepest]
        result = SystemResult(row.name, evaluate(run, self.collection.qrels[SPLIT], measures), {})
        record = {
            **self._record(row.name, seed, key),
            "queries": {split: len(query_ids) for split, query_ids in self._splits.items()},
            "measures": result.means(self._splits),
            "settings": dict(options),
            "seconds": {"in all": round(time.perf_counter() - started), **self._seconds(config)},
            **provenance(),
            "config": dataclasses.asdict(own),
        }
        rows.put(record, result.values)

    def table(self, table: str, seeds: Sequence[int]) -> str:
        """Markdown of the rows that have been measured under these seeds, written to OUTPUT; "" if there are none."""
        return write_table(self.output, table, seeds) if (self.output / f"{table}.json").exists() else ""

    def kept(
        self, experiment: str, name: str, seed: int, config: Config, measure: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The result of `measure` as a row of OUTPUT/EXPERIMENT.json; read from there if it was measured before.

        "values" of what it returns, {measure: {query_id: value}}, go into OUTPUT/EXPERIMENT.values.json.gz.
        """
        rows, key = (
            Rows(self.output / f"{experiment}.json"),
            digest([name, dataclasses.asdict(config), self.collection.digest]),
        )
        record: dict[str, Any] | None = self.processes.first(rows.find(name, seed, key))
        if record is None:
            self.say(f"{experiment}: {name}")
            measured = measure()
            values = measured.pop("values", None)
            record = {**self._record(name, seed, key), **provenance(), "found": measured}
            if self.processes.is_main:
                rows.put(record, values)
        found: dict[str, Any] = record["found"]
        return found

    def config(self, row: Row, seed: int) -> Config:
        """The base with a row's changes."""
        config = self.base.with_changes({"seed": seed}).with_changes(row.changes)
        if row.fresh:
            config = config.with_changes({"encoder": {"name": FRESH + config.encoder.name}})
        if t5 := self._t5(row):
            config = config.with_changes({"encoder": {"name": t5}})
        return config

    def trained_as(self, row: Row, config: Config) -> Config:
        """A row's configuration with files of OUTPUT for docids of other points, and for fresh weights of its encoder."""
        if row.fresh:
            name = config.encoder.name.removeprefix(FRESH)
            folder = self.output / "fresh" / digest([name])[:16]
            if self.processes.is_main and not folder.exists():
                _write_fresh(name, folder)
            self.processes.wait()
            config = config.with_changes({"encoder": {"name": str(folder)}})
        return self.clustered_on(row.points, config) if row.points else config

    def _t5(self, row: Row) -> str:
        """The T5 that a row begins with, "" for none; raises ValueError if it needs one that the base does not name."""
        t5 = t5_of(dataclasses.asdict(self.base.generator))
        if row.needs_t5 and not t5:
            raise ValueError("No T5 is at hand; name one by --set generator.decoder=FOLDER, as wide as the encoder.")
        return t5 if row.t5 or row.needs_t5 else ""

    def _record(self, name: str, seed: int, key: str) -> dict[str, Any]:
        """What every row says of itself first."""
        collection = {"name": Path(self.collection.name).name, "digest": self.collection.digest}
        return {"row": name, "seed": seed, "key": key, "collection": collection}

    # The parts of methods.

    @cached_property
    def words(self) -> BM25Runs:
        """BM25 over the whole texts."""
        return BM25Runs(self.collection)

    def cut_words(self, config: Config) -> BM25Runs:
        """BM25 over the part of the texts that the encoder reads."""
        encoder = Encoder.load(config.encoder, device=self.device)
        return BM25Runs(self.collection, DocumentTexts(encoder, self.collection.documents)[:])

    def dense(self, config: Config) -> DenseRuns:
        """Dense search with the encoder of a configuration; no decoder is trained."""
        tree, encoder = self.tree(config), self._training(config).encoder()
        return DenseRuns(self.collection, encoder, tree, list(self.collection.rows))

    def index(self, config: Config) -> IndexRuns:
        """The trained index of a configuration; the last one stays in memory."""
        if self._index is None or self._index[0] != config:
            run = self._training(config)
            run.run_stages()
            retriever = load(run.folder, device=self.device)
            self._index = config, IndexRuns(self.collection, retriever, self.processes)
        return self._index[1]

    def tree(self, config: Config) -> DocidTree:
        """The docids of a configuration; no decoder is trained."""
        run = self._training(config)
        run.run_stages("docids")
        return run.tree()

    def clustered_on(self, points: str, config: Config) -> Config:
        """A configuration with the docids that clustering some of `POINTS` gives, in a file of OUTPUT/docids, written once."""
        if points == "query-means":
            config = _of_whole(config)
        key = digest([points, dataclasses.asdict(config), self.collection.digest])
        path = self.output / "docids" / f"{points}-{key[:16]}.tsv"
        if not self.processes.first(path.exists()):
            encoder, vectors = POINTS[points](self, config)
            documents = scheme_input(self.collection, encoder, config.docids, vectors, self.processes, seed=config.seed)
            docids = make_docids(documents)
            if self.processes.is_main:
                write_docids(path, documents.doc_ids, docids.paths)
            self.processes.wait()
        own = DocidsConfig(method=str(path), pieces=config.docids.most_pieces)
        return config.with_changes({"docids": dataclasses.asdict(own)})

    def untrained(self, config: Config) -> tuple[Encoder, Floats]:
        """The encoder before contrastive training, and its embeddings of the documents."""
        encoder = Encoder.load(config.encoder, device=self.device)
        return encoder, self._embeddings(config, encoder)

    def query_means(self, config: Config) -> tuple[Encoder, Floats]:
        """The encoder, and the mean of its embeddings of each document, its train queries and its pseudo-queries."""
        config = _of_whole(config)
        run, pairs = self._training(config), self.collection.pairs("train")
        run.run_stages("encoder")
        encoder, (pseudo_rows, pseudo) = run.encoder(), run.pseudo_queries()
        texts = [*(self.collection.queries[query_id] for query_id, _ in pairs), *pseudo]
        rows = np.array([*(row for _, row in pairs), *pseudo_rows], dtype=np.int64)
        embeddings = self._embeddings(config, encoder)
        if len(embeddings) > len(self.collection.documents):
            raise ValueError(
                "docids.pieces must be 1 to cluster means with queries, which belong to whole documents, got "
                f"{config.docids.pieces}; set it to 1."
            )
        means, counts = np.array(embeddings), np.ones(len(embeddings), dtype=np.float32)
        folder = run.folder / "checkpoints" / "queries"
        np.add.at(
            means, rows, encode_blocks(encoder, MadeTexts(texts, encoder.query_texts), "query", folder, self.processes)
        )
        np.add.at(counts, rows, 1)
        return encoder, means / counts[:, None]

    def training(self, config: Config) -> dict[str, float]:
        """Loss, steps and seconds of training the decoder; no seconds without one."""
        if not config.generator.exists:
            return {"seconds": 0.0}
        record: dict[str, float] = json.loads((self._folder(config) / "generator" / "training.json").read_text())
        return record

    def _folder(self, config: Config) -> Path:
        return self.output / "runs" / digest([dataclasses.asdict(config), self.collection.digest])[:16]

    def _training(self, config: Config) -> SharedRun:
        return SharedRun(self._folder(config), self.collection, config, self.device, store=self.output / "store")

    def _embeddings(self, config: Config, encoder: Encoder) -> Floats:
        states, config = self.output / "states" / encoder.fingerprint[:16], config.with_changes({"tokens": {"bits": 0}})
        return DocumentVectors(config, self.collection, encoder, states, self.processes).embeddings()

    def _seconds(self, config: Config) -> dict[str, float]:
        """{stage: seconds}, those of a training of the decoder from its first step, however often it was killed."""
        records = {stage: stage_record(self._folder(config) / stage) for stage in STAGES}
        seconds = {stage: record["seconds"] for stage, record in records.items() if record}
        if "generator" in seconds:
            seconds["generator"] = max(seconds["generator"], round(self.training(config)["seconds"], 1))
        return seconds

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        return overlap_splits(self.collection.qrels[SPLIT], self.collection.overlap_documents(SPLIT))


def _of_whole(config: Config) -> Config:
    """A configuration that leaves the number of pieces to the method, with one: queries belong to whole documents."""
    chosen = not config.docids.pieces and config.docids.most_pieces > 1
    return config.with_changes({"docids": {"pieces": 1}}) if chosen else config


def answer(
    retriever: Retriever,
    encoded: EncodedQueries,
    k: int,
    control: Callable[[Engine], SearchMethod] | None = None,
    **changes: Any,
) -> Run:
    """Return the top k documents of each query, with some settings of `[search]` changed; `control`: another method."""
    index = retriever.snapshot
    request = SearchRequest(k, dataclasses.replace(index.search_config, **changes))
    return index.as_run(
        encoded.query_ids, index.engine.search(encoded, request, method=control and control(index.engine))
    )


def one_by_one(encoded: EncodedQueries) -> Iterator[tuple[int, QueryBatch]]:
    """Yield the row and the batch of each single query."""
    for batch in encoded.batches:
        for place, row in enumerate(batch.numbers.tolist()):
            yield row, batch.select(np.array([place]))


def tuned_settings(index: IndexRuns, *, lexical: bool = True) -> dict[str, Any]:
    """Return the best settings of `[search]` on dev, of words too if `lexical`; without dev queries the index's own.

    All processes get those of rank 0, in case scores differ in the last digit.
    """
    collection, changes = index.collection, dict[str, Any]() if lexical else {"lexical_weight": 0.0}
    if not collection.qrels["dev"]:
        return changes
    config = dataclasses.replace(index.retriever.search_config, **changes)
    dev = index.encode("dev", collection.query_texts("dev"))
    own = choose(index.retriever, dev, collection.qrels["dev"], config, lexical=lexical, identical=collection.identical)
    return index.processes.first({**changes, **own.best})


def weighted_sum(first: Run, others: Sequence[Run], weights: Sequence[float]) -> Run:
    """Return first + sum of weight * other over all documents of a query; one that a run lacks gets its lowest score there.

    >>> weighted_sum({"q": {"x": 4.0, "y": 2.0}}, [{"q": {"y": 1.0, "z": 3.0}}], [2.0])
    {'q': {'x': 6.0, 'y': 4.0, 'z': 8.0}}
    """
    fused: Run = {}
    for query_id in dict.fromkeys(query_id for run in (first, *others) for query_id in run):
        doc_ids, scores = aligned([first, *others], query_id)
        fused[query_id] = dict(zip(doc_ids, (scores @ [1.0, *weights]).tolist(), strict=True))
    return fused


POINTS = {"untrained": Laboratory.untrained, "query-means": Laboratory.query_means}
"""What is clustered in place of the documents' embeddings."""

Method = Callable[[Laboratory, Config], tuple[Run, Mapping[str, Any]]]


def _tuned(**options: Any) -> Method:
    """Search with the settings that are best on dev; `options`: of `tuned_settings`."""

    def method(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
        index = laboratory.index(config)
        changes = tuned_settings(index, **options)
        return index.run(SPLIT, **changes), changes

    return method


def _as_the_paper(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    """Search with alpha .7 on all levels, at the configured temperature; the paper's is 1."""
    changes: dict[str, Any] = {"alpha": 0.7, "beta": math.inf}
    return laboratory.index(config).run(SPLIT, **changes), changes


def _dense_and_words(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    index = laboratory.index(config)
    changes = index.tune_hybrid()
    return index.run(SPLIT, control=DenseAndWords, **changes), changes


def _alone(beam_width: int = 0) -> Method:
    """Search with the generator alone, by default a hundred documents with the configured beam, or ten with a given one."""

    def method(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
        index = laboratory.index(config)
        changes = {**generator_only(index.retriever), **({"beam_width": beam_width} if beam_width else {})}
        return index.run(SPLIT, min(beam_width, ANSWERS) or DEPTH, **changes), changes

    return method


def _clusters(beam_width: int) -> Method:
    """Search with the generator's beam, and rank all documents below its nodes by their dense scores."""

    def method(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
        systems = laboratory.index(config)
        index, changes = systems.retriever.snapshot, {**generator_only(systems.retriever), "beam_width": beam_width}
        request = SearchRequest(ANSWERS, dataclasses.replace(index.search_config, **changes))
        encoded = systems.encode(SPLIT, laboratory.collection.query_texts(SPLIT))
        doc_ids, tree, found = list(index.documents.rows), index.tree, dict[int, dict[str, float]]()
        for row, batch in one_by_one(encoded):
            trace = Trace()
            index.engine.methods["generate"].retrieve(batch, request, trace)
            nodes = np.concatenate([level.nodes[0] for level in trace.levels])
            positions = nodes[nodes >= tree.num_inner] - tree.num_inner
            scores, own = tree.embeddings[positions] @ batch.embeddings[0], dict[str, float]()
            for place in np.argsort(-scores, kind="stable"):
                own.setdefault(doc_ids[tree.doc_rows[positions[place]]], float(scores[place]))
            found[row] = dict(islice(own.items(), DEPTH))
        return {query_id: found[row] for row, query_id in enumerate(encoded.query_ids)}, changes

    return method


def _post_hoc(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    """Dense search and the decoder, interpolated after the search with a weight chosen on dev."""
    index, dev, weight = laboratory.index(config), laboratory.collection.qrels["dev"], 0.0
    alone = generator_only(index.retriever)
    if dev:
        (weight,) = laboratory.processes.first(
            fit_weights(index.run_dense("dev"), [index.run("dev", **alone)], [1.0], dev)
        )
    return weighted_sum(index.run_dense(SPLIT), [index.run(SPLIT, **alone)], [weight]), {"weight": weight}


def _hnsw(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    """Dense search in an HNSW graph: 32 neighbours, efSearch 200."""
    dense, queries = laboratory.dense(config), laboratory.collection.query_texts(SPLIT)
    if len(dense.embeddings) != len(dense.doc_ids):
        raise ValueError("Approximate dense search has one embedding a document; set docids.pieces to 1.")
    graph: Any = faiss.IndexHNSWFlat(dense.embeddings.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = 200, 2 * DEPTH
    graph.add(dense.embeddings)
    encoded = dense.encoder.encode(dense.encoder.query_texts(list(queries.values())), "query")
    scores, rows = graph.search(encoded, min(DEPTH, len(dense.doc_ids)))
    found = zip(queries, rows.tolist(), scores.tolist(), strict=True)
    return {
        query_id: {dense.doc_ids[row]: score for row, score in zip(own, values, strict=True) if row >= 0}
        for query_id, own, values in found
    }, {}


def _bm25_cut(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    words = laboratory.cut_words(config)
    return words.run(SPLIT), words.options


def _rrf(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    runs = [laboratory.words.run(SPLIT), laboratory.dense(config).run(SPLIT)]
    return reciprocal_rank_fusion(runs), {"k": 60}


METHODS: dict[str, Method] = {
    "bm25": lambda laboratory, _: (laboratory.words.run(SPLIT), laboratory.words.options),
    "bm25-cut": _bm25_cut,
    "dense": lambda laboratory, config: (laboratory.dense(config).run(SPLIT), {}),
    "hnsw": _hnsw,
    "rrf": _rrf,
    "decoder": _alone(),
    "alone-10": _alone(10),
    "clusters-10": _clusters(10),
    "fused": _tuned(lexical=False),
    "fused-0.7": _as_the_paper,
    "dense+bm25": _dense_and_words,
    "post-hoc": _post_hoc,
}
"""How a row answers the test queries: {name: function of laboratory and configuration -> run, options worth knowing}."""
