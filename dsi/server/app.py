"""The HTTP side of `dsi serve`: paths, limits, messages, the token. Every error is {"error": message}."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from tqdm import tqdm

from dsi.docids.files.checks import printable, shown
from dsi.docids.files.declarations import meant
from dsi.search.results import ShardError
from dsi.server.batching import BusyError
from dsi.server.middleware import Metrics, bears, failures, guarded, heads, json_bodies, limited, observed
from dsi.server.models import AddBody, ExplainBody, ForgetBody, LearnBody, SearchBody, SimilarBody
from dsi.server.service import ConflictError, RateError, Service, UnknownError
from dsi.server.settings import TOKEN, ServerSettings, TooLargeError

PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("page.css", "page.js", "tree.js", "dom.js", "docs.js")
_PAGE_FILES = {"/": "index.html", "/docs": "docs.html", **{f"/{name}": name for name in _SCRIPTS}}
_LATER = {"Retry-After": "1"}
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"


def app_from_environment() -> FastAPI:
    """Return the app of the settings that `ServerSettings.to_environment` left; uvicorn calls it in each process."""
    # The lock that tqdm makes outlives a process: uvicorn ends workers by SIGTERM, before they clean up.
    tqdm.set_lock(threading.RLock())
    return create_app(ServerSettings.from_environment())


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the app, with its index loaded; a stop finishes what waits."""
    # 1) Load the index.
    token = settings.check_token()
    metrics = Metrics(lambda: service.batcher.waiting, lambda: len(service.retriever))
    service = Service(settings, metrics.batches.observe)
    if service.shards:
        metrics.add(service.shards.fleet)

    agents = None
    if settings.mcp:
        from dsi.server.agents import agents_app  # needs the extra `mcp`

        agents = agents_app(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.ready = True
        async with agents.router.lifespan_context(agents) if agents else nullcontext():
            yield
        app.state.ready = False
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="dsi",
        summary="Generative document retrieval",
        lifespan=lifespan,
        redoc_url=None,
        docs_url=None,
        redirect_slashes=False,  # behind TLS the address of a redirect would be of http
        responses={
            "4XX": {"description": "Bad input, or not allowed: `error`, what was wrong, and what to do"},
            503: {"description": "Too busy, too slow, or stopping: `error`"},
        },
    )
    app.state.service, app.state.metrics, app.state.token, app.state.ready = service, metrics, token, False
    # 2) Add middleware, the last one outermost, then errors and paths.
    app.add_middleware(json_bodies)
    app.add_middleware(limited, most=settings.max_body)
    app.add_middleware(failures)
    if settings.allow_origin:
        methods, headers = ["GET", "POST", "DELETE"], ["Authorization", "Content-Type"]
        app.add_middleware(
            CORSMiddleware, allow_origins=[settings.allow_origin], allow_methods=methods, allow_headers=headers
        )
    app.add_middleware(observed, observe=metrics.observe)
    app.add_middleware(heads)
    _add_errors(app)
    _add_page(app)
    _add_searches(app)
    _add_documents(app)
    _add_state(app)
    if agents:
        guard = Middleware(guarded, token=token)
        app.router.routes.append(Route("/mcp", agents, middleware=[guard], include_in_schema=False))
    return app


# Errors.


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


def _add_errors(app: FastAPI) -> None:
    statuses: dict[type[Exception], int] = {
        ValueError: 400, TypeError: 400, UnknownError: 404, ConflictError: 409, TooLargeError: 413, BusyError: 503,
        ShardError: 503, RateError: 429,
    }  # fmt: skip

    async def known(request: Request, error: Exception) -> JSONResponse:
        status = next(statuses[kind] for kind in type(error).__mro__ if kind in statuses)
        return _error(status, str(error), _LATER if status in (429, 503) else None)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StarletteHTTPException)
        message, headers = str(error.detail), dict(error.headers or {})
        if error.status_code == 404 and "route" not in request.scope:  # those of a path say more
            paths = sorted({path for route in app.routes if "{" not in (path := getattr(route, "path", "{"))})
            message = f"This server has no path {shown(request.url.path)}{meant(request.url.path, paths)}"
        elif error.status_code == 405:
            headers["Allow"] = _methods(app, request)
            message = f"{printable(request.url.path)} takes {headers['Allow']}, got {request.method}."
        return _error(error.status_code, message, headers)

    async def malformed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "model_attributes_type":
            return _error(400, f"The body must be a JSON object, got {shown(first['input'])}.")
        where = printable(".".join(str(part) for part in first["loc"] if part != "body")[:100]) or "The body"
        if first["type"] == "json_invalid":
            return _error(400, f"The body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}.")
        return _error(400, f"{where}: {first['msg']}.")

    for kind in statuses:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(StarletteHTTPException, http)
    app.add_exception_handler(RequestValidationError, malformed)


