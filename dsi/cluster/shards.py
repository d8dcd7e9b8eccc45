"""A shard: the documents below some neighbouring children of the root, which one process scores.

A shard maps the files of the index, and reads of them the parts of its documents; its share of the words is in memory. It
keeps the states of the index that somebody may still search, so that searches which began before an update end with the old
one. It walks no tree: a question brings the nodes below which it scores documents. Its numbers of nodes are those of the whole
tree. Imports nothing heavy, so that it is back soon after it died.
"""

import copy
import dataclasses
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.ram import keep_freed_memory
from dsi.docids.files.reading import read_record, read_while_unchanged
from dsi.docids.files.storage import content_fingerprint
from dsi.docids.token_vectors import TokenCodes, TokenVectors
from dsi.docids.tree import DocidTree
from dsi.docids.types import Bools, Floats, Ints, Rows
from dsi.docids.vectors import Vectors
from dsi.docids.words.bm25 import BM25
from dsi.docids.words.term_scores import Terms
from dsi.search.lists import ListedDocuments
from dsi.search.pools import AllDocuments, Pool, PoolSources
from dsi.search.scores import DocumentScores, Recalled

_NO_ROWS = np.zeros(0, dtype=np.int64)


class GenerationError(RuntimeError):
    """A shard does not hold the state of the index that a search needs."""


def shard_edges(tree: DocidTree, shards: int) -> Ints:
    """[shards + 1] docid positions at which the shards begin and the last one ends: about as many documents each.

    A shard is a range of neighbouring children of the root.
    """
    first, count = int(tree.first_child[0]), int(tree.num_children[0])
    if not 1 <= shards <= count:
        raise ValueError(
            f"shards must be from 1 to {count}, the number of children of the root of this index, got {shards}."
        )
    ends = np.arange(1, count + 1) if first >= tree.num_inner else tree.doc_end[first : first + count].astype(np.int64)
    edges, child = [0], 0
    for shard in range(1, shards):
        wished = shard * tree.num_places / shards
        candidates = slice(child, count - (shards - shard))  # at least one child for each of the others
        child += int(np.abs(ends[candidates] - wished).argmin()) + 1
        edges.append(int(ends[child - 1]))
    return np.array([*edges, tree.num_places])


@dataclasses.dataclass(frozen=True, eq=False)
class ShardDocuments:
    """The documents of a shard: those with a place in its range. All of their places belong to it, wherever they are."""

    positions: Rows  # [m] docid positions, ascending
    rows: Rows  # [n] rows of the document table, ascending

    @classmethod
    def from_tree(cls, tree: DocidTree, start: int, end: int) -> "ShardDocuments":
        """Return the documents with a place from position `start` to `end`."""
        doc_rows = tree.doc_rows[start:end]
        rows = np.unique(doc_rows[doc_rows >= 0]).astype(np.int64)
        positions = np.arange(start, end)
        if tree.most_places > 1:
            positions = np.union1d(positions, tree.places_of(rows)[0])
        return cls(positions, rows)

    @property
    def is_range(self) -> bool:
        """True if the positions are neighbours, so that arrays need not be copied."""
        return bool(self.positions[-1] - self.positions[0] + 1 == len(self.positions))

    def recalled(self, recalled: Recalled, queries: Sequence[int]) -> Recalled:
        """Return what earlier queries say of the documents of this share, by their rows in it, for some queries."""
        remembered = []
        for query in queries:
            rows, scores = recalled.remembered[query]
            at, held = self._places_of(rows)
            remembered.append((at, scores[held]))
        rows, held = self._places_of(recalled.rows)
        return Recalled(remembered, rows, *(array[list(queries)][:, held] for array in (recalled.by, recalled.means)))

    def _places_of(self, rows: Ints) -> tuple[Rows, Bools]:
        """Return the places of some rows [n] among those of this share, and which of them it has [n]."""
        at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        held = self.rows[at] == rows if len(self.rows) else np.zeros(len(rows), dtype=bool)
        return at[held], held

    def local(self, positions: Ints) -> Ints:
        """[n] the places among this share's of docid positions that belong to it."""
        return np.searchsorted(self.positions, positions)

    def cut(self, tree: DocidTree) -> DocidTree:
        """Return the tree with the documents of this share alone, numbered from 0; nodes keep their numbers."""
        doc_rows = tree.doc_rows[self.positions]
        doc_rows = np.where(doc_rows < 0, -1, np.searchsorted(self.rows, doc_rows)).astype(np.int32)
        start, end = (self.local(edge).astype(np.int32) for edge in (tree.doc_start, tree.doc_end))
        codes = None if tree.codes is None else self._vectors(tree.codes)
        tokens = None if tree.tokens is None else self._tokens(tree.tokens)
        fields: dict[str, Any] = {
            "doc_start": start,
            "doc_end": end,
            "doc_rows": doc_rows,
            "codes": codes,
            "tokens": tokens,
            "spans": None,  # the router has them
        }
        return dataclasses.replace(tree, embeddings=self._vectors(tree.embeddings), **fields)

    def _vectors(self, vectors: Vectors) -> Vectors:
        return Vectors((vectors.numbers(self._selection),), vectors.codec)

    def _tokens(self, tokens: TokenVectors) -> TokenVectors:
        (whole,) = tokens.parts
        if self.is_range:
            first, last = int(self.positions[0]), int(self.positions[-1]) + 1
            starts = whole.starts[first : last + 1]
            part = TokenCodes(whole.codes[starts[0] : starts[-1]], starts - starts[0])
        else:
            part = whole.gather(self.positions)
        return dataclasses.replace(tokens, parts=(part,), order=np.arange(len(self.positions), dtype=np.int32))

    @cached_property
    def _selection(self) -> "slice | Ints":
        return slice(int(self.positions[0]), int(self.positions[-1]) + 1) if self.is_range else self.positions


