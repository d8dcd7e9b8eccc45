"""The files of a finished experiment: OUTPUT/NAME.md, and OUTPUT/NAME.json with where its numbers come from.

The one writer of both. Experiments that go on after a kill keep their rows with `dsi_experiments.rows`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsi.docids.files.storage import write_json, write_text


def save_report(output: Path, name: str, text: str, record: Mapping[str, Any] | None = None) -> None:
    """Write the report of an experiment.

    `record`: what the text shows, written with hardware, versions and commit; None if `Rows` keeps it.
    """
    if record is not None:
        from dsi.measuring.provenance import provenance

        write_json(output / f"{name}.json", {**provenance(), **record})
    write_text(output / f"{name}.md", text + "\n")
