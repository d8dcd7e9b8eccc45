"""The parts of an index at one moment. Knows no folders."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from dsi.contrastive.text_encoder import TextEncoder
from dsi.search.engine import Engine
from dsi.search.request import SearchConfig
from dsi.store.documents import DocumentTable
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

    def changed(self, content: Content) -> "State":
        """Return the state with new content."""
        if changed_parts(content, self.content) == ["memory"]:
            return replace(self, engine=self.engine.with_memory(content.memory))
        engine = self.engine.with_content(content.tree, content.lexical, content.memory)
        return replace(self, documents=DocumentTable(content.documents), engine=engine)

    @property
    def content(self) -> Content:
        """The parts that an update changes."""
        return Content(self.engine.tree, self.documents.table, self.engine.lexical, self.engine.memory)
