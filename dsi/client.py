"""A client of `dsi serve`: `Client` waits for each answer, `AsyncClient` is awaited; both need the extra `client`.

Answers are the JSON of the server, which GET /docs of a server describes. Knows nothing of indexes.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

try:
    import httpx
except ModuleNotFoundError:
    raise ModuleNotFoundError('dsi.client needs httpx: pip install "dr-scl[client]"') from None

Json = dict[str, Any]


class ServerError(Exception):
    """A request that the server refused.

    Attributes:
        status: of HTTP: 400 for bad input, 401 and 403 without the right to write, 404, 409 if others changed the index
            (send the request again), 413, 429, 503.
        message: what was wrong, and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})")
        self.status, self.message = status, message


class _Call(NamedTuple):
    """A request, and the part of its answer that the caller wants."""

    method: str
    path: str
    body: Json | None
    read: Callable[[Json], Any]


def _search(queries: str | Iterable[str], k: int, options: Mapping[str, Any]) -> _Call:
    if isinstance(queries, str):
        return _Call("POST", "search", {"query": queries, "k": k, **options}, lambda answer: answer["answers"][0])
    return _Call("POST", "search", {"queries": list(queries), "k": k, **options}, lambda answer: answer["answers"])


def _explain(query: str, doc_id: str | None, k: int, options: Mapping[str, Any]) -> _Call:
    target = {} if doc_id is None else {"doc_id": doc_id}
    return _Call("POST", "explain", {"query": query, "k": k, **target, **options}, lambda answer: answer)


def _document(method: str, doc_id: str, read: Callable[[Json], Any]) -> _Call:
    return _Call(method, f"documents/{quote(doc_id, safe='')}", None, read)


def _add(documents: Iterable[Mapping[str, Any]], replace: bool) -> _Call:
    body = {"documents": [dict(document) for document in documents], "replace": replace}
    return _Call("POST", "documents", body, lambda answer: answer["documents"])


def _learn(pairs: Iterable[tuple[str, str]]) -> _Call:
    body = {"pairs": [{"query": query, "doc_id": doc_id} for query, doc_id in pairs]}
    return _Call("POST", "learn", body, lambda answer: answer["learned"])


def _forget(pairs: Iterable[tuple[str, str]] | None, since: str | None, before: str | None) -> _Call:
    body: Json = {"since": since, "before": before}
    if pairs is not None:
        body["pairs"] = [{"query": query, "doc_id": doc_id} for query, doc_id in pairs]
    return _Call("POST", "forget", body, lambda answer: answer["forgotten"])


def _read(call: _Call, response: httpx.Response) -> Any:
    """Return what a call wants of its answer.

    Raises:
        ServerError: the server refused it, or what answered is not `dsi serve`.
    """
    try:
        answer = response.json()
    except ValueError:
        raise ServerError(response.status_code, f"{response.url} did not answer with JSON; is it dsi serve?") from None
    if response.is_success:
        return call.read(answer)
    raise ServerError(
        response.status_code, answer.get("error", response.text) if isinstance(answer, dict) else response.text
    )


def _settings(url: str, token: str, timeout: float) -> Json:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": headers, "timeout": timeout}


class Client:
    """A connection to a server; close it, or use it in a `with` statement.

    Args:
        url: of the server, such as http://127.0.0.1:8000.
        token: the server's DSI_TOKEN, which `add`, `remove`, `learn` and `forget` need.
        timeout: seconds until a request is given up, by an exception of httpx.

    Every method raises `ServerError` where the server refuses the request, and `httpx.TransportError` where none answers.
    """

    def __init__(self, url: str, *, token: str = "", timeout: float = 60.0) -> None:
        self._http = httpx.Client(**_settings(url, token, timeout))

    def _send(self, call: _Call) -> Any:
        return _read(call, self._http.request(call.method, call.path, json=call.body))

    def search(self, queries: str | Iterable[str], k: int = 10, **options: Any) -> Any:
        """Return the answer to a query, or a list of answers: `{"hits": […], "exact": …}` each.

        Args:
            queries: a text, or several.
            k: documents a query.
            options: those of `GenerativeRetriever.search` that JSON can hold; `parts` and `matches` add to the hits.
        """
        return self._send(_search(queries, k, options))

    def get(self, doc_id: str) -> Json:
        """Return a document: doc_id, title, metadata, digits, and text if the index keeps texts."""
        document: Json = self._send(_document("GET", doc_id, lambda answer: answer))
        return document

    def explain(self, query: str, doc_id: str | None = None, k: int = 5, **options: Any) -> Json:
        """Return a search level by level; with a document, `target` says why it is, or is not, among the answers."""
        explained: Json = self._send(_explain(query, doc_id, k, options))
        return explained

    def add(self, documents: Iterable[Mapping[str, Any]], *, replace: bool = False) -> int:
        """Add documents, as `GenerativeRetriever.add` takes them; return how many the index has then."""
        count: int = self._send(_add(documents, replace))
        return count

    def remove(self, doc_id: str) -> int:
        """Remove a document; return how many the index has then."""
        count: int = self._send(_document("DELETE", doc_id, lambda answer: answer["documents"]))
        return count

    def learn(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Teach which documents users took: pairs of query and doc_id; return how many were learned."""
        count: int = self._send(_learn(pairs))
        return count

    def forget(
        self,
        pairs: Iterable[tuple[str, str]] | None = None,
        *,
        since: str | None = None,
        before: str | None = None,
    ) -> int:
        """Forget pairs, or what was learned in a time, as `GenerativeRetriever.forget` does; return of how many pairs."""
        count: int = self._send(_forget(pairs, since, before))
        return count

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """`Client` with methods that are awaited; close it by `aclose`, or use it in an `async with` statement."""

    def __init__(self, url: str, *, token: str = "", timeout: float = 60.0) -> None:
        self._http = httpx.AsyncClient(**_settings(url, token, timeout))

    async def _send(self, call: _Call) -> Any:
        return _read(call, await self._http.request(call.method, call.path, json=call.body))

    async def search(self, queries: str | Iterable[str], k: int = 10, **options: Any) -> Any:
        """As `Client.search`."""
        return await self._send(_search(queries, k, options))

    async def get(self, doc_id: str) -> Json:
        """As `Client.get`."""
        document: Json = await self._send(_document("GET", doc_id, lambda answer: answer))
        return document

    async def explain(self, query: str, doc_id: str | None = None, k: int = 5, **options: Any) -> Json:
        """As `Client.explain`."""
        explained: Json = await self._send(_explain(query, doc_id, k, options))
        return explained

    async def add(self, documents: Iterable[Mapping[str, Any]], *, replace: bool = False) -> int:
        """As `Client.add`."""
        count: int = await self._send(_add(documents, replace))
        return count

    async def remove(self, doc_id: str) -> int:
        """As `Client.remove`."""
        count: int = await self._send(_document("DELETE", doc_id, lambda answer: answer["documents"]))
        return count

    async def learn(self, pairs: Iterable[tuple[str, str]]) -> int:
        """As `Client.learn`."""
        count: int = await self._send(_learn(pairs))
        return count

    async def forget(
        self,
        pairs: Iterable[tuple[str, str]] | None = None,
        *,
        since: str | None = None,
        before: str | None = None,
    ) -> int:
        """As `Client.forget`."""
        count: int = await self._send(_forget(pairs, since, before))
        return count

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
