"""What learned rerankers work on (`Candidates`), what they are (`Reranker`), and how they are saved beside an index.

A reranker computes new scores for the candidates of each query, which decide their order. A saved one is bound to encoder and
generator of its index; nothing is ever unpickled. `Reranker.load` makes a model for `dsi.rerankers.rerank` of one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dsi.docids import extensions
from dsi.docids.files.reading import DATA, RESTORE, check_folder, read_json, reading
from dsi.docids.files.storage import recover_folder, replace_folder, write_json
from dsi.docids.types import Bools, Ints, Reals
from dsi.rerankers import FILE, kind_of, reranker_folder
from dsi.search.hits import Hits
from dsi.search.queries import EncodedQueries, Queries, encoded_queries
from dsi.search.results import SearchResult
from dsi.store.folder.manifest import read_manifest
from dsi.store.folder.writing import index_lock
from dsi.store.retriever import Retriever
from dsi.store.snapshot import Snapshot

Features = Callable[..., tuple[NDArray[np.float32], tuple[str, ...]]]
"""Computes features [queries, k, features], 0 at padding, and their names, given the engine that searched, the encoded queries,
the result, and the titles of the answers."""
R = TypeVar("R", bound="Reranker")


@dataclass(frozen=True, eq=False, repr=False)
class Candidates:
    """The results of n queries, k documents each, best first; shorter lists are padded to k."""

    queries: Sequence[str]
    doc_ids: Sequence[Sequence[str]]  # of the candidates; fewer than k where the collection has no more
    titles: Sequence[Sequence[str]]
    scores: Reals  # [n, k] of the search, or of the last reranker; -inf at padding
    query_embeddings: Reals  # [n, dim]
    embeddings: Reals  # [n, k, dim] of the documents; 0 at padding
    features: Reals  # [n, k, features] float32; 0 at padding
    names: tuple[str, ...] = ()  # of the features; empty for candidates made without features
    query_ids: Sequence[str] = ()  # of the queries; "0", "1", … by default

    def __post_init__(self) -> None:
        if not len(self.query_ids):
            object.__setattr__(self, "query_ids", [str(number) for number in range(len(self.queries))])

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def from_search(
        cls,
        retriever: Retriever,
        queries: Queries | EncodedQueries,
        k: int,
        features: Features | None = None,
        **options: Any,
    ) -> "Candidates":
        """Return the top k documents of each query, with `features` if it is given."""
        index = retriever.snapshot
        encoded = encoded_queries(index.encoder, queries)
        return _candidates(index, encoded, index.search(encoded, k, **options), features)

    @classmethod
    def from_hits(cls, retriever: Retriever, hits: Sequence[Hits], features: Features | None = None) -> "Candidates":
        """Return the hits of searches by `retriever`, with their scores, whatever gave them."""
        index = retriever.snapshot
        result = SearchResult.empty(len(hits), max(map(len, hits), default=0))
        for row, own in enumerate(hits):
            result.positions[row, : len(own)] = [index.tree.node(hit.digits) - index.tree.num_inner for hit in own]
            result.scores[row, : len(own)] = [hit.score for hit in own]
        return _candidates(index, retriever.encode_queries([own.query for own in hits]), result, features)

    @property
    def valid(self) -> Bools:
        """[n, k] True at candidates, False at padding."""
        return np.asarray(self.scores > -np.inf)

    def as_run(self) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}}, which `eval` measures and TREC tools read."""
        lists = zip(self.query_ids, self.doc_ids, self.scores.tolist(), strict=True)
        return {query_id: dict(zip(doc_ids, scores, strict=False)) for query_id, doc_ids, scores in lists}

    def columns(self, names: Sequence[str]) -> Reals:
        """Return some of the features, [n, k, len(names)]."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise ValueError(
                f"These candidates have no feature {missing[0]!r} (they have {', '.join(self.names)}); train the reranker "
                "again on this index, or apply the reranker that adds the feature first."
            )
        return self.features[:, :, [self.names.index(name) for name in names]]

    def select(self, rows: Ints) -> "Candidates":
        """Return the candidates of some of the queries."""

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows.tolist()]

        return replace(
            self,
            queries=pick(self.queries),
            doc_ids=pick(self.doc_ids),
            titles=pick(self.titles),
            scores=self.scores[rows],
            query_embeddings=self.query_embeddings[rows],
            embeddings=self.embeddings[rows],
            features=self.features[rows],
            query_ids=pick(self.query_ids),
        )

    def order(self, scores: Reals) -> Ints:
        """Return the columns [n, k] by descending new score; ties keep their order, and padding stays at the end."""
        return np.argsort(-np.where(self.valid, scores, -np.inf), axis=1, kind="stable")

    def reorder(self, scores: Reals) -> "Candidates":
        """Return the candidates in the order of new scores [n, k]."""
        order = self.order(scores)
        scores = np.where(self.valid, scores, -np.inf)

        def arrange(values: NDArray[Any]) -> NDArray[Any]:
            index = order.reshape(order.shape + (1,) * (values.ndim - 2))
            return np.take_along_axis(values, index, axis=1)

        def lists(values: Sequence[Sequence[str]]) -> list[list[str]]:
            return [
                [items[n] for n in row if n < len(items)] for row, items in zip(order.tolist(), values, strict=True)
            ]

        return replace(
            self,
            doc_ids=lists(self.doc_ids),
            titles=lists(self.titles),
            scores=arrange(scores),
            embeddings=arrange(self.embeddings),
            features=arrange(self.features),
        )


class Reranker(ABC):
    """Computes new scores for candidates.

    A subclass has a `kind` and defines `score`; one with state on disk also defines `write`, and `read` where its constructor
    does not take what `write` returned.
    """

    kind: ClassVar[str]  # its name in reranker.json
    features: ClassVar[Features | None] = None  # computes the features that `score` reads; None if it reads none

    @abstractmethod
    def score(self, candidates: Candidates) -> Reals:
        """Return new scores [n, k]; higher is better, and values at padding do not matter."""

    def rerank(self, candidates: Candidates) -> Candidates:
        """Return the candidates in their new order."""
        return candidates.reorder(self.score(candidates))

    def write(self, folder: Path) -> dict[str, Any]:
        """Write weights into `folder`, and return the settings for reranker.json; by default there are none."""
        return {}

    @classmethod
    def read(cls: type[R], folder: Path, settings: dict[str, Any]) -> R:
        """Load what `write` wrote; by default the settings are the constructor's arguments."""
        return cls(**settings)

    def save(self, folder: Path, binding: Mapping[str, Any] | None = None) -> None:
        """Write the reranker in one step; `binding`: what it was trained for, compared when it is loaded."""
        with replace_folder(folder) as partial:
            self.write_whole(partial, binding)

    def write_whole(self, folder: Path, binding: Mapping[str, Any] | None = None) -> None:
        """Write what `load_reranker` reads into a folder that is there."""
        record = {"kind": self.kind, "for": dict(binding or {}), "settings": self.write(folder)}
        if package := extensions.package_of(extensions.RERANKERS, self.kind):
            record["package"] = package
        write_json(folder / FILE, record)

    @classmethod
    def load(cls, folder: Path, retriever: Retriever) -> Callable[[Hits], Reals]:
        """Return a saved reranker of an index as a model for `dsi.rerankers.rerank`."""
        reranker = load_reranker(folder, binding(folder.parents[1]))

        def scores(hits: Hits) -> Reals:
            if not hits:
                return np.zeros(0)
            return reranker.score(Candidates.from_hits(retriever, [hits], reranker.features))[0]

        return scores


