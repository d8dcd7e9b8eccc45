"""What the index benchmark searches: an index with its test queries, given embeddings, or synthetic ones with words.

Both are written into a folder, from which a fresh process reads them: the tree with float32 embeddings, queries, BM25. Knows
nothing of the systems that are compared.

How the synthetic ones are made. Documents lie around centres in a hierarchy: there is a centre for every four documents, and
at each higher level a fourth as many. A centre is its parent plus a normal vector. Parents are drawn by a power law, so
clusters of every level differ in size. A document adds a normal vector of low rank, in directions that its cluster shares
with a 64th of all clusters (so that near documents lie in far clusters too), and one of full rank. All normal vectors have a
falling spectrum, rotated at random. A query is its document times 0.715 plus noise of both kinds; its words are five of the
document's.

The constants are set so that 100,000 documents of 384 dimensions are about as hard as the passages of Natural Questions under
all-MiniLM-L6-v2, by the figures of `hardness`: recall@10 in 1, 4 and 16 % of the documents is .72, .85 and .94 here, and .67,
.83 and .95 there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.reading import map_tensors, read_record
from dsi.docids.files.storage import save_tensors, scratch_array, write_json
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import VectorsConfig
from dsi.docids.words.bm25 import BM25, load_lexical

if TYPE_CHECKING:
    from dsi.docids.data.collection import Collection

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

QUERIES = 256
"""Of a synthetic collection."""
JUDGED_QUERIES = 1024
"""At most this many test queries of an index."""
LEXICAL_WEIGHT = 0.01
"""Of BM25 beside dense scores, unless the index has one."""
_PER_CENTRE, _BASES, _RANK = 4, 64, 12
_CENTRES, _LOW = 0.45, 0.3
"""Shares of a document's squared length that the centres and the directions of its cluster have."""
_SPECTRUM, _POWER = 0.65, 1.5
_LIKENESS, _QUERY_LOW = 0.715, 0.4
"""Of a query to its document; share of the directions of its cluster in its noise."""
_VOCABULARY, _FREQUENT = 200_000, 50
_BLOCK = 50_000


@dataclass(frozen=True, eq=False)
class Searched:
    """A collection that systems search; documents are numbered in docid order."""

    folder: Path  # where it lies, and what systems build of it
    tree: DocidTree
    queries: Floats  # [n, dim]
    texts: list[str]
    relevant: list[list[int]]  # for each query, the documents judged relevant; empty if there are no judgements
    lexical_weight: float  # of `lexical`
    seconds: float | None  # that building the tree took; None if it was there
    run: str | None  # folder of the index that it was taken from; None if it is synthetic

    @classmethod
    def load(cls, folder: Path) -> "Searched":
        """What `write` wrote."""
        tensors, facts = map_tensors(folder / "queries.safetensors"), read_record(folder / "facts.json")
        tree = DocidTree.load(folder / "docids.safetensors")
        return cls(folder, tree, np.array(tensors["queries"]), **facts)

    @property
    def lexical(self) -> BM25 | None:
        """BM25; None of embeddings alone."""
        return load_lexical(self.folder / "lexical", [""] * self.tree.num_places)


