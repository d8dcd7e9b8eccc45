"""Searches as CUDA graphs: a search of one shape is recorded once, and replayed with other queries as a single launch.

A level of the beam is a few dozen small kernels, and a small batch spends its time launching them. All shapes of a search
follow from batch, length, k, settings and tree, and nothing in it asks the processor for a value, so the whole of it is one
graph. Knows nothing of texts.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.search.beam import SearchResult, TreeSearcher
from dsi.search.settings import SearchConfig
from dsi.trees.dense import NodeScores

_LENGTH_STEP = 16
"""Queries are padded to multiples of so many tokens, so that few lengths are recorded."""
_MOST_GRAPHS = 64

Replay = Callable[[], None]
Record = Callable[[Callable[[], SearchResult]], tuple[Replay, SearchResult]]
"""Runs a search into a graph; gives what replays it, and the tensors that then hold its answers."""


def record_on_gpu(search: Callable[[], SearchResult]) -> tuple[Replay, SearchResult]:
    """A CUDA graph of a search, after three runs that let the libraries allocate what they need."""
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
    """`TreeSearcher.search` by graphs, one for each shape that comes; the least lately used go after 64.

    Args:
        searcher: of one tree, with one decoder.
        record: what makes a graph.
    """

    def __init__(self, searcher: TreeSearcher, record: Record = record_on_gpu) -> None:
        searcher.fixed_shape = True
        self.searcher, self._record = searcher, record
        self._graphs: OrderedDict[Any, tuple[dict[str, Tensor], Replay, SearchResult]] = OrderedDict()
        self._lock = threading.Lock()

    def search(
        self,
        token_states: Tensor,
        states_mask: Tensor,
        node_scores: NodeScores | None,
        k: int,
        config: SearchConfig,
        alive: Tensor | None = None,
    ) -> SearchResult:
        """As `TreeSearcher.search`."""
        config.check_k(k)
        k = self.searcher.most_answers(k, alive)
        padding = -token_states.shape[1] % _LENGTH_STEP
        inputs = {
            "token_states": F.pad(token_states, (0, 0, 0, padding)),
            "states_mask": F.pad(states_mask, (0, padding)),
        }
        if node_scores is not None:
            inputs["of_queries"] = node_scores.of_queries
        if alive is not None:
            inputs["alive"] = alive
        key = (k, config, type(node_scores), *((name, *tensor.shape) for name, tensor in inputs.items()))
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = self._recorded(inputs, node_scores, k, config)
                if len(self._graphs) > _MOST_GRAPHS:
                    self._graphs.popitem(last=False)
            self._graphs.move_to_end(key)
            buffers, replay, result = self._graphs[key]
            for name, tensor in inputs.items():
                buffers[name].copy_(tensor)
            replay()
            return SearchResult(**{name: tensor.clone() for name, tensor in vars(result).items()})

    def _recorded(
        self, inputs: dict[str, Tensor], node_scores: NodeScores | None, k: int, config: SearchConfig
    ) -> tuple[dict[str, Tensor], Replay, SearchResult]:
        buffers = {name: tensor.clone() for name, tensor in inputs.items()}
        scores = None if node_scores is None else dataclasses.replace(node_scores, of_queries=buffers["of_queries"])  # type: ignore[type-var]
        alive = buffers.get("alive")

        def search() -> SearchResult:
            return self.searcher.levels(buffers["token_states"], buffers["states_mask"], scores, k, config, alive)

        return buffers, *self._record(search)
