"""The two methods of search in an index with tied docid tokens: "generate" and "exact". Both rank by `DocumentScores`.

"generate" takes candidates from two sources: documents below the last nodes of the walk (`dsi.search.walk`), the best by their
dense score, and the best by words. The caller's own scores, if there are any, are a third one. "exact" scores all documents.
Neither knows folders or texts of documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from docids.tree import DocidTree
from docids.vectors import LARGE
from docids.words.bm25 import Lexical
from dsi.generator.tied import TiedGenerator
from dsi.search.engine import DigitScores, Engine, Followed, Method, Siblings, count_documents
from dsi.search.lists import ListedDocuments
from dsi.search.queries import QueryBatch
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
from dsi.search.walk import Level, Levels, Reached, Walk, ranges
from dsi.trees.bonus import SIZE_WEIGHT, bonuses

_OUTRIGHT = 1_000
"""If a filter lets at most this many documents through, all of them are scored."""
_FIRST = 128
"""Places that "exact" scores by late interaction at first; then twice as many each time."""
_OVERSAMPLED = 8
"""Oversampling factor of large indexes: candidates retrieved by their codes, then rescored by their vectors."""
_BLOCK = 2**24
"""Scores of all documents in memory at a time: 64 MB."""
_KEPT = 32_768
"""Levels of up to this many nodes are kept as floats, with the generator's map of the level applied to them."""
_TEMPERATURE = np.float32(0.05)
"""Of softmaxes over siblings, which features of rerankers read; search has none."""
_NO_NODES = np.zeros(0, dtype=np.int64)


