"""Docid schemes beside each other: one encoder, one generator, one training, and trees of about the same size.

A digit has as many values as the largest power of two up to the configuration's branching (10 if that is 0): clusters of a
split, documents of a leaf, codewords of a level. Quantizers have the number of levels whose codes come nearest to one a
document. Titles bring their own tokens. Other settings of `[docids]` keep their defaults.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from dsi.config import Config
from dsi.docids.clustering import assemble
from dsi.docids.data.collection import Collection
from dsi.docids.data.records import table_record
from dsi.docids.data.sources import whole_number
from dsi.docids.files.checks import shown
from dsi.docids.schemes import FILE, SCHEMES, DocidsConfig, find_scheme, make_docids, scheme_names
from dsi.docids.tree import MOST_PLACES, DocidTree
from dsi.docids.types import Run
from dsi.eval.measures import evaluate, mean
from dsi.eval.protocol import overlap_splits
from dsi.measuring.runs import generator_only
from dsi.search.queries import EncodedQueries, encode_queries
from dsi.store.retriever import Retriever
from dsi.training.docids_stage import scheme_input
from dsi_experiments.descents import Descents, descend
from dsi_experiments.docids_report import BASELINES, BEAMS, MEASURES, write_report
from dsi_experiments.laboratory import ANSWERS, SPLIT, DenseRuns, Laboratory, answer, tuned_settings
from dsi_experiments.tables import DIGITS, NOTHING, Changes, Row
from dsi_experiments.updates import hold_out, without

_BATCH = 128
_READ = {**SCHEMES, "balanced": SCHEMES["kmeans"], "random": SCHEMES["kmeans"], "title": ()}
"""{scheme: settings that it reads}; those of others are branching and pieces."""
BRANCHING = 10
"""Where the configuration leaves it to the scheme."""
HELD_OUT_SEED = 0
"""Of the documents that are added after training: the same for all rows."""


def schemes_for(collection: Collection) -> list[str]:
    """The schemes that can be compared on a collection: "title" only where every document has one."""
    titled = all(title.strip() for title in collection.documents["title"])
    return [name for name in scheme_names() if titled or name != "title"]


def parse_name(name: str) -> tuple[str, int]:
    """The scheme and the number of pieces of a row.

    >>> parse_name("kmeans"), parse_name("kmeans+2")
    (('kmeans', 1), ('kmeans', 2))

    Raises:
        ValueError: no such scheme, it makes no docids, or the number is none or out of range.
    """
    method, plus, text = name.partition("+")
    find_scheme(method)
    if method == FILE:
        raise ValueError('The scheme "file" reads docids and makes none, so it cannot be compared; leave it out.')
    pieces = whole_number(text) if plus else 1
    if pieces is None or not 1 <= pieces <= MOST_PLACES:
        raise ValueError(
            f"A scheme must be NAME or NAME+N, with N from 1 to {MOST_PLACES:,} pieces a document, got {shown(name)}."
        )
    if pieces > 1 and not _setting(method, pieces):
        raise ValueError(f'The scheme "{method}" makes a docid a document, got {shown(name)}; leave "+{pieces}" out.')
    return method, pieces


def shape(method: str, branching: int) -> dict[str, int]:
    """The settings that give a scheme's tree its size.

    >>> shape("rq", 10), shape("kmeans", 10), shape("title", 10)
    ({'branching': 8}, {'branching': 8, 'max_leaf_size': 8}, {})
    """
    values = 1 << (branching.bit_length() - 1)
    sizes = {"branching": values, "max_leaf_size": values}
    return {name: size for name, size in sizes.items() if name in _READ.get(method, ("branching",))}


def compare(
    laboratory: Laboratory, names: Sequence[str], seeds: Sequence[int], *, digits: bool = False, add: bool = True
) -> str:
    """Train and measure every scheme under every seed; tables and picture are written after each seed.

    Args:
        laboratory: trains and keeps the rows.
        names: of schemes.
        seeds: of encoder, docids and generator.
        digits: train a decoder of (level, digit) tokens, whatever the configuration says.
        add: measure documents that are added later too, for which encoder and generators are trained once more.

    Raises:
        FileNotFoundError: a setting names a folder that does not exist.
        ValueError: a row cannot be measured; nothing has been trained then.
    """
    seeds, text = list(dict.fromkeys(seeds)), ""
    comparisons = {seed: Comparison(laboratory, seed, digits=digits, add=add) for seed in seeds}
    for comparison in comparisons.values():
        comparison.check([comparison.config(name) for name in names])
    for seed, comparison in comparisons.items():  # one seed of every scheme before the next seed of any
        generator = comparison.base.generator
        experiment = (generator.docid_tokens if generator.exists else "vectors") + ("" if add else "-trained")
        laboratory.kept(experiment, BASELINES, seed, comparison.base, comparison.baselines)
        for name in names:
            config = comparison.config(name)
            laboratory.kept(experiment, name, seed, config, partial(comparison.measure, config))
        if laboratory.processes.is_main:
            text = write_report(laboratory.output, experiment, names, seeds)
    return text


class Comparison:
    """What all rows of one seed have in common.

    Args:
        laboratory: trains.
        seed: of encoder, docids and generator.
        digits: with (level, digit) tokens.
        add: with documents that are added later.
    """

    def __init__(self, laboratory: Laboratory, seed: int = 0, *, digits: bool, add: bool) -> None:
        self.laboratory, self.collection, self.seed, self.add = laboratory, laboratory.collection, seed, add
        self._changes = DIGITS if digits else NOTHING
        own: dict[str, Any] = {"method": laboratory.base.docids.method, **self._changes.get("docids", {})}
        own["pieces"] = _setting(own["method"], 1)  # as the schemes without +N have it
        whole: Changes = {**self._changes, "docids": own}
        self.base = laboratory.config(Row(BASELINES, "", whole), seed)

    def check(self, configs: Sequence[Config]) -> None:
        """Raise what the baselines, or schemes with these configurations, could not be measured for; trains nothing."""
        for config in (self.base, *configs):
            self.laboratory.check(config)
        if self.add:
            self._check_added(configs)

    def _check_added(self, configs: Sequence[Config]) -> None:
        asked, added = set(self._answers.values()), self._held_out_ids
        if asked.isdisjoint(added) or asked <= added:
            raise ValueError(
                f"Test queries ask for {len(asked)} documents, of which {len(asked & added)} are among the {len(added)} that "
                "are added after training; some must be, and some not. Add test queries, or give --without-added."
            )
        for config in configs:
            try:
                self._part.check(config)
            except ValueError as error:
                raise ValueError(
                    f"Without the documents that are added after training: {error} Or give --without-added."
                ) from None

    def config(self, name: str) -> Config:
        """The configuration of a scheme; "NAME+2" is one with two pieces a document."""
        method, pieces = parse_name(name)
        own = {
            "pieces": _setting(method, pieces),
            **shape(method, self.base.docids.branching or BRANCHING),
        }
        docids = dataclasses.asdict(DocidsConfig(method=method, **own))  # type: ignore[arg-type]
        row = Row(name, "", {**self._changes, "docids": docids})
        return self.laboratory.config(row, self.seed)

    def baselines(self) -> dict[str, Any]:
        """Dense search and BM25, without docids; all schemes share the encoder and what it has embedded here."""
        texts = self.collection.query_texts(SPLIT)
        dense = self._dense.run(SPLIT, self._encode(texts).embeddings)
        return self._systems({"dense": dense, "BM25": self.laboratory.words.bm25.run(texts, ANSWERS)})

    def measure(self, config: Config) -> dict[str, Any]:
        """Everything about one scheme."""
        index = self.laboratory.index(config)
        retriever, fused = index.retriever, tuned_settings(index)
        descents = {beam: self._descend(retriever, self._queries, beam) for beam in BEAMS}
        runs = {f"alone, beam {beam}": own.run for beam, own in descents.items()}
        for beam in BEAMS:
            runs[f"fused, beam {beam}"] = answer(retriever, self._queries, ANSWERS, **{**fused, "beam_width": beam})
        found = {
            "settings": fused,
            "beams": {f"beam {beam}": _lost(own) for beam, own in descents.items()},
            "tree": {**self.laboratory.diagnostics(config), **measure_tree(retriever.snapshot.tree)},
            "seconds": {
                "docids": self._build_seconds(config),
                "training": round(self.laboratory.training(config)["seconds"], 1),
            },
            **self._systems(runs),
        }
        if not self.add:
            return found
        trained = {beam: own.run for beam, own in descents.items()}
        return {**found, "added": self._added(config, trained)}  # last: it trains in the same folder

    def _systems(self, runs: Mapping[str, Run]) -> dict[str, Any]:
        """Means by split and values per query of some runs."""
        qrels = self.collection.qrels[SPLIT]
        splits = overlap_splits(qrels, self.collection.overlap_documents(SPLIT))
        values = {name: evaluate(run, qrels, MEASURES) for name, run in runs.items()}
        means = {
            name: {split: {m: _percent(own[m], query_ids) for m in MEASURES} for split, query_ids in splits.items()}
            for name, own in values.items()
        }
        return {
            "queries": {split: len(query_ids) for split, query_ids in splits.items()},
            "systems": means,
            "values": {f"{name}, {m}": own[m] for name, own in values.items() for m in MEASURES},
        }

    def _descend(self, retriever: Retriever, encoded: EncodedQueries, beam: int) -> Descents:
        """The walk alone; without a generator the documents that it reaches are ranked by dense scores."""
        answers = [self._answers[query_id] for query_id in encoded.query_ids]
        return descend(retriever, encoded, answers, ANSWERS, beam_width=beam, **generator_only(retriever))

    def _added(self, config: Config, trained: Mapping[int, Run]) -> dict[str, Any]:
        """Queries of documents that were held out and added after training, and the same ones trained with them."""
        retriever, added = self._part.index(config).retriever, self._held_out_ids
        retriever.add([table_record(self.collection.documents[row]) for row in self._held_out])
        texts = {q: text for q, text in self._texts.items() if self._answers[q] in added}
        encoded = retriever.encode_queries(texts, batch_size=_BATCH)
        found: dict[str, Any] = {"documents": len(added), "queries": len(texts)}
        qrels = {query_id: self.collection.qrels[SPLIT][query_id] for query_id in texts}
        for beam, run in trained.items():
            runs = {"added": self._descend(retriever, encoded, beam).run, "trained": {q: run[q] for q in texts}}
            for name, own in runs.items():
                values = evaluate(own, qrels, MEASURES)
                found[f"{name}, beam {beam}"] = {m: _percent(values[m], list(texts)) for m in MEASURES}
        return found

    def _build_seconds(self, config: Config) -> float:
        """Processor time from embeddings to a tree."""
        embeddings = self.laboratory.dense(config).embeddings
        given = scheme_input(self.collection, self._dense.encoder, config.docids, embeddings, seed=self.seed)
        started = time.process_time()
        assemble(make_docids(given), embeddings)
        return round(time.process_time() - started, 2)

    @cached_property
    def _dense(self) -> DenseRuns:
        return self.laboratory.dense(self.base)

    @cached_property
    def _held_out(self) -> list[int]:
        return hold_out(self.collection, HELD_OUT_SEED)

    @cached_property
    def _held_out_ids(self) -> set[str]:
        return {self.collection.documents[row]["doc_id"] for row in self._held_out}

    @cached_property
    def _part(self) -> Laboratory:
        """Trains without the documents that are added later."""
        return without(self.laboratory, self._held_out)

    @cached_property
    def _answers(self) -> dict[str, str]:
        """The first relevant document of each test query that has one."""
        pairs = self.collection.pairs(SPLIT)
        return {query_id: self.collection.documents[row]["doc_id"] for query_id, row in reversed(pairs)}

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The test queries that have an answer."""
        return {q: text for q, text in self.collection.query_texts(SPLIT).items() if q in self._answers}

    @cached_property
    def _queries(self) -> EncodedQueries:
        return self._encode(self._texts)

    def _encode(self, texts: Mapping[str, str]) -> EncodedQueries:
        return encode_queries(self._dense.encoder, texts, batch_size=_BATCH)


