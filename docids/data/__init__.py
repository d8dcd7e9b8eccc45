"""Collections: their files, their records, and public sources."""

from pathlib import Path

SHIPPED = {"minipedia": Path(__file__).parent / "minipedia"}
"""{name: folder} of the collections that ship with the package."""
