"""Trains and measures the rows of `scripts.experiments` over one collection into one folder; stages are shared between rows.

Under `accelerate launch` all processes train and search, and the first one writes and speaks.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contrastive.blocks import DocumentTexts
from contrastive.encoder import Encoder
from docids.collection import Collection
from docids.storage import digest, file_name, write_json, write_text
from docids.tree import DocidTree
from dsi.config import Config, from_dict
from dsi.launch import launched
from dsi.pipeline import TrainingRun, stage_seconds
from dsi.retriever import GenerativeRetriever
from eval.fusion import reciprocal_rank_fusion
from eval.protocol import measure_system, overlap_splits
from eval.report import Measured, experiment_table
from scripts.experiments import REFERENCES, TABLES, Row
from scripts.hardware import provenance
from scripts.systems import DECODER_ALONE, DenseSystems, IndexSystems, Run, WordSystems

SPLIT = "test"


@dataclass
class Laboratory:
    """Trains and measures rows over one collection into one folder.

    Args:
        collection: trained and tested on.
        base: settings of DR-SCL+QG.
        output: where everything goes.
        device: of encoder and generator.

    Attributes:
        processes: that share the work.
    """

    collection: Collection
    base: Config
    output: Path
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.collection.qrels[SPLIT]:
            raise ValueError(f"{self.collection.folder} has no queries to measure on; add qrels/{SPLIT}.tsv.")
        self.processes = launched(self.device)
        self._index: tuple[Config, IndexSystems] | None = None

    def say(self, text: str) -> None:
        """Print, once for all processes."""
        if self.processes.is_main:
            print(text, flush=True)

    def measure(self, table: str, row: Row, seed: int) -> None:
        """Train and measure one row under one seed, unless that has been done."""
        config = self.config(row, seed)
        key = digest([row.method, dataclasses.asdict(config), self.collection.digest])
        path = self._path(table, row, seed)
        if self._known(path, key):
            return
        self.say(f"{table}, seed {seed}: {row.name}")
        started = time.perf_counter()
        run, settings = METHODS[row.method](self, config)
        if not self.processes.is_main:
            return
        result = measure_system(row.name, run, self.collection.qrels[SPLIT], **settings)
        write_json(path.with_suffix(".values.json"), result.values)
        record = {
            "row": row.name,
            "seed": seed,
            "key": key,
            "collection": {"name": self.collection.folder.name, "digest": self.collection.digest},
            "measures": result.means(self._splits),
            "settings": settings,
            "seconds": {"in all": round(time.perf_counter() - started), **self._seconds(config)},
            **provenance(),
            "config": dataclasses.asdict(config),
        }
        write_json(path, record)

    def kept(self, experiment: str, name: str, config: Config, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `measure` finds under a name and a configuration; read from OUTPUT/experiment where it was found before."""
        key = digest([name, dataclasses.asdict(config), self.collection.digest])
        path = self.output / experiment / f"{key[:16]}.json"
        if self._known(path, key):
            record: dict[str, Any] = json.loads(path.read_text())["found"]
            return record
        self.say(f"{experiment}: {name}")
        found = measure()
        if self.processes.is_main:
            write_json(path, {"name": name, "key": key, **provenance(), "found": found})
        return found

    def _known(self, path: Path, key: str) -> bool:
        """Is what has this key written there already? What the first process sees holds for all."""
        return self.processes.first(path.exists() and json.loads(path.read_text())["key"] == key)

    def table(self, table: str, seeds: Sequence[int]) -> str:
        """The Markdown of all rows that have been measured under these seeds; written beside them."""
        measured = []
        for row in TABLES[table]:
            paths = [self._path(table, row, seed) for seed in seeds]
            found = [
                Measured(
                    row.name,
                    json.loads(path.with_suffix(".values.json").read_text()),
                    json.loads(path.read_text()),
                    row.published,
                )
                for path in paths
                if path.exists()
            ]
            if found:
                measured.append(found)
        sizes = {split: len(query_ids) for split, query_ids in self._splits.items()}
        text = experiment_table(measured, sizes, REFERENCES[table])
        write_text(self.output / f"{table}.md", text + "\n")
        return text

    def config(self, row: Row, seed: int) -> Config:
        """The base with a row's changes; rows without pseudo-queries train as many steps as those with them."""
        settings = dataclasses.asdict(self.base)
        for section in ("queries", "contrastive", "docids", "generator"):
            settings[section]["seed"] = seed
        for section, changes in row.changes.items():
            settings[section].update(changes)
        generator = settings["generator"]
        if not generator["pseudo_queries"] and not generator["dense_temperature"]:
            generator["epochs"] *= self._examples(self.base.generator.pseudo_queries) / self._examples(0)
        return from_dict(Config, settings, row.name)

    def _examples(self, pseudo_queries: int) -> int:
        return (1 + pseudo_queries) * len(self.collection.documents) + len(self.collection.pairs("train"))

    # What methods are made of.

    @cached_property
    def words(self) -> WordSystems:
        """BM25 over the whole texts."""
        return WordSystems(self.collection)

    def cut_words(self, config: Config) -> WordSystems:
        """BM25 over what the encoder reads of the texts."""
        encoder = Encoder.load(config.encoder, device=self.device)
        return WordSystems(self.collection, DocumentTexts(encoder, self.collection.documents)[:])

    def dense(self, config: Config) -> DenseSystems:
        """The encoder of a configuration and its embeddings; its decoder is not trained."""
        tree, encoder = self.tree(config), self._training(config).encoder()
        return DenseSystems(self.collection, encoder, tree.embeddings[tree.positions])

    def index(self, config: Config) -> IndexSystems:
        """The index of a configuration; the last one stays in memory."""
        if self._index is None or self._index[0] != config:
            run = self._training(config)
            run.all_stages()
            retriever = GenerativeRetriever.from_pretrained(run.folder, device=self.device)
            self._index = config, IndexSystems(self.collection, retriever, self.processes)
        return self._index[1]

    def tree(self, config: Config) -> DocidTree:
        """The docids of a configuration; its decoder is not trained."""
        run = self._training(config)
        run.generate_queries()
        run.train_encoder()
        run.build_docids()
        return run.tree()

    def training(self, config: Config) -> dict[str, float]:
        """Loss, steps and seconds of the decoder's training."""
        record: dict[str, float] = json.loads((self._folder(config) / "generator" / "training.json").read_text())
        return record

    def _folder(self, config: Config) -> Path:
        return self.output / "runs" / digest(dataclasses.asdict(config))[:16]

    def _training(self, config: Config) -> TrainingRun:
        return TrainingRun(self._folder(config), self.collection, config, self.device, store=self.output / "store")

    def _seconds(self, config: Config) -> dict[str, float]:
        return stage_seconds(self._folder(config))

    def _path(self, table: str, row: Row, seed: int) -> Path:
        return self.output / table / f"{file_name(row.name)}-seed{seed}.json"

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        return overlap_splits(self.collection.qrels[SPLIT], self.collection.overlap_documents(SPLIT))


