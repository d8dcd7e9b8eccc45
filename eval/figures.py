"""Figures as PNG and SVG (extra `figures`: matplotlib). Knows nothing of what they show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def lines_figure(
    series: Mapping[str, Mapping[float, float]],
    xlabel: str,
    ylabel: str,
    title: str,
    path: Path,
    *,
    log_y: bool = False,
) -> None:
    """Write a line per series of {series: {x: y}}, over a logarithmic x, to path.png and path.svg."""
    figure, axes = new_figure(6.0, 4.0)
    for name, points in series.items():
        xs = sorted(points)
        axes.plot(xs, [points[x] for x in xs], marker="o", markersize=4, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log" if log_y else "linear")
    ticks = sorted({x for points in series.values() for x in points})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.legend(fontsize="small")
    save_figure(figure, path)


def bars_figure(series: Mapping[str, Mapping[int, int]], xlabel: str, ylabel: str, title: str, path: Path) -> None:
    """Write stacked bars of {series: {x: height}} to path.png and path.svg."""
    figure, axes = new_figure(6.0, 3.5)
    ticks = sorted({x for heights in series.values() for x in heights})
    bottom = dict.fromkeys(ticks, 0)
    for name, heights in series.items():
        axes.bar(ticks, [heights.get(x, 0) for x in ticks], bottom=[bottom[x] for x in ticks], label=name)
        for x in ticks:
            bottom[x] += heights.get(x, 0)
    axes.set_xticks(ticks)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.legend()
    save_figure(figure, path)


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of some inches and its axes."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError('Pictures need matplotlib; run pip install "dr-scl[figures]".') from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to path.png and path.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
