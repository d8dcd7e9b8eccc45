"""One search shared by processes: each looks below its own children of the root, and the answers are merged exactly.

A filter changes no score, so a process that may only return its own documents gives them the scores of the whole index. The
best k of all processes are the best k of the index; they are certified if every process certifies its own. Each process maps
the index, and reads what its part needs.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Unpack

from docids.processes import Processes
from docids.tree import DocidTree
from dsi.retriever import GenerativeRetriever
from dsi.search.answers import Hits
from dsi.search.beams import Answers, SearchResult
from dsi.search.queries import encoded_queries
from dsi.search.request import SearchOptions


def search_shards(
    retriever: GenerativeRetriever,
    queries: Iterable[str] | Mapping[str, str],
    k: int = 10,
    *,
    processes: Processes,
    **options: Unpack[SearchOptions],
) -> list[Hits]:
    """Return the hits of each query, on every process; all processes call it with the same arguments.

    Args:
        retriever: the same index on each process.
        queries: as in `GenerativeRetriever.search`.
        k: documents per query.
        processes: that share the search, such as `dsi.launch.launch(None)` under `accelerate launch`.
        **options: as in `GenerativeRetriever.search`; the beam is that of each process.

    Raises:
        TypeError: an unknown option.
        ValueError: an option that is out of range, or the method is not "beam".
    """
    snapshot = retriever.snapshot
    encoded, request = encoded_queries(snapshot.encoder, queries), snapshot.request("search_shards", k, options)
    if request.method != "beam":
        raise ValueError(f'Only a beam search can be shared by processes, got method "{request.method}".')
    allowed = torch.from_numpy(own_documents(snapshot.tree, processes)).to(snapshot.searcher.device)
    if request.alive is not None:
        allowed = allowed & request.alive[snapshot.tree.num_inner :]
    own = snapshot.search(encoded, dataclasses.replace(request, alive=snapshot.searcher.dense.alive(allowed)))
    parts = processes.gather({name: tensor.cpu() for name, tensor in vars(own).items()})
    return snapshot.hits(merged([SearchResult(**part) for part in parts], k, snapshot.searcher.doc_rows))


def own_documents(tree: DocidTree, processes: Processes) -> NDArray[np.bool_]:
    """[places] by docid position, True at those of this process: below neighbouring children of the root, evenly shared."""
    first, children = int(tree.first_child[0]), int(tree.num_children[0])
    ends = tree.doc_end[first : first + children] if first < tree.num_inner else np.arange(1, children + 1)
    bounds, share = np.concatenate([[0], ends]), tree.num_documents / processes.count
    start, end = bounds[np.searchsorted(bounds, [share * processes.rank, share * (processes.rank + 1) - 1e-6])]
    positions = np.arange(tree.num_documents)
    return (positions >= start) & (positions < end) & (tree.doc_rows >= 0)


def merged(parts: Sequence[SearchResult], k: int, doc_rows: Tensor | None = None) -> SearchResult:
    """Return the best k documents of results over different places; ties break in docid order.

    Args:
        parts: the results.
        k: documents per query.
        doc_rows: [places] the document at each docid position, if some have several places.
    """
    positions, scores, generative = (
        torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("positions", "scores", "generative")
    )
    nothing = Answers.empty(len(scores), min(k, scores.shape[1]), scores)
    best = nothing.merge(positions, scores, generative, doc_rows if doc_rows is None else doc_rows.cpu())
    exact = torch.stack([part.exact for part in parts]).all(dim=0)
    return SearchResult(best.positions, best.scores, exact, best.generative)
