"""The bodies of requests, as a JSON schema with examples.

The schema describes; the library checks, so that a wrong value gets the library's message. Knows nothing of indexes.
"""

from collections.abc import Callable
from typing import Any

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field

from docids.files.declarations import Setting
from dsi.search.request import option_declarations, written_as

_QUERY = "which capitals are on the danube"
_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array", "items": {"type": "string"}},
}


def _field(kind: str, description: str, example: Any, **schema: Any) -> Any:
    """Return a field that takes anything, and that the schema describes."""
    return Field(None, description=description, examples=[example], json_schema_extra={"type": kind, **schema})


def _option_schema(option: Setting) -> dict[str, Any]:
    """Return the JSON schema of a search option."""
    example = written_as(option.name).example if option.default is None else option.default
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


class SearchFields(BaseModel):
    """k and the options of a search, as in Python; what is left out, or null, is as the index has it."""

    model_config = ConfigDict(extra="allow")  # the library names the option that was meant

    k: Any = Field(10, description="Documents per query.", json_schema_extra={"type": "integer", "minimum": 1})

    def options(self) -> dict[str, Any]:
        """Return the search options that were given.

        Raises:
            ValueError: one that JSON cannot hold.
        """
        given = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name, option in option_declarations().items():
            if name in given and option.kind not in _TYPES:
                raise ValueError(f"{name} is a Python object, which no request can hold; leave it out.")
        return given


class SearchBody(SearchFields):
    """One query or several, and how to search."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3))

    query: Any = _field("string", "One query; or give queries.", _QUERY)
    queries: Any = _field("array", "Several queries.", ["noble gases", "rivers of europe"], items={"type": "string"})
    parts: bool = Field(False, description="Add what each part of the score contributes to it.")

    def texts(self) -> list[Any]:
        """Return the queries.

        Raises:
            ValueError: neither query nor queries is given, or both.
        """
        if (self.query is None) == (self.queries is None):
            raise ValueError("Give query, a text, or queries, a list of texts; one of the two.")
        if self.queries is not None and not isinstance(self.queries, list):
            raise ValueError(f"queries must be a list of texts, got {self.queries!r}.")
        return [self.query] if self.queries is None else self.queries


class ExplainBody(SearchFields):
    """One query, how to search, and perhaps a document to look for."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3, doc_id="nile"))

    query: Any = _field("string", "The query.", _QUERY)
    doc_id: Any = _field("string", "A document: is it among the answers, and if not, why?", "nile")


class AddBody(BaseModel):
    """Documents to add."""

    model_config = ConfigDict(extra="forbid")

    documents: Any = Field(
        description="Documents as in corpus.jsonl: doc_id (or _id), title, text, and perhaps metadata.",
        examples=[[{"doc_id": "neretva", "title": "Neretva", "text": "A river in Bosnia and Croatia."}]],
        json_schema_extra={"type": "array", "items": {"type": "object"}},
    )
    replace: Any = Field(
        False,
        description="Take the place of documents that have the same doc_id.",
        json_schema_extra={"type": "boolean"},
    )


class ErrorAnswer(BaseModel):
    """What every failed request is answered with."""

    error: str = Field(description="What was wrong, and what to do.", examples=["alpha must be in [0, 1], got 2."])
