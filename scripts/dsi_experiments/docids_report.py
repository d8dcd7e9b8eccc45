"""Tables and picture of `dsi compare-docids`, from OUTPUT/NAME.json and the values beside it. Knows nothing of training."""

from collections.abc import Sequence
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Any

from dsi.eval.tables import markdown_table
from dsi_experiments.figures import spreads_figure
from dsi_experiments.published import Measured, experiment_table
from dsi_experiments.report import save_report
from dsi_experiments.rows import Rows

BEAMS = (10, 50)
MEASURES = ("Hit@1", "Hit@10")
BASELINES = "dense, BM25"
REFERENCE = "kmeans"
SYSTEMS = {
    **{f"alone, beam {beam}": f"The decoder alone, beam {beam}" for beam in BEAMS},
    **{f"fused, beam {beam}": f"Fused with dense search and BM25, beam {beam}" for beam in BEAMS},
}

Records = dict[str, list[dict[str, Any]]]
"""{scheme: its rows, a seed each}."""


def write_report(output: Path, experiment: str, names: Sequence[str], seeds: Sequence[int]) -> str:
    """The tables of the schemes that were measured, written to OUTPUT/EXPERIMENT.md, and a picture of their trees.

    Raises:
        ValueError: nothing has been measured under these seeds, or a row has no values per query.
    """
    rows = Rows(output / f"{experiment}.json")
    records = {name: [record for seed in seeds if (record := rows.find(name, seed))] for name in names}
    records = {name: own for name, own in records.items() if own}
    baselines = [record for seed in seeds if (record := rows.find(BASELINES, seed))]
    if not records or not baselines:
        raise ValueError(f"{rows.path} has no scheme under these seeds; `dsi compare-docids` measures them.")
    values = rows.values((name, record["seed"]) for name, own in records.items() for record in own)
    parts = [
        *(f"## {title}\n\n{_quality(records, values, system)}" for system, title in SYSTEMS.items()),
        f"## Where the search loses the right prefix\n\n{_lost(records)}",
        f"## The trees\n\n{_trees(records)}",
        *([f"## Documents added after training\n\n{_added(records)}"] if _have_added(records) else []),
        f"## The baselines\n\n{_baselines(baselines)}",
    ]
    text = "\n\n".join(parts)
    save_report(output, experiment, text)
    spreads = {name: own[0]["found"]["tree"]["documents a node"] for name, own in records.items()}
    spreads_figure(spreads, "level", "documents a node", output / experiment)
    return text


def _quality(records: Records, values: dict[tuple[str, int], Any], system: str) -> str:
    measured = [
        [
            Measured(
                name,
                {m: values[name, record["seed"]][f"{system}, {m}"] for m in MEASURES},
                {"measures": record["found"]["systems"][system]},
            )
            for record in own
        ]
        for name, own in records.items()
    ]
    return experiment_table(measured, next(iter(records.values()))[0]["found"]["queries"], REFERENCE)


def _by_level(records: Records, *path: str, shown: str) -> str:
    """A line a scheme, a column a level: means over the seeds that have the level, of what a path leads to in their rows."""
    rows = {}
    for name, own in records.items():
        levels = zip_longest(*(_follow(record, path) for record in own))
        rows[name] = [format(mean(value for value in each if value is not None), shown) for each in levels]
    depth = max(map(len, rows.values()))
    heads = [f"level {level + 1}" for level in range(depth)]
    return markdown_table(["scheme", *heads], ([name, *own, *[""] * (depth - len(own))] for name, own in rows.items()))


def _follow(record: dict[str, Any], path: Sequence[str]) -> Any:
    return reduce(lambda found, key: found[key], path, record["found"])


def _mean(own: Sequence[dict[str, Any]], *path: str) -> float:
    """Mean over seeds of what a path leads to."""
    return mean(_follow(record, path) for record in own)


def _pair(own: Sequence[dict[str, Any]], *path: str) -> str:
    return " / ".join(f"{_mean(own, *path, measure):.2f}" for measure in MEASURES)


def _lost(records: Records) -> str:
    parts = []
    for beam in BEAMS:
        survival, errors = (
            _by_level(records, "beams", f"beam {beam}", what, shown=shown)
            for what, shown in (("survival", ".1f"), ("search errors", ".1f"))
        )
        parts += [
            f"Beam {beam}: test queries in percent whose right prefix is still in the beam after a level. At the level of the "
            f"document: among the first ten answers.\n\n{survival}",
            f"Beam {beam}: search errors by the level that makes them. The document is missed though it scores higher than the "
            f"last answer.\n\n{errors}",
        ]
    return "\n\n".join(parts)


def _trees(records: Records) -> str:
    counts = {"levels": "depth", "inner nodes": "inner_nodes", "collisions": "collisions"}
    heads = ["scheme", *counts, "bytes of the tree", "bytes of vectors", "CPU s to build", "s to train"]
    rows = []
    for name, own in records.items():
        whole = [_mean(own, "tree", key) for key in counts.values()]
        whole += [_mean(own, "tree", "bytes a document", key) for key in ("tree", "vectors")]
        seconds = [_mean(own, "seconds", key) for key in ("docids", "training")]
        rows.append([name, *(f"{value:.0f}" for value in whole), *(f"{value:.1f}" for value in seconds)])
    legend = (
        "Means over seeds. Bytes a document; the vectors are those of documents and nodes. Building goes from embeddings to a "
        "tree; training is that of the generator, without what ranks documents."
    )
    entropy, fill = (_by_level(records, "tree", what, shown=".2f") for what in ("entropy", "fill"))
    return (
        f"{markdown_table(heads, rows)}\n\n{legend}\n\nEntropy of the digits, 1 is even:\n\n{entropy}\n\n"
        f"Fill, the mean number of children as a share of the largest:\n\n{fill}"
    )


def _have_added(records: Records) -> bool:
    return all("added" in record["found"] for own in records.values() for record in own)


def _added(records: Records) -> str:
    columns = [f"{when}, beam {beam}" for beam in BEAMS for when in ("trained", "added")]
    rows = ([name, *(_pair(own, "added", column) for column in columns)] for name, own in records.items())
    first = next(iter(records.values()))[0]["found"]["added"]
    legend = (
        f"The decoder alone, Hit@1 / Hit@10 on the {first['queries']:,} test queries of {first['documents']:,} documents: "
        "trained with them, and held out from all training (the encoder's too) and added later. Means over seeds."
    )
    return f"{markdown_table(['scheme', *columns], rows)}\n\n{legend}"


def _baselines(baselines: list[dict[str, Any]]) -> str:
    rows = ([name, _pair(baselines, "systems", name, "Total")] for name in ("dense", "BM25"))
    return f"{markdown_table(['system', ' / '.join(MEASURES)], rows)}\n\nAll test queries; means over seeds."