Method = Callable[[Laboratory, Config], tuple[Run, Mapping[str, Any]]]


def _searched(lexical: bool, fusion: str) -> Method:
    def method(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
        index = laboratory.index(config)
        settings = index.tuned(fusion, lexical=lexical)
        return index.run(SPLIT, **settings), settings

    return method


def _dense_and_bm25(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    index = laboratory.index(config)
    settings = index.tuned("bound", lexical=True, decoder=False)
    return index.run(SPLIT, **settings), settings


def _post_hoc(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    index = laboratory.index(config)
    return index.post_hoc(SPLIT), {"weight": index.post_hoc_weight}


def _bm25_cut(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    words = laboratory.cut_words(config)
    return words.run(SPLIT), words.settings


def _rrf(laboratory: Laboratory, config: Config) -> tuple[Run, Mapping[str, Any]]:
    runs = [laboratory.words.run(SPLIT), laboratory.dense(config).run(SPLIT)]
    return reciprocal_rank_fusion(runs), {"k": 60}


METHODS: dict[str, Method] = {
    "bm25": lambda laboratory, _: (laboratory.words.run(SPLIT), laboratory.words.settings),
    "bm25-cut": _bm25_cut,
    "dense": lambda laboratory, config: (laboratory.dense(config).run(SPLIT), {}),
    "hnsw": lambda laboratory, config: (laboratory.dense(config).run(SPLIT, approximate=True), {}),
    "rrf": _rrf,
    "decoder": lambda laboratory, config: (laboratory.index(config).run(SPLIT, **DECODER_ALONE), DECODER_ALONE),
    "paper": _searched(lexical=False, fusion="paper"),
    "bound": _searched(lexical=False, fusion="bound"),
    "hybrid": _searched(lexical=True, fusion="bound"),
    "dense+bm25": _dense_and_bm25,
    "post-hoc": _post_hoc,
}
"""How a row answers the test queries: {name: function of laboratory and configuration -> run, settings worth knowing}."""
