"""Generative document retrieval: train an index, measure it, search it.

import dsi

collection = dsi.read_collection("COLLECTION")
retriever = dsi.train(collection, "INDEX")
print(dsi.evaluate(retriever, collection))
retriever.search("which capitals are on the danube", k=5)
"""

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsi.config import Config
    from dsi.docids.data.collection import Collection, read_collection
    from dsi.measuring.evaluation import Evaluation, evaluate
    from dsi.measuring.tuning import tune
    from dsi.search.hits import Hit, Hits
    from dsi.search.request import SearchConfig, SearchOptions
    from dsi.store.retriever import Retriever, load
    from dsi.training.indexing import index
    from dsi.training.pipeline import train

if "OMP_WAIT_POLICY" not in os.environ:
    # How often OpenMP's threads look whether there is work before they sleep. By default they take the cores that others need:
    # on a busy machine torch then computes in up to eight times the time. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

_HOMES = {
    "Collection": "dsi.docids.data.collection",
    "Config": "dsi.config",
    "Evaluation": "dsi.measuring.evaluation",
    "Retriever": "dsi.store.retriever",
    "Hit": "dsi.search.hits",
    "Hits": "dsi.search.hits",
    "SearchConfig": "dsi.search.request",
    "SearchOptions": "dsi.search.request",
    "evaluate": "dsi.measuring.evaluation",
    "index": "dsi.training.indexing",
    "load": "dsi.store.retriever",
    "read_collection": "dsi.docids.data.collection",
    "train": "dsi.training.pipeline",
    "tune": "dsi.measuring.tuning",
}
__all__ = [
    "Collection",
    "Config",
    "Evaluation",
    "Hit",
    "Hits",
    "Retriever",
    "SearchConfig",
    "SearchOptions",
    "evaluate",
    "index",
    "load",
    "read_collection",
    "train",
    "tune",
]


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import dsi` alone stays fast."""
    if name == "__version__":
        return version("dr-scl")
    if name not in _HOMES:
        raise AttributeError(f"module 'dsi' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
