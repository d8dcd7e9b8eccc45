"""Searches as CUDA graphs: a search of each shape is recorded once, then replayed for other queries with a single launch.

A level of the beam is a few dozen small kernels, and a small batch spends its time launching them. The shapes of a search
depend only on batch, length, k, search config and tree, and no step reads a tensor's value on the CPU, so the whole search
is one graph. Knows nothing of texts.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.search.beam import TreeSearcher
from dsi.search.beams import SearchResult
from dsi.search.request import ScoredQueries, SearchRequest

_LENGTH_STEP = 16
"""Queries are padded to a multiple of this many tokens, so that few lengths are recorded."""
_MOST_GRAPHS = 64

Replay = Callable[[], None]
Record = Callable[[Callable[[], SearchResult]], tuple[Replay, SearchResult]]
"""Records a search; returns a function that replays it, and the result tensors that each replay overwrites."""


def record_on_gpu(search: Callable[[], SearchResult]) -> tuple[Replay, SearchResult]:
    """Record a search as a CUDA graph, after three warm-up runs in which libraries allocate their buffers."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            search()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = search()
    return graph.replay, result


class GraphedSearch:
    """`TreeSearcher.search` by CUDA graphs, one per shape of search; the 64 most recently used are kept.

    Args:
        searcher: the search to record; sets its `fixed_shape`.
        record: how a search is recorded.
    """

    def __init__(self, searcher: TreeSearcher, record: Record = record_on_gpu) -> None:
        searcher.fixed_shape = True
        self.searcher, self._record = searcher, record
        self._graphs: OrderedDict[Any, tuple[dict[str, Tensor], Replay, SearchResult]] = OrderedDict()
        self._lock = threading.Lock()

    def search(self, queries: ScoredQueries, request: SearchRequest) -> SearchResult:
        """Return the same as `TreeSearcher.search`."""
        # Everything that differs between searches of one shape, padded.
        k = self.searcher.most_answers(request)
        padding = -queries.states.shape[1] % _LENGTH_STEP
        inputs = {
            "states": F.pad(queries.states, (0, 0, 0, padding)),
            "mask": F.pad(queries.mask, (0, padding)),
        }
        if queries.node_scores is not None:
            inputs |= queries.node_scores.of_queries
        if queries.embeddings is not None:
            inputs["embeddings"] = queries.embeddings
        if request.alive is not None:
            inputs["alive"] = request.alive

        # Find or record the graph of this shape, fill its input buffers, replay it.
        shapes = ((name, *tensor.shape) for name, tensor in inputs.items())
        key = (k, request.config, type(queries.node_scores), *shapes)
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = self._recorded(inputs, queries, dataclasses.replace(request, k=k))
                if len(self._graphs) > _MOST_GRAPHS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(key)
            buffers, replay, result = self._graphs[key]
            for name, tensor in inputs.items():
                buffers[name].copy_(tensor)
            replay()
            return SearchResult(**{name: tensor.clone() for name, tensor in vars(result).items()})

    def _recorded(
        self, inputs: dict[str, Tensor], queries: ScoredQueries, request: SearchRequest
    ) -> tuple[dict[str, Tensor], Replay, SearchResult]:
        buffers = {name: tensor.clone() for name, tensor in inputs.items()}
        scores = queries.node_scores
        if scores is not None:
            scores = dataclasses.replace(scores, **{name: buffers[name] for name in scores.of_queries})  # type: ignore[type-var]
        request = dataclasses.replace(request, alive=buffers.get("alive"))

        def search() -> SearchResult:
            own = None if scores is None else dataclasses.replace(scores)  # type: ignore[type-var]  # nothing is kept of it
            buffered = ScoredQueries(buffers["states"], buffers["mask"], own, buffers.get("embeddings"))
            return self.searcher.levels(buffered, request)

        return buffers, *self._record(search)
