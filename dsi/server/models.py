"""The bodies of requests, as a JSON schema with examples; docs/use/running.md says what answers hold.

The schema describes; the library checks, so that a wrong value gets the library's message. Knows nothing of indexes.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import Setting
from dsi.search.request import given_options, option_declarations, written_as

_QUERY = "which capitals are on the danube"
_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array", "items": {"type": "string"}},
}


def _field(kind: str, description: str, example: Any, default: Any = None, **schema: Any) -> Any:
    """Return a field that takes anything, and that the schema describes; it is required if its default is `...`."""
    return Field(default, description=description, examples=[example], json_schema_extra={"type": kind, **schema})


def _option_schema(option: Setting) -> dict[str, Any]:
    example = written_as(option.name).example if option.default in (None, inf) else option.default  # JSON has no inf
    bounds = {"minimum": option.bound(Ge), "maximum": option.bound(Le), "enum": list(option.choices) or None}
    known = {name: value for name, value in bounds.items() if value is not None}
    return {**_TYPES[option.kind], "description": option.meaning, "examples": [example], **known}


def _with_options(**example: Any) -> Callable[[dict[str, Any]], None]:
    """Return what adds the search options that JSON can hold, and an example, to the schema of a body."""

    def add(schema: dict[str, Any]) -> None:
        options = {name: option for name, option in option_declarations().items() if option.kind in _TYPES}
        schema["properties"] |= {name: _option_schema(option) for name, option in options.items()}
        schema["examples"] = [example]

    return add


_SYNTAX: Any = Field(False, description='Only documents that have each "quote" of a query, and no -word of it.')


class OptionFields(BaseModel):
    """k and the options of a search, as in Python; what is left out, or null, is as the index has it."""

    model_config = ConfigDict(extra="allow")  # the library names the option that was meant

    k: Any = Field(10, description="Documents per query.", json_schema_extra={"type": "integer", "minimum": 1})

    @field_validator("k", mode="before")
    @classmethod
    def _default(cls, value: Any) -> Any:
        return cls.model_fields["k"].default if value is None else value

    def options(self, call: str = "search") -> dict[str, Any]:
        """Return the search options that were given to a call."""
        names = [name for name, option in option_declarations().items() if option.kind in _TYPES]
        options = given_options(call, self.model_extra or {}, names)
        for name in options:
            if name not in names:
                raise ValueError(f"{name} is a Python object, which no request can hold; leave it out.")
        return options


class SearchBody(OptionFields):
    """One query or several, and how to search."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3))

    query: Any = _field("string", "One query; or give queries.", _QUERY)
    queries: Any = _field("array", "Several queries.", ["noble gases", "rivers of europe"], items={"type": "string"})
    syntax: bool = _SYNTAX
    parts: bool = Field(False, description="Add what each part of the score contributes to it.")
    matches: bool = Field(False, description="Add the words of the query that each document matches.")

    def texts(self) -> list[Any]:
        """Return the queries."""
        if (self.query is None) == (self.queries is None):
            raise ValueError("Give query, a text, or queries, a list of texts; one of the two.")
        if self.queries is not None and not isinstance(self.queries, list):
            raise ValueError(f"queries must be a list of texts, got {shown(self.queries)}.")
        return [self.query] if self.queries is None else self.queries


class ExplainBody(OptionFields):
    """One query, how to search, and perhaps a document to look for."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3, doc_id="nile"))

    k: Any = Field(5, description="Documents.", json_schema_extra={"type": "integer", "minimum": 1})
    query: Any = _field("string", "The query.", _QUERY)
    syntax: bool = _SYNTAX
    doc_id: Any = _field("string", "A document: is it among the answers, and if not, why?", "nile")


class SimilarBody(OptionFields):
    """Documents of the index, and how to search for others like them."""

    model_config = ConfigDict(json_schema_extra=_with_options(doc_ids=["danube"], k=3))

    doc_ids: Any = _field("array", "One document, or several.", ["danube"], items={"type": "string"})
    matches: bool = Field(False, description="Add the words of the documents that each other one matches.")


class AddBody(BaseModel):
    """Documents to add."""

    model_config = ConfigDict(extra="forbid")

    documents: Any = _field(
        "array",
        "Documents as in corpus.jsonl: doc_id (or _id), title, text, and perhaps metadata.",
        [{"doc_id": "neretva", "title": "Neretva", "text": "A river in Bosnia and Croatia."}],
        ...,
        items={"type": "object"},
    )
    replace: Any = _field("boolean", "Take the place of documents that have the same doc_id.", True, False)


_PAIRS = [{"query": "gas that glows", "doc_id": "neon"}]


class LearnBody(BaseModel):
    """Queries, and the documents that users took for them."""

    model_config = ConfigDict(extra="forbid")

    pairs: Any = _field("array", "Pairs of query and doc_id.", _PAIRS, ..., items={"type": "object"})


class ForgetBody(BaseModel):
    """Pairs to forget, or a time: what was learned then, of these pairs or of all."""

    model_config = ConfigDict(extra="forbid")

    pairs: Any = _field(
        "array",
        "Pairs of query and doc_id; an empty query stands for all of the document.",
        _PAIRS,
        items={"type": "object"},
    )
    since: Any = _field("string", "Only what was learned from this moment on, in UTC.", "2026-11-28T14:30")
    before: Any = _field("string", "Only what was learned before this moment, in UTC.", "2026-11-28T15:00")
