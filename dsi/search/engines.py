"""Chooses the engine of an index by its docid tokens."""

import copy

import torch

from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.generator.base import Generator
from dsi.generator.model import DocidGenerator
from dsi.generator.pretrained import PretrainedGenerator
from dsi.generator.tied import TiedGenerator
from dsi.search.beam import PathEngine
from dsi.search.decoder import Decoder, StatesDecoder, TextDecoder
from dsi.search.engine import Engine
from dsi.search.generate import TiedEngine

DECODERS: dict[type[Generator], type[Decoder]] = {
    DocidGenerator: StatesDecoder,
    PretrainedGenerator: TextDecoder,
}
"""{kind of generator: what runs it in a search}; another package's has `search_decoder`."""


def search_decoder(generator: Generator, dtype: torch.dtype | None = None) -> Decoder:
    """Return what runs a generator whose tokens are not tied in a search.

    Args:
        generator: not changed later.
        dtype: of weights and arithmetic; the generator's by default.
    """
    if (kind := DECODERS.get(type(generator))) is None:
        return generator.search_decoder(dtype)  # type: ignore[no-any-return, operator]
    return kind(generator, dtype)


def create_engine(
    generator: Generator,
    tree: DocidTree,
    lexical: BM25 | None,
    dtype: torch.dtype = torch.float32,
    memory: QueryMemory | None = None,
) -> Engine:
    """Return an engine that searches with a generator, on its device.

    Args:
        generator: trained for these docids; not changed later.
        tree: the docids.
        lexical: BM25 of the documents, if the index has it.
        dtype: of a decoder's weights and arithmetic; all else is float32.
        memory: what users took for earlier queries.
    """
    if not isinstance(generator, TiedGenerator):
        return PathEngine(tree, search_decoder(generator, dtype), lexical, memory)
    generator = copy.deepcopy(generator).eval().requires_grad_(requires_grad=False)
    if generator.reads_states:
        generator.decoder.to(dtype)
    return TiedEngine(tree, generator, lexical, memory)
