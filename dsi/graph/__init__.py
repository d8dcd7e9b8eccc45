"""The encoder as an ONNX graph, so that a search needs neither torch nor transformers."""

from pathlib import Path
from typing import Any

from dsi.graph.encoder import GraphEncoder


def add_graph(encoder: Any, folder: Path) -> None:
    """Write the graph of an encoder into the folder where it was saved; a line says if there can be none."""
    if not isinstance(encoder, GraphEncoder):  # which was saved with its own
        from dsi.graph.export import write_graph  # imports torch

        write_graph(encoder, folder)
