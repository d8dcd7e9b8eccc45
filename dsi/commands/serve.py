"""`dsi serve`: serve an index over HTTP, with a page at / that shows each search as a tree.

Searches that arrive together are computed together. Documents can be added and removed only with --writable and a bearer token
in the environment variable DSI_TOKEN; updates change the index in memory and on disk. --workers starts several processes, which
share the memory of the index. --mcp http adds /mcp, where agents find tools (Model Context Protocol); --mcp stdio serves one
agent over standard input and output, and loads the index while it answers. After SIGTERM or Ctrl-C, running requests
have 5 seconds to finish. It has no TLS: put a proxy in front.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsi.commands.arguments import add_device, add_index, parser
from dsi.commands.libraries import load_libraries, set_up
from dsi.commands.values import argument_of, count, flag, number

if TYPE_CHECKING:
    from dsi.docids.files.declarations import Setting
    from dsi.server.service import Service
    from dsi.server.settings import ServerSettings

_GRACE = 5
"""Seconds that requests have to end when the server stops; then they are answered with 503."""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until a signal ends it."""
    args = build_parser().parse_args(argv)
    _check_extras(args)
    settings = _settings(args)
    if args.mcp != "stdio":
        _check_port(args.host, args.port)
    if not args.quiet:  # uvicorn says when it is ready, and where
        print(f"dsi: loading the libraries and the index {args.run} …", file=sys.stderr, flush=True)
    if args.mcp == "stdio":
        from dsi.server.agents import serve_stdio

        set_up()
        serve_stdio(lambda: _load(settings))
    else:
        load_libraries()
        _serve_http(args, settings)


def _load(settings: "ServerSettings") -> "Service":
    """Return the index behind the server, after its libraries are imported."""
    load_libraries()
    from dsi.server.service import Service

    return Service(settings)


def _check_extras(args: argparse.Namespace) -> None:
    """Raise ModuleNotFoundError if a library is missing, before anything that takes time."""
    from dsi.docids.extensions import extra

    if args.mcp:
        with extra("mcp"):
            import mcp  # noqa: F401
    if args.mcp != "stdio":
        with extra("server"):
            import fastapi  # noqa: F401
            import prometheus_client  # noqa: F401
            import uvicorn  # noqa: F401


def _check_port(host: str, port: int) -> None:
    """Raise OSError if nothing can listen there."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # after which Python may repeat the address
        raise OSError(f"Cannot listen on port {port} of {host}: {reason}. Choose another (--port).") from None


def _settings(args: argparse.Namespace) -> "ServerSettings":
    """Return the settings of the server."""
    if args.writable and args.workers > 1:
        raise ValueError("--writable needs --workers 1: an update in one process would not reach the others.")
    if args.cluster and args.workers > 1:
        raise ValueError("--cluster needs --workers 1: each process would start shards of its own.")
    limits = _limits()
    shards = [name for name in ("shards", "replicas", "shard_timeout") if getattr(args, name) != limits[name].default]
    if not args.cluster and (shards or args.require_all):
        raise ValueError(f"{flag([*shards, 'require_all'][0])} needs --cluster, which says where shards are served.")
    if args.mcp == "stdio" and (args.writable or args.workers > 1):
        raise ValueError("--mcp stdio serves one agent that reads; leave out --writable and --workers.")
    from dsi.server.settings import ServerSettings

    names = [*limits, "device", "dtype", "writable", "allow_origin", "cluster"]
    values = {name: getattr(args, name) for name in names}
    settings = ServerSettings(str(args.run), **values, require_all=args.require_all, mcp=args.mcp == "http")
    settings.check_token()
    return settings


def _serve_http(args: argparse.Namespace, settings: "ServerSettings") -> None:
    """Serve in one process or several."""
    from tempfile import TemporaryDirectory

    import uvicorn

    from dsi.store.folder.loading import load_index

    settings.to_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has stopped
    if args.workers > 1:
        load_index(args.run, "cpu")  # a bad index is refused here; uvicorn starts processes that fail again and again
    with TemporaryDirectory(prefix="dsi-") as counts:
        if args.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # the processes count together
        uvicorn.run(
            "dsi.server.app:app_from_environment", factory=True, host=args.host, port=args.port,
            workers=args.workers, log_level="warning" if args.quiet else "info", access_log=False,
            ws="none", timeout_graceful_shutdown=_GRACE,  # a request to upgrade is answered as any other
        )  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = parser("serve", __doc__)
    add_index(arguments)
    add = arguments.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all")
    add("--port", type=number(int, 0, 65535), default=8000, help="port to listen on; 0 picks a free one")
    add("--workers", type=count, default=1, metavar="N", help="processes")
    agents = "offer search to agents: at /mcp, or over standard input and output alone"
    add("--mcp", choices=("http", "stdio"), help=agents)
    add("--writable", action="store_true", help="let holders of the token change documents")
    pages = "let pages of this origin call the server (CORS), as https://example.org; * for all, none by default"
    add("--allow-origin", default="", metavar="ORIGIN", help=pages)
    shards = (
        "serve by --shards with --replicas each: auto inside a Ray cluster, HOST:PORT of one; local: in this process"
    )
    add("--cluster", default="", metavar="ADDRESS", help=shards)
    add("--require-all", action="store_true", help="answer 503 instead of 206 if a shard is missing")
    add("--quiet", action="store_true", help="show only warnings")
    add_device(arguments, searches=True)
    limits = arguments.add_argument_group("limits of requests, and batches")
    for name, limit in _limits().items():
        limits.add_argument(flag(name), default=limit.default, metavar=limit.kind.__name__, **argument_of(limit))
    return arguments


def _limits() -> "dict[str, Setting]":
    """Return the declarations of `ServerSettings` that are numbers."""
    from dsi.docids.files.declarations import declarations
    from dsi.server.settings import ServerSettings

    return {name: setting for name, setting in declarations(ServerSettings).items() if setting.kind in (int, float)}
