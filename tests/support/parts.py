"""A retriever of parts that a test makes one by one."""

from typing import Any

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.search.engine import IndexGenerator
from dsi.search.request import SearchConfig
from dsi.store.documents.table import DocumentTable
from dsi.store.retriever import Retriever
from dsi.store.snapshot import Snapshot
from dsi.store.updating import Content


def from_parts(
    encoder: TextEncoder, tree: DocidTree, generator: IndexGenerator | None, documents: Any,
    search_config: SearchConfig | None = None, lexical: BM25 | None = None, memory: QueryMemory | None = None,
    dtype: str = "float32",
) -> Retriever:  # fmt: skip
    """Return a retriever of an encoder, a tree, perhaps a generator, and documents: an Arrow table or a data set."""
    content = Content(tree, DocumentTable(documents).table, lexical, QueryMemory() if memory is None else memory)
    return Retriever(Snapshot.from_parts(encoder, generator, content, search_config or SearchConfig(), dtype=dtype))
