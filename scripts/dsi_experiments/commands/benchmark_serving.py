"""`dsi benchmark-serving`: latency and throughput of `dsi serve` at 1, 8 and 64 clients, with batches and without.

Two servers run side by side, one of them with --max-batch 1. Clients send real queries of a collection, one after another, over
loopback, from this machine; measurements of the two alternate. A query is never sent twice in a row.
"""

import http.client
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dsi.commands.arguments import add_index, parser
from dsi.commands.libraries import load_libraries
from dsi.commands.values import collection_folder, count, number, output_folder

SERVERS = {"batched": [], "one by one": ["--max-batch", "1"]}


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    command_line = parser("benchmark-serving", __doc__)
    add_index(command_line)
    command_line.add_argument(
        "--data", type=collection_folder, default="minipedia", metavar="DIR", help="the collection of the queries"
    )
    command_line.add_argument(
        "--clients", type=count, nargs="+", default=[1, 8, 64], metavar="N", help="at the same time"
    )
    command_line.add_argument("--rounds", type=count, default=3, help="of the alternating measurements")
    command_line.add_argument("--seconds", type=number(float, 0.1), default=3.0, help="of each measurement")
    command_line.add_argument(
        "--output", type=output_folder, metavar="DIR", help="write serving.json and serving.md there"
    )
    return command_line


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every number of clients; print the table, write it and its JSON where asked."""
    arguments = build_parser().parse_args(argv)
    load_libraries(training=True)
    from dsi.docids.data.collection import read_collection
    from dsi_experiments.report import save_report

    queries = list(read_collection(arguments.data).query_texts("test").values())
    with _serve(arguments.run, SERVERS["batched"]) as batched, _serve(arguments.run, SERVERS["one by one"]) as single:
        ports = dict(zip(SERVERS, (batched, single), strict=True))
        rows = [_row(ports, queries, clients, arguments.rounds, arguments.seconds) for clients in arguments.clients]
    table = _table(rows)
    print(table)
    if arguments.output:
        settings = {"rounds": arguments.rounds, "seconds a measurement": arguments.seconds}
        record = {"collection": arguments.data.name, **settings, "rows": rows}
        save_report(arguments.output, "serving", table, record)


@contextmanager
def _serve(run: Path, options: Sequence[str]) -> Iterator[int]:
    """Run a server, and give its port."""
    command = [sys.executable, "-m", "dsi", "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        try:
            for line in server.stderr:
                said.append(line)
                if found := re.search(r"running on http://[\d.]+:(\d+)", line):
                    break
            else:
                raise ValueError(f"The server did not start: {''.join(said).strip()}")
            yield int(found[1])
        finally:
            server.terminate()


def _row(ports: dict[str, int], queries: Sequence[str], clients: int, rounds: int, seconds: float) -> dict[str, object]:
    """Return p50 and p99 in ms and queries a second of each server, over alternating measurements."""
    latencies: dict[str, list[float]] = {name: [] for name in ports}
    spent = dict.fromkeys(ports, 0.0)
    texts = itertools.cycle(queries)
    for _ in range(rounds):
        for name, port in ports.items():
            started = time.perf_counter()
            latencies[name] += _load(port, texts, clients, seconds)
            spent[name] += time.perf_counter() - started
    return {
        "clients": clients,
        **{name: _figures(sorted(own), spent[name]) for name, own in latencies.items()},
    }


def _figures(latencies: Sequence[float], seconds: float) -> dict[str, float]:
    def quantile(share: float) -> float:
        return round(1000 * latencies[min(int(share * len(latencies)), len(latencies) - 1)], 1)

    return {
        "p50 ms": quantile(0.5), "p99 ms": quantile(0.99),
        "queries a second": round(len(latencies) / seconds, 1), "queries": len(latencies),
    }  # fmt: skip


def _load(port: int, texts: Iterator[str], clients: int, seconds: float) -> list[float]:
    """Return the seconds of every request of some clients, each of which waits for its answer before it asks again."""
    latencies: list[float] = []
    failed: list[str] = []
    lock, end = threading.Lock(), time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < end:
            with lock:
                body = json.dumps({"query": next(texts)})
            started = time.perf_counter()
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                failed.append(text.decode())
                break
            latencies.append(time.perf_counter() - started)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise ValueError(f"The server answered {failed[0]}")
    return latencies


def _table(rows: Sequence[dict[str, object]]) -> str:
    from dsi.eval.tables import markdown_table

    heads = ["clients", *(f"{name}: p50 / p99 ms, queries a second" for name in SERVERS)]
    return markdown_table(heads, [[str(row["clients"]), *(_cell(row[name]) for name in SERVERS)] for row in rows])


def _cell(figures: object) -> str:
    assert isinstance(figures, dict)
    return f"{figures['p50 ms']:.0f} / {figures['p99 ms']:.0f}, {figures['queries a second']:.1f}"
