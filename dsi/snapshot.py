"""An index at one moment, and every search on it.

A snapshot never changes: an update makes a new one. So a search sees all of an update or nothing of it, and threads share a
snapshot without locks. Knows encoded queries and docid positions, not the folders of an index; users see `dsi.retriever`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contrastive.encoder import Encoder
from docids.checks import plain
from docids.lexical import Lexical
from docids.progress import progress
from docids.records import COLUMNS
from docids.tree import DocidTree
from dsi.documents import DocumentTable
from dsi.generator.base import Generator
from dsi.rerankers.candidates import Candidates
from dsi.reranking import candidates_of, look_ahead_search
from dsi.search.answers import Document, Hit, Hits
from dsi.search.beam import TreeSearcher
from dsi.search.beams import LevelTrace, SearchResult
from dsi.search.decoder import FastDecoder, TiedDecoder
from dsi.search.explanation import Explanation, explain
from dsi.search.graphs import GraphedSearch
from dsi.search.queries import EncodedQueries, QueryBatch, WordFactors, with_scores
from dsi.search.request import SearchConfig, SearchRequest, given_options, split_options
from dsi.search.words import word_factors
from dsi.updating import Content


@dataclass(frozen=True, eq=False)
class IndexSnapshot:
    """Encoder, docids, generator and documents that belong together.

    Attributes:
        encoder: of the queries.
        generator: the decoder trained for these docids.
        search_config: the default search config.
        documents: the document table, in collection order.
        lexical: BM25 or learned sparse vectors of the same documents; None if the index has neither.
        searcher: beam search over the tree with the decoder.
        graphs: recorded searches, on a GPU.
    """

    encoder: Encoder
    generator: Generator
    search_config: SearchConfig
    documents: DocumentTable
    lexical: Lexical | None
    searcher: TreeSearcher
    graphs: GraphedSearch | None

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        generator: Generator,
        decoder: FastDecoder | TiedDecoder,
        config: SearchConfig,
        content: Content,
    ) -> "IndexSnapshot":
        """Return a snapshot of some content; `decoder` is the generator laid out for search."""
        device = encoder.model.device
        searcher = TreeSearcher(content.tree, decoder, device)
        graphs = GraphedSearch(searcher) if device.type == "cuda" else None
        return cls(encoder, generator, config, DocumentTable(content.documents), content.lexical, searcher, graphs)

    @property
    def tree(self) -> DocidTree:
        """The docids."""
        return self.searcher.tree

    @property
    def content(self) -> Content:
        """The parts that an update changes."""
        return Content(self.tree, self.documents.dataset, self.lexical)

    def request(self, call: str, k: int, options: Mapping[str, Any]) -> SearchRequest:
        """Return a request for k documents: the call's options over the index's search config, with beam_width at least k.

        Args:
            call: name of the public method, for messages.
            k: documents per query.
            options: of `SearchOptions`.

        Raises:
            TypeError: an unknown option.
            ValueError: an option that is out of range or not used, an unknown doc_id or column in a filter.
        """
        overrides, rest = split_options(given_options(call, options))
        k = plain(int, k, "k")
        if "fusion" in overrides and plain(str, overrides["fusion"], "fusion") == "paper":
            overrides.setdefault("lexical_weight", 0.0)
        overrides.setdefault("beam_width", max(self.search_config.beam_width, k))
        config = replace(self.search_config, **overrides)
        self.searcher.check(config)
        if config.alpha:
            self.generator.check_beam(config.beam_width)
        filters = {name: rest.pop(name) for name in ("allow", "deny", "where") if name in rest}
        return SearchRequest(k, config, self._alive(**filters), **rest)

    def _alive(self, **filters: Any) -> Tensor | None:
        """Return [nodes] True at allowed documents and the nodes above them; None without a filter."""
        allowed = self.documents.allowed(**filters)
        if allowed is None:
            return None
        by_position = allowed[self.tree.doc_rows] & (self.tree.doc_rows >= 0)
        return self.searcher.dense.alive(torch.from_numpy(by_position).to(self.searcher.device))

    def search(self, encoded: EncodedQueries, request: SearchRequest, *, show_progress: bool = False) -> SearchResult:
        """Return the top k documents of each query, rows in the order of the queries."""
        most = self.searcher.most_answers(request)
        if request.method == "mcts" and most:
            temperature = self.search_config.ann_temperature
            batches = self._scored(encoded, request)
            return look_ahead_search(self.documents, self.searcher, self.lexical, batches, request, temperature)
        whole = SearchResult.empty(encoded.count, most)
        if whole.positions.shape[1]:
            batches, count = self._scored(encoded, request), len(encoded.batches)
            for batch in progress(batches, "search", unit="batch", total=count, enabled=show_progress):
                whole.put(batch.rows, self._search_batch(batch, request))
        return whole

    def trace(self, encoded: EncodedQueries, request: SearchRequest) -> tuple[list[LevelTrace], SearchResult]:
        """Search for one query, and return the candidates of every level with the result.

        Raises:
            ValueError: the method is not "beam".
        """
        if request.method != "beam":
            raise ValueError(f'Only a beam search can be traced and explained, got method "{request.method}".')
        trace: list[LevelTrace] = []
        if not self.searcher.most_answers(request):
            return trace, SearchResult.empty(1, 0)
        (batch,) = self._scored(encoded, request)
        return trace, self._search_batch(batch, request, trace)

    def explain(self, query: str, encoded: EncodedQueries, request: SearchRequest) -> tuple[Explanation, SearchResult]:
        """Trace the search for one query; return it level by level, and its result."""
        trace, result = self.trace(encoded, request)
        titles, lexical = self.documents.dataset["title"], self.lexical.name if self.lexical else ""
        positions = result.positions[0].tolist()
        return explain(query, self.tree, titles, request.config, trace, positions, lexical), result

    def follow(
        self, encoded: EncodedQueries, request: SearchRequest, doc_ids: Sequence[Sequence[str]]
    ) -> tuple[Tensor, Tensor]:
        """Return generative, dense: [queries, documents, depth] scores of the nodes on the paths to each query's documents.

        A document with several places has the path to its best one.
        """
        if not isinstance(doc_ids, Sequence) or isinstance(doc_ids, str):
            raise TypeError(f"doc_ids must be a list of documents for each query, got {doc_ids!r}.")
        lists = [self.documents.rows_of(own, "doc_ids") for own in doc_ids]
        counts = [len(own) for own in lists]
        if len(lists) != encoded.count or not counts or min(counts) != max(counts) or not counts[0]:
            raise ValueError(
                f"doc_ids must be a list of documents for each of the {encoded.count} queries, equally long and not empty, got "
                f"{len(lists)} lists of lengths {counts[:10]}."
            )
        places = torch.from_numpy(self.tree.places[np.array(lists)]).long()  # [queries, documents, places]
        parts = torch.stack(self.follow_places(encoded, request, places.flatten(1))).view(2, *places.shape, -1)
        best = parts[..., -1].sum(dim=0).argmax(dim=2)  # [queries, documents]
        generative, dense = parts.take_along_dim(best[None, :, :, None, None], dim=3).squeeze(3)
        return generative, dense

    def follow_places(
        self, encoded: EncodedQueries, request: SearchRequest, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return generative, dense: [queries, n, depth] scores of the nodes on the paths to docid positions [queries, n]."""
        shape = (*positions.shape, self.tree.depth)
        generative, dense = torch.empty(shape), torch.empty(shape)
        for batch in self._scored(encoded, request):
            own = positions[batch.rows].to(self.searcher.device)
            found = self.searcher.follow(self.searcher.score(batch, request), request, own)
            generative[batch.rows], dense[batch.rows] = (each.to("cpu", torch.float32) for each in found)
        return generative, dense

    def candidates(self, encoded: EncodedQueries, result: SearchResult, *, features: bool) -> Candidates:
        """Return the documents of a search result as candidates for rerankers."""
        if not encoded.count:
            raise ValueError("candidates() takes at least one query, got none.")
        temperature = self.search_config.ann_temperature
        return candidates_of(
            self.tree, self.documents, self.searcher, self.lexical, encoded, result, temperature, features=features
        )

    def hits(self, result: SearchResult) -> list[Hits]:
        """Return the hits of each query of a search result."""
        positions = result.positions.numpy(force=True)
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
        positions = result.positions.numpy(force=True)
        doc_ids = self.documents.values_of("doc_id", np.maximum(self.tree.doc_rows[np.maximum(positions, 0)], 0))
        rows = zip(query_ids, doc_ids, result.scores.tolist(), (positions >= 0).sum(axis=1), strict=True)
        return {query_id: dict(zip(own[:count], scores, strict=False)) for query_id, own, scores, count in rows}

    def _scored(self, encoded: EncodedQueries, request: SearchRequest) -> Iterator[QueryBatch]:
        weight, extra_scores = request.config.lexical_weight, request.extra_scores
        factors = self.word_factors(request.config.alpha) if weight else None
        return with_scores(encoded, self.tree, self.lexical, weight, extra_scores, factors)

    def word_factors(self, alpha: float) -> WordFactors | None:
        """Return what weighs the words of BM25 under a weight of the generator; None if nothing does."""
        decoder = self.searcher.decoder
        if not alpha or not self.searcher.estimating or not isinstance(decoder, TiedDecoder):
            return None
        ranking = decoder.generator.ranking
        return lambda batch, lexical: word_factors(batch, lexical, self.encoder, ranking, alpha)

    def _search_batch(
        self, batch: QueryBatch, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        """Search a batch; if the request is exact, repeat with wider beams for the queries not yet certified."""
        enough = request.k * self.tree.most_places  # so many nodes lead to k documents
        wide = with_beam(request, max(request.config.beam_width, enough))
        request = wide if request.exact else request
        result = self._search_once(batch, request, trace)
        if request.config.beam_width < enough:  # several places of too few documents may have filled the beam
            self._repeat(result.positions[:, -1] < 0, batch, wide, result, trace)
        for wider in self._wider(request) if request.exact else ():
            if result.exact.all():
                break
            self._repeat(~result.exact, batch, wider, result, trace)
        if not torch.isfinite(result.scores).all():  # a certificate on such scores would mean nothing
            config = request.config
            raise ValueError(
                f"Scores overflow with ann_temperature {config.ann_temperature:g} and lexical_weight "
                f"{config.lexical_weight:g}; choose values closer to the scale of the scores."
            )
        return result

    def _repeat(
        self,
        again: Tensor,
        batch: QueryBatch,
        request: SearchRequest,
        result: SearchResult,
        trace: list[LevelTrace] | None,
    ) -> None:
        """Search another time for the queries at which `again` [batch] is True, and put what is found into the result."""
        rows = again.nonzero()[:, 0]
        if len(rows):
            if trace is not None:
                trace.clear()
            result.put(rows, self._search_once(batch.select(rows), request, trace))

    def _search_once(
        self, batch: QueryBatch, request: SearchRequest, trace: list[LevelTrace] | None = None
    ) -> SearchResult:
        queries = self.searcher.score(batch, request)
        if trace is None and self.graphs is not None:
            return self.graphs.search(queries, request)
        return self.searcher.search(queries, request, trace)

    def _wider(self, request: SearchRequest) -> Iterator[SearchRequest]:
        """Yield the request with beams four times as wide each time, within `max_expansions` in total."""
        width = request.config.beam_width
        spent = self.tree.expansions(width)
        while (spent := spent + self.tree.expansions(width := 4 * width)) <= request.max_expansions:
            yield with_beam(request, width)


def with_beam(request: SearchRequest, width: int) -> SearchRequest:
    """Return the request with another beam width."""
    return replace(request, config=replace(request.config, beam_width=width))


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
    def searcher(self) -> TreeSearcher:
        """The beam search over the docid tree."""
        return self._index.searcher

    @property
    def snapshot(self) -> IndexSnapshot:
        """The index at this moment; later updates do not reach it."""
        return self._index
