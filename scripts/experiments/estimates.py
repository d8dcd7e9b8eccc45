"""`dsi reproduce estimates`: where a search on estimates loses documents, by level, look-ahead and beam.

A search error is a document that scores higher than the last answer and was pruned on the way: exhaustive search finds it.
Knows nothing of training: the laboratory does that.
"""

from functools import partial
from pathlib import Path
from typing import Any

from docids.storage import write_text
from dsi.config import Config
from dsi.diagnosis import diagnose, errors_by_level
from eval.tables import markdown_table
from scripts.experiments.laboratory import ANSWERS, SPLIT, Laboratory
from scripts.experiments.rows import Rows
from scripts.experiments.tables import Row

LOOK_AHEADS = (0, 1, 2)
BEAMS = (10, 50)


def reproduce(laboratory: Laboratory, seed: int) -> str:
    """Train a generator for each look-ahead, and count what its searches miss."""
    for look_ahead in LOOK_AHEADS:
        changes = {"generator": {"look_ahead": look_ahead}}
        config = laboratory.config(Row(_name(look_ahead), "", changes, seeded=("training", "ranking")), seed)
        laboratory.kept("estimates", _name(look_ahead), seed, config, partial(_count, laboratory, config))
    return write_report(laboratory.output, seed) if laboratory.processes.is_main else ""


def _name(look_ahead: int) -> str:
    return f"look-ahead {look_ahead}"


def _count(laboratory: Laboratory, config: Config) -> dict[str, Any]:
    """Misses among the first ten answers, with documents ranked by dense scores: {beam: {level: search errors}}."""
    retriever, collection = laboratory.index(config).retriever, laboratory.collection
    answers = {query_id: collection.documents[row]["doc_id"] for query_id, row in reversed(collection.pairs(SPLIT))}
    queries = {query_id: collection.queries[query_id] for query_id in answers}
    found: dict[str, Any] = {"queries": len(queries), "levels": len(retriever.tree.levels) - 1}
    for beam_width in BEAMS:
        options = {"fusion": "estimate", "alpha": 0.0, "lexical_weight": 0.0, "beam_width": beam_width}
        misses = diagnose(retriever, queries, answers, ANSWERS, **options)  # type: ignore[arg-type]
        errors = errors_by_level(misses)
        found[f"beam {beam_width}"] = {
            "search errors": {str(level): count for level, count in errors["search errors"].items()},
            "model errors": sum(errors["model errors"].values()),
        }
    return found


def write_report(output: Path, seed: int) -> str:
    """The table of OUTPUT/estimates.json, written beside it.

    Raises:
        ValueError: a row has not been measured.
    """
    rows = Rows(output / "estimates.json")
    lines, levels, queries = [], 0, 0
    for look_ahead in LOOK_AHEADS:
        record = rows.find(_name(look_ahead), seed)
        if record is None:
            raise ValueError(
                f"{rows.path} lacks {_name(look_ahead)!r} of seed {seed}; `dsi reproduce estimates` measures it."
            )
        found = record["found"]
        levels, queries = found["levels"], found["queries"]
        for beam_width in BEAMS:
            own = found[f"beam {beam_width}"]
            by_level = [own["search errors"].get(str(level), 0) for level in range(levels)]
            total = sum(own["search errors"].values())
            lines.append([str(look_ahead), str(beam_width), *map(str, by_level), str(total), str(own["model errors"])])
    heads = ["look-ahead", "beam", *(f"level {level + 1}" for level in range(levels)), "search errors", "model errors"]
    legend = (
        f"Of {queries:,} test queries those without their document among the first ten answers: search errors by the level at "
        "which the document's node was pruned, and model errors, which exhaustive search makes too."
    )
    text = f"{markdown_table(heads, lines)}\n\n{legend}"
    write_text(output / "estimates.md", text + "\n")
    return text