class Question(NamedTuple):
    """A batch of queries for one shard; everything but nodes is by the numbers that the shard gives its documents."""

    queries: Floats  # [batch, dim] vectors that score documents
    terms: list[Terms] | None  # [batch] of the lexical part; None if it takes no part
    lexical_weight: float  # of the lexical scores
    extra: Floats | None  # [batch, documents] the caller's scores of the shard's documents, or None
    # packed bits [places] of the docid positions that may be returned; None without a filter
    allowed: NDArray[np.uint8] | None
    most: int  # documents that each source contributes
    # [batch] normalised vectors of each query's tokens, where late interaction is computed; else None
    tokens: list[Floats] | None = None
    token_weight: float = 0.0  # of late interaction
    memory: Recalled | None = None  # what earlier queries say of documents; None if it takes no part
    shares: Floats | None = None  # [batch] weights of dense scores; None if all are 1


class ShardIndex:
    """The documents of one shard in one state of the index."""

    def __init__(self, folder: Path, manifest: dict[str, Any], number: int, shards: int) -> None:
        self.generation, self.sums = int(manifest["generation"]), document_sums(manifest)
        docids, lexical = (folder / manifest["parts"].get(part, part) for part in ("docids", "lexical"))
        tree = DocidTree.load(docids / "docids.safetensors")
        # The manifest lists the files that must be there: an update may have removed files of this state meanwhile.
        files = [folder / name for name in manifest["files"]]
        if docids / "tokens.safetensors" in files:
            tree = dataclasses.replace(tree, tokens=TokenVectors.load(docids / "tokens.safetensors", tree.num_places))
        edges = shard_edges(tree, shards)
        self.share = ShardDocuments.from_tree(tree, int(edges[number]), int(edges[number + 1]))
        self.tree = self.share.cut(tree)
        self.listed = None if tree.codes is None else ListedDocuments(self.tree, tree)
        self._scorer = None
        if any(file.parent == lexical for file in files):
            words = BM25.load(lexical, range(tree.num_rows))  # type: ignore[arg-type]  # only their number is read
            self._scorer = words.scorer.select(self.share.rows)
        self._occupied = self.tree.doc_rows >= 0 if self.tree.num_removed else None

    def _scores(self, question: Question) -> DocumentScores:
        return DocumentScores(
            self.tree,
            question.queries,
            None if question.terms is None else self._scorer,
            question.terms or (),
            question.lexical_weight,
            question.extra,
            question.tokens,
            question.token_weight,
            question.memory,
            question.shares,
        )

    def _allowed(self, question: Question) -> Bools | None:
        if question.allowed is None:
            return None
        return np.unpackbits(question.allowed, count=self.tree.num_places).astype(bool)

    def gather(self, question: Question, nodes: Sequence[Ints] | None) -> list[Pool]:
        """Return the documents that each source finds; without nodes all documents that may be returned."""
        scores, allowed, batch = self._scores(question), self._allowed(question), range(len(question.queries))
        sources = PoolSources(self.tree, lambda: self.listed, scores, question.most, allowed, self._occupied)
        if nodes is None:
            pools = sources.outright(batch, np.unique(self.tree.doc_rows[allowed]))
        else:
            pools = sources.gather(batch, nodes)
        if question.terms is not None:  # summed in the order of terms, so that equal documents of two shards are equal
            for row, pool in enumerate(pools):
                pool.parts[1] = scores.lexical_scores(row, self.tree.doc_rows[pool.positions])
        return self._placed(pools)

    def rescore(self, question: Question, pools: Sequence[tuple[Ints, Floats]]) -> list[tuple[Ints, Floats]]:
        """Return documents' best places and their scores with late interaction."""
        places = [self.share.local(positions) for positions, _ in pools]
        late = self._scores(question).late_interactions(range(len(pools)), places)
        return [(positions, plain + more) for (positions, plain), more in zip(pools, late, strict=True)]

    def best(self, question: Question, k: int) -> list[Pool]:
        """Return the best of all documents."""
        if not len(self.share.rows):  # all of them were removed
            nothing = Pool(_NO_ROWS, np.zeros((1, 0), dtype=np.float32), np.zeros(0, dtype=np.uint8))
            return [nothing] * len(question.queries)
        return self._placed(AllDocuments(self.tree, self._scores(question), self._allowed(question)).best(k))

    def _placed(self, pools: Iterable[Pool]) -> list[Pool]:
        return [pool._replace(positions=self.share.positions[pool.positions]) for pool in pools]


