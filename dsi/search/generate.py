"""The two methods of search in an index with tied docid tokens: "generate" and "exact". Both rank by `DocumentScores`.

"generate" takes candidates from two sources: documents below the last nodes of the walk (`dsi.search.walk`), the best by their
dense score, and the best by words. The caller's own scores, if there are any, are a third one. "exact" scores all documents.
Neither knows folders or texts of documents.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch

from dsi.docids.tree import DocidTree
from dsi.docids.vectors import LARGE
from dsi.docids.words.bm25 import Lexical
from dsi.generator.base import Generator
from dsi.generator.tied import TiedGenerator
from dsi.search.engine import FEATURE_TEMPERATURE, Engine, Followed, Method, QueryBatch, Siblings, count_documents
from dsi.search.lists import ListedDocuments
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import (
    EXTRA,
    WALK,
    WORDS,
    Bools,
    Floats,
    Ints,
    SearchResult,
    Trace,
    best,
    highest,
    highest_and_rest,
)
from dsi.search.scores import ROUNDING, DocumentScores
from dsi.search.walk import NodeScores, Reached, Walk, ranges

_OUTRIGHT = 1_000
"""If a filter lets at most this many documents through, all of them are scored."""
_FIRST = 128
"""Places that "exact" scores by late interaction at first; then twice as many each time."""
_OVERSAMPLED = 8
"""Oversampling factor of large indexes: candidates retrieved by their codes, then rescored by their vectors."""
_BLOCK = 2**24
"""Scores of all documents in memory at a time: 64 MB."""
_NO_NODES = np.zeros(0, dtype=np.int64)


class TiedIndex(Engine):
    """What both methods read of an index with tied tokens.

    Args:
        tree: the docids.
        generator: the weights of the level queries; not changed later.
        lexical: BM25 or learned sparse vectors of the documents; None if the index has neither.
    """

    is_tied = True

    def __init__(self, tree: DocidTree, generator: TiedGenerator, lexical: Lexical | None) -> None:
        self.tree, self.generator, self.lexical = tree, generator, lexical

    @classmethod
    def from_generator(
        cls, generator: Generator, tree: DocidTree, lexical: Lexical | None, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Return an engine that searches with a copy of a generator; see `Engine`."""
        assert isinstance(generator, TiedGenerator)
        generator = copy.deepcopy(generator).to(device).eval().requires_grad_(requires_grad=False)
        if generator.reads_states:
            generator.decoder.to(dtype)
        return cls(tree, generator, lexical)

    def with_content(self, tree: DocidTree, lexical: Lexical | None) -> Self:
        """Return an engine with the same generator over updated documents."""
        return type(self)(tree, self.generator, lexical)

    @cached_property
    def methods(self) -> Mapping[str, Method]:
        """The methods of search."""
        return {"generate": Generate(self), "exact": Exact(self)}

    @cached_property
    def listed(self) -> ListedDocuments | None:
        """The inverted lists of a large index; None if documents are read below nodes."""
        is_large = self.tree.codes is not None or self.tree.num_documents > LARGE
        return ListedDocuments(self.tree) if is_large else None

    @cached_property
    def walk(self) -> Walk:
        """The walk down the tree."""
        return Walk(self.tree, self.generator, None if self.listed is None else self.listed.ends)

    def document_scores(self, batch: QueryBatch, request: SearchRequest) -> DocumentScores:
        """Return what scores documents."""
        config = request.config
        extra = None if request.extra_scores is None else request.extra_scores[batch.rows.numpy()]
        lexical = self.lexical if config.lexical_weight else None
        words = None
        if config.token_weight and self.tree.tokens is not None:
            words = [batch.word_states(row) for row in range(len(batch.texts))]
        return DocumentScores(
            self.tree, batch.vectors, batch.texts, lexical, config.lexical_weight, extra, words, config.token_weight
        )

    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored; a filter changes no score."""
        tree, scores = self.tree, self.document_scores(batch, request)
        positions = np.stack([scores.dense(number, doc_rows)[0] for number, doc_rows in enumerate(rows)])
        if scores.has_tokens and tree.most_places > 1:
            zeros = np.zeros(positions.shape[1], dtype=np.float32)
            positions = np.stack([scores.rescore(row, places, zeros)[0] for row, places in enumerate(positions)])
        dense = np.stack([scores.dots(row, places) for row, places in enumerate(positions)])
        parts = {"dense": dense}
        if scores.lexical is not None:
            parts[scores.lexical.name] = np.stack([scores.lexical_scores(*pair) for pair in enumerate(rows)])
        if scores.has_tokens:
            parts["tokens"] = np.stack([scores.late_interaction(row, places) for row, places in enumerate(positions)])
        if scores.extra is not None:
            parts["extra"] = np.take_along_axis(scores.extra, rows.astype(np.int64), axis=1)
        nodes = self._path_scores(self.walk.node_scores(batch, request.config), positions)
        length = (tree.paths(positions.ravel())[1] >= 0).sum(axis=1).reshape(*positions.shape, 1)
        followed = Followed(positions, nodes, parts)
        np.put_along_axis(nodes, length - 1, followed.scores[:, :, None], axis=2)
        return followed

    def token_shares(
        self, batch: QueryBatch, request: SearchRequest, positions: Sequence[int]
    ) -> list[tuple[Ints, Floats]] | None:
        """Return what late interaction finds at docid positions; see `Engine`."""
        scores = self.document_scores(batch, request)
        return [scores.token_shares(0, position) for position in positions] if scores.has_tokens else None

    def _path_scores(self, node_scores: NodeScores, positions: Ints) -> Floats:
        """[batch, n, depth] scores of the inner nodes on the paths to docid positions [batch, n]; NaN from the document on."""
        parents, _ = self.tree.paths(positions.ravel())
        parents = parents.reshape(*positions.shape, -1)
        scores = np.full(parents.shape, np.nan, dtype=np.float32)
        for level in range(parents.shape[2] - 1):
            for row, nodes in enumerate(parents[:, :, level + 1]):
                inner = nodes >= 0
                scores[row, inner, level] = node_scores.scores(level, row, nodes[inner].astype(np.int64))
        return scores

    def siblings(self, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
        """Yield for each level the scores of the nodes on the paths to docids [batch, n], and of their siblings."""
        tree, occupied, vectors = self.tree, self.tree.doc_rows >= 0, batch.vectors
        scorers = [self.walk.node_scores(batch, SearchConfig(alpha=alpha)) for alpha in (1.0, 0.0)]
        parents, digits = (array.reshape(*positions.shape, -1) for array in tree.paths(positions.ravel()))
        for level, fan_out in enumerate(tree.fan_out):
            above = np.maximum(parents[:, :, level], 0)
            children = tree.first_child[above][:, :, None].astype(np.int64) + np.arange(fan_out)  # [batch, n, fan_out]
            exists = (np.arange(fan_out) < tree.num_children[above][:, :, None]) & (parents[:, :, level] >= 0)[
                :, :, None
            ]
            is_inner, documents = children < tree.num_inner, (children - tree.num_inner).clip(0, tree.num_documents - 1)
            exists &= is_inner | occupied[documents]
            scores = np.zeros((2, *children.shape), dtype=np.float32)  # by generator and by encoder
            for row, vector in enumerate(vectors):
                inner, leaf = exists[row] & is_inner[row], exists[row] & ~is_inner[row]
                scores[:, row, leaf] = tree.embeddings.take(documents[row][leaf]) @ vector
                if inner.any():
                    for own, scorer in zip(scores, scorers, strict=True):
                        own[row][inner] = scorer.scores(level, row, children[row][inner])
            generative, dense = scores / np.float32(FEATURE_TEMPERATURE)
            yield Siblings(generative, dense, exists, np.maximum(digits[:, :, level], 0))

    def alive(self, allowed: Bools | None) -> Bools | None:
        """[inner nodes] True at those above an allowed document; None if all documents are allowed."""
        if allowed is None:
            return None
        before = np.concatenate([[0], np.cumsum(allowed)])
        return np.asarray(before[self.tree.doc_end] > before[self.tree.doc_start])

    @cached_property
    def occupied(self) -> Bools | None:
        """[places] True at documents that were not removed; None if none was."""
        return self.tree.doc_rows >= 0 if self.tree.num_removed else None

    @cached_property
    def occupied_nodes(self) -> Bools | None:
        """[inner nodes] True at those above a document that was not removed; None if none was removed."""
        return self.alive(self.occupied)

    def ends_above(self) -> Ints:
        """[places] the node above each docid position at which walks end."""
        ends = np.empty(self.tree.num_documents, dtype=np.int64)
        for node in np.flatnonzero(self.walk.ends)[::-1]:  # of several, the highest
            ends[self.tree.doc_start[node] : self.tree.doc_end[node]] = node
        return ends


class Exact(Method):
    """Scores all documents.

    Args:
        index: the index that is searched.
    """

    def __init__(self, index: TiedIndex) -> None:
        self.index = index

    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k of all documents that may be returned."""
        scores, tree = self.index.document_scores(batch, request), self.index.tree
        k = min(request.k, count_documents(tree, request.allowed))
        result = SearchResult.empty(len(batch.texts), k)
        step = max(1, _BLOCK // tree.num_documents)
        for start in range(0, len(batch.texts) if k else 0, step):
            all_scores = scores.all(slice(start, start + step))
            if request.allowed is not None:
                all_scores[:, ~request.allowed] = -np.inf
            for row, place_scores in enumerate(all_scores, start=start):
                if scores.has_tokens:
                    place_scores = self._with_tokens(scores, row, place_scores, k)
                _Pool(*self._best(place_scores, k)).put(result, row, k)
                result.read[row] = tree.num_documents
        if trace is not None:
            trace.add_documents(result.positions, result.scores, result.sources)
        return result

    def _with_tokens(self, scores: DocumentScores, row: int, plain: Floats, k: int) -> Floats:
        """Return scores with late interaction [places], -inf for those that cannot reach the top k.

        Places are scored in the order of their scores without it, until the next one could not reach the top k.

        Args:
            scores: of the batch.
            row: of the query.
            plain: [places] scores without late interaction.
            k: documents to return.
        """
        order = np.argsort(-plain, kind="stable")
        order = order[: int((plain > -np.inf).sum())]
        total, end = np.full_like(plain, -np.inf), 0
        while end < len(order):
            start, end = end, min(len(order), max(_FIRST, 2 * end))
            places = order[start:end]
            total[places] = plain[places] + scores.late_interaction(row, places)
            _, top, _ = self._best(total, k)
            kth = np.partition(top, len(top) - k)[len(top) - k] if len(top) >= k else -np.inf
            if end < len(order) and plain[order[end]] + scores.most_by_tokens < kth - ROUNDING * abs(kth):
                break
        return total

    def _best(self, scores: Floats, k: int) -> tuple[Ints, Floats, Ints]:
        """Return the best place of at least the k best documents, given the scores of all places [places]."""
        positions = highest(scores, k * self.index.tree.most_places)
        if self.index.tree.most_places > 1:
            order = np.argsort(-scores[positions], kind="stable")
            _, first = np.unique(self.index.tree.doc_rows[positions[order]], return_index=True)
            positions = np.sort(positions[order[first]])
        positions = positions[scores[positions] > -np.inf]
        return positions, scores[positions], np.zeros(len(positions), dtype=np.uint8)


@dataclass(frozen=True)
class _Pool:
    """Documents that were scored completely, in docid order.

    Attributes:
        positions: [n] docid positions, each the best place of its document.
        scores: [n] document scores.
        sources: [n] what found them: `WALK`, `WORDS`, `EXTRA` or a sum of them.
        bound: of the scores of documents that were reached, and are not here.
        read: how many document vectors were scored.
    """

    positions: Ints
    scores: Floats
    sources: Ints
    bound: float = -np.inf
    read: int = 0

    def put(self, result: SearchResult, row: int, k: int) -> None:
        """Put the k best documents into a row of a result."""
        order = best(self.scores, k)
        ranks = slice(0, len(order))
        result.positions[row, ranks], result.scores[row, ranks] = self.positions[order], self.scores[order]
        result.sources[row, ranks], result.read[row] = self.sources[order], self.read


class Generate(Method):
    """Walks down the tree, and scores the documents below the last nodes and the best by words.

    Args:
        index: the index that is searched.
    """

    def __init__(self, index: TiedIndex) -> None:
        self.index = index

    def retrieve(
        self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None, *, walks: bool = True
    ) -> SearchResult:
        """Return the top k documents that are found.

        A query for which fewer than k are found has its beam doubled, until there are k or nothing is pruned.

        Args:
            batch: the queries.
            request: the options of the search.
            trace: if not None, receives how the search came about; for one query.
            walks: False takes candidates by words and extra_scores alone, a control for measurements.
        """
        search = _Search(self.index, batch, request)
        result = SearchResult.empty(len(batch.texts), search.k)
        rows, width = list(range(len(batch.texts) if search.k else 0)), request.config.beam_width
        while rows:
            if search.few is not None:
                reached = [Reached(_NO_NODES, pruned=False, read=0)] * len(rows)
                pools = [search.outright(row) for row in rows]
            elif walks:
                reached = search.walk(rows, width, trace)
                pools = search.pools(rows, [end.nodes for end in reached])
            else:
                reached = [Reached(_NO_NODES, pruned=True, read=0)] * len(rows)
                pools = search.pools(rows, [_NO_NODES] * len(rows))
            pools = [search.rescore(row, pool) for row, pool in zip(rows, pools, strict=True)]
            short = []
            for row, end, pool in zip(rows, reached, pools, strict=True):
                search.put(result, row, end, pool)
                if trace is not None:
                    trace.add_documents(pool.positions[None], pool.scores[None], pool.sources[None])
                if walks and end.pruned and len(pool.positions) < search.k:
                    short.append(row)
            rows = short
            width *= 2
        return result


class _Search:
    """A search for a batch of queries.

    Args:
        index: the index that is searched.
        batch: the queries.
        request: the options of the search.

    Attributes:
        documents: how many may be returned.
        k: documents per query: fewer if fewer may be returned.
        count: documents that each source contributes.
        few: rows of the document table that may be returned, if they are so few that all are scored; else None.
    """

    def __init__(self, index: TiedIndex, batch: QueryBatch, request: SearchRequest) -> None:
        self.index, self.tree, self.request = index, index.tree, request
        self.scores = index.document_scores(batch, request)
        self.node_scores = index.walk.node_scores(batch, request.config)
        allowed = request.allowed
        self.documents = count_documents(index.tree, allowed)
        self.k, self.count = min(request.k, self.documents), min(request.pool, self.documents)
        self.few, self._allowed_rows = None, None
        if allowed is None:
            self._allowed, self._alive = index.occupied, index.occupied_nodes
            return
        self._allowed, self._alive = allowed, index.alive(allowed)
        self._allowed_rows = np.zeros(self.tree.num_rows, dtype=bool)
        self._allowed_rows[self.tree.doc_rows[allowed]] = True
        if self.documents <= _OUTRIGHT:
            self.few = np.flatnonzero(self._allowed_rows)

    def outright(self, row: int) -> _Pool:
        """Return the few documents that may be returned."""
        assert self.few is not None
        positions, dense = self.scores.dense(row, self.few)
        total = dense + self.scores.lexical_scores(row, self.few) + self.scores.extra_scores(row, self.few)
        order = np.argsort(positions)
        sources = np.zeros(len(order), dtype=np.uint8)
        return _Pool(positions[order], total[order], sources, read=len(order))

    def walk(self, rows: Sequence[int], beam_width: int, trace: Trace | None) -> list[Reached]:
        """Return where the walks of some queries end."""
        steps = None
        if trace is not None:
            steps = trace.levels = []
            trace.beam_width = beam_width
        descend = self.index.walk.descend
        return [descend(self.node_scores, row, beam_width, self._alive, steps) for row in rows]

    def rescore(self, row: int, pool: _Pool) -> _Pool:
        """Return the best of a pool, their scores with late interaction; if few documents may be returned, all of them."""
        if not self.scores.has_tokens or not len(pool.positions):
            return pool
        kept, cut = highest_and_rest(pool.scores, self.count if self.few is None else len(pool.scores))
        positions, scores = self.scores.rescore(row, pool.positions[kept], pool.scores[kept])
        order = np.argsort(positions)
        bound = max(pool.bound, cut) + self.scores.most_by_tokens
        return _Pool(positions[order], scores[order], pool.sources[kept][order], bound, pool.read)

    def put(self, result: SearchResult, row: int, reached: Reached, pool: _Pool) -> None:
        """Put the answer of one query into a result."""
        pool.put(result, row, self.k)
        proven = not reached.pruned and result.scores[row, -1] >= pool.bound
        result.exact[row] = proven or len(pool.positions) == self.documents
        result.read[row] += reached.read

    def pools(self, rows: Sequence[int], nodes: Sequence[Ints]) -> list[_Pool]:
        """Return for some queries the documents that are scored completely."""
        listed, tree = self.index.listed, self.tree
        below: Sequence[Ints]
        if listed is None:
            below = [ranges(tree.doc_start[ends], tree.doc_end[ends] - tree.doc_start[ends]) for ends in nodes]
        else:
            oversampled = _OVERSAMPLED * self.count * tree.most_places
            below = listed.below(self.scores.queries[list(rows)], nodes, oversampled, self._allowed)
        return [self.pool(*walked) for walked in zip(rows, nodes, below, strict=True)]

    def pool(self, row: int, nodes: Ints, below: Ints) -> _Pool:
        """Return the documents that are scored completely: the best below nodes, by words, and by extra_scores.

        Args:
            row: of the query.
            nodes: [n] where its walk ended.
            below: [m] docid positions of documents below these nodes, or of the best by their codes.
        """
        scores, count, tree = self.scores, self.count, self.tree
        positions, dense, cut, read = self._best_below(row, nodes, below)
        if scores.lexical is None and scores.extra is None:
            return _Pool(positions, dense, np.full(len(positions), WALK, dtype=np.uint8), cut, read)
        rows = tree.doc_rows[positions]
        extra_rows, extra_cut = scores.best_by_extra(row, count, self._allowed_rows)
        word_rows, word_scores, rest, known = scores.best_by_words(
            row, count, self._allowed_rows, np.concatenate([rows, extra_rows])
        )
        other_rows = np.concatenate([word_rows, extra_rows])
        other_positions, other_dense = scores.dense(row, other_rows)
        positions = np.concatenate([positions, other_positions])
        lexical = np.concatenate([known[: len(rows)], word_scores, known[len(rows) :]])
        all_rows = np.concatenate([rows, other_rows])
        total = np.concatenate([dense, other_dense]) + lexical + scores.extra_scores(row, all_rows)
        bits = np.repeat([WALK, WORDS, EXTRA], [len(rows), len(word_rows), len(extra_rows)])
        # By document, not by place: rounding may have chosen another of two equal places.
        _, first, inverse = np.unique(all_rows, return_index=True, return_inverse=True)
        sources = np.bincount(inverse, bits).astype(np.uint8)  # no source has a document twice
        bound = cut + rest + extra_cut if extra_cut > -np.inf else -np.inf
        order = np.argsort(positions[first])
        kept = first[order]
        return _Pool(positions[kept], total[kept], sources[order], bound, read + len(kept) - len(rows))

    def _best_below(self, row: int, nodes: Ints, positions: Ints) -> tuple[Ints, Floats, float, int]:
        """Return the best documents below nodes by dense score.

        Returns:
            positions [n] in docid order; dense scores [n]; the highest one of a document below that is not among them, -inf if
            all are; how many were scored.
        """
        tree, scores, count = self.tree, self.scores, self.count
        if not len(nodes):
            return _NO_NODES, np.zeros(0, dtype=np.float32), np.inf, 0
        if self._allowed is not None:
            positions = positions[self._allowed[positions]]
        dense, read = scores.dots(row, positions), len(positions)
        if tree.most_places > 1:
            rows = tree.doc_rows[positions[best(dense, (count + 1) * tree.most_places)]]
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]  # of the best places, each document once
            positions, dense = scores.dense(row, rows)
            order = np.argsort(positions)
            positions, dense = positions[order], dense[order]
        cut = -np.inf
        if len(positions) > count:
            kept, cut = highest_and_rest(dense, count)
            positions, dense = positions[kept], dense[kept]
        if self.index.listed is not None:
            size = int((tree.doc_end[nodes] - tree.doc_start[nodes]).sum())
            cut, read = (np.inf, size) if read < size else (cut, read)  # the others were scored by their codes only
        return positions, dense, cut, read


class WordsOnly(Method):
    """The best by words alone, ranked by the document score: a control, to measure what the walk earns.

    Args:
        index: the index that is searched.
    """

    def __init__(self, index: TiedIndex) -> None:
        self.generate = Generate(index)

    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k of the documents that words find."""
        return self.generate.retrieve(batch, request, trace, walks=False)
