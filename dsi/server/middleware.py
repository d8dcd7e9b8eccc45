"""What wraps every request: a limit of its bytes, and its count. ASGI middleware; knows nothing of indexes."""

import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Refuses a body that has too many bytes (413), before it is in memory.

    Args:
        app: what answers the others.
        most: bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count the bytes that are read."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                what = f"The body of a request may have {self.most:,} bytes on this server; send less at a time."
                raise HTTPException(413, what, {"Connection": "close"})
            return message

        await self.app(scope, counted, send)


class Observed:
    """Reports the route, status and seconds of every request.

    Args:
        app: what answers.
        observe: called with them.
    """

    def __init__(self, app: ASGIApp, observe: Callable[[str, int, float], None]) -> None:
        self.app, self.observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and report it when its answer has begun."""
        started = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
                route = getattr(scope.get("route"), "path", "other")  # a path of a client could be anything
                self.observe(route, message["status"], time.perf_counter() - started)
            await send(message)

        await self.app(scope, receive, sending)
