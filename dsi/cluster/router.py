"""A retriever whose documents are scored by shards: one walk, made here, and shards that score documents below its last nodes.

The router maps the same files as the shards, and reads of them the nodes of the tree, ids, titles and texts of hits; of the
vectors, words and tokens of documents it reads no more than the checks of loading do, and the vectors of the few documents
that earlier queries speak for. It merges the documents of the shards source by source, so an answer is that of one process.
An answer that misses a shard, which was late, is not exact, and says how many documents were searched.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dsi.cluster.backends import Closes
from dsi.cluster.fleet import Fleet
from dsi.cluster.shards import Question, ShardDocuments, shard_edges
from dsi.docids.files.reading import read_while_unchanged
from dsi.docids.files.storage import content_fingerprint
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.search.lists import cell_nodes
from dsi.search.pools import Pool, Sources
from dsi.search.request import SearchRequest
from dsi.search.results import EXTRA, WALK, WORDS, SearchResult, ShardError
from dsi.search.scores import DocumentScores
from dsi.search.top import highest_and_rest
from dsi.search.vector_search import VectorEngine
from dsi.search.walk import VectorWalk
from dsi.store.folder.loading import OnDisk, index_state, load_content, mapped_files
from dsi.store.folder.manifest import read_entries, search_config
from dsi.store.folder.writing import ChangedError, check_known, index_lock, write_update
from dsi.store.retriever import Retriever
from dsi.store.snapshot import Snapshot
from dsi.store.updating import Content, changed_parts

logger = logging.getLogger(__name__)

_MODELS = ("encoder", "generator")
"""Folders of an index whose files no update changes."""
_ATTEMPTS = 10
"""To load an index that others update meanwhile."""


class ShardedIndex(VectorEngine):
    """An engine whose documents are scored by shards.

    `lexical` reads the words of queries alone; `on_partial` is called after a search that missed a shard.
    """

    def __init__(
        self,
        tree: DocidTree,
        lexical: BM25 | None,
        fleet: Fleet,
        state: str,
        on_partial: Callable[[], object],
        memory: QueryMemory | None = None,
    ) -> None:
        super().__init__(tree, lexical, memory)
        self.fleet, self.state, self.on_partial = fleet, state, on_partial
        self._held = fleet.hold(state)  # copies of this engine share it
        self.edges = shard_edges(tree, len(fleet.replicas))
        self.shares = [ShardDocuments.from_tree(tree, *edge) for edge in zip(self.edges, self.edges[1:], strict=False)]

    def with_content(self, tree: DocidTree, lexical: BM25 | None, memory: QueryMemory) -> VectorEngine:  # type: ignore[override]
        """Return an engine of one process over updated documents, to be written: shards hold the index on disk."""
        return VectorEngine(tree, lexical, memory)

    @cached_property
    def walk(self) -> VectorWalk:
        """The walk down the tree; in a large index it ends where the shards have lists."""
        ends = self.tree.first_child >= self.tree.num_inner
        if self.tree.codes is not None:
            ends = ends.copy()
            ends[cell_nodes(self.tree)] = True
        return VectorWalk(self.tree, ends)

    def sources(self, scores: DocumentScores, request: SearchRequest, count: int) -> "_ShardedSources":
        """As in `VectorEngine`."""
        return _ShardedSources(self, scores, request, count)


class _ShardedSources(Sources):
    """Has the documents of one batch scored by the shards, and remembers which did not answer."""

    def __init__(self, index: ShardedIndex, scores: DocumentScores, request: SearchRequest, count: int) -> None:
        self.index, self.scores, self.request, self.count = index, scores, request, count
        self._missing = np.zeros((len(scores.queries), len(index.shares)), dtype=bool)

    def question(self, shard: int, rows: Sequence[int], *, tokens: bool) -> Question:
        """Return some queries as a shard needs them."""
        scores, share, allowed = self.scores, self.index.shares[shard], self.request.allowed
        return Question(
            scores.queries[list(rows)],
            None if scores.lexical is None else [scores.terms[row] for row in rows],
            float(scores.weight),
            None if scores.extra is None else scores.extra[np.ix_(np.array(rows), share.rows)],
            None if allowed is None else np.packbits(allowed[share.positions]),
            self.count,
            [scores.tokens[row] for row in rows] if tokens and scores.tokens is not None else None,
            float(scores.token_weight),
            None if scores.recalled is None else share.recalled(scores.recalled, rows),
            None if scores.shares is None else scores.shares[list(rows)],
        )

    def ask(self, method: str, rows_of: Mapping[int, Sequence[int]], further: Mapping[int, Any]) -> dict[int, Any]:
        """Return {shard: answer} to {shard: rows of the queries} and {shard: the second argument of the method}.

        Queries for which an answer is missing are noted; such a shard is not asked again.
        """
        fleet, lost = self.index.fleet, set(np.flatnonzero(self._missing.any(axis=0)).tolist())
        questions = {
            shard: (self.question(shard, rows, tokens=method != "gather"), further[shard])
            for shard, rows in rows_of.items()
            if shard not in lost
        }
        size = max(map(len, rows_of.values()), default=0)
        answers = fleet.ask(method, self.index.state, questions, size.bit_length())
        for shard in rows_of.keys() - answers.keys():
            self._missing[list(rows_of[shard]), shard] = True
        if fleet.require_all and (missing := np.flatnonzero(self._missing.any(axis=0)).tolist()):
            raise ShardError(
                f"Shards {', '.join(map(str, missing))} did not answer within {fleet.timeout:g} s; try again later."
            )
        return answers

    def gathered(
        self, method: str, rows: Sequence[int], rows_of: Mapping[int, Sequence[int]], further: Mapping[int, Any]
    ) -> list[list[Pool]]:
        """Return for each of the rows the documents of each shard, shards in order; the other arguments are those of `ask`."""
        parts: dict[int, list[Pool]] = {row: [] for row in rows}
        for shard, answer in sorted(self.ask(method, rows_of, further).items()):
            for row, pool in zip(rows_of[shard], answer, strict=True):
                parts[row].append(pool)
        return list(parts.values())

    def mark(self, result: SearchResult) -> None:
        sizes = np.diff(self.index.edges) / self.index.tree.num_places
        partial = np.flatnonzero(self._missing.any(axis=1))
        for row in partial:
            result.missing[row] = np.flatnonzero(self._missing[row]).tolist()
            result.coverage[row] = max(0.0, 1.0 - float(sizes[self._missing[row]].sum()))
            result.exact[row] = False
        if len(partial):
            missing = np.flatnonzero(self._missing.any(axis=0)).tolist()
            self.index.fleet.count_partial(len(partial), float(result.coverage.min()), missing)
            self.index.on_partial()

    def outright(self, rows: Sequence[int], documents: Ints) -> list[Pool]:
        shards = [number for number, share in enumerate(self.index.shares) if np.isin(documents, share.rows).any()]
        parts = self.gathered("gather", rows, dict.fromkeys(shards, rows), dict.fromkeys(shards))
        return [merge(pools, self.index.tree) for pools in parts]

    def gather(self, rows: Sequence[int], nodes: Sequence[Ints]) -> list[Pool]:
        tree, needs_all = self.index.tree, self._needs_all
        owners = [  # the root, where documents are its children, lies in several shards
            (self._shards_of(tree.doc_start[ends]), self._shards_of(tree.doc_end[ends] - 1)) for ends in nodes
        ]
        rows_of, ends_of = dict[int, Sequence[int]](), dict[int, list[Ints]]()
        for shard in range(len(self.index.shares)):
            below = [ends[(low <= shard) & (shard <= high)] for ends, (low, high) in zip(nodes, owners, strict=True)]
            needed = [n for n, ends in enumerate(below) if needs_all or len(ends)]
            if needed:
                rows_of[shard], ends_of[shard] = [rows[n] for n in needed], [below[n] for n in needed]
        parts = self.gathered("gather", rows, rows_of, ends_of)
        return [merge(pools, tree, self.count, walked=len(ends) > 0) for pools, ends in zip(parts, nodes, strict=True)]

    @property
    def _needs_all(self) -> bool:
        """Whether documents come from elsewhere than the walk, so that all shards score some."""
        return self.scores.lexical is not None or self.scores.extra is not None or self.scores.recalled is not None

    def rescore(self, rows: Sequence[int], pools: Sequence[tuple[Ints, Floats]]) -> list[tuple[Ints, Floats]]:
        """As in `Sources`; a document whose shard does not answer scores -inf."""
        owners = [self._shards_of(positions) for positions, _ in pools]
        numbers, rows_of, parts_of = dict[int, list[int]](), dict[int, Sequence[int]](), dict[int, list[Any]]()
        for shard in range(len(self.index.shares)):
            asked = [n for n, at in enumerate(owners) if (at == shard).any()]
            if asked:
                numbers[shard], rows_of[shard] = asked, [rows[n] for n in asked]
                parts_of[shard] = [tuple(column[owners[n] == shard] for column in pools[n]) for n in asked]
        rescored = [(positions.copy(), np.full_like(scores, -np.inf)) for positions, scores in pools]
        for shard, answers in self.ask("rescore", rows_of, parts_of).items():
            for number, (positions, scores) in zip(numbers[shard], answers, strict=True):
                places = owners[number] == shard
                rescored[number][0][places], rescored[number][1][places] = positions, scores
        return rescored

    def best(self, k: int) -> Iterator[Pool]:
        rows, shards = range(len(self.scores.queries) if k else 0), range(len(self.index.shares) if k else 0)
        for pools in self.gathered("best", rows, dict.fromkeys(shards, rows), dict.fromkeys(shards, k)):
            yield merge(pools, self.index.tree)

    def _shards_of(self, positions: Ints) -> Ints:
        """[n] the shard of each of some docid positions."""
        return np.searchsorted(self.index.edges, positions, side="right") - 1


def merge(parts: Sequence[Pool], tree: DocidTree, count: int = 0, *, walked: bool = True) -> Pool:
    """Return the documents of all shards for one query as one process would: the best `count` of each source.

    `parts` come in the order of the shards; `count` 0 stands for all; `walked` says whether the walk of the query ended
    at any node.
    """
    if not parts:
        return Pool(np.zeros(0, dtype=np.int64), np.zeros((1, 0), np.float32), np.zeros(0, dtype=np.uint8), (np.inf,))
    positions, sources = (np.concatenate([part[field] for part in parts]) for field in (0, 2))
    values = np.concatenate([part.parts for part in parts], axis=1)
    if tree.most_places > 1:
        positions, values, sources = _once(tree.doc_rows[positions], positions, values, sources)
    cuts = [max(bounds) for bounds in zip(*(part.cuts for part in parts), strict=True)]
    if not walked:
        cuts[0] = np.inf
    if count:
        for number, bit in enumerate((WALK, WORDS, EXTRA)[: len(values)]):
            members = np.flatnonzero(sources & bit)
            if len(members) > count:
                if bit == WORDS:  # of equal ones those first in the document table are taken, as in one process
                    members = members[np.argsort(tree.doc_rows[positions[members]])]
                top, highest_left_out = highest_and_rest(values[number, members], count)
                sources[np.delete(members, top)] &= ~np.uint8(bit)
                cuts[number] = max(cuts[number], highest_left_out)
        is_kept = sources > 0
        positions, values, sources = positions[is_kept], values[:, is_kept], sources[is_kept]
    read, compared = sum(part.read for part in parts), sum(part.compared for part in parts)
    return Pool(positions, values, sources, tuple(cuts), read, compared)


def _once(rows: Ints, positions: Ints, values: Floats, sources: Ints) -> tuple[Ints, Floats, Ints]:
    """Return each document once, found by all that found it anywhere; in docid order."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    found_by = np.zeros(len(first), dtype=np.uint8)
    np.bitwise_or.at(found_by, inverse, sources)
    order = np.argsort(positions[first])
    return positions[first][order], values[:, first[order]], found_by[order]


