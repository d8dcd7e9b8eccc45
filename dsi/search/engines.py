"""Chooses the engine of an index: whether it has a generator, and of which kind."""

import torch

from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.generator.base import Generator
from dsi.generator.model import DocidGenerator
from dsi.generator.pretrained import PretrainedGenerator
from dsi.search.beam import PathEngine
from dsi.search.decoder import Decoder, StatesDecoder, TextDecoder
from dsi.search.engine import Engine
from dsi.search.generate import VectorEngine

DECODERS: dict[type[Generator], type[Decoder]] = {
    DocidGenerator: StatesDecoder,
    PretrainedGenerator: TextDecoder,
}
"""{kind of generator: what runs it in a search}; another package's has `search_decoder`."""


def search_decoder(generator: Generator, dtype: torch.dtype | None = None) -> Decoder:
    """Return what runs a generator in a search.

    Args:
        generator: not changed later.
        dtype: of weights and arithmetic; the generator's by default.
    """
    if (kind := DECODERS.get(type(generator))) is None:
        return generator.search_decoder(dtype)  # type: ignore[no-any-return, operator]
    return kind(generator, dtype)


def create_engine(
    generator: Generator | None,
    tree: DocidTree,
    lexical: BM25 | None,
    dtype: torch.dtype = torch.float32,
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
    return PathEngine(tree, search_decoder(generator, dtype), lexical, memory)
