"""Tells PyTerrier which folders hold an index. PyTerrier imports it with every artifact, so it imports nothing heavy."""

from collections.abc import Sequence
from pathlib import Path

from dsi.docids.files.reading import read_json

METADATA = {"type": "generative_index", "format": "dr_scl", "package_hint": "dr-scl[pyterrier]"}
"""How PyTerrier's artifacts call an index."""
_OURS = {"format_version", "parts", "encoder", "search", "fingerprints"}


def artifact_metadata(path: str, names: Sequence[str]) -> dict[str, str] | None:
    """Return `METADATA` if a folder holds an index, else None."""
    if "manifest.json" not in names:
        return None
    try:
        manifest = read_json(Path(path) / "manifest.json")
    except ValueError:
        return None
    return dict(METADATA) if manifest.keys() >= _OURS else None
