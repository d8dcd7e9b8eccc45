"""The parts of an index at one moment. Knows no folders."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.checks import plain
from dsi.search.engine import Engine, check_parts, restricted
from dsi.search.explain.why import AnsweredQuery
from dsi.search.hits import Hits
from dsi.search.queries import EncodedQueries
from dsi.search.request import SearchConfig, SearchRequest, check_used, given_options, request_of_each, split_options
from dsi.store.documents import DocumentTable, hits_of
from dsi.store.updating import Content, changed_parts

if TYPE_CHECKING:
    from dsi.generator.base import Generator


@dataclass(frozen=True, eq=False)
class State:
    """The parts of an index at one moment. An update makes a new state, so threads share one without locks.

    Attributes:
        encoder: laid out for search.
        generator: trained for these docids; None for an index without one.
        search_config: the default search config.
        documents: the document table, in collection order.
        engine: searches docids, and holds the lexical part.
    """

    encoder: TextEncoder
    generator: "Generator | None"
    search_config: SearchConfig
    documents: DocumentTable
    engine: Engine

    @cached_property
    def trained_beam(self) -> float:
        """The widest beam whose nodes were all trained; inf unless training was limited to a beam."""
        return (self.generator.config.training_beam if self.generator else 0) or math.inf

    def request(self, call: str, k: int, options: Mapping[str, Any]) -> SearchRequest:
        """Return a request to `engine` for k documents: the options of a call over the index's search config.

        `call` is the name of the public method, for messages. Wrong options raise as `GenerativeRetriever.search` says.
        """
        options = given_options(call, options)
        overrides, others = split_options(options)
        config = replace(self.search_config, **overrides)
        check_used(call, options, config, has_generator=self.engine.has_generator)
        check_parts(options, self.engine)
        if self.generator and config.alpha and config.beam_width > self.trained_beam:
            self.generator.check_beam(config.beam_width)  # warns
        allowed = self.documents.allowed(**{name: others.pop(name, None) for name in ("allow", "deny", "where")})
        request = SearchRequest(plain(int, k, "k"), config, **others)
        return request if allowed is None else restricted(request, self.engine.tree, allowed)

    def answered(self, encoded: EncodedQueries, request: SearchRequest) -> list[AnsweredQuery]:
        """Return the search of each query, by which documents are explained."""
        requests = request_of_each(request, encoded.count, self.engine.tree.num_rows)
        pairs = zip(encoded.each(), requests, strict=True)
        return [AnsweredQuery(*pair, self.engine, self.encoder, self.documents) for pair in pairs]

    def hits(self, encoded: EncodedQueries, request: SearchRequest) -> list[Hits]:
        """Return the hits of each query of a search, which they can explain."""
        result = self.engine.search(encoded, request)
        return hits_of(self.engine.tree, self.documents, result, self.answered(encoded, request))

    def changed(self, content: Content) -> "State":
        """Return the state with new content."""
        if changed_parts(content, self.content) == ["memory"]:
            return replace(self, engine=self.engine.with_memory(content.memory))
        engine = self.engine.with_content(content.tree, content.lexical, content.memory)
        engine.best_scores = content.best_scores
        return replace(self, documents=DocumentTable(content.documents), engine=engine)

    @property
    def content(self) -> Content:
        """The parts that an update changes."""
        engine = self.engine
        return Content(engine.tree, self.documents.table, engine.lexical, engine.memory, engine.best_scores)
