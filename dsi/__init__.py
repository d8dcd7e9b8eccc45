"""Generative document retrieval: `from dsi import GenerativeRetriever`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsi.answers import Hit, Hits
    from dsi.config import Config
    from dsi.reranking import load_stages
    from dsi.retriever import GenerativeRetriever
    from dsi.search.settings import SearchConfig

__all__ = ["Config", "GenerativeRetriever", "Hit", "Hits", "SearchConfig", "load_stages"]

_HOME = {
    "Config": "dsi.config",
    "Hit": "dsi.answers",
    "Hits": "dsi.answers",
    "SearchConfig": "dsi.search.settings",
    "load_stages": "dsi.reranking",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import dsi` alone stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'dsi' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "dsi.retriever")), name)