class TiedIndex(Engine):
    """What both methods read of an index with tied tokens.

    Args:
        tree: the docids.
        generator: the weights of the level queries and of the query map.
        lexical: BM25 or learned sparse vectors of the documents; None if the index has neither.
    """

    def __init__(self, tree: DocidTree, generator: TiedGenerator, lexical: Lexical | None) -> None:
        self.tree, self.generator, self.lexical = tree, generator, lexical
        self.reads_states = generator.reads_states
        self._node_vectors: dict[tuple[int, float], Floats] = {}
        self._bonus: dict[tuple[int, float], Floats] = {}

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
        return Walk(self.tree, None if self.listed is None else self.listed.ends)

    @cached_property
    def bonus(self) -> Floats:
        """[inner nodes] what the size weight multiplies."""
        return bonuses(self.tree)

    def levels(self, batch: QueryBatch, config: SearchConfig) -> "MixedLevels":
        """Return what scores the nodes of each level."""
        return MixedLevels(self, batch, config)

    def node_vectors(self, level: int, alpha: float) -> Floats | None:
        """[nodes, dim] v + alpha A_l' v of the nodes chosen at a level, which z scores as z + alpha A_l z scores v.

        None if the level is too large to be kept.
        """
        nodes = self.tree.levels[level + 1]
        if nodes.stop - nodes.start > _KEPT:
            return None
        found = self._node_vectors.get((level, alpha))
        if found is None:
            found = self.tree.centroids[nodes]
            if alpha:
                found = found + np.float32(alpha) * (found @ self.generator.map_array(level))
            self._node_vectors[level, alpha] = found
        return found

    def bonus_of(self, level: int, alpha: float) -> Floats:
        """[nodes] the weighted bonus of the nodes chosen at a level; its weight is mixed by alpha too."""
        found = self._bonus.get((level, alpha))
        if found is None:
            weight = SIZE_WEIGHT + alpha * (self.generator.size_weight(level) - SIZE_WEIGHT)
            found = self._bonus[level, alpha] = np.float32(weight) * self.bonus[self.tree.levels[level + 1]]
        return found

    def document_scores(self, batch: QueryBatch, request: SearchRequest) -> DocumentScores:
        """Return what scores documents."""
        config = request.config
        extra = None if request.extra_scores is None else request.extra_scores[batch.rows.numpy()]
        lexical = self.lexical if config.lexical_weight else None
        queries = batch.vectors
        if config.query_map_weight:
            queries = queries + self.query_map(batch, config)
        words = None
        if config.token_weight and self.tree.tokens is not None:
            words = [batch.word_states(row) for row in range(len(batch.texts))]
        return DocumentScores(
            self.tree, queries, batch.texts, lexical, config.lexical_weight, extra, words, config.token_weight
        )

    def query_map(self, batch: QueryBatch, config: SearchConfig) -> Floats:
        """[batch, dim] m M z, what the learned map adds to the queries that score documents."""
        if not config.query_map_weight:
            return np.zeros_like(batch.vectors)
        return np.float32(config.query_map_weight) * (batch.vectors @ self.generator.query_map_array.T)

    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored; a filter changes no score."""
        tree, scores = self.tree, self.document_scores(batch, request)
        positions = np.stack([scores.dense(row, own)[0] for row, own in enumerate(rows)])
        if scores.has_tokens:
            zeros = np.zeros(positions.shape[1], dtype=np.float32)
            positions = np.stack([scores.rescore(row, own, zeros)[0] for row, own in enumerate(positions)])
        dense = np.stack([scores.dots(row, own) for row, own in enumerate(positions)])
        parts = {"dense": dense}
        if request.config.query_map_weight:
            mapped = tree.embeddings.products_of(self.query_map(batch, request.config), positions)
            parts = {"dense": dense - mapped, "query map": mapped}
        if scores.lexical is not None:
            parts[scores.lexical.name] = np.stack([scores.lexical_of(*pair) for pair in enumerate(rows)])
        if scores.has_tokens:
            parts["tokens"] = np.stack([scores.late_interaction(row, own) for row, own in enumerate(positions)])
        if scores.extra is not None:
            parts["extra"] = np.take_along_axis(scores.extra, rows.astype(np.int64), axis=1)
        nodes = self._path_scores(self.levels(batch, request.config), positions)
        length = (tree.paths(positions.ravel())[1] >= 0).sum(axis=1).reshape(*positions.shape, 1)
        found = Followed(positions, nodes, parts)
        np.put_along_axis(nodes, length - 1, found.scores[:, :, None], axis=2)
        return found

    def _path_scores(self, levels: Levels, positions: Ints) -> Floats:
        """[batch, n, depth] scores of the inner nodes on the paths to docid positions [batch, n]; NaN from the document on."""
        parents, _ = self.tree.paths(positions.ravel())
        parents = parents.reshape(*positions.shape, -1)
        found = np.full(parents.shape, np.nan, dtype=np.float32)
        for level in range(parents.shape[2] - 1):
            for row, nodes in enumerate(parents[:, :, level + 1]):
                inner = nodes >= 0
                found[row, inner, level] = levels.scores(level, row, nodes[inner].astype(np.int64))
        return found

    def digit_scores(self, batch: QueryBatch, positions: Ints) -> DigitScores:
        """Return log-probabilities of the digits of docids [batch, n], from softmaxes over siblings."""
        return DigitScores.from_siblings(list(self._siblings(batch, positions)))

    def _siblings(self, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
        """Yield for each level the scores of the nodes on the paths and their siblings, by generator and by encoder."""
        tree, there = self.tree, self.tree.doc_rows >= 0
        kinds = [self.levels(batch, SearchConfig(alpha=alpha)) for alpha in (1.0, 0.0)]
        parents, digits = (each.reshape(*positions.shape, -1) for each in tree.paths(positions.ravel()))
        for level, fan_out in enumerate(tree.fan_out):
            above = np.maximum(parents[:, :, level], 0)
            children = tree.first_child[above][:, :, None].astype(np.int64) + np.arange(fan_out)  # [batch, n, fan_out]
            valid = (np.arange(fan_out) < tree.num_children[above][:, :, None]) & (parents[:, :, level] >= 0)[
                :, :, None
            ]
            documents = (children - tree.num_inner).clip(0, tree.num_documents - 1)
            valid &= (children < tree.num_inner) | there[documents]
            found = []
            for levels in kinds:
                scores = np.zeros(children.shape, dtype=np.float32)
                for row in range(len(positions)):
                    inner, leaf = (valid[row] & (side := children[row] < tree.num_inner)), valid[row] & ~side
                    if inner.any():
                        scores[row][inner] = levels.scores(level, row, children[row][inner])
                    scores[row][leaf] = tree.embeddings.take(documents[row][leaf]) @ batch.vectors[row]
                found.append(scores / _TEMPERATURE)
            yield Siblings(found[0], found[1], valid, np.maximum(digits[:, :, level], 0))

    def alive(self, allowed: Bools | None) -> Bools | None:
        """[inner nodes] True where an allowed document lies below; None if all are."""
        if allowed is None:
            return None
        before = np.concatenate([[0], np.cumsum(allowed)])
        return np.asarray(before[self.tree.doc_end] > before[self.tree.doc_start])

    @cached_property
    def there(self) -> Bools | None:
        """[places] True at documents that were not removed; None if none was."""
        return self.tree.doc_rows >= 0 if self.tree.num_removed else None

    @cached_property
    def nodes_there(self) -> Bools | None:
        """[inner nodes] True where a document that was not removed lies below; None if none was removed."""
        return self.alive(self.there)

    def ends_above(self) -> Ints:
        """[places] the node above each docid position at which walks end."""
        found = np.empty(self.tree.num_documents, dtype=np.int64)
        for node in np.flatnonzero(self.walk.ends)[::-1]:  # of several, the highest
            found[self.tree.doc_start[node] : self.tree.doc_end[node]] = node
        return found


class MixedLevels(Levels):
    """Scores of nodes by encoder and generator: (1 - alpha) z + alpha q_l for levels below beta, q_l from there on.

    Args:
        index: what is searched.
        batch: the queries.
        config: alpha and beta.
    """

    def __init__(self, index: TiedIndex, batch: QueryBatch, config: SearchConfig) -> None:
        super().__init__(index.tree, len(batch.texts))
        self.index, self.queries, self.config = index, batch, config
        self._vectors = batch.vectors

    def level(self, level: int) -> Level:
        """Return what scores the nodes that are chosen at a level."""
        index, z = self.index, self._vectors
        alpha = self.config.alpha if level < self.config.beta else 1.0
        bonus = index.bonus_of(level, alpha)
        if alpha and index.reads_states:
            mixed = z + np.float32(alpha) * (self._outputs[:, index.generator.row_of(level)] - z)
            return Level(mixed, index.node_vectors(level, 0.0), bonus)
        vectors = index.node_vectors(level, alpha)
        if vectors is None and alpha:
            z = z + np.float32(alpha) * (z @ index.generator.map_array(level).T)
        return Level(z, vectors, bonus)

    @cached_property
    def _outputs(self) -> Floats:
        """[batch, depth, dim] the queries of a generator with a decoder."""
        queries = self.queries
        return self.index.generator.level_queries(queries.embeddings, queries.states, queries.mask)


class Exact(Method):
    """Scores all documents.

    Args:
        index: what is searched.
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
            every = scores.all(slice(start, start + step))
            if request.allowed is not None:
                every[:, ~request.allowed] = -np.inf
            for row, own in enumerate(every, start=start):
                if scores.has_tokens:
                    own, result.rescored[row] = self._with_tokens(scores, row, own, k)
                _put(result, row, _Pool(*self._best(own, k)), k)
                result.read[row] = tree.num_documents
        if trace is not None:
            trace.show(result.positions, result.scores, result.sources)
        return result

    def _with_tokens(self, scores: DocumentScores, row: int, plain: Floats, k: int) -> tuple[Floats, int]:
        """Return scores with late interaction [places], -inf for those that cannot reach the top k, and how many were scored.

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
            _, best, _ = self._best(total, k)
            kth = np.partition(best, len(best) - k)[len(best) - k] if len(best) >= k else -np.inf
            if end < len(order) and plain[order[end]] + scores.most_by_tokens < kth - ROUNDING * abs(kth):
                break
        return total, end

    def _best(self, scores: Floats, k: int) -> tuple[Ints, Floats, Ints]:
        """Return the best place of at least the k best documents, given the scores of all places [places]."""
        positions = highest(scores, k * self.index.tree.most_places)
        own = scores[positions]
        if self.index.tree.most_places > 1:
            order = np.argsort(-own, kind="stable")
            _, first = np.unique(self.index.tree.doc_rows[positions[order]], return_index=True)
            positions = np.sort(positions[order[first]])
            own = scores[positions]
        there = own > -np.inf
        return positions[there], own[there], np.zeros(int(there.sum()), dtype=np.uint8)


@dataclass(frozen=True)
class _Pool:
    """Documents that were scored completely, in docid order.

    Attributes:
        positions: [n] docid positions, each the best place of its document.
        scores: [n] document scores.
        sources: [n] what found them.
        bound: of the scores of documents that were reached, and are not here.
        read: how many document vectors were scored.
        rescored: how many documents were scored by late interaction.
    """

    positions: Ints
    scores: Floats
    sources: Ints
    bound: float = -np.inf
    read: int = 0
    rescored: int = 0


def _put(result: SearchResult, row: int, pool: _Pool, k: int) -> None:
    """Put the k best documents of a pool into a row of a result."""
    places = best(pool.scores, k)
    own = slice(0, len(places))
    result.positions[row, own], result.scores[row, own] = pool.positions[places], pool.scores[places]
    result.sources[row, own], result.read[row] = pool.sources[places], pool.read
    result.rescored[row] = max(result.rescored[row], pool.rescored)


class Generate(Method):
    """Walks down the tree, and scores documents below the last nodes, and the best by words.

    Args:
        index: what is searched.
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
            request: what is asked.
            trace: if given, receives how the search came about; for one query.
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
                pools = search.pools(rows, [own.nodes for own in reached])
            else:
                reached = [Reached(_NO_NODES, pruned=True, read=0)] * len(rows)
                pools = search.pools(rows, [_NO_NODES] * len(rows))
            pools = [search.rescore(row, pool) for row, pool in zip(rows, pools, strict=True)]
            short = []
            for row, own, pool in zip(rows, reached, pools, strict=True):
                search.put(result, row, own, pool)
                if trace is not None:
                    trace.show(pool.positions[None], pool.scores[None], pool.sources[None])
                if walks and own.pruned and len(pool.positions) < search.k:
                    short.append(row)
            rows = short
            width *= 2
        return result


