"""The bodies of requests, as a JSON schema with examples.

The schema describes; the library checks, so that a wrong value gets the library's message. Knows nothing of indexes.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dsi.search.request import METHODS

NOT_IN_JSON = ("extra_scores",)
"""Search options whose values are Python objects."""
_QUERY = "which capitals are on the danube"


def _field(kind: str, description: str, example: Any, **schema: Any) -> Any:
    """Return a field that takes anything, and that the schema describes."""
    return Field(None, description=description, examples=[example], json_schema_extra={"type": kind, **schema})


class SearchFields(BaseModel):
    """k and the options of a search, as in Python; what is left out, or null, is as the index has it."""

    model_config = ConfigDict(extra="allow")  # the library names the option that was meant

    k: Any = Field(10, description="Documents per query.", json_schema_extra={"type": "integer", "minimum": 1})
    method: Any = _field("string", "Walk down the tree, or score all documents.", "generate", enum=list(METHODS))
    beam_width: Any = _field("integer", "Nodes kept per level.", 20, minimum=1)
    candidates: Any = _field("integer", "Documents that the walk and the words each contribute.", 100, minimum=1)
    alpha: Any = _field("number", "Weight of the generator.", 0.3, minimum=0, maximum=1)
    lexical_weight: Any = _field("number", "Weight of BM25 in a document's score.", 0.03, minimum=0, maximum=1e6)
    token_weight: Any = _field(
        "number", "Weight of late interaction in a document's score.", 0.1, minimum=0, maximum=1e6
    )
    allow: Any = _field("array", "Only these documents may be returned.", ["danube"], items={"type": "string"})
    deny: Any = _field("array", "These documents must not be returned.", ["volga"], items={"type": "string"})
    where: Any = _field("string", "A condition on the metadata.", "lang = 'en' and year > 2000")

    def options(self) -> dict[str, Any]:
        """Return the search options that were given.

        Raises:
            ValueError: one that JSON cannot hold.
        """
        own = set(type(self).model_fields) - set(SearchFields.model_fields) | {"k"}
        given = {name: value for name, value in self.model_dump().items() if name not in own and value is not None}
        for name in NOT_IN_JSON:
            if name in given:
                raise ValueError(f"{name} is a Python object, which no request can hold; leave it out.")
        return given


class SearchBody(SearchFields):
    """One query or several, and how to search."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": _QUERY, "k": 3}]})

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

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": _QUERY, "k": 3, "doc_id": "nile"}]})

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