def write(
    folder: Path,
    tree: DocidTree,
    lexical: BM25 | None,
    queries: Floats,
    texts: Sequence[str],
    relevant: Sequence[Sequence[int]] = (),
    lexical_weight: float = LEXICAL_WEIGHT,
    seconds: float | None = None,
    run: Path | None = None,
) -> None:
    """Write a collection; `Searched` describes its parts. The facts come last: a folder with them is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(folder / "docids.safetensors")
    if lexical is not None:
        lexical.save(folder / "lexical")
    save_tensors({"queries": queries}, folder / "queries.safetensors")
    facts = {"texts": list(texts), "relevant": list(relevant), "lexical_weight": lexical_weight, "seconds": seconds}
    write_json(folder / "facts.json", {**facts, "run": None if run is None else str(run.resolve())})


def write_index(run: Path, data: "Collection", folder: Path, fewest: int) -> None:
    """A finished index of at least this many documents, and the test queries of its collection, encoded."""
    from dsi.store.retriever import load

    retriever = load(run, device="cpu")
    index = retriever.snapshot
    tree, lexical, encoder = index.tree, index.lexical, index.encoder
    if lexical is None or tree.num_removed or tree.most_places > 1 or tree.embeddings.dtype != np.float32:
        raise ValueError(
            f"{run} must have a lexical part, vectors of kind float32, one docid a document and no removed documents; train an "
            "index with lexical.model, vectors.kind and docids.pieces by default."
        )
    if tree.num_places < fewest:
        raise ValueError(f"{run} must have at least {fewest:,} documents, got {tree.num_places:,}.")
    texts = dict(list(data.query_texts("test").items())[:JUDGED_QUERIES])
    rows = index.documents.rows
    judged = [[doc_id for doc_id, grade in data.qrels["test"][query_id].items() if grade > 0] for query_id in texts]
    relevant = [[int(tree.positions[rows[doc_id]]) for doc_id in own if doc_id in rows] for own in judged]
    asked = encoder.encode(encoder.query_texts(list(texts.values())), "query")
    weight = retriever.search_config.lexical_weight or LEXICAL_WEIGHT
    write(folder, tree, lexical, asked, list(texts.values()), relevant, weight, run=run)


def write_synthetic(size: int, dim: int, folder: Path, seed: int = 0) -> None:
    """A synthetic collection, its tree included: that of `Config()`."""
    clouds = Clouds(size, dim, seed)
    points, (asked, rows) = clouds.documents, clouds.queries(QUERIES)
    words = Words(clouds.clusters, seed)
    texts = [words.query(int(row)) for row in rows]
    write_vectors(points, asked, folder, BM25([""] * size, words), texts)


def write_vectors(
    documents: Floats, queries: Floats, folder: Path, lexical: BM25 | None = None, texts: Sequence[str] = ()
) -> None:
    """Embeddings that are given, [n, dim] of documents and of queries, with their tree: that of `Config()`."""
    started = time.process_time()
    tree = build_tree(documents, DocidsConfig(), progress=True).stored_as(VectorsConfig())
    seconds = round(time.process_time() - started, 1)
    write(folder, tree, lexical, queries, texts or [""] * len(queries), seconds=seconds)


class Clouds:
    """Synthetic embeddings of unit length.

    They are written into `documents` [size, dim], a scratch file by default; `clusters` [size] is the number of the
    lowest centre of each.
    """

    def __init__(self, size: int, dim: int, seed: int, documents: NDArray[np.floating] | None = None) -> None:
        self._rng = rng = np.random.default_rng(seed)
        spectrum = np.arange(1, dim + 1) ** -_SPECTRUM
        rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        self._shape = (rotation * np.sqrt(spectrum / spectrum.sum())[:, None]).astype(np.float32)
        bases = [self._normal(_RANK) / np.sqrt(_RANK) for _ in range(_BASES)]
        self._bases, centres = np.stack(bases).astype(np.float32), self._hierarchy(size)
        # [size] number of the lowest centre of each
        self.clusters = (len(centres) * rng.random(size) ** _POWER).astype(np.int64)
        self.documents = scratch_array((size, dim), np.float32) if documents is None else documents  # [size, dim]
        for start in range(0, size, _BLOCK):
            own = self.clusters[start : start + _BLOCK]
            self.documents[start : start + _BLOCK] = self._around(centres[own], own, _LOW, 1 - _CENTRES - _LOW)

    def queries(self, count: int) -> tuple[Floats, Ints]:
        """Queries [count, dim], and the rows [count] of their documents."""
        rows, noise = self._rng.choice(len(self.documents), count), 1 - _LIKENESS**2
        near = np.float32(_LIKENESS) * self.documents[rows].astype(np.float32)
        return self._around(near, self.clusters[rows], noise * _QUERY_LOW, noise * (1 - _QUERY_LOW)), rows

    def _normal(self, count: int) -> Floats:
        return self._rng.standard_normal((count, len(self._shape)), dtype=np.float32) @ self._shape

    def _hierarchy(self, size: int) -> Floats:
        """The lowest centres [size / 4, dim]."""
        levels = [size // _PER_CENTRE]
        while levels[-1] >= 2 * _PER_CENTRE:
            levels.append(levels[-1] // _PER_CENTRE)
        scale, centres = np.float32(np.sqrt(_CENTRES / len(levels))), np.zeros((1, len(self._shape)), np.float32)
        for count in reversed(levels):
            parents = (len(centres) * self._rng.random(count) ** _POWER).astype(np.int64)
            below = np.empty((count, centres.shape[1]), np.float32)
            for start in range(0, count, _BLOCK):
                own = parents[start : start + _BLOCK]
                below[start : start + _BLOCK] = centres[own] + scale * self._normal(len(own))
            centres = below
        return centres

    def _around(self, places: Floats, clusters: Ints, low: float, full: float) -> Floats:
        """Points of unit length around places [n, dim], with noise in the directions of clusters [n], and in all."""
        points = places + np.float32(np.sqrt(full)) * self._normal(len(places))
        within = np.float32(np.sqrt(low)) * self._rng.standard_normal((len(places), _RANK), dtype=np.float32)
        for number, base in enumerate(self._bases):
            (own,) = np.nonzero(clusters % _BASES == number)
            points[own] += within[own] @ base
        found: Floats = points / np.linalg.norm(points, axis=1, keepdims=True)
        return found


class Words(Sequence[str]):
    """Texts of 8 to 40 words, made where they are read: half of them by Zipf's law, half the cluster's own."""

    def __init__(self, clusters: Ints, seed: int) -> None:
        self._clusters, self._seed = clusters, seed

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self._clusters)

    def __getitem__(self, rows: Any) -> Any:
        """Some text, or those of a slice."""
        if isinstance(rows, slice):
            return [self[row] for row in range(*rows.indices(len(self)))]
        return " ".join(self._of(rows))

    def query(self, row: int) -> str:
        """Five of a text's words."""
        words = self._of(row)
        return " ".join(words[:: max(len(words) // 5, 1)][:5])

    def _of(self, row: int) -> list[str]:
        rng = np.random.default_rng([self._seed, row])
        ranks = _FREQUENT * ((_VOCABULARY / _FREQUENT + 1) ** rng.random(rng.integers(8, 41)) - 1)  # Zipf-Mandelbrot
        words = ranks.astype(np.int64)
        words[1::2] = (self._clusters[row] * 7919 + words[1::2] % 40 * 104_729) % _VOCABULARY
        return [f"w{word}" for word in words]


def hardness(tree: DocidTree, queries: Floats, seed: int = 0) -> dict[str, float]:
    """How hard it is to find what is near: similarities, and recall@10 of faiss IVF by the share of documents in its lists."""
    sample = np.random.default_rng(seed).choice(tree.num_places, min(tree.num_places, 1000), replace=False)
    points, some = np.ascontiguousarray(tree.embeddings[:]), tree.embeddings[sample]
    near, found = faiss.knn(queries, points, 10, metric=faiss.METRIC_INNER_PRODUCT)
    around = faiss.knn(some[:256], points, 11, metric=faiss.METRIC_INNER_PRODUCT)[0]
    pairs = some @ some.T
    facts = {
        "query to nearest": near[:, 0].mean(),
        "query to tenth": near[:, -1].mean(),
        "document to nearest": around[:, 1].mean(),
        "document to tenth": around[:, -1].mean(),
        "two documents, deviation": pairs[~np.eye(len(pairs), dtype=bool)].std(),
    }
    lists: Any = faiss.Kmeans(
        points.shape[1], max(2, int(2 * len(points) ** 0.5)), niter=5, seed=1, max_points_per_centroid=48
    )
    lists.train(points)
    cells, order = lists.index.search(points, 1)[1][:, 0], (queries @ lists.centroids.T).argsort(axis=1)[:, ::-1]
    sizes = np.bincount(cells, minlength=lists.k)
    before = np.cumsum(sizes[order], axis=1) - sizes[order]  # [queries, lists] documents in the lists that go first
    before = np.take_along_axis(before, order.argsort(axis=1), axis=1)
    missed = np.take_along_axis(before, cells[found], axis=1) / len(points)
    return {
        **{name: round(float(value), 3) for name, value in facts.items()},
        **{f"recall@10 in {share:.0%}": round(float((missed < share).mean()), 3) for share in (0.01, 0.04, 0.16)},
    }
