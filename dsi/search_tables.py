"""Quality and cost of search on one split, by beam width and by look-ahead simulations, as Markdown tables.

Knows nothing of how searches work.
"""

import time
from collections.abc import Callable, Sequence

import torch

from docids.collection import Collection
from dsi.rerankers.lookahead import LookAheadResult
from dsi.retriever import GenerativeRetriever
from dsi.search.beams import SearchResult
from dsi.systems import alone
from eval.measures import evaluate, mean
from eval.tables import markdown_table

_ANSWERS = 10
_TIME = "ms per query, after the encoder"


class _Table:
    """A table with one row per way of searching the queries of a split."""

    def __init__(self, retriever: GenerativeRetriever, collection: Collection, split: str) -> None:
        self.retriever, self.qrels = retriever, collection.qrels[split]
        self.encoded = retriever.encode_queries(collection.query_texts(split), show_progress=True)
        self.rows: list[list[str]] = []

    def add(self, name: str, search: Callable[[], SearchResult], further: Callable[[SearchResult], str]) -> None:
        started = time.perf_counter()
        result = search()
        milliseconds = 1000 * (time.perf_counter() - started) / self.encoded.count
        measured = evaluate(self.retriever.as_run(self.encoded.query_ids, result), self.qrels, ["Hit@1", "Hit@10"])
        hits = [f"{100 * mean(values):.2f}" for values in measured.values()]
        self.rows.append([name, *hits, further(result), f"{milliseconds:.1f}"])


def beam_table(retriever: GenerativeRetriever, collection: Collection, split: str, beam_widths: Sequence[int]) -> str:
    """Return one row per beam width: quality of the top ten, share of certified results, time."""
    table = _Table(retriever, collection, split)

    def certified(result: SearchResult) -> str:
        return f"{100 * result.exact.float().mean():.1f} %"

    for width in beam_widths:
        k = min(_ANSWERS, width)
        table.add(
            str(width),
            lambda k=k, width=width: retriever.search_encoded(table.encoded, k, beam_width=width),  # type: ignore[misc]
            certified,
        )
    return markdown_table(["beam width", "Hit@1", "Hit@10", "certified exact", _TIME], table.rows)


def look_ahead_table(
    retriever: GenerativeRetriever, collection: Collection, split: str, simulations: Sequence[int]
) -> str:
    """Return one row per search that ranks by the document's dense and BM25 score, with the inner nodes it expands.

    The searches are decoder-only beams, reranked by that score, and look-ahead with that score as reward.
    """
    table = _Table(retriever, collection, split)

    def expansions(result: SearchResult) -> str:
        count = result.expansions.float().mean() if isinstance(result, LookAheadResult) else float("nan")
        return f"{count:.1f}"

    for width in (2, 5, 10, 20):
        table.add(
            f"decoder, beam {width}, then the document's score",
            lambda width=width: _ranked_by_document(retriever, table, width),  # type: ignore[misc]
            lambda _, width=width: f"{retriever.tree.expansions(width):.1f}",  # type: ignore[misc]
        )
    for count in simulations:
        table.add(
            f"look-ahead, {count} simulations",
            lambda count=count: retriever.search_encoded(table.encoded, _ANSWERS, method="mcts", simulations=count),  # type: ignore[misc]
            expansions,
        )
    return markdown_table(["search", "Hit@1", "Hit@10", "inner nodes per query", _TIME], table.rows)


def _ranked_by_document(retriever: GenerativeRetriever, table: _Table, width: int) -> SearchResult:
    """Search with a decoder-only beam, and rank the documents found by their own dense and BM25 scores."""
    found = retriever.search_encoded(table.encoded, width, beam_width=width, **alone(retriever))
    runs = retriever.as_run(table.encoded.query_ids, found).values()
    doc_ids = [[*own, *own[:1] * (width - len(own))] for own in map(list, runs)]
    _, dense = retriever.follow(table.encoded, doc_ids, alpha=0.0)
    scores = dense[:, :, -1].masked_fill(found.positions < 0, -torch.inf)
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :_ANSWERS]
    positions = found.positions.gather(1, order)
    return SearchResult(positions, scores.gather(1, order), found.exact, torch.zeros(positions.shape))