def binding(index: Path) -> dict[str, Any]:
    """Return what a saved reranker is bound to: the encoder and the generator of its index."""
    manifest = read_manifest(index)
    files = {name: value for name, value in manifest["files"].items() if name.startswith("generator/")}
    return {"encoder": manifest["fingerprints"]["encoder"], "generator": files}


def save_reranker(reranker: Reranker, index: str | Path, name: str) -> Path:
    """Write a reranker beside the index that it was trained on, in one step, and return its folder, INDEX/rerank/NAME."""
    folder = reranker_folder(index, name)
    with index_lock(Path(index)):
        reranker.save(folder, binding(Path(index)))
    return folder


def load_reranker(folder: Path, binding: Mapping[str, Any] | None = None) -> Reranker:
    """Return a saved reranker; ValueError if it was trained for another index, or a file of it was altered."""
    recover_folder(folder)
    check_folder(folder, (*DATA, ".txt"))  # trees of LightGBM
    record, path = read_json(folder / FILE), folder / FILE
    if (type(record.get("kind")), type(record.get("for")), type(record.get("settings"))) != (str, dict, dict):
        raise ValueError(f"{path} must have kind, for and settings; {RESTORE}.")
    for name, value in (binding or {}).items():
        if record["for"].get(name) != value:
            raise ValueError(f"{folder} was trained for another index: its {name} is not this one's; train it again.")
    with reading(folder, ImportError):  # some kinds need an extra
        found: Reranker = kind_of(folder).read(folder, record["settings"])
        return found


def _candidates(
    index: Snapshot, encoded: EncodedQueries, result: SearchResult, features: Features | None
) -> Candidates:
    tree, positions = index.tree, result.positions  # [queries, k]
    valid = positions >= 0
    any_position = np.maximum(positions, 0)  # an arbitrary one at padding
    rows = tree.doc_rows[any_position]

    def lists(column: str) -> list[list[str]]:
        values = zip(index.documents.values_of(column, rows), valid.sum(axis=1).tolist(), strict=True)
        return [[str(value) for value in column[:count]] for column, count in values]

    titles = lists("title")
    computed, names = np.zeros((*positions.shape, 0), dtype=np.float32), tuple[str, ...]()
    if features:
        computed, names = features(index.engine, encoded, result, titles)
    return Candidates(
        queries=encoded.texts,
        doc_ids=lists("doc_id"),
        titles=titles,
        scores=result.scores.astype(np.float64),
        query_embeddings=encoded.embeddings,
        embeddings=tree.embeddings[any_position] * valid[:, :, None],
        features=computed,
        names=names,
        query_ids=encoded.query_ids,
    )
