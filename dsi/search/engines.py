"""Chooses the engine of an index: whether it has a generator. Without one, torch is not imported."""

from typing import TYPE_CHECKING

from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.search.engine import Engine
from dsi.search.generate import VectorEngine

if TYPE_CHECKING:
    from dsi.generator.base import Generator


def create_engine(
    generator: "Generator | None",
    tree: DocidTree,
    lexical: BM25 | None,
    dtype: str = "float32",
    memory: QueryMemory | None = None,
) -> Engine:
    """Return an engine that searches with a generator, on its device, or by the tree's vectors.

    Args:
        generator: trained for these docids, and not changed later; None for an index without one.
        tree: the docids.
        lexical: BM25 of the documents, if the index has it.
        dtype: of a decoder's weights and arithmetic; all else is float32.
        memory: what users took for earlier queries.
    """
    if generator is None:
        return VectorEngine(tree, lexical, memory)
    from dsi.contrastive.encoder import DTYPES
    from dsi.search.beam import PathEngine
    from dsi.search.decoder import search_decoder

    return PathEngine(tree, search_decoder(generator, DTYPES[dtype]), lexical, memory)
