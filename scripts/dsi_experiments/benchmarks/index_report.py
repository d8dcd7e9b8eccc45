"""Tables and picture of the index benchmark."""

import math
from pathlib import Path
from typing import Any

from dsi.eval.tables import markdown_table
from dsi_experiments.benchmarks.index_measure import FILTERED, FUSED, NEEDED, REMOVED
from dsi_experiments.figures import new_figure, save_figure

Row = dict[str, Any]
RECALLS = (0.8, 0.9, 0.95, 0.99)


def report(record: dict[str, Any]) -> str:
    """Markdown: the least milliseconds by recall, all rows, and what the data are like."""
    lines = [f"# {_title(record)}", "", _about(record), ""]
    lines += ["## Milliseconds a query at a recall", "", _by_recall(record), ""]
    if record["changes"]:
        lines += ["## A filter and a removal", "", _changes(record), ""]
    lines += ["## Every knob", "", _all_rows(record), ""]
    if record["left out"]:
        lines += [f"Left out: {'; '.join(record['left out'])}.", ""]
    return "\n".join(lines)


def _title(record: dict[str, Any]) -> str:
    return f"{record['collection']}: {record['documents']:,} documents, {record['dim']} dimensions"


def _about(record: dict[str, Any]) -> str:
    facts = ", ".join(f"{name} {value:g}" for name, value in record["hardness"].items())
    encoder = record["encoder"]
    times = (encoder[f"ms at batch {batch}"] for batch in (1, 64)) if encoder else ()
    encoding = f" Encoding a query takes {' / '.join(f'{time:.3g}' for time in times)} more." if encoder else ""
    return (
        f"{record['queries']} queries, {record['threads']} thread(s), milliseconds of the processor.{encoding} Recall is that "
        "of the exact ten by the same scores, agreement that of the exact ten by the vectors as the index keeps them. Private "
        f"bytes must stay in memory, mapped files need not. The data: {facts}."
    )


def _by_recall(record: dict[str, Any]) -> str:
    """For each system the cheapest knob that reaches a recall, and the bytes."""
    rows = []
    for kind in ("dense", FUSED):
        names = dict.fromkeys(row["system"] for row in record["rows"] if row["scores"] == kind)
        rows += [[f"{name} ({kind})", *_cheapest(record, kind, name)] for name in names]
    heads = [
        "ms at batch 1 / 64",
        *(f"recall {recall:g}" for recall in RECALLS),
        "bytes private / on disk",
        "build, s",
        "add one, ms",
    ]
    return markdown_table(heads, rows)


def _cheapest(record: dict[str, Any], kind: str, name: str) -> list[str]:
    own = [row for row in record["rows"] if (row["scores"], row["system"]) == (kind, name)]
    cells = []
    for recall in RECALLS:
        good = [row for row in own if row["recall@10"] >= recall]
        times = [min((row[f"ms at batch {batch}"] for row in good), default=math.nan) for batch in (1, 64)]
        cells.append(f"{times[0]:.3g} / {times[1]:.3g}" if good else "—")
    sizes = record["systems"].get(name) if kind == "dense" else None
    if sizes is None:
        return [*cells, "", "", ""]
    seconds = "" if sizes["build seconds"] is None else f"{sizes['build seconds']:,.0f}"
    size = f"{sizes['private bytes']:,.0f} / {sizes['disk bytes']:,.0f}"
    return [*cells, size, seconds, f"{sizes['ms to add one']:,.0f}"]


def _changes(record: dict[str, Any]) -> str:
    """What a filter and a removal do to each system, at the knob that it needs without them."""
    rows: dict[str, list[str]] = {}
    for row in record["changes"]:
        knob = f"{row['knob']} {row['value']:,.0f}" if row["knob"] else ""
        times = " / ".join(f"{row[f'ms at batch {batch}']:.3g}" for batch in (1, 64))
        own = rows.setdefault(row["system"], [row["system"], knob])
        own += [f"{row['recall@10']:.3f}", times]
        if row["scores"] == REMOVED:
            own.append("cannot" if row["seconds to remove"] is None else f"{row['seconds to remove']:.3g}")
    heads = [
        f"at recall {NEEDED:g}, ms at batch 1 / 64",
        "knob",
        f"{FILTERED}: recall",
        "ms",
        f"{REMOVED}: recall",
        "ms",
        "s to remove",
    ]
    return markdown_table(heads, list(rows.values()))


def _all_rows(record: dict[str, Any]) -> str:
    judged = any("Hit@10" in row for row in record["rows"])
    heads = [
        "scores",
        "system",
        "knob",
        "recall@10",
        "agree@10",
        *(["Hit@10"] if judged else []),
        "vectors read",
        "ms at batch 1",
        "ms at batch 64",
    ]
    return markdown_table(heads, [_cells(row, judged=judged) for row in record["rows"]])


def _cells(row: Row, *, judged: bool) -> list[str]:
    knob = f"{row['knob']} {row['value']:,.0f}" if row["knob"] else ""
    shares = ("recall@10", "agree@10", *(["Hit@10"] if judged else []))
    found = [f"{row[name]:.3f}" if name in row else "" for name in shares]
    read = f"{row['vectors read']:,.0f}" if "vectors read" in row else ""
    times = [f"{row[f'ms at batch {batch}']:.3g}" for batch in (1, 64)]
    return [row["scores"], row["system"], knob, *found, read, *times]


def picture(record: dict[str, Any], path: Path) -> None:
    """Write recall against milliseconds of 64 queries together, in the order of the knob, to path-batch-64.svg."""
    figure, axes = new_figure(6.5, 4.2)
    for system in record["systems"]:
        own = [row for row in record["rows"] if (row["scores"], row["system"]) == ("dense", system)]
        times, recalls = ([row[name] for row in own] for name in ("ms at batch 64", "recall@10"))
        axes.plot(times, recalls, marker="o", markersize=4, label=system)
    axes.set_xscale("log")
    axes.set(xlabel="milliseconds a query, batch 64", ylabel="recall@10", title=_title(record))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path.with_name(f"{path.name}-batch-64"))