def _methods(app: FastAPI, request: Request) -> str:
    """Return the methods of all routes of a request's path, as the header Allow has them."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    matching = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {*chain.from_iterable(matching)}
    return ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))


async def _answer(request: Request, response: Response, future: "Future[Any]") -> Any:
    """Return a result within the time that a request may take; its status is 206 if a shard is missing."""
    result = await _within_limit(request, future)
    if any("missing" in answer for answer in (result if isinstance(result, list) else [result])):
        response.status_code = 206
    return result


async def _within_limit(request: Request, future: "Future[Any]") -> Any:
    """Wait for a result, for at most the time that a request may take; a request that is given up is not worked on further."""
    seconds = request.app.state.service.settings.timeout
    answer, gone = asyncio.wrap_future(future), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the server stops, and has waited long enough
        answer.cancel()
        raise HTTPException(503, "The server is stopping; ask another one, or try again later.", _LATER) from None
    finally:
        gone.cancel()
    if answer.done():
        return answer.result()
    answer.cancel()
    message = f"The search took longer than {seconds:g} s; try again later, or with fewer queries."
    raise HTTPException(503, message, _LATER)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Paths.


def _add_page(app: FastAPI) -> None:
    def page_file(request: Request) -> FileResponse:
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        return FileResponse(PAGE / _PAGE_FILES[request.url.path], headers=headers)

    for path in _PAGE_FILES:
        app.get(path, include_in_schema=False)(page_file)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


def _add_searches(app: FastAPI) -> None:
    @app.post("/search", summary="Search for one query or several")
    async def search(request: Request, response: Response, service: Served, body: SearchBody) -> dict[str, Any]:
        started = time.perf_counter()
        shown = {"syntax": body.syntax, "parts": body.parts, "matches": body.matches}
        future = service.search(body.texts(), body.k, body.options(), **shown)
        answers = await _answer(request, response, future)
        if body.queries is None and "error" in answers[0]:
            raise ValueError(answers[0]["error"])
        return {"answers": answers, "milliseconds": round(1000 * (time.perf_counter() - started), 1)}

    @app.post("/similar", summary="Find documents that are like some of the index")
    async def similar(request: Request, response: Response, service: Served, body: SimilarBody) -> dict[str, Any]:
        future = service.similar(body.doc_ids, body.k, body.options("similar"), matches=body.matches)
        answer: dict[str, Any] = await _answer(request, response, future)
        return answer

    @app.post("/explain", summary="Show how a search came about, and why a document is, or is not, there")
    async def explain(request: Request, response: Response, service: Served, body: ExplainBody) -> dict[str, Any]:
        await run_in_threadpool(service.topics, service.retriever.snapshot)  # which may take long, and searches go on
        future = service.explain(body.query, body.k, body.options(), body.doc_id, syntax=body.syntax)
        explained: dict[str, Any] = await _answer(request, response, future)
        return explained

    @app.get("/tree", summary="A node of the docid tree and its children")
    def tree(service: Served, digits: str = "") -> dict[str, Any]:
        try:
            path = [int(digit) for digit in digits.split(",")] if digits else []
        except ValueError:
            raise ValueError(
                f"digits must be whole numbers with commas between them, as in 1,4, got {shown(digits)}."
            ) from None
        return service.branch(path)


def _may_write(request: Request) -> None:
    """Raise HTTPException unless the request may change the index."""
    state = request.app.state
    if not state.service.settings.writable:
        raise HTTPException(403, f"This server is read-only; start it with --writable and a token in {TOKEN}.")
    if not bears(request.headers.raw, state.token):
        message = "Changing documents needs the header `Authorization: Bearer TOKEN` with this server's token."
        raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


def _add_documents(app: FastAPI) -> None:
    @app.get("/documents/{doc_id:path}", summary="A document")
    def document(service: Served, doc_id: str) -> dict[str, Any]:
        return service.document(doc_id)

    @app.post("/documents", summary="Add documents", dependencies=[Depends(_may_write)])
    def add(service: Served, body: AddBody) -> dict[str, Any]:
        return {"documents": service.add(body.documents, replace=body.replace)}

    @app.post("/learn", summary="Learn what users took", dependencies=[Depends(_may_write)])
    def learn(service: Served, body: LearnBody) -> dict[str, Any]:
        return service.learn(body.pairs)

    @app.post("/forget", summary="Forget what was learned", dependencies=[Depends(_may_write)])
    def forget(service: Served, body: ForgetBody) -> dict[str, Any]:
        return service.forget(body.pairs, body.since, body.before)

    @app.delete(
        "/documents/{doc_id:path}",
        summary="Remove a document",
        dependencies=[Depends(_may_write)],
    )
    def remove(service: Served, doc_id: str) -> dict[str, Any]:
        return {"documents": service.remove(doc_id)}


def _add_state(app: FastAPI) -> None:
    @app.get("/index", summary="The index that is served, and the limits of a request")
    def index(service: Served) -> dict[str, Any]:
        return service.about()

    @app.get("/health", summary="Does the process live?")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", summary="Can it search?")
    async def ready() -> dict[str, str]:
        if not (app.state.ready and app.state.service.is_ready):
            raise HTTPException(
                503, "The index is not loaded, the server is stopping, its search thread has ended, or a shard is gone."
            )
        return {"status": "ready"}

    @app.get("/metrics", summary="Numbers for Prometheus")
    def metrics() -> Response:
        return Response(app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
