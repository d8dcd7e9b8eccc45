"""Docid schemes and objectives that another package brings, installed for one test."""

import sys
from pathlib import Path

import pytest

LETTERS = """
from dsi.docids.schemes import Docids


def make(documents):
    return Docids.from_paths([[ord(text[0]), len(text.split())] for text in documents.texts])
"""


def install(
    site: Path, patch: pytest.MonkeyPatch, version: str = "1.0", group: str = "dsi.docid_schemes", **points: str
) -> None:
    """Put a distribution "foreign" on the path, with a module `own_letters` and entry points {name: place} of a group."""
    info = site / "foreign.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / "own_letters.py").write_text(LETTERS)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: foreign\nVersion: {version}\n")
    rows = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (info / "entry_points.txt").write_text("\n".join(rows))
    patch.delitem(sys.modules, "own_letters", raising=False)  # of another site
    patch.syspath_prepend(site)
