"""An index at one moment: its parts, and what is computed from them. Knows no folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.records import COLUMNS
from dsi.docids.files.checks import plain
from dsi.docids.query_memory import QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import BM25
from dsi.search.best_scores import BestScores
from dsi.search.engine import Engine, Followed, IndexGenerator, restricted
from dsi.search.explain.why import AnsweredQuery
from dsi.search.hits import Document, Hit, Hits
from dsi.search.passages import ScoredText
from dsi.search.queries import EncodedQueries, Queries, encoded_queries
from dsi.search.request import SearchConfig, SearchOptions, SearchRequest, given_options, request_of_each, split_options
from dsi.search.results import SearchResult
from dsi.search.vector_search import VectorEngine
from dsi.store.documents.table import DocumentTable
from dsi.store.updating import Content, changed_parts


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The parts of an index at one moment, for measurements and extensions; `from_parts` makes one.

    An update makes another snapshot, so threads share one without locks.

    Attributes:
        encoder: laid out for search.
        generator: trained for these docids; None for an index whose vectors score nodes.
        search_config: the default search config.
        configured: the search config from which `dsi.tune` begins.
        documents: the document table, in collection order.
        engine: searches encoded queries; holds docids, lexical part and memory.
        best_scores: of questions that the documents ask, with which scores are compared; None where they are not known.
        dtype: of encoder and decoder in search; scores are always float32.
        generation: of the index on disk: 1 as it was made, more after updates; 0 after changes that no folder holds.
    """

    encoder: TextEncoder
    generator: IndexGenerator | None
    search_config: SearchConfig
    configured: SearchConfig
    documents: DocumentTable
    engine: Engine
    best_scores: BestScores | None = None
    dtype: str = "float32"
    generation: int = 1

    @classmethod
    def from_parts(
        cls, encoder: TextEncoder, generator: IndexGenerator | None, content: Content, search_config: SearchConfig,
        configured: SearchConfig | None = None, dtype: str = "float32",
    ) -> Self:  # fmt: skip
        """Join the parts of an index; `configured` is `search_config` by default.

        Raises:
            ValueError: they do not belong together.
        """
        tree, documents, lexical, memory, best_scores = content
        if len(documents) != tree.num_rows:
            raise ValueError(f"The docids cover {tree.num_rows} documents, the document table has {len(documents)}.")
        if encoder.embedding_dim != (dim := tree.embeddings.shape[1]):
            raise ValueError(f"The encoder gives embeddings of {encoder.embedding_dim}, the docids need {dim}.")
        if tree.tokens is not None and encoder.state_dim != (dim := tree.tokens.head.shape[1]):
            raise ValueError(f"The encoder gives token states of {encoder.state_dim}, the token vectors need {dim}.")
        engine: Engine
        if generator is None:
            engine = VectorEngine(tree, lexical, memory)
        else:
            engine = generator.engine(encoder, tree, lexical, memory, dtype)
        encoder, table = encoder.for_search(dtype), DocumentTable(documents)
        configs = search_config, configured or search_config
        return cls(encoder, generator, *configs, table, engine, best_scores, dtype)

    @property
    def tree(self) -> DocidTree:
        """The docids."""
        return self.engine.tree

    @property
    def lexical(self) -> BM25 | None:
        """BM25 of the documents; None if the index has none."""
        return self.engine.lexical

    @property
    def memory(self) -> QueryMemory:
        """What the index has learned from use: pairs of an earlier query and a document."""
        return self.engine.memory

    @property
    def content(self) -> Content:
        """The parts that an update changes."""
        return Content(self.tree, self.documents.table, self.lexical, self.memory, self.best_scores)

    def changed(self, content: Content) -> "Snapshot":
        """Return the index with other content, which no folder holds."""
        if not (parts := changed_parts(content, self.content)):
            return self
        if parts == ["memory"]:
            return replace(self, engine=self.engine.with_memory(content.memory), generation=0)
        engine = self.engine.with_content(content.tree, content.lexical, content.memory)
        documents, best = DocumentTable(content.documents), content.best_scores
        return replace(self, documents=documents, engine=engine, best_scores=best, generation=0)

    def with_memory(self, memory: QueryMemory) -> "Snapshot":
        """Return the index with another memory."""
        return self.changed(self.content._replace(memory=memory))

    def request(self, call: str, k: int, options: Mapping[str, Any]) -> SearchRequest:
        """Return a request to `engine` for k documents: the options of a call over the index's search config.

        `call` is the name of the public method, for messages. Wrong options raise as `Retriever.search` says.
        """
        options = given_options(call, options)
        overrides, others = split_options(options)
        config = replace(self.search_config, **overrides)
        self.engine.check(call, options, config)
        allowed = self.documents.allowed(**{name: others.pop(name, None) for name in ("allow", "deny", "where")})
        request = SearchRequest(plain(int, k, "k"), config, **others)
        return request if allowed is None else restricted(request, self.tree, allowed)

    def search(
        self, encoded: EncodedQueries, k: int = 10, *, show_progress: bool = False, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the arrays of a search for encoded queries, rows in their order."""
        if not isinstance(encoded, EncodedQueries):
            raise TypeError(f"search() of a snapshot takes what encode_queries() returns, got {encoded!r}.")
        return self.engine.search(encoded, self.request("search", k, options), show_progress=show_progress)

    def follow(
        self, queries: Queries | EncodedQueries, doc_ids: Sequence[Sequence[str]], **options: Unpack[SearchOptions]
    ) -> Followed:
        """Return how the paths to some documents are scored, whether or not a search finds them.

        Args:
            queries: texts, or the output of `encode_queries`.
            doc_ids: documents for each query, the same number for all; one with several places has the path to its best one.
            **options: see `SearchOptions`; the scores are those of a search with them.

        Returns:
            Scores of the nodes by level, [queries, documents, depth], and the parts of the documents' scores.
        """
        encoded = encoded_queries(self.encoder, queries)
        request = self.request("follow", 1, options)
        encoded.check_usable()
        if not isinstance(doc_ids, Sequence) or isinstance(doc_ids, str):
            raise TypeError(f"doc_ids must be a list of documents for each query, got {doc_ids!r}.")
        rows = [self.documents.rows_of(names, "doc_ids") for names in doc_ids]
        counts = [len(found) for found in rows]
        if len(rows) != encoded.count or len({*counts}) != 1 or not counts[0]:
            raise ValueError(
                f"doc_ids must be a list of documents for each of the {encoded.count} queries, equally long and not empty, got "
                f"{len(rows)} lists of lengths {counts[:10]}."
            )
        return self.engine.follow_all(encoded, request, np.array(rows))

    def answered(self, encoded: EncodedQueries, request: SearchRequest) -> list[AnsweredQuery]:
        """Return the search of each query, by which documents are explained."""
        requests = request_of_each(request, encoded.count, self.tree.num_rows)
        pairs = zip(encoded.each(), requests, strict=True)
        return [AnsweredQuery(*pair, self.engine, self.encoder, self.documents, self.best_scores) for pair in pairs]

    def hits(self, encoded: EncodedQueries, request: SearchRequest) -> list[Hits]:
        """Return the hits of each query of a search, which they can explain."""
        return self.hits_of(self.engine.search(encoded, request), self.answered(encoded, request))

    def hits_of(self, result: SearchResult, searches: Sequence[AnsweredQuery] = ()) -> list[Hits]:
        """Return the hits of each query of a search result; `searches` of the same queries explain them."""
        tree, documents = self.tree, self.documents
        positions = np.maximum(result.positions, 0)
        _, digits = tree.paths(positions.ravel())
        docids = [tuple(digit for digit in path if digit >= 0) for path in digits.tolist()]
        rows = np.maximum(tree.doc_rows[positions], 0)
        doc_ids, titles, texts = (documents.values_of(name, rows) for name in ("doc_id", "title", "text"))
        metadata = documents.metadata_at(rows.ravel())
        hits, k, scores = [], positions.shape[1], result.scores.tolist()
        for row, (count, exact) in enumerate(zip(result.counts.tolist(), result.exact.tolist(), strict=True)):
            flat, search, at = slice(row * k, row * k + k), searches[row] if searches else None, positions[row, :count]
            found = [*map(ScoredText, at.tolist(), texts[row], scores[row])]
            has_pieces = found and search and (tree.spans is not None or search.request.passages > 1)
            shown = search.passages(found) if search and has_pieces else [(span, ()) for span in tree.spans_at(at)]
            columns = scores[row], doc_ids[row], titles[row], docids[flat], texts[row], metadata[flat]
            shown_hits = [
                Hit(rank, *values, *pieces).found_by(search)
                for rank, *values, pieces in zip(range(1, count + 1), *columns, shown, strict=False)
            ]
            query, lack = search.encoded.texts[0] if search else "", (float(result.coverage[row]), result.missing[row])
            hits.append(Hits(shown_hits, exact, query, search, *lack))
        return hits

    def as_run(self, query_ids: Sequence[str], result: SearchResult) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} of a result with one row per query."""
        rows = np.maximum(self.tree.doc_rows[np.maximum(result.positions, 0)], 0)
        columns = self.documents.values_of("doc_id", rows), result.scores.tolist(), result.counts.tolist()
        return {
            query_id: dict(zip(doc_ids[:count], scores, strict=False))
            for query_id, doc_ids, scores, count in zip(query_ids, *columns, strict=True)
        }

    def get(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return documents as the index holds them; see `Retriever.get`."""
        rows = np.array(self.documents.rows_of(doc_ids, "get"), dtype=np.int64)
        columns = (self.documents.values_of(name, rows[None])[0] for name in COLUMNS)
        digits = map(self.tree.digits, self.tree.positions[rows].tolist())
        return [Document(*values) for values in zip(*columns, self.documents.metadata_at(rows), digits, strict=True)]
