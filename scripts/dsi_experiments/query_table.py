"""The table of what train queries teach, and its curve, from measured rows."""

from collections.abc import Mapping
from typing import Any

from dsi.eval.tables import markdown_table

TODAY, WHOLE = "today", "whole score"


def contest_table(record: Mapping[str, Any]) -> str:
    """Return a Markdown table of a collection's rows, and the curve by train queries of the answer."""
    rows, kinds = record["rows"], record["rows"][TODAY]
    heads = [
        "",
        "nDCG@10",
        "Hit@1",
        "Hit@10",
        "over today",
        "over the best cheaper form",
        "taught",
        "untaught",
        "untaught, over today",
    ]
    lines = [
        [
            name, *(f"{own['all'][measure]:.1f}" for measure in ("nDCG@10", "Hit@1", "Hit@10")), _plus_minus(own["all"], TODAY),
            _plus_minus(own["all"], "cheaper"),
            *(f"{own[kind]['nDCG@10']:.1f}" if kind in own else "" for kind in ("taught", "untaught")),
            _plus_minus(own.get("untaught"), TODAY),
        ]
        for name, own in rows.items()
    ]  # fmt: skip
    bands = [kind for kind in kinds if kind.startswith(("answers", "nearest"))]
    curve = [[name, *(_plus_minus(own[kind], WHOLE) for kind in bands)] for name, own in rows.items()]
    counts = ["queries", *(str(kinds[kind]["queries"]) for kind in bands)]
    return "\n\n".join(
        [
            f"{record['collection']}: {record['documents']:,} documents; best cheaper form on dev: {record['cheaper']}",
            markdown_table(heads, lines),
            "nDCG@10 over the whole score without memory, by train queries of the answer, and by cosine of the nearest one",
            markdown_table(["", *bands], [counts, *curve]),
        ]
    )


def _plus_minus(own: Mapping[str, Any] | None, reference: str) -> str:
    return "" if own is None else "{:+.2f} ± {:.2f}".format(*own[f"nDCG@10 over {reference}"])
