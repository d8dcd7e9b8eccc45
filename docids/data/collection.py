"""Collections in BEIR layout: documents, queries and relevance judgements, read once and checked.

Documents are a memory-mapped Arrow table (`datasets.Dataset`), queries and judgements dictionaries. Every error names the file,
the line, the value and the remedy. Knows nothing of models, docids or measures.
"""

import logging
import random
import tempfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, overload

import datasets

from docids.data.lines import json_lines, text_lines, whole_number
from docids.data.records import COLUMNS, TYPES, document_record, get_metadata, read_query_records
from docids.files.checks import plain
from docids.files.storage import digest, sha256
from docids.types import Qrels

logger = logging.getLogger(__name__)


class LazyTexts(Sequence[str]):
    """Texts that are made when a slice is read, for collections larger than memory."""

    @abstractmethod
    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""

    @overload
    def __getitem__(self, rows: int) -> str: ...
    @overload
    def __getitem__(self, rows: slice) -> list[str]: ...
    def __getitem__(self, rows: int | slice) -> str | list[str]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self.between(start, stop) if start < stop else []
        return self.between(range(len(self))[rows], range(len(self))[rows] + 1)[0]


class FullTexts(LazyTexts):
    """Title and whole text of every document, as BM25 reads them."""

    def __init__(self, documents: datasets.Dataset) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""
        table = self._documents[start:stop]
        return [f"{title} {text}" for title, text in zip(table["title"], table["text"], strict=True)]


SPLITS = ("train", "dev", "test")
"""Splits of a collection: qrels/SPLIT.tsv."""


@dataclass(frozen=True)
class Collection:
    """A collection: `documents` (columns doc_id, title, text, metadata), `queries` and one `Qrels` a split.

    Attributes:
        folder: of its files.
        documents: one row per document; arrays over documents are in this order.
        queries: {query_id: text}.
        qrels: {"train" | "dev" | "test": judgements}; empty for a split without a file.
        train_file_documents: doc_ids that `qrels/train.tsv` judges relevant to some query.
        rows: {doc_id: row}.
    """

    folder: Path
    documents: datasets.Dataset
    queries: dict[str, str]
    qrels: dict[str, Qrels]
    train_file_documents: frozenset[str] = field(repr=False)
    rows: dict[str, int] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """sha256 of the files and of the choice of dev queries; results are recomputed when it changes."""
        files = [_find(self.folder, name) for name in ("corpus.jsonl", "queries.jsonl")]
        files += [path for split in SPLITS if (path := self.folder / "qrels" / f"{split}.tsv").exists()]
        return digest([[sha256(path) for path in sorted(files)], list(self.qrels["dev"])])

    def pairs(self, split: str) -> list[tuple[str, int]]:
        """Return (query_id, document row) of every positive judgement of a split, in file order."""
        return [
            (query_id, self.rows[doc_id])
            for query_id, judged in self.qrels[split].items()
            for doc_id, relevance in judged.items()
            if relevance > 0
        ]

    def overlap_documents(self, split: str) -> frozenset[str]:
        """Return the documents with a train query: a query of `split` is Overlap if one of them is relevant to it.

        For the test split, dev queries that were cut from train count as train queries: Overlap is a property of the
        collection, not of the cut.
        """
        return self.train_file_documents if split == "test" else _relevant(self.qrels["train"].values())

    def full_texts(self) -> FullTexts:
        """Return title and whole text of every document."""
        return FullTexts(self.documents)

    def query_texts(self, split: str) -> dict[str, str]:
        """Return {query_id: text} of the judged queries of a split."""
        return {query_id: self.queries[query_id] for query_id in self.qrels[split]}


def check_collection(call: str, collection: object) -> None:
    """Raise TypeError, with the remedy, unless the argument of a call is a `Collection`."""
    if not isinstance(collection, Collection):
        raise TypeError(
            f"{call}() takes a collection, got {collection!r}; dsi.read_collection(FOLDER) reads one from a folder."
        )


def compare_documents(collection: Collection, doc_ids: Iterable[str]) -> None:
    """Warn if the documents of a collection and of an index differ.

    Raises:
        ValueError: they share none.
    """
    documents, indexed = collection.rows.keys(), set(doc_ids)
    missing, extra = len(documents - indexed), len(indexed - documents)
    if missing == len(documents):
        raise ValueError(
            f"{collection.folder} and the index share no document; give the collection that the index was made of."
        )
    if missing or extra:
        logger.warning(
            "%s and the index differ: %d documents are in the collection only (no search finds them), %d in the index only.",
            collection.folder,
            missing,
            extra,
        )


