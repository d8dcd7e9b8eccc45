"""LlamaIndex: an index as a retriever of query engines. Knows nothing of how a search works.

from dsi.integrations.llama_index import DocidRetriever

retriever = DocidRetriever("runs/example", similarity_top_k=3)
retriever.retrieve("which capitals are on the danube")
"""

import asyncio
from pathlib import Path
from typing import Unpack

from dsi.docids.files.checks import shown
from dsi.integrations import extra
from dsi.integrations.retrieval import check_search, content, find, open_index, passage
from dsi.search.request import SearchOptions
from dsi.store.retriever import GenerativeRetriever

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
}
"""As LlamaIndex's own stores understand them: a missing value differs from every value."""
_EMPTY = {
    FilterOperator.IN: "{column} is null and {column} is not null",
    FilterOperator.NIN: "{column} is null or {column} is not null",
}
"""With a list of no values: nothing matches, or everything."""
_JOINED = {FilterCondition.AND: " and ", FilterCondition.OR: " or "}


class DocidRetriever(BaseRetriever):
    """Searches an index: from a query to nodes of LlamaIndex with scores, best first.

    The id of a node is the doc_id, its text that of the document, or the title if the index keeps no texts. Its metadata is
    that of the collection, and the title.

    Args:
        retriever: the index, or its folder.
        similarity_top_k: documents per query.
        filters: conditions on metadata: ==, !=, >, >=, <, <=, in and nin, joined by and / or, nested at will.
        callback_manager: as any retriever of LlamaIndex has.
        **options: see `SearchOptions`.

    Raises:
        TypeError: an unknown option, or filters that are no `MetadataFilters`.
        ValueError: an option out of range, or a filter that does not fit the index.
        FileNotFoundError: no index in the folder.
    """

    def __init__(
        self,
        retriever: GenerativeRetriever | str | Path,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(callback_manager)
        if filters is not None:
            if options.get("where") is not None:
                raise ValueError("filters and where are two ways to say the same; give one of them.")
            options["where"] = where_of(filters) or None
        self.retriever, self.similarity_top_k, self.options = open_index(retriever), similarity_top_k, options
        check_search(self.retriever, similarity_top_k, options, "similarity_top_k")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        (answer,) = find(self.retriever, [query_bundle.query_str], self.similarity_top_k, self.options)
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


def where_of(filters: MetadataFilters) -> str:
    """Return filters as a condition of `dsi.store.filters`; "" if there are none.

    Raises:
        TypeError: they are no `MetadataFilters`.
        ValueError: an operator or a value that the index cannot search by.
    """
    if not isinstance(filters, MetadataFilters):
        raise TypeError(f"filters must be MetadataFilters of LlamaIndex, got {shown(filters)}.")
    condition = filters.condition or FilterCondition.AND
    if condition not in _JOINED:
        raise ValueError(f"filters must be joined by and / or, got {condition.value}; write it as `where`.")
    return _JOINED[condition].join(f"({_part(part)})" for part in filters.filters)


def _part(part: MetadataFilter | MetadataFilters) -> str:
    """Return one of several filters as a condition."""
    if isinstance(part, MetadataFilter):
        return _comparison(part)
    if not part.filters:
        raise ValueError("MetadataFilters within others must hold at least one filter, got none.")
    return where_of(part)


def _comparison(part: MetadataFilter) -> str:
    """Return the comparison of a column and a value, or several."""
    operator, value = part.operator, part.value
    if operator not in _OPERATORS:
        known = ", ".join(each.value for each in _OPERATORS)
        raise ValueError(f"The filter on {part.key!r} must be one of {known}, got {operator.value}.")
    takes_list = operator in _EMPTY
    if value is None or isinstance(value, list) != takes_list:
        expected = "a list of values" if takes_list else "one value"
        raise ValueError(f"The filter on {part.key!r}: {operator.value} takes {expected}, got {shown(value)}.")
    values = value if isinstance(value, list) else [value]
    form = _OPERATORS[operator] if values else _EMPTY[operator]
    column = '"' + part.key.replace('"', '""') + '"'
    return form.format(column=column, value=", ".join(map(_literal, values)))


def _literal(value: str | int | float) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
