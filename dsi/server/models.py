"""The bodies of requests and answers, as a JSON schema with examples.

The schema describes; the library checks, so that a wrong value gets the library's message. Knows nothing of indexes.
"""

from collections.abc import Callable
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

    @field_validator("k", mode="before")
    @classmethod
    def _default(cls, value: Any) -> Any:
        return cls.model_fields["k"].default if value is None else value

    def options(self) -> dict[str, Any]:
        """Return the search options that were given.

        Raises:
            TypeError: one that does not exist.
            ValueError: one that JSON cannot hold.
        """
        taken = [name for name, option in option_declarations().items() if option.kind in _TYPES]
        given = given_options("search", self.model_extra or {}, taken)
        for name in given:
            if name not in taken:
                raise ValueError(f"{name} is a Python object, which no request can hold; leave it out.")
        return given


class SearchBody(SearchFields):
    """One query or several, and how to search."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3))

    query: Any = _field("string", "One query; or give queries.", _QUERY)
    queries: Any = _field("array", "Several queries.", ["noble gases", "rivers of europe"], items={"type": "string"})
    parts: bool = Field(False, description="Add what each part of the score contributes to it.")
    matches: bool = Field(False, description="Add the words of the query that each document matches.")

    def texts(self) -> list[Any]:
        """Return the queries.

        Raises:
            ValueError: neither query nor queries is given, or both.
        """
        if (self.query is None) == (self.queries is None):
            raise ValueError("Give query, a text, or queries, a list of texts; one of the two.")
        if self.queries is not None and not isinstance(self.queries, list):
            raise ValueError(f"queries must be a list of texts, got {shown(self.queries)}.")
        return [self.query] if self.queries is None else self.queries


class ExplainBody(SearchFields):
    """One query, how to search, and perhaps a document to look for."""

    model_config = ConfigDict(json_schema_extra=_with_options(query=_QUERY, k=3, doc_id="nile"))

    k: Any = Field(5, description="Documents.", json_schema_extra={"type": "integer", "minimum": 1})
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


class LearnBody(BaseModel):
    """Queries, and the documents that users took for them."""

    model_config = ConfigDict(extra="forbid")

    pairs: Any = Field(
        description="Pairs of query and doc_id.",
        examples=[[{"query": "gas that glows", "doc_id": "neon"}]],
        json_schema_extra={"type": "array", "items": {"type": "object"}},
    )


class Learned(BaseModel):
    """After learning."""

    learned: int = Field(description="How many of the pairs were learned; the others were of no document, or empty.")
    pairs: int = Field(description="How many different pairs the index remembers now.")
    note: str = Field("", description="That it has no effect, where `memory_weight` is 0.")


class ForgetBody(BaseModel):
    """Pairs to forget, or a time: what was learned then, of these pairs or of all."""

    model_config = ConfigDict(extra="forbid")

    pairs: Any = Field(
        None,
        description="Pairs of query and doc_id; an empty query stands for all of the document.",
        examples=[[{"query": "gas that glows", "doc_id": "neon"}]],
        json_schema_extra={"type": "array", "items": {"type": "object"}},
    )
    since: Any = _field("string", "Only what was learned from this moment on, in UTC.", "2026-11-28T14:30")
    before: Any = _field("string", "Only what was learned before this moment, in UTC.", "2026-11-28T15:00")


class Forgotten(BaseModel):
    """After forgetting."""

    forgotten: int = Field(description="How many pairs are gone, or count less.")
    pairs: int = Field(description="How many different pairs the index remembers now.")


class ErrorAnswer(BaseModel):
    """What every failed request is answered with."""

    error: str = Field(description="What was wrong, and what to do.", examples=["alpha must be in [0, 1], got 2."])


class SpanOfText(BaseModel):
    """Characters start to end of a document's title or text."""

    field: str
    start: int
    end: int
    text: str


class MatchedWord(BaseModel):
    """A word of the query, what it adds to a document's score, and the words that it found."""

    word: str
    share: float
    spans: list[SpanOfText]
    is_clear: bool = Field(description="Whether the words found are worth marking.")


class StoredDocument(BaseModel):
    """A document; text is missing if the index keeps no texts."""

    doc_id: str
    title: str
    text: str | None = None
    metadata: dict[str, Any] = {}
    digits: list[int] = Field(description="Its docid: the path to it in the tree.", examples=[[13, 1]])


class FilePlace(BaseModel):
    """Where a passage stands in the file that its document was read from."""

    address: str = Field(description="What an editor or a browser opens.", examples=["notes/neon.md:12"])
    file: str
    place: str = Field("", description="A page, slide, sheet, row or part.", examples=["page=3"])
    lines: list[int] | None = Field(None, description="The first and the last line, from 1, of a text.")
    heading: str = Field("", description="The last heading before the passage.")


