"""A collection that grows while nothing is trained: `dsi reproduce dynamic`.

The protocol of Zhang et al. 2025 (arXiv 2504.17519): half of the documents, D0, are there from the start. Encoder, docids,
decoder and weights come from them and their train and dev queries. D1 to D5, a tenth each, are added in turn. After each step
every system answers the test queries of all documents so far. A query belongs to the part that brings the last of its relevant
documents.

With P[t][i] the mean of a measure over the queries of D_i after D_t was added, and n = 5:

    GA   = 1/n sum of P[t][t], t = 1..n                  generalisation: documents just added
    F    = 1/n sum of P[i][i] - P[n][i], i = 0..n-1      forgetting: what documents lose from when they came to the end
    F0   = P[0][0] - P[n][0]                             its part that speaks of the documents trained on
    gap  = 1/n sum of P[n][i], i = 1..n, less P[n][0]    added documents against those trained on, in the same final index
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dsi.config import Config
from dsi.docids.data.collection import Collection
from dsi.docids.data.records import table_record
from dsi.docids.types import Qrels, Run
from dsi.docids.words.bm25 import BM25
from dsi.eval.measures import evaluate, mean
from dsi.eval.tables import markdown_table
from dsi.measuring.runs import dense_run, generator_only
from dsi.search.vector_search import DenseAndWords
from dsi_experiments.laboratory import SPLIT, Laboratory, answer, tuned_settings
from dsi_experiments.report import save_report
from dsi_experiments.rows import Rows, Values
from dsi_experiments.tables import DIGITS, VECTORS, Changes, Row
from dsi_experiments.updates import without

ROWS: tuple[tuple[str, Changes], ...] = (("walk by vectors", VECTORS), ("(level, digit) tokens", DIGITS))
"""(name, changes to the base configuration). All rows share the encoder, so baselines are measured with the first."""

SHARES = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
"""Of the documents: D0, D1, …"""
BASELINES = ("BM25", "dense", "dense + BM25")
GENERATIVE = ("decoder alone", "fused")
MEASURES = ("Hit@1", "Hit@10")
ANSWERS = 10
SUMMARY = {"GA": "GA", "F": "F", "F0": "F of D0", "gap": "added − trained on"}

Parts = Sequence[Sequence[int]]
"""Rows of the documents of D0, D1, …"""
Queries = Sequence[Sequence[str]]
"""query_ids of D0, D1, …"""
Matrix = Sequence[Sequence[float]]
"""P[t][i] for i <= t."""


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Train every row on D0, add the other parts, measure; the tables are written again after each row."""
    collection, text = laboratory.collection, ""
    parts = split_documents(len(collection.documents), seed)
    queries = queries_of_parts(collection.qrels[SPLIT], [set(collection.documents.select(p)["doc_id"]) for p in parts])
    first = without(laboratory, [row for part in parts[1:] for row in part], "d0")
    for number, (name, changes) in enumerate(ROWS):
        config = first.config(Row(name, "decoder", changes), seed)
        systems = GENERATIVE if number else (*BASELINES, *GENERATIVE)
        grow = partial(_grow, collection, first, config, systems, parts, queries)
        laboratory.kept("dynamic", name, seed, config, grow)
        if laboratory.processes.is_main:
            text = write_report(laboratory.output, seed)
    return text


def _grow(
    collection: Collection,
    first: Laboratory,
    config: Config,
    systems: Sequence[str],
    parts: Parts,
    queries: Queries,
) -> dict[str, Any]:
    return measure(GrowingIndex(collection, first, config, systems), parts, queries)


def split_documents(documents: int, seed: int) -> list[list[int]]:
    """Rows of D0, D1, …, at random.

    >>> [len(part) for part in split_documents(40, 0)]
    [20, 4, 4, 4, 4, 4]
    """
    order, ends = np.random.default_rng(seed).permutation(documents), np.cumsum(SHARES) * documents
    return [sorted(part.tolist()) for part in np.split(order, ends.round().astype(int)[:-1])]


