"""Settings of a whole training with tiny models."""

from pathlib import Path

import pytest

from dsi.config import Config, write_config


def write_settings(path: Path, encoder_folder: Path, t5_folder: Path, **sections: dict[str, object]) -> Path:
    """A configuration on disk, by default with a generator; where there are none, its test is skipped."""
    config = Config().with_changes(
        {
            "bf16": False,
            "encoder": {"name": str(encoder_folder), "query_prompt": "Query: ", "document_prompt": "Document: "},
            "pseudo_queries": {"method": "extractive", "per_document": 2},
            "contrastive": {"loss": "scl", "epochs": 1.0, "batch_size": 24, "temperature": 0.1, "interpolation": 1.0},
            "docids": {"branching": 4, "max_leaf_size": 4, "pieces": 1},
            "generator": {"docid_tokens": "digits", "decoder": str(t5_folder)},
            "training": {"epochs": 2.0, "batch_size": 16, "learning_rate": 2e-3},
            "search": {"beam_width": 10, "lexical_weight": 0.0, "token_weight": 0.0},
        }
    )
    config = config.with_changes({"encoder": {"document_length": 16}, "contrastive": {"learning_rate": 1e-4}})
    config = config.with_changes(sections)
    if config.generator.exists:
        pytest.importorskip("dsi.generator.stage")
    if config.pseudo_queries.method != "none":
        pytest.importorskip("dsi.pseudo_queries")
    write_config(config, path)
    return path


VECTORS: dict[str, dict[str, object]] = {
    "generator": {"docid_tokens": "none", "decoder": "", "num_layers": 0},
    "training": {"epochs": 0.0},
    "pseudo_queries": {"method": "none"},
}
"""Of an index without a generator; what is left of `dsi` without `dsi.generator` trains it."""


TINY = """
dev_queries = 20
[encoder]
name = "{encoder}"
document_length = 24
[tokens]
epochs = 0.0
"""
"""A configuration that makes an index in seconds."""
