"""Middleware around every request: its bytes and their kind, and metrics for Prometheus. Knows nothing of indexes."""

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsi.docids.files.checks import shown

logger = logging.getLogger(__name__)

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
_LINGER = 10.0
"""Seconds for which the rest of a body that is too long is read: a client that is cut off while it sends sees no answer."""
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus-client: the folder in which several processes count together."""


class Metrics:
    """Requests by path and status, their seconds, the queries of batches, and what waits."""

    def __init__(self, waiting: Callable[[], int], documents: Callable[[], int]) -> None:
        registry = CollectorRegistry()
        self._registry, self._gauges = registry, (waiting, documents)
        self.requests = Counter("dsi_requests", "Requests.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "dsi_request_seconds", "Seconds a request.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.batches = Histogram("dsi_batch_queries", "Queries a batch.", buckets=_QUERIES, registry=registry)
        self._waiting = Gauge("dsi_waiting", "Requests that wait.", registry=registry, multiprocess_mode="livesum")
        self._documents = Gauge(
            "dsi_documents", "Documents of the index.", registry=registry, multiprocess_mode="livemax"
        )

    def add(self, numbers: Collector) -> None:
        """Add numbers that are read when Prometheus reads all."""
        self._registry.register(numbers)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return all numbers; with several processes, of all of them."""
        waiting, documents = self._gauges
        self._waiting.set(waiting())
        self._documents.set(documents())
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


def bears(headers: Iterable[tuple[bytes, bytes]], token: str) -> bool:
    """Return whether the headers of a request have a bearer token; compared in constant time."""
    header = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, credentials = header.partition(b" ")
    return hmac.compare_digest(credentials, token.encode("utf-8", "surrogateescape")) and scheme.lower() == b"bearer"


def guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Answer only requests with a bearer token, others with 401; all if there is no token."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if token and not bears(scope["headers"], token):
            message = "This path needs the header `Authorization: Bearer TOKEN` with this server's token."
            await JSONResponse({"error": message}, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


def heads(app: ASGIApp) -> ASGIApp:
    """Answer HEAD as GET, without the body."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        if scope["type"] == "http" and scope["method"] == "HEAD" and scope["path"] != "/mcp":  # which streams
            await app({**scope, "method": "GET"}, receive, sending)
        else:
            await app(scope, receive, send)

    return answer


def json_bodies(app: ASGIApp) -> ASGIApp:
    """Take every body for JSON, whatever its Content-Type says: curl's default is that of a form. Refuse compressed ones."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            coding = dict(scope["headers"]).get(b"content-encoding", b"").decode("latin-1").strip().lower()
            if coding not in ("", "identity"):
                message = (
                    f"This server reads bodies as they are, got Content-Encoding {shown(coding)}; send plain JSON."
                )
                await JSONResponse({"error": message}, 415, {"Accept-Encoding": "identity"})(scope, receive, send)
                return
            headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope["headers"] = [*headers, (b"content-type", b"application/json")]
        await app(scope, receive, send)

    return answer


def limited(app: ASGIApp, most: int) -> ASGIApp:
    """Refuse a body that has too many bytes (413), before it is in memory."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                if message.get("more_body"):
                    await _drain(receive)
                problem = f"The body of a request may have {most:,} bytes on this server; send less at a time."
                raise HTTPException(413, problem, {"Connection": "close"})
            return message

        await app(scope, counted, send)

    return answer


async def _drain(receive: Receive) -> None:
    """Read what follows of a body, for a while, and forget it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body"):
                pass


def failures(app: ASGIApp) -> ASGIApp:
    """Log an exception, and answer it with 500, below the middleware that counts answers and adds headers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except Exception as error:
            if scope["type"] == "http":
                logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
                if not has_begun:
                    message = "The server failed on this request; its log says why."
                    await JSONResponse({"error": message}, 500)(scope, receive, send)
            raise

    return answer


def observed(app: ASGIApp, observe: Callable[[str, int, float], None]) -> ASGIApp:
    """Report the route, status and seconds of every request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
                route = getattr(scope.get("route"), "path", "other")  # a path of a client could be anything
                observe(route, message["status"], time.perf_counter() - started)
            await send(message)

        await app(scope, receive, sending)

    return answer
