"""Random cases of a search by vectors."""

from dataclasses import dataclass, field

import numpy as np

from dsi.docids.query_memory import MemoryConfig, QueryMemory
from dsi.docids.token_vectors import BITS, TokenVectors, encode_states
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.vector_search import VectorEngine
from tests.support.small import WIDTH, as_batch, random_queries, random_tree

VOCABULARY = [f"word{n}" for n in range(12)]


def texts(count: int, rng: np.random.Generator) -> list[str]:
    return [" ".join(rng.choice(VOCABULARY, size=rng.integers(1, 7))) for _ in range(count)]


@dataclass
class Case:
    """One random index with queries."""

    tree: DocidTree
    bm25: BM25
    batch: QueryBatch
    request: SearchRequest
    memory: QueryMemory | None = None
    texts: list[str] = field(default_factory=list)
    """Of the documents, by their rows."""

    @property
    def index(self) -> VectorEngine:
        return VectorEngine(self.tree, self.bm25, self.memory)


def token_states(texts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """States [tokens, WIDTH] of texts, some of which have no token."""
    return [rng.normal(size=(int(rng.integers(0, 6)), WIDTH)).astype(np.float32) for _ in range(texts)]


def random_tokens(places: int, rng: np.random.Generator) -> TokenVectors:
    head = rng.normal(size=(8, WIDTH)).astype(np.float32)
    bits = int(rng.choice(BITS))
    codes = encode_states(head, bits, token_states(places, rng))
    return TokenVectors(head, bits, (codes,), np.arange(places, dtype=np.int32))


def random_memory(rows: int, queries: np.ndarray, bm25: BM25, rng: np.random.Generator) -> QueryMemory:
    """Earlier queries near some queries [batch, dim], and others, of documents below `rows`; their texts are kept."""
    count = int(rng.choice([1, 4, 12, 90]))
    near = queries[rng.integers(len(queries), size=count)]
    vectors = near + rng.choice([0.1, 1.0, 3.0], size=(count, 1)) * rng.normal(size=near.shape)
    drawn = [f"{text} new{number % 3}" for number, text in enumerate(texts(max(1, count // 2), rng))]
    asked = rng.choice(drawn, size=count).tolist()  # some pairs come twice
    terms = [bm25.analyzer.terms(text) for text in asked]
    empty = QueryMemory(MemoryConfig(keep_queries=True))
    return empty.learn(asked, rng.integers(rows, size=count), vectors.astype(np.float32), terms=terms)


def small_case(documents: int = 60, queries: int = 4, **config: object) -> Case:
    rng = np.random.default_rng(5)
    tree = random_tree(documents, branching=3, leaf=5)
    bm25 = BM25([str(n) for n in range(documents)], texts(documents, rng))
    states, mask, embeddings = random_queries(queries, seed=1)
    batch = as_batch(states, mask, embeddings, texts(queries, rng))
    return Case(tree, bm25, batch, SearchRequest(5, SearchConfig(**config)))