def _setting(method: str, pieces: int) -> int:
    """`docids.pieces` for some pieces a document: 0 for a method that does not read the setting."""
    return pieces if "pieces" in _READ.get(method, ("pieces",)) else 0


def _lost(descents: Descents) -> dict[str, Any]:
    return {
        "survival": descents.survival,
        "search errors": descents.search_errors,
        "model errors": descents.model_errors,
    }


def measure_tree(tree: DocidTree) -> dict[str, Any]:
    """Bytes a document, and how many documents the nodes of each level hold: smallest, quartiles, largest."""
    arrays = (tree.first_child, tree.num_children, tree.doc_start, tree.doc_end, tree.doc_rows)
    sizes = tree.doc_end - tree.doc_start
    vectors = tree.centroids.nbytes + tree.embeddings.nbytes + (tree.codes.nbytes if tree.codes else 0)
    return {
        "bytes a document": {
            "tree": round(sum(own.nbytes for own in arrays) / tree.num_places, 1),
            "vectors": round(vectors / tree.num_places, 1),
        },
        "documents a node": [np.quantile(sizes[level], (0, 0.25, 0.5, 0.75, 1)).tolist() for level in tree.levels],
    }


def _percent(values: Mapping[str, float], query_ids: Sequence[str]) -> float:
    return round(100 * mean(values, query_ids), 2)
