"""Search in an index without a generator, by methods that all rank by `DocumentScores`.

`WalkSearch`, "generate" for users, scores candidates: the best documents by their dense score below the last nodes of the walk
(`dsi.search.walk`), the best by words, those of the nearest earlier queries, and the best by the caller's scores. `Exact`
scores all documents. None knows folders or texts of documents.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dsi.docids.files.threads import one_thread
from dsi.docids.query_memory import Earlier, Spread
from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.vectors import LARGE
from dsi.search.engine import Engine, Followed, Method, count_documents, nodes_above
from dsi.search.lists import ListedDocuments
from dsi.search.pools import Pool, PoolSources, Sources
from dsi.search.queries import QueryBatch
from dsi.search.recall import learned_words, recall
from dsi.search.request import OF_A_GENERATOR, SearchConfig, SearchRequest
from dsi.search.results import SearchResult, Trace
from dsi.search.scores import DocumentScores, vector_weights
from dsi.search.top import highest_and_rest
from dsi.search.walk import NodeScores, Reached, VectorWalk

_OUTRIGHT = 1_000
"""If a filter lets at most this many documents through, all of them are scored."""
_NO_NODES = np.zeros(0, dtype=np.int64)


class VectorEngine(Engine):
    """What both methods read of an index without a generator."""

    has_generator = False

    def check(self, call: str, given: Mapping[str, Any], config: SearchConfig) -> None:
        """Raise ValueError if a call sets an option of a generator, or weighs a part that the index lacks; see `Engine`."""
        if unused := [name for name in OF_A_GENERATOR if name in given]:
            raise ValueError(
                f"{call}() does not use {unused[0]}: this index has no generator for it to weigh; leave it out, or train one "
                "(`--config digits`)."
            )
        super().check(call, given, config)
        lacking = {
            "lexical_weight": (self.lexical, 'no lexical part; use 0, or train with lexical.model = "bm25"'),
            "token_weight": (self.tree.tokens, "no token vectors; use 0, or train with tokens.bits = 2"),
        }
        for option, (part, remedy) in lacking.items():
            if given.get(option) and part is None:
                raise ValueError(f"{option} is {given[option]:g}, but this index has {remedy}.")

    def meaning(self, config: SearchConfig) -> str:
        """Return what the scores of nodes and documents are."""
        lexical = self.lexical if config.lexical_weight else None
        words = f" + {config.lexical_weight:.3g} {lexical.name}" if lexical else ""
        tokens = f" + {config.token_weight:.3g} tokens" if config.token_weight and self.tree.tokens is not None else ""
        memory = f" + {config.memory_weight:.3g} memory" if config.memory_weight and len(self.memory) else ""
        return f"score of a node = q.v + bonus, of a document = dense{words}{tokens}{memory}"

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods of search."""
        return {"generate": WalkSearch(self), "exact": Exact(self)}

    @cached_property
    def listed(self) -> ListedDocuments | None:
        """The inverted lists of a large index; None if documents are read below nodes."""
        is_large = self.tree.codes is not None or self.tree.num_places > LARGE
        return ListedDocuments(self.tree) if is_large else None

    @cached_property
    def walk(self) -> VectorWalk:
        """The walk down the tree."""
        return VectorWalk(self.tree, None if self.listed is None else self.listed.ends)

    def document_scores(self, batch: QueryBatch, request: SearchRequest) -> DocumentScores:
        """Return what scores documents."""
        words = self.lexical if request.config.lexical_weight else None
        recalled = None
        if (weight := request.config.memory_weight) and len(self.memory):
            read = vector_weights(batch, words)
            weights = np.float32(weight) * (np.ones(len(batch.texts), np.float32) if read is None else read)
            by_text = DocumentScores(self.tree, batch.embeddings)
            recalled = recall(self.memory, self.spread, words, by_text, batch.texts, weights)
        return DocumentScores.from_request(self.tree, self.lexical, batch, request, recalled)

    @cached_property
    def spread(self) -> Spread:
        """How the documents' vectors lie, by which the cosines of earlier queries are judged."""
        return Spread.from_tree(self.tree)

    def earlier(self, batch: QueryBatch, request: SearchRequest, row: int) -> tuple[list[Earlier], list[str]]:
        """Return the earlier queries that speak for a document, and their words; see `Engine`."""
        if not (request.config.memory_weight and len(self.memory)):
            return [], []
        nearest, words = self.memory.earlier(batch.embeddings[0], row), list[str]()
        if nearest and self.lexical is not None and request.config.lexical_weight:
            names, gains = learned_words(self.memory, self.lexical, batch.texts[0], np.array([row]))
            order = np.argsort(-gains[:, 0], kind="stable")
            words = [names[at] for at in order.tolist() if gains[at, 0] > 0]
        return nearest, words

    def sources(self, scores: DocumentScores, request: SearchRequest, count: int) -> Sources:
        """Return what scores documents, `count` from each source."""
        return PoolSources(self.tree, lambda: self.listed, scores, count, request.allowed, self.occupied)

    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored; a filter changes no score."""
        tree, scores = self.tree, self.document_scores(batch, request)
        positions = np.stack([scores.dense(query, doc_rows)[0] for query, doc_rows in enumerate(rows)])
        dense = moved = scores.dots(np.arange(len(positions)), positions)
        if scores.recalled is not None:  # what it moves counts as its part
            by_text = DocumentScores(tree, batch.embeddings, shares=scores.shares)
            dense = by_text.dots(np.arange(len(positions)), positions)
        parts = {"dense": dense}
        if scores.lexical is not None and self.lexical is not None:
            parts[self.lexical.name] = np.stack([scores.lexical_scores(*pair) for pair in enumerate(rows)])
        if scores.has_tokens:
            parts["tokens"] = np.stack(
                [scores.late_interaction(query, places) for query, places in enumerate(positions)]
            )
        if scores.recalled is not None:
            parts["memory"] = moved - dense + np.stack([scores.memory_scores(*pair) for pair in enumerate(rows)])
        if scores.extra is not None:
            parts["extra"] = np.take_along_axis(scores.extra, rows.astype(np.int64), axis=1)
        nodes = self._path_scores(NodeScores(self.walk, batch), positions)
        length = (tree.paths(positions.ravel())[1] >= 0).sum(axis=1).reshape(*positions.shape, 1)
        followed = Followed(positions, nodes, parts)
        np.put_along_axis(nodes, length - 1, followed.scores[:, :, None], axis=2)
        return followed

    def token_shares(
        self, batch: QueryBatch, request: SearchRequest, positions: Sequence[int]
    ) -> list[tuple[Ints, Floats]] | None:
        """Return what late interaction finds at docid positions; see `Engine`."""
        scores = DocumentScores.from_request(self.tree, self.lexical, batch, request)
        return [scores.token_shares(0, position) for position in positions] if scores.has_tokens else None

    def _path_scores(self, node_scores: NodeScores, positions: Ints) -> Floats:
        """[batch, n, depth] scores of the inner nodes on the paths to docid positions [batch, n]; NaN from the document on."""
        parents, _ = self.tree.paths(positions.ravel())
        parents = parents.reshape(*positions.shape, -1).astype(np.int64)
        scores = np.full(parents.shape, np.nan, dtype=np.float32)
        for level in range(parents.shape[2] - 1):
            nodes = parents[:, :, level + 1]
            values = node_scores.scores(level, np.arange(len(nodes)), nodes)
            scores[:, :, level] = np.where(nodes < 0, np.nan, values)
        return scores

    @cached_property
    def occupied(self) -> Bools | None:
        """[places] True at documents that were not removed; None if none was."""
        return self.tree.doc_rows >= 0 if self.tree.num_removed else None

    @cached_property
    def occupied_nodes(self) -> Bools | None:
        """[inner nodes] True at those above a document that was not removed; None if none was removed."""
        return None if self.occupied is None else nodes_above(self.tree, self.occupied)


class Exact(Method):
    """Scores all documents."""

    def __init__(self, engine: VectorEngine) -> None:
        self.tree, self.engine = engine.tree, engine

    def sources(self, batch: QueryBatch, request: SearchRequest, k: int) -> Sources:
        """Return what scores documents."""
        return self.engine.sources(self.engine.document_scores(batch, request), request, k)

    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k of all documents that may be returned."""
        k = min(request.k, count_documents(self.tree, request.allowed))
        sources, result = self.sources(batch, request, k), SearchResult.empty(len(batch.texts), k)
        for query, pool in enumerate(sources.best(k)):
            pool.put(result, query, k)
        sources.mark(result)
        if trace is not None:
            trace.add_documents(result.positions, result.scores, result.sources)
        return result


