"""Figures of the experiments as SVG: lines, heat maps, shares. Knows nothing of what they show."""

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
    """Write a line per series of {series: {x: y}}, over a logarithmic x, to path.svg."""
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


def grid_figure(values: Mapping[tuple[float, float], float], columns: str, rows: str, title: str, path: Path) -> None:
    """Write a heat map of {(column, row): value}, values included, to path.svg."""
    first, second = sorted({column for column, _ in values}), sorted({row for _, row in values})
    figure, axes = new_figure(1.2 + 0.75 * len(first), 1.6 + 0.5 * len(second))
    image = axes.imshow([[values[column, row] for column in first] for row in second], cmap="viridis", aspect="auto")
    middle = (max(values.values()) + min(values.values())) / 2
    for y, row in enumerate(second):
        for x, column in enumerate(first):
            value = values[column, row]
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", color="white" if value < middle else "black")
    axes.set_xticks(range(len(first)), [f"{column:g}" for column in first])
    axes.set_yticks(range(len(second)), ["∞" if row == float("inf") else f"{row:g}" for row in second])
    axes.set(xlabel=columns, ylabel=rows, title=title)
    figure.colorbar(image, ax=axes)
    save_figure(figure, path)


def shares_figure(shares: Mapping[str, float], xlabel: str, title: str, path: Path, most: int = 15) -> None:
    """Write horizontal bars of the largest of {name: share} above 0 to path.svg."""
    shown = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])[:most][::-1]
    figure, axes = new_figure(7.0, 0.8 + 0.28 * len(shown))
    axes.barh(shown, [shares[name] for name in shown])
    axes.set(xlabel=xlabel, title=title)
    save_figure(figure, path)


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of some inches and its axes."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError('Pictures need matplotlib; run pip install "dr-scl-experiments[figures]".') from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to path.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
