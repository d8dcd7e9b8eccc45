"""Where a search loses the right document: whether its node is still in the beam after each level.

Knows nothing of training, and nothing of how nodes are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dsi.retriever import GenerativeRetriever
from dsi.search.beams import LevelTrace, SearchResult
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchRequest
from dsi.systems import Run


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


def descend(
    retriever: GenerativeRetriever, encoded: EncodedQueries, answers: Sequence[str], k: int, **options: Any
) -> Descents:
    """Search and note what becomes of the right prefix; no score may come from BM25.

    Args:
        retriever: the index.
        encoded: the queries.
        answers: the doc_id of the right document of each query.
        k: documents per query.
        **options: see `SearchOptions`.
    """
    searcher, tree = retriever.searcher, retriever.tree
    request = SearchRequest(k, retriever.config_for(k, **options))
    places = torch.from_numpy(tree.places[[retriever.documents.rows[doc_id] for doc_id in answers]]).long()
    parents, digits = tree.paths(places.flatten().numpy())
    right = torch.from_numpy(np.where(digits >= 0, tree.first_child[parents] + digits, -1)).view(
        *places.shape, tree.depth
    )
    kept = torch.zeros(right.shape, dtype=torch.bool)  # [queries, places, depth]
    result, scores = SearchResult.empty(encoded.count, searcher.most_answers(request)), torch.empty(encoded.count)
    for batch in encoded.batches:
        queries, trace = searcher.score(batch, request), list[LevelTrace]()
        result.put(batch.rows, searcher.search(queries, request, trace))
        own = places[batch.rows].to(searcher.device)
        of_places: torch.Tensor = sum(searcher.follow(queries, request, own))[:, :, -1]  # type: ignore[index]
        scores[batch.rows] = of_places.amax(dim=1).to("cpu", torch.float32)
        for level, looked_at in enumerate(trace):
            is_right = looked_at.nodes.cpu()[:, None, :] == right[batch.rows, :, level, None]
            kept[batch.rows, :, level] = (is_right & looked_at.kept.cpu()[:, None, :]).any(dim=2)
    found = (result.positions[:, None, :] == places[:, :, None]).any(dim=(1, 2))
    is_inner = (right >= 0) & (right < tree.num_inner)
    alive = torch.where(is_inner, kept, found[:, None, None]).int().cumprod(dim=2).bool().any(dim=1)
    last = result.scores.masked_fill(result.positions < 0, torch.inf).amin(dim=1)
    return Descents(retriever.as_run(encoded.query_ids, result), alive.numpy(), (~found & (scores > last)).numpy())