class DenseAndWords(Exact):
    """Scores all documents of an index with any docid tokens by dense and lexical scores: a baseline."""

    def __init__(self, engine: Engine) -> None:
        self.tree, self.lexical = engine.tree, engine.lexical

    def sources(self, batch: QueryBatch, request: SearchRequest, k: int) -> Sources:
        """Return what scores documents."""
        scores = DocumentScores.from_request(self.tree, self.lexical, batch._replace(shares_read=None), request)
        return PoolSources(self.tree, lambda: None, scores, k, request.allowed, None)


class WalkSearch(Method):
    """Walks down the tree, and scores the documents below the last nodes and the best by words."""

    def __init__(self, engine: VectorEngine) -> None:
        self.engine = engine

    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k documents that are found.

        A query for which fewer than k are found has its beam doubled, until there are k or nothing is pruned.
        """
        with one_thread():  # its products are small; so 2 threads answer in a third of the time
            return self._retrieve(batch, request, trace)

    def _retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None) -> SearchResult:
        search = _Search(self.engine, batch, request)
        result = SearchResult.empty(len(batch.texts), search.k)
        queries, width = list(range(len(batch.texts) if search.k else 0)), request.config.beam_width
        while queries:
            reached, pools = search.candidates(queries, width, trace)
            short = []
            for query, end, pool in zip(queries, reached, search.rescore(queries, pools), strict=True):
                search.put(result, query, end, pool)
                if trace is not None:
                    trace.add_documents(pool.positions[None], pool.scores[None], pool.sources[None])
                if end.pruned and len(pool.positions) < search.k:
                    short.append(query)
            queries = short
            width *= 2
        search.sources.mark(result)
        return result


class _Search:
    """A search for a batch of queries, among `documents` that may be returned: `k` of them, of `count` from each source.

    `few` are their rows in the document table if they are so few that all are scored; else None.
    """

    def __init__(self, engine: VectorEngine, batch: QueryBatch, request: SearchRequest) -> None:
        tree, allowed = engine.tree, request.allowed
        self.walk, self.node_scores = engine.walk, NodeScores(engine.walk, batch)
        self.scores = engine.document_scores(batch, request)
        self.documents = count_documents(tree, allowed)
        self.k, self.count = min(request.k, self.documents), min(request.pool, self.documents)
        self.alive = engine.occupied_nodes if allowed is None else nodes_above(tree, allowed)
        is_few = allowed is not None and self.documents <= _OUTRIGHT
        self.few = np.unique(tree.doc_rows[allowed]) if is_few else None
        self.sources = engine.sources(self.scores, request, self.count)

    def candidates(
        self, queries: Sequence[int], beam_width: int, trace: Trace | None
    ) -> tuple[Sequence[Reached], Sequence[Pool]]:
        """Return where the walks of some queries end, and their candidates."""
        if self.few is not None:
            return [Reached(_NO_NODES, pruned=False, read=0)] * len(queries), self.sources.outright(queries, self.few)
        if trace is not None:
            trace.levels, trace.beam_width = [], beam_width
        levels = None if trace is None else trace.levels
        reached = self.walk.descend(self.node_scores, queries, beam_width, self.alive, levels)
        return reached, self.sources.gather(queries, [end.nodes for end in reached])

    def rescore(self, queries: Sequence[int], pools: Sequence[Pool]) -> Sequence[Pool]:
        """Return the best of pools, their scores with late interaction; if few documents may be returned, all of them."""
        if not self.scores.has_tokens:
            return pools
        scores = [pool.scores for pool in pools]
        kept = [highest_and_rest(values, self.count if self.few is None else len(values)) for values in scores]
        chosen = [(p.positions[at], values[at]) for p, values, (at, _) in zip(pools, scores, kept, strict=True)]
        rescored = self.sources.rescore(queries, chosen)
        return [self._rescored(*parts) for parts in zip(queries, pools, kept, rescored, strict=True)]

    def _rescored(self, query: int, pool: Pool, kept: tuple[Ints, float], rescored: tuple[Ints, Floats]) -> Pool:
        (at, cut), (positions, scores) = kept, rescored
        order = np.argsort(positions)
        order = order[scores[order] > -np.inf]  # a shard may have died since
        bound = max(pool.bound, cut) + self.scores.most_by_tokens(query)
        return Pool(positions[order], scores[None, order], pool.sources[at][order], (bound,), pool.read, len(order))

    def put(self, result: SearchResult, query: int, reached: Reached, pool: Pool) -> None:
        """Put the answer of one query into a result."""
        pool.put(result, query, self.k)
        proven = not reached.pruned and result.scores[query, -1] >= pool.bound
        result.exact[query] = proven or len(pool.positions) == self.documents
        result.read[query] += reached.read