def read_collection(folder: str | Path, *, dev_queries: int = 500, seed: int = 0) -> Collection:
    """Read a BEIR folder: `corpus.jsonl[.gz]`, `queries.jsonl[.gz]`, `qrels/{train,dev,test}.tsv`.

    Args:
        folder: the collection.
        dev_queries: train queries, at most a tenth, that `cut_dev` makes the dev split if there is no `qrels/dev.tsv`. They are
            used for tuning, not for training.
        seed: of the choice of dev queries.

    Raises:
        FileNotFoundError: a required file is missing.
        ValueError: a file's content is wrong; the message names file, line, value and remedy.
    """
    dev_queries, seed = plain(int, dev_queries, "dev_queries"), plain(int, seed, "seed")
    if dev_queries < 0:
        raise ValueError(f"dev_queries must be at least 0, got {dev_queries}.")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"The collection folder {folder} does not exist; pass a folder in BEIR layout.")
    documents = read_documents(folder)
    queries = read_queries(folder)
    rows = {doc_id: row for row, doc_id in enumerate(documents["doc_id"][:])}
    qrels = {split: _read_qrels(folder / "qrels" / f"{split}.tsv", queries, rows) for split in SPLITS}
    if not any(qrels.values()):
        raise FileNotFoundError(
            f"No judgements in {folder / 'qrels'}; add at least one of train.tsv, dev.tsv, test.tsv."
        )
    overlap = _relevant(qrels["train"].values())
    if qrels["train"] and not qrels["dev"]:
        qrels["train"], qrels["dev"] = cut_dev(qrels["train"], qrels["test"], dev_queries, seed)
    return Collection(folder, documents, queries, qrels, overlap, rows)


