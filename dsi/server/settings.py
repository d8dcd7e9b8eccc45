"""What a server serves and how much it takes on. Imports nothing heavy; knows nothing of HTTP."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from dsi.docids.files.checks import shown
from dsi.docids.files.declarations import LARGEST, Count, NameOrPath, Whole, settings

TOKEN = "DSI_TOKEN"
"""Environment variable that holds the bearer token of updates, and of /mcp."""
_SETTINGS = "DSI_SERVER"
_ORIGIN = re.compile(r"https?://[\w.-]+(:\d{1,5})?")


class TooLargeError(ValueError):
    """A request beyond a limit of this server."""


@settings()
class ServerSettings:
    """What is served, and the limits of a request."""

    run: NameOrPath
    """Folder of the index."""
    device: str | None = None
    """Of encoder and decoder; the best available by default."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of encoder and decoder."""
    mcp: bool = False
    """Whether /mcp offers tools to agents."""
    writable: bool = False
    """Whether documents may be added and removed, with the token."""
    allow_origin: str = ""
    """Origin whose pages may call the server from a browser (CORS), as https://example.org, or * for any; none by default."""
    max_batch: Count = 32
    """Queries that are computed together, at most; 1 turns batches off."""
    max_wait: Annotated[float, Field(ge=0, le=1)] = 0.003
    """Seconds that a request waits for others to join its batch."""
    max_waiting: Count = 1000
    """Requests that may wait; more are answered with 503."""
    max_queries: Count = 100
    """Queries of a request."""
    max_query_length: Count = 2000
    """Characters of a query."""
    max_k: Count = 100
    """Documents per query."""
    max_beam_width: Count = 500
    """Nodes kept per level."""
    max_candidates: Count = 10_000
    """Documents that the walk and the words each contribute."""
    max_tokens: Count = 8000
    """Tokens of text in an answer to an agent (MCP), at most."""
    timeout: Annotated[float, Field(ge=1e-6, le=LARGEST)] = 30.0
    """Seconds after which a search is abandoned, with 503."""
    learn_rate: Whole = 600
    """Pairs that each process learns a minute, at most; more are refused with 429."""
    max_body: Count = 8_000_000
    """Bytes of a request."""
    cluster: str = ""
    """Where the index is served by shards: "local", or the address of a Ray cluster; "" for this process alone."""
    shards: Count = 2
    """Shards of a cluster: ranges of neighbouring children of the root."""
    replicas: Count = 2
    """Processes for each shard."""
    shard_timeout: Annotated[float, Field(ge=1e-3, le=LARGEST)] = 1.0
    """Seconds that a search waits for a shard; after that the server answers with what it has, as 206."""
    require_all: bool = False
    """Whether a search in which a shard does not answer fails, with 503."""

    def __post_init__(self) -> None:
        if self.allow_origin not in ("", "*") and not _ORIGIN.fullmatch(self.allow_origin):
            raise ValueError(
                f"allow_origin must be an origin such as https://example.org or http://localhost:3000, or *, got "
                f"{self.allow_origin!r}."
            )
        if self.writable and self.dtype != "float32":
            raise ValueError(
                f"A writable server needs the dtype float32, in which an index is written, got {self.dtype}; leave out --dtype "
                "or --writable."
            )

    def check_token(self) -> str:
        """Return the token of the environment."""
        token = os.environ.get(TOKEN, "")
        if self.writable and not token:
            raise ValueError(
                f"A writable server needs a token; set the environment variable {TOKEN}, or leave out --writable."
            )
        return token

    def to_environment(self) -> None:
        """Put the settings where the processes of a server find them."""
        os.environ[_SETTINGS] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> "ServerSettings":
        """Return what `to_environment` wrote."""
        return cls(**json.loads(os.environ[_SETTINGS]))

    def check(self, queries: Sequence[Any], k: Any, options: Mapping[str, Any]) -> None:
        """Raise if a search is beyond the limits; values of a wrong type are left to the library."""
        if len(queries) > self.max_queries:
            raise TooLargeError(
                f"A request may have {self.max_queries:,} queries on this server, got {len(queries):,}; "
                "send them in several requests."
            )
        for number, query in enumerate(queries):
            if isinstance(query, str) and len(query) > self.max_query_length:
                raise TooLargeError(
                    f"Query {number} must have at most {self.max_query_length:,} characters on this server, got "
                    f"{len(query):,}; shorten it."
                )
        most = {"k": self.max_k, "beam_width": self.max_beam_width, "candidates": self.max_candidates}
        for name, bound in most.items():
            value = k if name == "k" else options.get(name)
            if isinstance(value, int | float) and value > bound:
                raise ValueError(f"{name} must be at most {bound:,} on this server, got {shown(value)}.")
