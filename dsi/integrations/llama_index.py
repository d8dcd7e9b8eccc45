"""LlamaIndex: an index as a retriever of query engines. Knows nothing of how a search works.

from dsi.integrations.llama_index import DocidRetriever

retriever = DocidRetriever("runs/example", similarity_top_k=3)
retriever.retrieve("which capitals are on the danube")
"""

import asyncio
from pathlib import Path
from typing import Unpack

from dsi.docids.extensions import extra
from dsi.docids.files.checks import shown
from dsi.integrations.retrieval import check_search, content, find, open_index, passage
from dsi.search.request import SearchOptions
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
"""As LlamaIndex's own stores understand them: a missing value differs from every value."""
_NOTHING, _EVERYTHING = "{column} is null and {column} is not null", "{column} is null or {column} is not null"
_LISTS = {
    FilterOperator.IN: _NOTHING, FilterOperator.NIN: _EVERYTHING, FilterOperator.ANY: _NOTHING,
    FilterOperator.ALL: "{column} is not null",
}  # fmt: skip
"""The operators that take a list of values, with what they mean if it has none."""
_EACH = {FilterOperator.ANY: " or ", FilterOperator.ALL: " and "}
"""Those that make a condition of each value."""
_TEXTS = (FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE)
_OF_MISSING = (FilterOperator.NE, FilterOperator.NIN, FilterOperator.IS_EMPTY)
"""Those that a missing value fulfils."""
_JOINED = {FilterCondition.AND: " and ", FilterCondition.OR: " or ", FilterCondition.NOT: " and "}


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
    """Return filters as a condition of `dsi.store.documents.filters`; "" if there are none."""
    if not isinstance(filters, MetadataFilters):
        raise TypeError(f"filters must be MetadataFilters of LlamaIndex, got {shown(filters)}.")
    return _joined(filters, negated=False)


def _joined(filters: MetadataFilters, *, negated: bool) -> str:
    """Return filters as a condition; `negated`: what matches where they do not (LlamaIndex's `not`: none of them does)."""
    condition = filters.condition or FilterCondition.AND
    parts = [f"({_part(part, negated=negated != (condition == FilterCondition.NOT))})" for part in filters.filters]
    word = _JOINED[condition]
    return ({" and ": " or ", " or ": " and "}[word] if negated else word).join(parts)


def _part(part: MetadataFilter | MetadataFilters, *, negated: bool) -> str:
    if isinstance(part, MetadataFilter):
        return _comparison(part, negated=negated)
    if not part.filters:
        raise ValueError("MetadataFilters within others must hold at least one filter, got none.")
    return _joined(part, negated=negated)


def _comparison(part: MetadataFilter, *, negated: bool) -> str:
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
    literals = [_literal(own) for own in values if own is not None]
    each = literals if operator in _EACH and values else [", ".join(literals)]
    condition = _EACH.get(operator, "").join(form.format(column=column, value=own) for own in each)
    missing = f" or {column} is null" if negated and operator not in _OF_MISSING else ""
    return f"not ({condition}){missing}" if negated else condition


def _literal(value: str | int | float) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