class GrowingIndex:
    """An index trained on D0, and the baselines, while documents are added; weights are chosen on D0's dev queries."""

    def __init__(self, collection: Collection, first: Laboratory, config: Config, systems: Sequence[str]) -> None:
        index = first.index(config)
        self.collection, self.systems, self._retriever = collection, systems, index.retriever
        self._rows = [collection.rows[doc_id] for doc_id in first.collection.documents["doc_id"]]
        self._queries = index.retriever.encode_queries(collection.query_texts(SPLIT), show_progress=True)
        choices: dict[str, Callable[[], Mapping[str, Any]]] = {
            "BM25": lambda: first.words.options,
            "dense": dict,
            "dense + BM25": lambda: index.tune_hybrid(),
            "decoder alone": lambda: generator_only(index.retriever),
            "fused": lambda: tuned_settings(index),
        }
        self.settings = {name: dict(choices[name]()) for name in systems}

    def add(self, rows: Sequence[int]) -> None:
        """Add documents of the collection; those without any text, which an index refuses, are left out."""
        documents = {row: table_record(self.collection.documents[row]) for row in rows}
        with_text = {row: d for row, d in documents.items() if (d["title"] + d["text"]).strip()}
        self._retriever.add(list(with_text.values()))
        self._rows += with_text

    def runs(self) -> dict[str, Run]:
        """The answers of every system to all test queries."""
        return {name: self._run(name, self.settings[name]) for name in self.systems}

    def _run(self, name: str, settings: dict[str, Any]) -> Run:
        documents, tree = self.collection.documents.select(self._rows), self._retriever.snapshot.tree
        if name == "BM25":
            texts = [f"{own['title']} {own['text']}" for own in documents]
            bm25 = BM25(documents["doc_id"][:], texts, settings["k1"], settings["b"])
            return bm25.run(self.collection.query_texts(SPLIT), ANSWERS)
        if name == "dense":
            encoded, doc_ids = self._queries.embeddings, documents["doc_id"][:]
            return dense_run(self._queries.query_ids, encoded, tree, doc_ids, ANSWERS)
        method = DenseAndWords if name == "dense + BM25" else None
        return answer(self._retriever, self._queries, ANSWERS, method, **settings)


def measure(index: GrowingIndex, parts: Parts, queries: Queries) -> dict[str, Any]:
    """Every system after every step, the time of adding, and the values per query."""
    steps: dict[str, list[Values]] = {name: [] for name in index.systems}
    seconds = 0.0
    for step, rows in enumerate(parts):
        if step:
            started = time.perf_counter()
            index.add(rows)
            seconds += time.perf_counter() - started
        for name, run in index.runs().items():
            steps[name].append(evaluate(run, index.collection.qrels[SPLIT], MEASURES))
    return {
        "parts": [{"documents": len(part), "queries": len(own)} for part, own in zip(parts, queries, strict=True)],
        "milliseconds a document": round(1000 * seconds / sum(map(len, parts[1:])), 1),
        "systems": {
            name: {"settings": index.settings[name], **{m: summarise(_matrix(own, m, queries)) for m in MEASURES}}
            for name, own in steps.items()
        },
        "values": {
            f"{name}, {m}, step {step}": values[m]
            for name, own in steps.items()
            for step, values in enumerate(own)
            for m in MEASURES
        },
    }


def queries_of_parts(qrels: Qrels, parts: Sequence[set[str]]) -> list[list[str]]:
    """The queries of every part: those whose last relevant document comes with it.

    >>> queries_of_parts({"q1": {"a": 1, "b": 0}, "q2": {"a": 1, "b": 1}}, [{"a"}, {"b"}])
    [['q1'], ['q2']]
    """
    part_of = {doc_id: number for number, part in enumerate(parts) for doc_id in part}
    queries: list[list[str]] = [[] for _ in parts]
    for query_id, judged in qrels.items():
        if relevant := [part_of[doc_id] for doc_id, relevance in judged.items() if relevance > 0]:
            queries[max(relevant)].append(query_id)
    if [] in queries:
        part = f"D{queries.index([])}"
        raise ValueError(f"No test query asks for a document of {part}; give a larger collection or another seed.")
    return queries