class HitAnswer(StoredDocument):
    """A document that was found."""

    rank: int = Field(description="From 1.")
    score: float
    passage: str | None = Field(
        None, description="The best piece of the text, if it has several and the index keeps texts."
    )
    passage_span: list[int] | None = Field(None, description="First character of that piece, and one past its last.")
    location: FilePlace | None = Field(None, description="Of the passage, if the document was read from a file.")
    parts: dict[str, float] = Field({}, description="What each part of the score contributes, if asked for.")
    label: str = Field("", description="With matches: the title, or the first words.")
    matches: list[MatchedWord] = Field([], description="The matched words, if asked for.")
    excerpt: list[int] = Field([], description="With matches: ends of the part of the text that has the most of them.")


class QueryAnswer(BaseModel):
    """The answer to one query."""

    query: str
    exact: bool = Field(description="True if it is proven that no other document has a higher score; not of relevance.")
    hits: list[HitAnswer]
    coverage: float = Field(1.0, description="Share of the documents that were searched; below 1 with status 206.")
    missing: list[int] = Field([], description="Numbers of the shards that did not answer.")
    error: str = Field("", description="Why this query alone is refused: its embedding is not finite.")


class SearchAnswer(BaseModel):
    """The answers of a search, in the order of the queries."""

    answers: list[QueryAnswer]
    milliseconds: float


class Level(BaseModel):
    """What a search did at one level of the tree."""

    scored: int
    kept: int
    answers: int


class Node(BaseModel):
    """A node of the docid tree in a search."""

    digits: list[int]
    score: float | None
    kept: bool
    rank: int | None
    found_by: list[str]
    parts: dict[str, float]
    documents: int
    title: str | None = Field(description="Of a document; of an inner node null.")
    doc_id: str | None = None
    words: list[str]
    children: list["Node"] = []
    pruned: int = Field(0, description="How many children were not kept; the best ones are shown.")


class PathStep(BaseModel):
    """A node on the way to a document: kept, pruned, not scored or not reached; last answer or no answer."""

    digits: list[int]
    score: float | None
    state: str
    words: list[str]


class EarlierQuery(BaseModel):
    """An earlier query for which users took a document: its cosine with this one, and how often the pair was learned."""

    cosine: float
    times: int


class Target(BaseModel):
    """How a document stands in a search; see `DocumentExplanation`."""

    query: str
    doc_id: str
    label: str
    rank: int | None = Field(description="In the answer.")
    overall_rank: int | None = Field(description="Among all documents that may be returned.")
    total: int
    answers: int
    score: float
    last_score: float | None
    parts: dict[str, float]
    passage_span: list[int] | None = Field(
        None, description="Ends of the piece of its text that is scored, of several."
    )
    path: list[PathStep]
    level: int | None = Field(description="At which the walk left it out, from 1.")
    returned_by: dict[str, Any] | None = Field(description="Options of a search that returns it; found by searching.")
    reason: str
    matches: list[MatchedWord]
    earlier: list[EarlierQuery] = Field(
        [], description="Earlier queries that speak for it, nearest first, without texts."
    )
    note: str = Field("", description="That what the index has learned has no effect.")


class Picture(BaseModel):
    """A search as a tree."""

    query: str
    config: dict[str, Any]
    exact: bool
    walked: bool
    read: int
    coverage: float = Field(1.0, description="Share of the documents that were searched; below 1 with status 206.")
    missing: list[int] = Field([], description="Numbers of the shards that did not answer.")
    note: str = Field("", description="That what the index has learned has no effect.")
    levels: list[Level]
    children: list[Node] = []
    pruned: int = 0
    target: Target | None = None


class TreeNode(BaseModel):
    """A node of the docid tree: a cluster with telling words, or a document."""

    digits: list[int]
    documents: int = Field(description="Different ones below it; the pieces of a document may be below several nodes.")
    words: list[str] = []
    doc_id: str = ""
    title: str = ""


class Branch(TreeNode):
    """A node and its children."""

    children: list[TreeNode] = []
    count: int = Field(0, description="How many children there are; at most 1,000 are listed.")


class Updated(BaseModel):
    """After an update."""

    documents: int = Field(description="How many the index has now.")


class State(BaseModel):
    """The state of the process."""

    status: str


class About(BaseModel):
    """The index that is served."""

    name: str
    examples: list[str] = Field(description="Titles of a few documents, as examples of queries.")
    documents: int
    depth: int
    generator: bool = Field(description="Whether it has a generator, whose weight alpha is.")
    tokens: bool = Field(description="Whether it has token vectors.")
    memory: int = Field(description="How many pairs of a query and a document it has learned.")
    search_config: dict[str, Any]
    lexical: str | None
    columns: dict[str, str]
    writable: bool
    limits: dict[str, int]
