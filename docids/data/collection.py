"""Collections in BEIR layout: documents, queries and relevance judgements, read once and checked. Knows no models or docids.

Documents are an Arrow table, queries and judgements dictionaries. An error names file, line, value and remedy.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsi.docids.data import SPLITS, TABLES, existing_folder, find_collection, folder_for_collection
from dsi.docids.data.dev_queries import relevant_documents, split_judgements
from dsi.docids.data.identical import Identical, identical_ids
from dsi.docids.data.judgements import check_qrels, read_judgements, relevant_rows, write_judgements
from dsi.docids.data.pairs import digest_of, pair_judgements
from dsi.docids.data.records import Oddities, checked_queries, json_value, table_of, table_record
from dsi.docids.data.sources import file_records, pair_records, records_of, text_lines
from dsi.docids.files.checks import plain, shown, user_path
from dsi.docids.files.reading import check_file, sha256
from dsi.docids.files.storage import digest, replace_folder, write_json_line
from dsi.docids.types import Qrels

if TYPE_CHECKING:
    import datasets

logger = logging.getLogger(__name__)


class MadeTexts(Sequence[str]):
    """Texts that a function makes from slices of a list or a table when they are read, for collections larger than memory."""

    def __init__(self, source: Any, make: Callable[[Any], list[str]]) -> None:
        self._source, self._make = source, make

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, rows: int | slice) -> Any:
        if isinstance(rows, slice):
            chosen = range(len(self))[rows]
            is_run = chosen.step == 1 and len(chosen)
            return self.between(chosen.start, chosen.stop) if is_run else [self[row] for row in chosen]
        return self.between(range(len(self))[rows], range(len(self))[rows] + 1)[0]

    def between(self, start: int, stop: int) -> list[str]:
        """Return the texts start..stop."""
        return self._make(self._source[start:stop])


_IN_MEMORY = "The collection"
"""Name of collections made by `from_records`."""


@dataclass(frozen=True, repr=False)
class Collection:
    """A collection: `documents`, a `datasets.Dataset`, `queries` and one `Qrels` per split.

    Only the documents are required: without queries an index is made of pre-trained parts, without judgements it is not tuned.

    Attributes:
        name: its folder, or what it was made of, for messages.
        versions: what each of its files is, with its sha256; or sha256 of what is in memory.
        documents: a row each, with columns doc_id, title, text, and those of metadata; arrays over documents are in this order.
        queries: {query_id: text}.
        qrels: {"train" | "dev" | "test": judgements}; empty for a split without a file.
        train_file_documents: doc_ids that `qrels/train.tsv` judges relevant to some query.
        rows: {doc_id: row}.
    """

    name: str
    versions: list[str]
    documents: "datasets.Dataset"
    queries: dict[str, str]
    qrels: dict[str, Qrels]
    train_file_documents: frozenset[str]
    rows: dict[str, int]

    def __repr__(self) -> str:
        judged = ", ".join(f"{split} {len(qrels):,}" for split, qrels in self.qrels.items())
        counts = f"{len(self.documents):,} documents, {len(self.queries):,} queries; judged: {judged}"
        return f"Collection({self.name!r}: {counts})"

    @cached_property
    def digest(self) -> str:
        """sha256 of the contents and of the choice of dev queries; results are recomputed when it changes."""
        return digest([self.versions, list(self.qrels["dev"])])

    @cached_property
    def identical(self) -> Identical:
        """The queries that are documents themselves, and these documents, which answers leave out unless judged relevant."""
        judgements = chain.from_iterable(qrels.items() for qrels in self.qrels.values())
        wanted = {query_id for query_id, judged in judgements if judged.get(query_id, 0) > 0}
        queries = {query_id: text for query_id, text in self.queries.items() if query_id not in wanted}
        query_ids = identical_ids(queries, self.documents, self.rows, self.name)
        return {query_id: frozenset({query_id}) for query_id in query_ids}

    @property
    def identical_rows(self) -> dict[str, frozenset[int]]:
        """{text of a query: rows of the documents that it is itself}, of `identical`; never negatives in training."""
        pairs = self.identical.items()
        return {self.queries[query_id]: frozenset(map(self.rows.__getitem__, doc_ids)) for query_id, doc_ids in pairs}

    def find(self, value: str) -> str | None:
        """Return the doc_id of a document, named by its id or by its text, with or without the title; None if there is none."""
        return value if value in self.rows else self._by_text.get(digest_of(value))

    @cached_property
    def _by_text(self) -> dict[bytes, str]:
        by_text: dict[bytes, str] = {}
        for block in self.documents.iter(1000):
            for doc_id, title, text in zip(block["doc_id"], block["title"], block["text"], strict=True):
                for form in (text, f"{title} {text}"):
                    by_text.setdefault(digest_of(form), doc_id)
        return by_text

    def judged_negatives(self) -> dict[str, list[int]]:
        """Return {text of a train query: rows of the documents of the collection that are judged not relevant to it}."""
        negatives: dict[str, list[int]] = {}
        for query_id, judged in self.qrels["train"].items():
            rows = [self.rows[doc_id] for doc_id, grade in judged.items() if grade <= 0 and doc_id in self.rows]
            if rows:
                negatives.setdefault(self.queries[query_id], []).extend(rows)
        return negatives

    @classmethod
    def from_records(
        cls, documents: Iterable[Any], *, queries: Mapping[str, str] | Iterable[Any] | None = None,
        qrels: Mapping[str, Any] | None = None, dev_queries: int = 500, dev_untaught: float = 0.5, seed: int = 0,
    ) -> "Collection":  # fmt: skip
        """Make a collection of what is in memory.

        Example:
            >>> from dsi.docids.data.collection import Collection
            >>> collection = Collection.from_records([{"id": "neon", "text": "A gas that glows.", "period": 2}])
            >>> collection.documents[0]
            {'doc_id': 'neon', 'title': '', 'text': 'A gas that glows.', 'period': 2}

        Args:
            documents: a list or iterator of dictionaries, a DataFrame (pandas, polars), an Arrow table or a `datasets.Dataset`,
                with an id (doc_id, _id, id or docno), a text (text or contents) and perhaps a title; all else is metadata. A
                list of texts takes their places, "0", "1", …, as ids.
            queries: {query_id: text}, or records with an id (query_id, _id, id or qid) and a text (text or query).
            qrels: {"train" | "dev" | "test": judgements}: {query_id: {doc_id: relevance}}, or a table with the columns query_id
                (or qid), doc_id (or docno) and relevance (or score, label, grade).
            dev_queries: as for `read_collection`.
            dev_untaught: as for `read_collection`.
            seed: as for `read_collection`.

        Raises:
            TypeError: `documents` holds no records.
            ValueError: a record lacks id or text, an id occurs twice, or no judgement is of a query of the collection.
        """
        _check_cut(dev_queries, dev_untaught, seed)
        table = table_of(records_of(documents), "documents")
        rows, texts = _rows(table), _memory_queries(queries)
        judged = {} if qrels is None else check_qrels(qrels, texts, rows)
        if texts and not any(judged.values()):
            _warn_unused(_IN_MEMORY, texts, "qrels={'train' or 'dev' or 'test': {query_id: {doc_id: relevance}}}")
        versions = [digest([table._fingerprint, texts, judged])]
        cut = split_judgements(judged, texts, rows, dev_queries, dev_untaught, seed)
        return cls(_IN_MEMORY, versions, table, texts, *cut, rows)

    @classmethod
    def from_files(cls, *paths: str | Path) -> "Collection":
        """Make a collection of files, and of folders of files, subfolders included; without queries.

        A text, a page, a slide or a sheet is a document: its id is the path in the folder, with the page or the like. Front
        matter is metadata. A .jsonl (or .jsonl.gz) file has a document a line, a .csv, .tsv or .parquet file a document a row,
        with the keys that `from_records` takes as the names of the columns; a .tsv file without them has an id, a tab and the
        text a line. Hidden files are left out, and those that a .gitignore names; what cannot be read in a folder is counted by
        kind. Metadata say in which file, where and in which version of it a document stands (`dsi.docids.data.locations`).

        Raises:
            FileNotFoundError: no such file or folder, or no such file in it.
            TypeError: a path is neither a string nor a `Path`.
            ValueError: a malformed file that is named, and the message names file, line, value and remedy; or a folder in BEIR
                layout.
        """
        from dsi.files.documents import path_records  # a room that can be torn off

        for path in paths:
            if not isinstance(path, str | Path):
                raise TypeError(f"A path must be a string or a Path, got {shown(path)}; from_records takes records.")
        sources = [user_path(path) if os.path.isfile(user_path(path)) else existing_folder(path) for path in paths]  # noqa: PTH113
        if not sources:
            raise FileNotFoundError("Name at least one file or folder.")
        for path in sources:
            if path.is_dir() and is_beir(path):
                raise ValueError(f"{path} is in BEIR layout, with queries; dsi.read_collection reads it.")
        name = ", ".join(map(str, sources))
        table = table_of(path_records(sources), name, on_disk=True)
        return cls(name, [table._fingerprint], table, {}, *split_judgements({}, {}, {}, 0, 0, 0), _rows(table))

    def save(self, folder: str | Path) -> None:
        """Write the collection as a folder in BEIR layout, which `read_collection` and commands read.

        Raises:
            FileExistsError: the folder holds something other than a collection.
            ValueError: it is the current folder, or one above it.
        """
        with replace_folder(folder_for_collection(folder)) as new:
            with (new / "corpus.jsonl").open("w", encoding="utf-8") as file:
                for document in map(table_record, self.documents):
                    metadata = {name: json_value(value) for name, value in document["metadata"].items()}
                    write_json_line(file, {"_id": document.pop("doc_id"), **document, "metadata": metadata})
            if self.queries:
                with (new / "queries.jsonl").open("w", encoding="utf-8") as file:
                    for query_id, text in self.queries.items():
                        write_json_line(file, {"_id": query_id, "text": text})
            (new / "qrels").mkdir()
            nothing = {next(iter(self.rows)): 0}  # a file has no line for a query of which no document is judged
            for split, qrels in self.qrels.items():
                if qrels:
                    judged = {query_id: grades or nothing for query_id, grades in qrels.items()}
                    triples = ((query_id, *pair) for query_id, grades in judged.items() for pair in grades.items())
                    write_judgements(triples, new / "qrels" / f"{split}.tsv")

    def with_pairs(
        self, pairs: str | Path | Iterable[Any], split: str = "train", *, dev_queries: int = 500, dev_untaught: float = 0.5,
        seed: int = 0,
    ) -> "Collection":  # fmt: skip
        """Return the collection with pairs as judgements of train, dev or test queries; `save` keeps it as a folder.

        Example:
            >>> from dsi.docids.data.collection import Collection
            >>> collection = Collection.from_records(["A gas that glows.", "A river."])
            >>> pairs = [{"query": "neon", "positive": "A gas that glows.", "negative": "1"}]
            >>> collection.with_pairs(pairs).qrels["train"]
            {'pair-1': {'1': 0, '0': 1}}

        Args:
            pairs: a .jsonl, .parquet, .csv or .tsv file, or records or a table, of query, positive and perhaps
                negatives (`dsi.docids.data.pairs`), by ids or by whole texts of documents, and perhaps query_id.
            split: "train", "dev" or "test". Of train, queries that dev or test has are left out.
            dev_queries: as for `read_collection`, if there are no dev queries yet.
            dev_untaught: as for `read_collection`.
            seed: of their choice.

        Raises:
            ValueError: a malformed pair, a query_id of another query, or no pair whose positive is in the collection.
        """
        _check_cut(dev_queries, dev_untaught, seed)
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {shown(split)}.")
        name: object = "pairs"
        if isinstance(pairs, str | Path):
            name, records = pairs, pair_records(user_path(pairs))
        else:
            records = records_of(pairs, "pairs", texts=False)
        held_out = [*self.qrels["dev"], *self.qrels["test"]] if split == "train" else []
        new, judgements = pair_judgements(records, name, self.queries, held_out, self.find)
        queries = {**self.queries, **new}
        changed = {query_id: dict(judged) for query_id, judged in self.qrels[split].items()}
        for query_id, judged in judgements.items():
            grades = changed.setdefault(query_id, {})
            grades |= {doc_id: max(grade, grades.get(doc_id, grade)) for doc_id, grade in judged.items()}
        versions, qrels = [*self.versions, digest([split, new, judgements])], {**self.qrels, split: changed}
        cut = dev_queries if split == "train" else 0
        qrels, trained = split_judgements(qrels, queries, self.rows, cut, dev_untaught, seed)
        trained = trained if split == "train" else self.train_file_documents
        return Collection(self.name, versions, self.documents, queries, qrels, trained, self.rows)

    def pairs(self, split: str) -> list[tuple[str, int]]:
        """Return (query_id, document row) of every positive judgement of a split, in file order.

        Judgements of documents that are not in the collection are left out, and those of empty queries.
        """
        return [
            (query_id, row)
            for query_id, judged in self.qrels[split].items()
            if self.queries[query_id].strip()
            for row in relevant_rows(judged, self.rows)
        ]

    def overlap_documents(self, split: str) -> frozenset[str]:
        """Return the documents with a train query: a query of `split` is Overlap if one of them is relevant to it.

        For the test split, dev queries that were cut from train count as train queries: Overlap is a property of the
        collection, not of the cut.
        """
        return self.train_file_documents if split == "test" else relevant_documents(self.qrels["train"].values())

    def place_of(self, split: str) -> str:
        """Return where judgements of a split are given, for messages."""
        if self.name != _IN_MEMORY:
            return f"qrels/{split}.tsv"
        return f"queries and qrels={{{split!r}: {{query_id: {{doc_id: relevance}}}}}} in from_records"

    def full_texts(self) -> MadeTexts:
        """Return title and whole text of every document, as BM25 reads them."""
        return MadeTexts(self.documents, lambda rows: list(map("{} {}".format, rows["title"], rows["text"])))

    def query_texts(self, split: str) -> dict[str, str]:
        """Return {query_id: text} of the judged queries of a split."""
        return {query_id: self.queries[query_id] for query_id in self.qrels[split]}


def check_collection(call: str, collection: object) -> None:
    """Raise TypeError, with the remedy, unless the argument of a call is a `Collection`."""
    if not isinstance(collection, Collection):
        raise TypeError(f"{call}() takes a collection, got {collection!r}; dsi.read_collection(FOLDER) reads one.")


def compare_documents(collection: Collection, doc_ids: Iterable[str]) -> None:
    """Warn if the documents of a collection and of an index differ."""
    documents, indexed = collection.rows.keys(), set(doc_ids)
    missing, extra = len(documents - indexed), len(indexed - documents)
    if missing == len(documents):
        raise ValueError(f"{collection.name} and the index share no document; give the one that it was made of.")
    if missing or extra:
        logger.warning(
            "%s and the index differ: %d documents are in the collection only (no search finds them), %d in the index only.",
            collection.name, missing, extra,
        )  # fmt: skip


def read_collection(
    folder: str | Path, *, dev_queries: int = 500, dev_untaught: float = 0.5, seed: int = 0
) -> Collection:
    """Read a folder in BEIR layout, a folder of texts, or a file of them.

    In BEIR layout there are `corpus.jsonl[.gz]`, `queries.jsonl[.gz]` and `qrels/{train,dev,test}.tsv`, of which only the first
    is required. A folder without a corpus.jsonl, or a file, is read by `Collection.from_files`.

    What is odd is read, and counted in a line: judgements of documents that are not in the collection stay judged, though no
    search finds them, and are left out of training; judgements of queries that are not there are left out; a query that is
    empty, or without a judgement above 0, counts as 0.

    Args:
        folder: the collection; "minipedia" is the one that ships.
        dev_queries: train queries, at most a tenth, that `cut_dev` makes the dev split if there is no `qrels/dev.tsv`. They are
            used for tuning, not for training.
        dev_untaught: the share of them, 0 to 1, whose documents keep no train query.
        seed: of the choice of dev queries.

    Raises:
        FileNotFoundError: a required file is missing.
        ValueError: a file's content is wrong; the message names file, line, value and remedy.
    """
    _check_cut(dev_queries, dev_untaught, seed)
    if isinstance(folder, str | Path) and os.path.isfile(user_path(folder)):  # noqa: PTH113 (False for too long a name)
        return Collection.from_files(folder)
    folder = find_collection(folder)
    if not is_beir(folder):
        return Collection.from_files(folder)
    # 1) The files, and which they are.
    tables = {split: folder / "qrels" / name for split, name in zip(SPLITS, TABLES, strict=True)}
    judged = {split: path for split, path in tables.items() if path.exists()}
    versions = _versions(folder, judged)
    # 2) What they hold.
    documents = read_documents(folder)
    rows = _rows(documents)
    odd = Oddities(folder / "qrels")
    for name in sorted(path.name for path in (folder / "qrels").glob("[!._]*") if path.name not in TABLES):
        odd.count(f"files that are not read; judgements are in {', '.join(TABLES)}", name)
    odd.warn()
    if judged and not _has(folder, "queries.jsonl"):
        raise FileNotFoundError(
            f"{folder / 'queries.jsonl'} (or queries.jsonl.gz) does not exist; the judgements in qrels need their queries."
        )
    queries = read_queries(folder) if _has(folder, "queries.jsonl") else {}
    lines = {split: text_lines(path) for split, path in judged.items()}
    judgements = {split: read_judgements(path, lines[split], queries, rows) for split, path in judged.items()}
    if queries and not judged:
        _warn_unused(folder, queries, "qrels/train.tsv, dev.tsv, test.tsv")
    # 3) Nothing has changed meanwhile.
    if _versions(folder, judged) != versions:
        raise ValueError(f"A file of {folder} was changed while it was read; read it again when it is whole.")
    qrels, overlap = split_judgements(judgements, queries, rows, dev_queries, dev_untaught, seed)
    return Collection(str(folder), versions, documents, queries, qrels, overlap, rows)


def _versions(folder: Path, judged: Mapping[str, Path]) -> list[str]:
    """Return what each file of a collection is, with its sha256."""
    files = {name: _find(folder, name) for name in ("corpus.jsonl", "queries.jsonl") if _has(folder, name)} | {**judged}
    for path in files.values():
        check_file(path, "put the file itself there")
    return [f"{name} {sha256(path)}" for name, path in sorted(files.items())]


def _warn_unused(name: object, queries: Mapping[str, str], at: str) -> None:
    """Say that queries without judgements are not used; `at` says where judgements are given."""
    logger.warning("%s has %d queries but no judgements, so none is used; judgements are %s.", name, len(queries), at)


def is_beir(folder: Path) -> bool:
    """True if a folder has a file of the BEIR layout, so that a missing one is an error."""
    return _has(folder, "corpus.jsonl") or _has(folder, "queries.jsonl") or (folder / "qrels").is_dir()


def _check_cut(dev_queries: int, dev_untaught: float, seed: int) -> None:
    """Raise ValueError unless dev queries are a number from 0 and a share from 0 to 1, and the seed is a whole number."""
    if plain(int, dev_queries, "dev_queries") < 0:
        raise ValueError(f"dev_queries must be at least 0, got {dev_queries}.")
    if not 0 <= plain(float, dev_untaught, "dev_untaught") <= 1:
        raise ValueError(f"dev_untaught must be from 0 to 1, got {dev_untaught}.")
    plain(int, seed, "seed")


def _rows(documents: "datasets.Dataset") -> dict[str, int]:
    return {doc_id: row for row, doc_id in enumerate(documents["doc_id"][:])}


def _memory_queries(queries: Mapping[str, str] | Iterable[Any] | None) -> dict[str, str]:
    """Return {query_id: text} of what `Collection.from_records` takes."""
    if isinstance(queries, Mapping):
        queries = [{"_id": query_id, "text": text} for query_id, text in queries.items()]
    if queries is None:
        return {}
    return checked_queries(records_of(queries, "queries"), "queries")


def read_documents(path: Path) -> "datasets.Dataset":
    """Return the documents of a folder or a file as an Arrow table: doc_id, title, text, and a column per metadata key."""
    if not path.is_dir() or not is_beir(path):
        return Collection.from_files(path).documents
    path = _find(path, "corpus.jsonl")
    return table_of(file_records(path), path, on_disk=True)


def read_queries(folder: Path) -> dict[str, str]:
    """Return {query_id: text} of a BEIR folder."""
    path = _find(folder, "queries.jsonl")
    return checked_queries(file_records(path), path)


def _has(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder / f"{name}.gz").exists()


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{folder / name} (or {name}.gz) does not exist; a collection needs it (BEIR layout).")