def _matrix(steps: Sequence[Values], name: str, queries: Queries) -> list[list[float]]:
    """P[t][i] in percent, of a measure's values per query after each step."""
    return [[100 * mean(values[name], own) for own in queries[: step + 1]] for step, values in enumerate(steps)]


def summarise(matrix: Matrix) -> dict[str, Any]:
    """The matrix with GA, F, F0 and the gap, rounded to two digits.

    >>> summarise([[80.0], [70.0, 60.0], [70.0, 50.0, 40.0]])
    {'matrix': [[80.0], [70.0, 60.0], [70.0, 50.0, 40.0]], 'GA': 50.0, 'F': 10.0, 'F0': 10.0, 'gap': -25.0}
    """
    came, last = [row[-1] for row in matrix], matrix[-1]
    lost = [before - after for before, after in zip(came[:-1], last[:-1], strict=True)]
    summary: dict[str, Any] = {
        "GA": np.mean(came[1:]),
        "F": np.mean(lost),
        "F0": lost[0],
        "gap": np.mean(last[1:]) - last[0],
    }
    return {
        "matrix": [[round(value, 2) for value in row] for row in matrix],
        **{name: round(float(value), 2) for name, value in summary.items()},
    }


def write_report(output: Path, seed: int) -> str:
    """The tables of OUTPUT/dynamic.json, written to OUTPUT/dynamic.md."""
    rows = Rows(output / "dynamic.json")
    records = [record for name, _ in ROWS if (record := rows.find(name, seed))]
    if not records:
        raise ValueError(f"{rows.path} has no rows of seed {seed}; `dsi reproduce dynamic` measures them.")
    systems = {
        name if name in BASELINES else f"{name}, {record['row']}": system
        for record in records
        for name, system in record["found"]["systems"].items()
    }
    parts = records[0]["found"]["parts"]
    heads = [f"D{number} ({part['queries']:,} queries)" for number, part in enumerate(parts)]
    summary = ([name, *(_cell(system, key) for key in SUMMARY)] for name, system in systems.items())
    text = "\n\n".join(
        [
            markdown_table(["system", *SUMMARY.values()], summary),
            _legend(records[0]["found"]),
            *(_steps(name, heads, system) for name, system in systems.items()),
        ]
    )
    save_report(output, "dynamic", text)
    return text


def _cell(system: Mapping[str, Any], key: str) -> str:
    return " / ".join(f"{system[measure][key]:.2f}" for measure in MEASURES)


def _steps(name: str, heads: Sequence[str], system: Mapping[str, Any]) -> str:
    """A system's matrix as a table: a line a step, a column a part."""
    rows = []
    for step, together in enumerate(zip(*(system[measure]["matrix"] for measure in MEASURES), strict=True)):
        cells = [" / ".join(f"{value:.2f}" for value in values) for values in zip(*together, strict=True)]
        rows.append([f"D{step} added" if step else "D0", *cells, *[""] * (len(heads) - len(cells))])
    return markdown_table([name, *heads], rows)


def _legend(found: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{part['documents']:,}" for part in found["parts"])
    return (
        f"{' / '.join(MEASURES)} in percent. Parts of {counts} documents: the first was trained on, the others were added in "
        f"turn ({found['milliseconds a document']:g} ms a document, encoder included). GA: the documents just added, mean over "
        "the steps. F: what earlier documents lose between their coming and the end, mean over D0 to the last but one. "
        "Added − trained on: both at the end."
    )
