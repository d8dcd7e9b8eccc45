"""LlamaIndex: an index as a retriever of query engines. Knows nothing of how a search works.

from dsi.integrations.llama_index import DocidRetriever

retriever = DocidRetriever("runs/example", similarity_top_k=3)
retriever.retrieve("which capitals are on the danube")
"""

import asyncio
from copy import copy
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from dsi.docids.extensions import extra
from dsi.docids.files.checks import shown
from dsi.integrations.retrieval import check_search, content, find, open_index, passage
from dsi.search.request import SearchOptions
from dsi.store.documents.table import DocumentTable
from dsi.store.retriever import Retriever

with extra("llama-index"):
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

_OPERATORS = {
    FilterOperator.EQ: "{column} = {value}",
    FilterOperator.GT: "{column} > {value}",
    FilterOperator.GTE: "{column} >= {value}",
    FilterOperator.LT: "{column} < {value}",
    FilterOperator.LTE: "{column} <= {value}",
    FilterOperator.NE: "{column} <> {value} or {column} is null",
    FilterOperator.IN: "{column} in ({value})",
    FilterOperator.NIN: "{column} not in ({value}) or {column} is null",
    FilterOperator.CONTAINS: "{column} contains {value}",
    FilterOperator.ANY: "{column} contains {value}",
    FilterOperator.ALL: "{column} contains {value}",
    FilterOperator.TEXT_MATCH: "{column} like {value} escape '!'",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "{column} like {value} escape '!'",
    FilterOperator.IS_EMPTY: "{column} is empty",
}
"""As LlamaIndex's stores understand them: a missing value differs from every value."""
_NOTHING, _EVERYTHING = "{column} is null and {column} is not null", "{column} is null or {column} is not null"
_LISTS = {
    FilterOperator.IN: _NOTHING, FilterOperator.NIN: _EVERYTHING, FilterOperator.ANY: _NOTHING,
    FilterOperator.ALL: "{column} is not null",
}  # fmt: skip
"""The operators that take a list of values, with what they mean if it has none."""
_EACH = {FilterOperator.ANY: " or ", FilterOperator.ALL: " and "}
"""Those that make a condition of each value."""
_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)


class DocidRetriever(BaseRetriever):
    """Searches an index: from a query to nodes of LlamaIndex with scores, best first.

    The id of a node is the doc_id, its text that of the document, or the title if the index keeps no texts. Its metadata is
    that of the collection, and the title.

    Args:
        retriever: the index, or its folder.
        similarity_top_k: documents per query.
        filters: conditions on metadata, with all operators, joined by and / or / not, nested at will. contains, any and all are
            of columns of lists; text_match finds parts of texts, upper and lower case being the same.
        callback_manager: as any retriever of LlamaIndex has.
        **options: see `SearchOptions`.
    """

    def __init__(
        self,
        retriever: Retriever | str | Path,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(callback_manager)
        if filters is not None:
            if not isinstance(filters, MetadataFilters):
                raise TypeError(f"filters must be MetadataFilters of LlamaIndex, got {shown(filters)}.")
            if options.get("where") is not None:
                raise ValueError("filters and where are two ways to say the same; give one of them.")
        self.retriever, self.similarity_top_k, self.options = open_index(retriever), similarity_top_k, options
        self.filters = filters
        check_search(self.retriever, similarity_top_k, self._options(self.retriever), "similarity_top_k")

    def _options(self, index: Retriever) -> SearchOptions:
        """Return the options of a search of an index as it is now."""
        if self.filters is None or not self.filters.filters:
            return self.options
        return {**self.options, "where": mask_of(self.filters, index.snapshot.documents)}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        index = copy(self.retriever)
        (answer,) = find(index, [query_bundle.query_str], self.similarity_top_k, self._options(index))
        return [
            NodeWithScore(
                node=TextNode(
                    id_=document.doc_id,
                    text=content(document),
                    metadata={**document.metadata, "title": document.title, "doc_id": document.doc_id, **passage(hit)},
                ),
                score=hit.score,
            )
            for hit, document in answer
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def mask_of(filters: MetadataFilters, documents: DocumentTable) -> NDArray[np.bool_]:
    """Return which documents [documents] filters let through; of `not` those that none of the filters lets through."""
    if not filters.filters:
        raise ValueError("MetadataFilters within others must hold at least one filter, got none.")
    parts = [
        documents.matching(_condition(part)) if isinstance(part, MetadataFilter) else mask_of(part, documents)
        for part in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:
        return ~np.any(parts, axis=0)
    return np.any(parts, axis=0) if filters.condition == FilterCondition.OR else np.all(parts, axis=0)


def _condition(part: MetadataFilter) -> str:
    """Return a filter as a condition of `dsi.store.documents.filters`."""
    operator, value, column = part.operator, part.value, '"' + part.key.replace('"', '""') + '"'
    takes_list = operator in _LISTS
    if operator != FilterOperator.IS_EMPTY and (value is None or isinstance(value, list) != takes_list):
        expected = "a list of values" if takes_list else "one value"
        raise ValueError(f"The filter on {part.key!r}: {operator.value} takes {expected}, got {shown(value)}.")
    if operator in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"The filter on {part.key!r}: {operator.value} takes a text, got {shown(value)}.")
        value = "%" + "".join(f"!{character}" if character in "!%_" else character for character in value) + "%"
    values = value if isinstance(value, list) else [value]
    form = _OPERATORS[operator] if values else _LISTS[operator]
    literals = [_literal(item) for item in values if item is not None]
    operands = literals if operator in _EACH and values else [", ".join(literals)]
    return _EACH.get(operator, "").join(form.format(column=column, value=operand) for operand in operands)


def _literal(value: str | int | float) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
