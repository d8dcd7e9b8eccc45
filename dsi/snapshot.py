"""An index at one moment, and every search on it.

A snapshot never changes: an update makes a new one. So a search sees all of an update or nothing of it, and threads share a
snapshot without locks. Knows encoded queries and docid positions, not the folders of an index; users see `dsi.retriever`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from contrastive.encoder import Encoder
from docids.data.records import COLUMNS
from docids.files.checks import plain
from docids.files.progress import progress
from docids.tree import DocidTree
from docids.words.bm25 import Lexical
from dsi.generator.base import Generator
from dsi.generator.tied import TiedGenerator
from dsi.rerankers.candidates import Candidates
from dsi.rerankers.reranking import candidates_of
from dsi.search.answers import Document, Hit, Hits
from dsi.search.beam import BeamSearch
from dsi.search.decoder import FastDecoder
from dsi.search.engine import Engine, Followed, Method
from dsi.search.explanation import Explanation, Found, explain
from dsi.search.generate import TiedIndex
from dsi.search.queries import EncodedQueries
from dsi.search.request import (
    SearchConfig,
    SearchRequest,
    check_extra_scores,
    check_used,
    given_options,
    split_options,
)
from dsi.search.results import Bools, SearchResult, Trace
from dsi.store.documents import DocumentTable
from dsi.store.updating import Content


@dataclass(frozen=True, eq=False)
class IndexSnapshot:
    """Encoder, docids, generator and documents that belong together.

    Attributes:
        encoder: of the queries.
        generator: the decoder trained for these docids.
        search_config: the default search config.
        documents: the document table, in collection order.
        lexical: BM25 or learned sparse vectors of the same documents; None if the index has neither.
        engine: searches them.
    """

    encoder: Encoder
    generator: Generator
    search_config: SearchConfig
    documents: DocumentTable
    lexical: Lexical | None
    engine: Engine

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        generator: Generator,
        decoder: FastDecoder | TiedGenerator,
        config: SearchConfig,
        content: Content,
    ) -> "IndexSnapshot":
        """Return a snapshot of some content; `decoder` is the generator laid out for search."""
        engine: Engine
        if isinstance(decoder, TiedGenerator):
            engine = TiedIndex(content.tree, decoder, content.lexical)
        else:
            engine = BeamSearch(content.tree, decoder, encoder.model.device, content.lexical)
        return cls(encoder, generator, config, DocumentTable(content.documents), content.lexical, engine)

    @property
    def tree(self) -> DocidTree:
        """The docids."""
        return self.engine.tree

    @property
    def is_tied(self) -> bool:
        """Whether docid tokens are tied to the tree's vectors."""
        return isinstance(self.engine, TiedIndex)

    @property
    def content(self) -> Content:
        """The parts that an update changes."""
        return Content(self.tree, self.documents.dataset, self.lexical)

    def request(self, call: str, k: int, options: Mapping[str, Any]) -> SearchRequest:
        """Return a request for k documents: the call's options over the index's search config.

        Args:
            call: name of the public method, for messages.
            k: documents per query.
            options: of `SearchOptions`.

        Raises:
            TypeError: an unknown option.
            ValueError: an option that is out of range or not used, an unknown doc_id or column in a filter.
        """
        given = given_options(call, options)
        overrides, rest = split_options(given)
        config = replace(self.search_config, **overrides)
        check_used(call, given, config, tied=self.is_tied)
        self._check_weights(given)
        if config.alpha:
            self.generator.check_beam(config.beam_width)
        filters = {name: rest.pop(name) for name in ("allow", "deny", "where") if name in rest}
        return SearchRequest(plain(int, k, "k"), config, self._allowed(**filters), **rest)

    def _check_weights(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError if a part of the score is asked for that the index lacks; by default it is left out."""
        if given.get("lexical_weight") and self.lexical is None:
            raise ValueError(
                f"lexical_weight is {given['lexical_weight']:g}, but this index has no lexical part; use 0, or train with "
                "lexical.enabled = true."
            )
        if given.get("token_weight") and self.tree.tokens is None:
            raise ValueError(
                f"token_weight is {given['token_weight']:g}, but this index has no token vectors; use 0, or train with "
                "tokens.enabled = true."
            )

    def _allowed(self, **filters: Any) -> Bools | None:
        """Return [places] True at allowed documents; None without a filter."""
        allowed = self.documents.allowed(**filters)
        if allowed is None:
            return None
        return np.asarray(allowed[self.tree.doc_rows] & (self.tree.doc_rows >= 0))

    def search(
        self,
        encoded: EncodedQueries,
        request: SearchRequest,
        *,
        show_progress: bool = False,
        method: Method | None = None,
    ) -> SearchResult:
        """Return the top k documents of each query, rows in the order of the queries.

        Args:
            encoded: the queries.
            request: what is asked.
            show_progress: show a progress bar.
            method: in place of the request's, for measurements.
        """
        if request.extra_scores is not None:
            check_extra_scores(request.extra_scores, (encoded.count, self.tree.num_rows))
        method = method or self.engine.methods[request.config.method]
        batches = progress(encoded.batches, "search", unit="batch", enabled=show_progress)
        parts = [(batch.rows.numpy(), _finite(method.retrieve(batch, request), request.config)) for batch in batches]
        whole = SearchResult.empty(encoded.count, parts[0][1].positions.shape[1] if parts else 0)
        for rows, part in parts:
            whole.put(rows, part)
        return whole

    def run(
        self,
        encoded: EncodedQueries,
        request: SearchRequest,
        *,
        show_progress: bool = False,
        method: Method | None = None,
    ) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} of a search; see `search`."""
        return self.as_run(encoded.query_ids, self.search(encoded, request, show_progress=show_progress, method=method))

    def explain(self, query: str, encoded: EncodedQueries, request: SearchRequest) -> tuple[Explanation, SearchResult]:
        """Search for one query; return how the search came about, level by level, and its result."""
        if request.extra_scores is not None:
            check_extra_scores(request.extra_scores, (1, self.tree.num_rows))
        trace, (batch,) = Trace(), encoded.batches
        result = _finite(self.engine.methods[request.config.method].retrieve(batch, request, trace), request.config)
        followed = Followed(result.positions, result.scores[:, :, None], {})
        if result.positions.size:
            followed = self.engine.follow(batch, request, self.tree.doc_rows[np.maximum(result.positions, 0)])
        found = Found(trace, result, followed)
        titles = self.documents.dataset["title"]
        lexical = self.lexical.name if self.lexical and request.config.lexical_weight else ""
        return explain(query, self.tree, titles, request.config, found, lexical, tied=self.is_tied), result

    def follow(self, encoded: EncodedQueries, request: SearchRequest, doc_ids: Sequence[Sequence[str]]) -> Followed:
        """Return how the paths to each query's documents are scored, whether or not a search finds them.

        A document with several places has the path to its best one.
        """
        if not isinstance(doc_ids, Sequence) or isinstance(doc_ids, str):
            raise TypeError(f"doc_ids must be a list of documents for each query, got {doc_ids!r}.")
        if request.extra_scores is not None:
            check_extra_scores(request.extra_scores, (encoded.count, self.tree.num_rows))
        lists = [self.documents.rows_of(own, "doc_ids") for own in doc_ids]
        counts = [len(own) for own in lists]
        if len(lists) != encoded.count or not counts or min(counts) != max(counts) or not counts[0]:
            raise ValueError(
                f"doc_ids must be a list of documents for each of the {encoded.count} queries, equally long and not empty, got "
                f"{len(lists)} lists of lengths {counts[:10]}."
            )
        rows = np.array(lists)
        parts = [self.engine.follow(batch, request, rows[batch.rows.numpy()]) for batch in encoded.batches]
        order = np.concatenate([batch.rows.numpy() for batch in encoded.batches]).argsort()
        positions, nodes = (np.concatenate([part[field] for part in parts])[order] for field in (0, 1))
        names = parts[0].parts
        return Followed(
            positions, nodes, {name: np.concatenate([part.parts[name] for part in parts])[order] for name in names}
        )

    def candidates(self, encoded: EncodedQueries, result: SearchResult, *, features: bool) -> Candidates:
        """Return the documents of a search result as candidates for rerankers."""
        if not encoded.count:
            raise ValueError("candidates() takes at least one query, got none.")
        return candidates_of(self.engine, self.documents, self.lexical, encoded, result, features=features)

    def hits(self, result: SearchResult) -> list[Hits]:
        """Return the hits of each query of a search result."""
        positions = result.positions
        found = np.maximum(positions, 0)
        _, digits = self.tree.paths(found.ravel())
        docids = [tuple(digit for digit in own if digit >= 0) for own in digits.tolist()]
        rows = np.maximum(self.tree.doc_rows[found], 0)
        doc_ids, titles, texts = (self.documents.values_of(name, rows) for name in ("doc_id", "title", "text"))
        answers, k, scores = [], positions.shape[1], result.scores.tolist()
        for row, (count, exact) in enumerate(zip((positions >= 0).sum(axis=1), result.exact.tolist(), strict=True)):
            own = docids[row * k : row * k + k]
            fields = zip(range(1, count + 1), scores[row], doc_ids[row], titles[row], own, texts[row], strict=False)
            answers.append(Hits([Hit(*each) for each in fields], exact))
        return answers

    def document(self, doc_id: str) -> Document:
        """Return a document as the index holds it, with the first of its docids.

        Raises:
            ValueError: the doc_id is not in the index.
        """
        (row,) = self.documents.rows_of([doc_id], "get")
        values = self.documents.record(row)
        doc_id, title, text = (values.pop(name, None) for name in COLUMNS)
        metadata = {name: value for name, value in values.items() if value is not None}
        return Document(doc_id, title, text, metadata, self.tree.digits(int(self.tree.positions[row])))

    def as_run(self, query_ids: Sequence[str], result: SearchResult) -> dict[str, dict[str, float]]:
        """Return {query_id: {doc_id: score}} of a result whose rows are these queries."""
        positions = result.positions
        doc_ids = self.documents.values_of("doc_id", np.maximum(self.tree.doc_rows[np.maximum(positions, 0)], 0))
        rows = zip(query_ids, doc_ids, result.scores.tolist(), (positions >= 0).sum(axis=1), strict=True)
        return {query_id: dict(zip(own[:count], scores, strict=False)) for query_id, own, scores, count in rows}


def _finite(result: SearchResult, config: SearchConfig) -> SearchResult:
    """Return a result, if its scores are finite: an answer on others would mean nothing.

    Raises:
        ValueError: they overflow.
    """
    if np.isfinite(result.scores[result.positions >= 0]).all() and not np.isnan(result.scores).any():
        return result
    raise ValueError(
        f"Scores overflow with lexical_weight {config.lexical_weight:g}, query_map_weight {config.query_map_weight:g} and "
        f"ann_temperature {config.ann_temperature:g}; choose values closer to the scale of the scores."
    )


class IndexParts:
    """The parts of the index that a subclass holds at this moment."""

    _index: IndexSnapshot

    @property
    def encoder(self) -> Encoder:
        """The frozen encoder, laid out for search."""
        return self._index.encoder

    @property
    def generator(self) -> Generator:
        """The decoder."""
        return self._index.generator

    @property
    def tree(self) -> DocidTree:
        """The docids."""
        return self._index.tree

    @property
    def documents(self) -> DocumentTable:
        """The documents: doc_id, title and metadata."""
        return self._index.documents

    @property
    def lexical(self) -> Lexical | None:
        """BM25 or learned sparse vectors of the documents; None if the index has neither."""
        return self._index.lexical

    @property
    def snapshot(self) -> IndexSnapshot:
        """The index at this moment; later updates do not reach it."""
        return self._index
