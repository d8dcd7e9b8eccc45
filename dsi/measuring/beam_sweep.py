"""Quality and cost of search by beam width, as a Markdown table. Knows nothing of how searches work."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsi.docids.data.collection import Collection
from dsi.eval.measures import evaluate, mean
from dsi.eval.tables import markdown_table
from dsi.measuring.tuning import agreement
from dsi.search.request import SearchRequest
from dsi.store.retriever import GenerativeRetriever

ANSWERS = 10
_MEASURES = ("Hit@1", "Hit@10")


@dataclass(frozen=True)
class BeamRow:
    """One beam width.

    Attributes:
        name: of the row.
        beam_width: nodes kept per level; 0 for "exact".
        hits: Hit@1 and Hit@10, in percent.
        agree: share of the exact top ten that was found.
        read: vectors of nodes and documents that were scored, a query.
        milliseconds: a query, after the encoder.
    """

    name: str
    beam_width: int
    hits: tuple[float, float]
    agree: float
    read: float
    milliseconds: float


def beam_rows(
    retriever: GenerativeRetriever, collection: Collection, split: str, beam_widths: Sequence[int]
) -> list[BeamRow]:
    """Return one row per beam width, and "exact"."""
    index, qrels = retriever.snapshot, collection.qrels[split]
    encoded = retriever.encode_queries(collection.query_texts(split), show_progress=True)
    config = dataclasses.replace(index.search_config, method="exact")
    exact = index.engine.search(encoded, SearchRequest(ANSWERS, config))

    def row(name: str, beam_width: int) -> BeamRow:
        changes: dict[str, Any] = {"method": "generate", "beam_width": beam_width} if beam_width else {}
        started = time.perf_counter()
        result = index.engine.search(encoded, SearchRequest(ANSWERS, dataclasses.replace(config, **changes)))
        milliseconds = 1000 * (time.perf_counter() - started) / max(encoded.count, 1)
        measured = evaluate(index.as_run(encoded.query_ids, result), qrels, _MEASURES)
        first, ten = (100 * mean(values) for values in measured.values())
        return BeamRow(
            name, beam_width, (first, ten), agreement(result, exact), float(result.read.mean()), milliseconds
        )

    return [*(row(f"beam {width}", width) for width in beam_widths), row("exact", 0)]


def beam_table(rows: Sequence[BeamRow]) -> str:
    """Return the rows as a Markdown table."""
    heads = [
        "search",
        "Hit@1",
        "Hit@10",
        "share of the exact top ten",
        "vectors read",
        "ms per query, after the encoder",
    ]
    cells = [
        [
            row.name,
            *(f"{hit:.2f}" for hit in row.hits),
            f"{row.agree:.4f}",
            f"{row.read:.0f}",
            f"{row.milliseconds:.2f}",
        ]
        for row in rows
    ]
    return markdown_table(heads, cells)