class _Search:
    """A search for a batch of queries.

    Args:
        index: what is searched.
        batch: the queries.
        request: what is asked.

    Attributes:
        documents: how many may be returned.
        k: documents per query: fewer if fewer may be returned.
        count: documents that each source gives.
        few: rows of the document table that may be returned, if they are so few that all are scored; else None.
    """

    def __init__(self, index: TiedIndex, batch: QueryBatch, request: SearchRequest) -> None:
        self.index, self.tree, self.request = index, index.tree, request
        self.scores = index.document_scores(batch, request)
        self.levels = index.levels(batch, request.config)
        allowed = request.allowed
        self.documents = count_documents(index.tree, allowed)
        self.k, self.count = min(request.k, self.documents), min(request.pool, self.documents)
        self.few, self._allowed_rows = None, None
        if allowed is None:
            self._allowed, self._alive = index.there, index.nodes_there
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
        total = dense + self.scores.lexical_of(row, self.few) + self.scores.extra_of(row, self.few)
        order = np.argsort(positions)
        sources = np.zeros(len(order), dtype=np.uint8)
        return _Pool(positions[order], total[order], sources, read=len(order))

    def walk(self, rows: Sequence[int], beam_width: int, trace: Trace | None) -> list[Reached]:
        """Return where the walks of some queries end."""
        steps = None
        if trace is not None:
            steps = trace.levels = []
            trace.beam_width = beam_width
        walk = self.index.walk.of_query
        return [walk(self.levels, row, beam_width, self._alive, steps) for row in rows]

    def rescore(self, row: int, pool: "_Pool") -> "_Pool":
        """Return the best of a pool, their scores with late interaction; if few documents may be returned, all of them."""
        if not self.scores.has_tokens or not len(pool.positions):
            return pool
        places, cut = highest_and_rest(pool.scores, self.count if self.few is None else len(pool.scores))
        positions, scores = self.scores.rescore(row, pool.positions[places], pool.scores[places])
        order = np.argsort(positions)
        bound = max(pool.bound, cut) + self.scores.most_by_tokens
        return _Pool(positions[order], scores[order], pool.sources[places][order], bound, pool.read, len(order))

    def put(self, result: SearchResult, row: int, reached: Reached, pool: "_Pool") -> None:
        """Put the answer of one query into a result."""
        _put(result, row, pool, self.k)
        proven = not reached.pruned and result.scores[row, -1] >= pool.bound
        result.exact[row] = proven or len(pool.positions) == self.documents
        result.read[row] += reached.read

    def pools(self, rows: Sequence[int], nodes: Sequence[Ints]) -> list["_Pool"]:
        """Return for some queries the documents that are scored completely."""
        listed, tree, wanted = self.index.listed, self.tree, _OVERSAMPLED * self.count * self.tree.most_places
        below: Sequence[Ints]
        if listed is None:
            below = [ranges(tree.doc_start[own], tree.doc_end[own] - tree.doc_start[own]) for own in nodes]
        else:
            below = listed.below(self.scores.queries[list(rows)], nodes, wanted, self._allowed)
        return [self.pool(*each) for each in zip(rows, nodes, below, strict=True)]

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
        extra_rows, extra_cut = scores.best_extra(row, count, self._allowed_rows)
        word_rows, word_scores, rest, known = scores.words(
            row, count, self._allowed_rows, np.concatenate([rows, extra_rows])
        )
        other_rows = np.concatenate([word_rows, extra_rows])
        other_positions, other_dense = scores.dense(row, other_rows)
        found = np.concatenate([positions, other_positions])
        lexical = np.concatenate([known[: len(rows)], word_scores, known[len(rows) :]])
        total = np.concatenate([dense, other_dense]) + lexical
        total += scores.extra_of(row, np.concatenate([rows, other_rows]))
        kinds = np.repeat([WALK, WORDS, EXTRA], [len(rows), len(word_rows), len(extra_rows)])
        unique, first, inverse = np.unique(found, return_index=True, return_inverse=True)
        sources = np.bincount(inverse, kinds).astype(np.uint8)  # no source has a document twice
        bound = cut + rest + extra_cut if extra_cut > -np.inf else -np.inf
        return _Pool(unique, total[first], sources, bound, read + len(unique) - len(rows))

    def _best_below(self, row: int, nodes: Ints, positions: Ints) -> tuple[Ints, Floats, float, int]:
        """Return the best documents below nodes by dense score.

        Returns:
            positions [n] in docid order; dense scores [n]; the highest one of a document below that is not among them, -inf if
            all are; how many were scored.
        """
        tree, scores, count, several = self.tree, self.scores, self.count, self.tree.most_places
        if not len(nodes):
            return _NO_NODES, np.zeros(0, dtype=np.float32), np.inf, 0
        if self._allowed is not None:
            positions = positions[self._allowed[positions]]
        dense, read = scores.dots(row, positions), len(positions)
        if several > 1:
            places = best(dense, (count + 1) * several)
            rows = tree.doc_rows[positions[places]]
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]  # of the best places, each document once
            positions, dense = scores.dense(row, rows)
            order = np.argsort(positions)
            positions, dense = positions[order], dense[order]
        cut = -np.inf
        if len(positions) > count:
            places, cut = highest_and_rest(dense, count)
            positions, dense = positions[places], dense[places]
        if self.index.listed is not None:
            size = int((tree.doc_end[nodes] - tree.doc_start[nodes]).sum())
            cut, read = (np.inf, size) if read < size else (cut, read)  # the others were scored by their codes only
        return positions, dense, cut, read


class WordsOnly(Method):
    """The best by words alone, ranked by the document score: a control, to measure what the walk earns.

    Args:
        index: what is searched.
    """

    def __init__(self, index: TiedIndex) -> None:
        self.generate = Generate(index)

    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k of the documents that words find."""
        return self.generate.retrieve(batch, request, trace, walks=False)