def cut_dev(train: Qrels, test: Qrels, dev_queries: int, seed: int) -> tuple[Qrels, Qrels]:
    """Cut train judgements into (train, dev): at most `dev_queries` and at most a tenth of the queries go to dev.

    The cut is by document, so that No Overlap queries are as frequent in dev as in test; were they rarer, tuning would overrate
    what the decoder has memorised. All train queries of a No Overlap query's documents go to dev; every document of an Overlap
    query keeps a train query. A document with more train queries than dev has room for keeps them all; where one kind of query
    is too rare, more of the other are taken.

    >>> train = {f"{document}{n}": {document: 1} for document in "abcdefghijklmnopqrst" for n in range(3)}
    >>> train, dev = cut_dev(train, {"old": {"a": 1}, "new": {"z": 1}}, 6, 0)
    >>> len(train), sorted(dev)
    (54, ['i0', 'i2', 'q0', 's0', 's1', 's2'])

    Args:
        train: the judgements to cut.
        test: sets the share of No Overlap queries, by doc_ids alone; one half if there are none.
        dev_queries: at most.
        seed: of the choice.
    """
    size, rng = min(dev_queries, len(train) // 10), random.Random(seed)
    relevant = {query_id: _relevant([train[query_id]]) for query_id in rng.sample(sorted(train), len(train))}
    families = _families(relevant)
    rng.shuffle(families)
    dev = _whole(families, round(size * _no_overlap_share(train, test)))
    rest = {query_id: doc_ids for query_id, doc_ids in relevant.items() if query_id not in dev}
    dev |= _spare(rest, size - len(dev))
    dev |= _whole([family for family in families if dev.isdisjoint(family)], size - len(dev))
    keep = {query_id: judged for query_id, judged in train.items() if query_id not in dev}
    return keep, {query_id: judged for query_id, judged in train.items() if query_id in dev}


def _relevant(judgements: Iterable[Mapping[str, int]]) -> frozenset[str]:
    return frozenset(doc_id for judged in judgements for doc_id, relevance in judged.items() if relevance > 0)


def _no_overlap_share(train: Qrels, test: Qrels) -> float:
    """Return the share of test queries without a relevant document that has a train query; 1/2 without test queries."""
    train_documents = _relevant(train.values())
    answers = [relevant for judged in test.values() if (relevant := _relevant([judged]))]
    return sum(map(train_documents.isdisjoint, answers)) / len(answers) if answers else 0.5


def _families(relevant: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Group queries such that no document is relevant to queries of two groups."""
    parent: dict[str, str] = {}  # union-find over documents; the root of a group is its own parent

    def root(doc_id: str) -> str:
        while parent.setdefault(doc_id, doc_id) != doc_id:
            parent[doc_id] = doc_id = parent[parent[doc_id]]
        return doc_id

    for doc_ids in relevant.values():
        for doc_id in doc_ids:
            parent[root(doc_id)] = root(min(doc_ids))
    families: dict[str, list[str]] = {}
    for query_id, doc_ids in relevant.items():
        if doc_ids:
            families.setdefault(root(min(doc_ids)), []).append(query_id)
    return list(families.values())


def _whole(families: Iterable[list[str]], room: int) -> set[str]:
    """Return the queries of whole families, up to `room`."""
    chosen: set[str] = set()
    for family in families:
        if len(chosen) + len(family) <= room:
            chosen.update(family)
    return chosen


def _spare(relevant: Mapping[str, frozenset[str]], room: int) -> set[str]:
    """Return queries that leave another query to each of their documents, up to `room`."""
    left = Counter(doc_id for doc_ids in relevant.values() for doc_id in doc_ids)
    chosen: set[str] = set()
    for query_id, doc_ids in relevant.items():
        if len(chosen) < room and doc_ids and all(left[doc_id] > 1 for doc_id in doc_ids):
            chosen.add(query_id)
            left.subtract(doc_ids)
    return chosen


def read_documents(folder: Path) -> datasets.Dataset:
    """Return the documents of a BEIR folder as an Arrow table: doc_id, title, text, and a column per metadata key."""
    path = _find(folder, "corpus.jsonl")
    if next(json_lines(path), None) is None:
        raise ValueError(f"{path} holds no documents; it needs one JSON object a line with _id, title and text.")
    version = sha256(path)
    types = read_once(_column_rows, {"column": "string", "type": "string"}, path, version)
    columns = {row["column"]: row["type"] for row in types}
    return read_once(_document_rows, columns, path, version, columns=columns)


def read_once(
    rows: Callable[..., Iterator[dict[str, Any]]], types: dict[str, str], path: Path, version: str, **arguments: Any
) -> datasets.Dataset:
    """Return a table of the rows of a file, cached while the version is the same.

    Args:
        rows: reads the file; its arguments are path (a str), version and `arguments`.
        types: {column: Arrow type} of the table.
        path: of the file.
        version: SHA-256 of the file; a changed file is read again.
        **arguments: of `rows`.
    """
    try:
        return datasets.Dataset.from_generator(
            rows,
            features=datasets.Features({name: datasets.Value(kind) for name, kind in types.items()}),
            cache_dir=_cache_folder(str(datasets.config.HF_DATASETS_CACHE)),
            gen_kwargs={"path": str(path), "version": version, **arguments},
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise


def _cache_folder(folder: str) -> str:
    """Return the folder of cached tables: `folder`, or a temporary one if that cannot be written."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return _temporary_folder().name
    return folder


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dsi-tables-")


def read_queries(folder: Path) -> dict[str, str]:
    """Return {query_id: text} of a BEIR folder."""
    path = _find(folder, "queries.jsonl")
    return read_query_records(json_lines(path), path)


def _column_rows(path: str, version: str) -> Iterator[dict[str, str]]:
    """Yield the columns of the documents in a file and their Arrow types; all values of a metadata key must have one type."""
    types: dict[str, type] = {}
    for number, record in json_lines(Path(path)):
        for key, value in get_metadata(record, f"{path}, line {number}").items():
            before, kind = types.get(key, type(value)), type(value)
            if before is not kind and {before, kind} != {int, float}:
                raise ValueError(
                    f"{path}, line {number}: metadata {key!r} is {value!r}, but of type {before.__name__} in the lines before; "
                    "give it one type."
                )
            types[key] = kind if before is kind else float
    for column in (*COLUMNS, *types):
        yield {"column": column, "type": TYPES[types.get(column, str)]}


def _document_rows(path: str, version: str, columns: dict[str, str]) -> Iterator[dict[str, Any]]:
    for document in document_records(Path(path)):
        values = {**document, **document["metadata"]}
        yield {name: values.get(name) for name in columns}


def document_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield doc_id, title, text and metadata of each document of a corpus.jsonl[.gz], checked line by line.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a malformed document; the message names the line.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a corpus.jsonl or corpus.jsonl.gz.")
    seen: set[str] = set()
    empty = 0
    for number, record in json_lines(path):
        document = document_record(record, f"{path}, line {number}")
        doc_id = document["doc_id"]
        if doc_id in seen:
            raise ValueError(f"{path}, line {number}: duplicate doc_id {doc_id!r}; ids must be unique.")
        if not (document["title"] + document["text"]).strip():
            empty += 1
            logger.warning(
                "%s, line %d: document %r has neither title nor text, so no query will find it.", path, number, doc_id
            )
        seen.add(doc_id)
        yield document
    if seen and empty == len(seen):
        raise ValueError(f"{path}: none of the {empty} documents has a title or a text; give them texts.")


def _read_qrels(path: Path, queries: dict[str, str], rows: dict[str, int]) -> Qrels:
    if not path.exists():
        return {}
    qrels: Qrels = {}
    for number, line in text_lines(path):
        parts, source = line.split("\t"), f"{path}, line {number}"
        relevance = whole_number(parts[2]) if len(parts) == 3 else None
        if relevance is None:
            if number == 1 and parts[0] == "query-id" and len(parts) == 3:  # the header
                continue
            raise ValueError(f"{source}: expected query-id<TAB>corpus-id<TAB>integer score, got {line.strip()!r}.")
        query_id, doc_id, _ = parts
        if query_id not in queries:
            raise ValueError(f"{source}: query_id {query_id!r} is not in queries.jsonl.")
        if doc_id not in rows:
            raise ValueError(f"{source}: doc_id {doc_id!r} is not in corpus.jsonl.")
        if qrels.setdefault(query_id, {}).setdefault(doc_id, relevance) != relevance:
            raise ValueError(
                f"{source}: an earlier line gives query {query_id!r} and document {doc_id!r} another score; keep one."
            )
    return qrels


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{folder / name} (or {name}.gz) does not exist; a collection needs it (BEIR layout).")
