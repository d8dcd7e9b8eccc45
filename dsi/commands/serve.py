"""`dsi serve`: serve an index over HTTP, with a page at / that shows each search as a tree.

Searches that arrive together are computed together. Documents can be added and removed only with --writable and a bearer token
in the environment variable DSI_TOKEN; the index on disk changes with that in memory. --workers starts several processes, which
share the memory of the index. SIGTERM and Ctrl-C finish what has begun. There is no TLS: put a proxy in front.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence

from dsi.commands.arguments import add_device, add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.main import run_command
from dsi.commands.values import count, number


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until a signal ends it."""
    given = _parse(argv)
    if given.writable and given.workers > 1:
        raise ValueError("--writable needs --workers 1: an update in one process would not reach the others.")
    load_libraries()
    from dsi.integrations import extra
    from dsi.server.settings import ServerSettings
    from dsi.store.loading import load_index

    with extra("server"):
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn

    limits = {name: value for name, value in vars(given).items() if name.startswith("max_") or name == "timeout"}
    settings = ServerSettings(
        str(given.run), given.device, given.dtype, given.writable,
        **{name: value for name, value in limits.items() if value is not None},
    )  # fmt: skip
    settings.check_token()
    settings.to_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it has stopped
    if given.workers > 1:
        load_index(given.run, "cpu")  # a bad index is refused here; uvicorn starts processes that fail again and again
    with tempfile.TemporaryDirectory(prefix="dsi-serve-") as counts:
        if given.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # the processes count together
        uvicorn.run(
            "dsi.server.app:app_from_environment",
            factory=True,
            host=given.host,
            port=given.port,
            workers=given.workers,
            log_level="warning" if given.quiet else "info",
            access_log=False,
            timeout_graceful_shutdown=int(settings.timeout) + 1,
        )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    command_line = parser("serve", __doc__)
    add_index(command_line)
    command_line.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 for all")
    command_line.add_argument("--port", type=number(int, 0, 65535), default=8000, help="to listen at; 0 for a free one")
    command_line.add_argument("--workers", type=count, default=1, metavar="N", help="processes")
    command_line.add_argument("--writable", action="store_true", help="let holders of the token change documents")
    command_line.add_argument("--quiet", action="store_true", help="show only warnings")
    add_device(command_line, dtype=True)
    limits = command_line.add_argument_group("limits of a request")
    limits.add_argument("--max-queries", type=count, metavar="N", help="queries (default: 100)")
    limits.add_argument("--max-query-length", type=count, metavar="N", help="characters of a query (default: 2000)")
    limits.add_argument("--max-k", type=count, metavar="N", help="documents per query (default: 100)")
    limits.add_argument("--max-beam-width", type=count, metavar="N", help="nodes kept per level (default: 500)")
    limits.add_argument("--max-candidates", type=count, metavar="N", help="of walk and words each (default: 10000)")
    limits.add_argument("--timeout", type=number(float, 0.001), metavar="SECONDS", help="of a search (default: 30)")
    batches = command_line.add_argument_group("batches")
    batches.add_argument("--max-batch", type=count, metavar="N", help="queries computed together (default: 32)")
    batches.add_argument(
        "--max-wait", type=number(float, 0, 1), metavar="SECONDS", help="to wait for others (default: 0.003)"
    )
    batches.add_argument("--max-waiting", type=count, metavar="N", help="requests that may wait (default: 1000)")
    return command_line.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