class ShardedRetriever(Retriever, Closes):
    """An index whose documents are scored by the shards of a cluster; `serve_shards` makes it, and `close` ends the shards.

    All searches are those of `Retriever`. Hits say in `coverage` and `missing` whether all shards answered. A change such as
    `add` or `learn` writes the index on disk at once, and takes effect when every shard has loaded it.

    Args:
        held: the index on disk, as it was loaded.
        fleet: shards that have loaded it.
    """

    def __init__(self, held: OnDisk, fleet: Fleet) -> None:
        self.fleet, self._folder = fleet, held.folder
        self._changing, self._refreshing = threading.RLock(), threading.Lock()
        self._models, self._loading = _models(read_entries(held.folder / "manifest.json")), held.state
        super().__init__(self._sharded(held.snapshot, fleet.state), held)

    @property
    def state(self) -> str:
        """The `index_state` that the shards search."""
        engine = self._snapshot.engine
        assert isinstance(engine, ShardedIndex)
        return engine.state

    def _change(self, change: Callable[[Content], Content]) -> tuple[Content, Content]:
        """Change the content on disk, and return it before and after; searches use the new one when every shard has loaded it.

        Raises:
            ChangedError: the folder holds another index.
            ShardError: the index is written, and a shard cannot load it: searches see the old one until `refresh` succeeds.
        """
        with self._changing:
            with index_lock(self._folder):  # nobody else writes between the two
                self.refresh()
                before = self._snapshot.content
                content = change(before)
                if changed_parts(content, before):
                    check_known(self._folder, [self._loading])
                    write_update(self._folder, self._snapshot.changed(content), before)
            self.refresh()
        return before, content

    def refresh(self) -> None:
        """Serve the state of the index that is on disk: each shard loads it, one replica at a time, and then searches use it.

        Raises:
            ChangedError: the folder holds another index, with another encoder.
            ShardError: a shard cannot load it.
        """
        with self._changing:
            for attempt in range(_ATTEMPTS):
                try:
                    return self._load_from_disk()
                except ShardError:  # perhaps others have updated the index again
                    if attempt + 1 == _ATTEMPTS or index_state(self._folder) == self._loading:
                        raise
            return None

    def _load_from_disk(self) -> None:
        self._loading = index_state(self._folder)
        if self._loading == self.state:
            return
        path = self._folder / "manifest.json"

        def content() -> tuple[dict[str, Any], Content]:
            manifest = read_entries(path)
            if _models(manifest) != self._models:
                raise ChangedError(f"{self._folder} holds another index now, its encoder differs; serve it again.")
            return manifest, load_content(self._folder, manifest)

        manifest, loaded = read_while_unchanged(path, content)
        self._loading = state = content_fingerprint(manifest)
        self.fleet.load(state)
        with self._updating:
            self._mapped = mapped_files(self._folder)
            index, on_disk = self._sharded(self._snapshot.changed(loaded), state), search_config(manifest)
            is_new = index.search_config != self._saved[self._folder][1]  # assigned here, and not saved yet
            config = index.search_config if is_new else on_disk
            self._snapshot = replace(index, generation=manifest["generation"], search_config=config)
            self._remember(OnDisk(self._folder, state, replace(self._snapshot, search_config=on_disk)))
        logger.info("generation %d of %s is served by all shards", manifest["generation"], self._folder)

    def _refresh_soon(self) -> None:
        """Refresh beside the searches if the index on disk is another one, which may be all that shards still hold."""
        if index_state(self._folder) != self.state and self._refreshing.acquire(blocking=False):
            threading.Thread(target=self._refresh_once, name="cluster refresh", daemon=True).start()

    def _refresh_once(self) -> None:
        try:
            self.refresh()
        except (ChangedError, OSError, ShardError, ValueError) as error:
            logger.warning("%s", error)
        finally:
            self._refreshing.release()

    def _sharded(self, index: Snapshot, state: str) -> Snapshot:
        engine = ShardedIndex(index.tree, index.lexical, self.fleet, state, self._refresh_soon, index.memory)
        return replace(index, engine=engine)

    def close(self) -> None:
        """End the shards."""
        self.fleet.close()


def _models(manifest: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Return the settings of the encoder and the sums of the files of models, which an update does not change."""
    files = manifest["files"].items()
    return manifest["encoder"], {name: value for name, value in files if name.split("/")[0] in _MODELS}