def document_sums(manifest: dict[str, Any]) -> dict[str, str]:
    """Return {file: sha256} of what a manifest lists of the documents."""
    folders = {manifest["parts"].get(part, part) for part in ("docids", "lexical")}
    return {name: digest for name, digest in manifest["files"].items() if name.split("/")[0] in folders}


class Shard:
    """A shard as the object of a worker; it loads the index when its status is read, not when it is made."""

    def __init__(self, folder: str, number: int, shards: int) -> None:
        self._folder, self._number, self._shards = Path(folder), number, shards
        self._born = f"{platform.node()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._states: dict[str, ShardIndex] = {}
        keep_freed_memory()

    def load(self, searched: Collection[str] = ()) -> tuple[str, dict[str, int]]:
        """Load the state of the index on disk, if it is another one, and keep of others those `searched`; return `status`."""
        path = self._folder / "manifest.json"

        def content() -> tuple[str, ShardIndex]:
            manifest = read_record(path)
            if "files" not in manifest:
                raise FileNotFoundError(
                    f"{self._folder} holds no index for a worker; all machines must see the same folder under this name."
                )
            state = content_fingerprint(manifest)
            held = next((index for index in self._states.values() if index.sums == document_sums(manifest)), None)
            if held is None:
                return state, ShardIndex(self._folder, manifest, self._number, self._shards)
            copied = copy.copy(held)  # the index has only learned
            copied.generation = int(manifest["generation"])
            return state, copied

        state, index = read_while_unchanged(path, content)
        kept = {name: held for name, held in self._states.items() if name in searched and name != state}
        self._states = {**kept, state: index}
        return self.status()

    def status(self) -> tuple[str, dict[str, int]]:
        """Return the name of this process, and {state of the index that it holds: generation}."""
        if not self._states:
            return self.load()
        return self._born, {state: index.generation for state, index in self._states.items()}

    def answer(self, method: str, state: str, *args: Any) -> Any:
        """Return the result of a method of the `ShardIndex` of a state of the index."""
        if state not in self._states:
            raise GenerationError(
                f"Shard {self._number} holds {', '.join(key[:8] for key in self._states)} of {self._folder}, the search needs "
                f"{state[:8]}; refresh the router or the folder of this worker."
            )
        return getattr(self._states[state], method)(*args)
