"""Where a search loses the right document: whether its node is still in the beam after each level.

Knows nothing of training, and nothing of how nodes are scored.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree, places_of
from dsi.docids.types import Run
from dsi.search.queries import EncodedQueries, QueryBatch
from dsi.search.request import SearchRequest
from dsi.search.results import SearchResult, Trace
from dsi.store.retriever import Retriever


@dataclass(frozen=True)
class Descents:
    """Searches for queries, each with one right document.

    Attributes:
        run: the answers.
        alive: [queries, depth] True where the right prefix is still in the beam after a level, or one of several; from the
            level of the document on, True if it is among the answers.
        search_error: [queries] True if the document is missed though it scores higher than the last answer.
    """

    run: Run
    alive: NDArray[np.bool_]
    search_error: NDArray[np.bool_]

    @property
    def survival(self) -> list[float]:
        """How many queries of a hundred still have the right prefix after each level."""
        return [round(100 * float(share), 2) for share in self.alive.mean(axis=0)]

    @property
    def search_errors(self) -> list[int]:
        """How many search errors each level makes: the right prefix left the beam there."""
        lost = (~self.alive).argmax(axis=1)[self.search_error]
        return np.bincount(lost, minlength=self.alive.shape[1]).tolist()

    @property
    def model_errors(self) -> int:
        """How many documents are missed that score no higher than the last answer."""
        return int((~self.alive[:, -1] & ~self.search_error).sum())


def descend(retriever: Retriever, encoded: EncodedQueries, answers: Sequence[str], k: int, **changes: Any) -> Descents:
    """Search and note what becomes of the right prefix; no score may come from BM25.

    Args:
        retriever: the index.
        encoded: the queries.
        answers: the doc_id of the right document of each query.
        k: documents per query.
        **changes: settings of `[search]`.
    """
    index = retriever.snapshot
    request = SearchRequest(k, dataclasses.replace(index.search_config, **changes))
    method, tree = index.engine.methods[request.config.method], index.tree
    places = places_of(tree, np.array([index.documents.rows[doc_id] for doc_id in answers]))  # [queries, places]
    right = path_nodes(tree, places.ravel()).reshape(*places.shape, tree.depth)
    result = SearchResult.empty(encoded.count, min(k, tree.num_rows))
    kept = np.zeros(right.shape, dtype=bool)  # [queries, places, depth]
    for row, batch in one_by_one(encoded):
        trace = Trace()
        result.put(np.array([row]), method.retrieve(batch, request, trace))
        kept[row] = survivors(trace, right[row])
    found = (result.positions[:, None, :] == places[:, :, None]).any(axis=(1, 2))
    is_inner = (right >= 0) & (right < tree.num_inner)
    alive = np.logical_and.accumulate(np.where(is_inner, kept, found[:, None, None]), axis=2).any(axis=1)
    rows = np.array(index.documents.rows_of(answers, "answers"))
    scores = index.engine.follow_all(encoded, request, rows[:, None]).scores[:, 0]
    last = np.where(result.positions < 0, np.inf, result.scores).min(axis=1)
    return Descents(index.as_run(encoded.query_ids, result), np.asarray(alive), ~found & (scores > last))


def path_nodes(tree: DocidTree, positions: NDArray[np.integer]) -> NDArray[np.integer]:
    """[n, depth] the nodes on the paths to docid positions [n], from the children of the root on; -1 past the document."""
    parents, digits = tree.paths(positions)
    return np.where(digits >= 0, tree.first_child[parents] + digits, -1)


def survivors(trace: Trace, paths: NDArray[np.integer]) -> NDArray[np.bool_]:
    """[n, depth] True at the nodes of paths that the search for one query did not prune.

    A node that was not scored was not pruned: below the last nodes of a walk all documents are read.

    Args:
        trace: of the search.
        paths: [n, depth] nodes, one a level from the children of the root on.
    """
    kept = np.ones(paths.shape, dtype=bool)
    for level, candidates in enumerate(trace.levels):
        kept[:, level] = ~np.isin(paths[:, level], candidates.nodes[~candidates.kept])
    return kept


def one_by_one(encoded: EncodedQueries) -> Iterator[tuple[int, QueryBatch]]:
    """Yield the row and the batch of each single query."""
    for batch in encoded.batches:
        for place, row in enumerate(batch.rows.tolist()):
            yield row, batch.select(np.array([place]))
