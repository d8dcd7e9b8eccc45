"""`python -m tests.support.shard_costs INDEX --data DIR`: what a search through shards costs beside one process, in one run.

Prints two tables. The first: the time of a batch of 64 encoded queries, the two ways alternating, and the processor time of the
router and of all shards. The second: queries a second of callers that wait for each answer, from texts on. All processes are on
this machine, the shards those of a Ray cluster that is started here; a shard computes on one thread.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import psutil

import dsi
from dsi.cluster.cluster import Cluster, serve_shards
from dsi.cluster.router import ShardedRetriever
from tests.support.ray_cluster import ray_cluster

BATCH, ROUNDS, SECONDS = 64, 4, 6.0


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    command_line = argparse.ArgumentParser(prog="python -m tests.support.shard_costs", description=__doc__)
    command_line.add_argument("run", metavar="INDEX", help="a trained index")
    command_line.add_argument("--data", required=True, metavar="DIR", help="the collection of the queries")
    command_line.add_argument("--shards", type=int, nargs="+", default=[2, 8])
    command_line.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4])
    given = command_line.parse_args(argv)
    texts = list(dsi.read_collection(given.data).query_texts("test").values())
    batches = [texts[start : start + BATCH] for start in range(0, min(len(texts), 1_920), BATCH)]
    one = dsi.load(given.run, device="cpu")
    for shards in given.shards:
        with ray_cluster(nodes=1) as address, Cluster(address) as cluster:
            options = {"shards": shards, "replicas": 1, "timeout": 10.0, "device": "cpu"}
            with serve_shards(given.run, cluster=cluster, **options) as sharded:
                for name, weights in (("default", {}), ("without late interaction", {"token_weight": 0.0})):
                    sys.stdout.write(f"{shards} shards, {name}: {_batches(one, sharded, batches[:8], weights)}\n")
                if shards == min(given.shards):
                    for callers in given.callers:
                        rates = _rates(one, sharded, batches, callers)
                        sys.stdout.write(f"{shards} shards, {callers} callers: {rates}\n")


def _batches(one: dsi.Retriever, sharded: ShardedRetriever, batches: list, weights: dict) -> str:
    encoded = [one.encode_queries(batch) for batch in batches]
    shards = [psutil.Process(int(own.process.split(":")[1])) for own in sharded.fleet.status()]
    walls, own, work = {"one": [], "sharded": []}, [], 0.0
    for number in range(ROUNDS + 1):  # the first one warms up
        for queries in encoded:
            found = {}
            for name, index in (("one", one), ("sharded", sharded)):
                before, start, busy = _busy(shards), time.perf_counter(), time.process_time()
                found[name] = index.snapshot.search(queries, **weights)
                if number:
                    walls[name].append(1e3 * (time.perf_counter() - start))
                if number and name == "sharded":
                    own.append(1e3 * (time.process_time() - busy))
                    work += _busy(shards) - before
            np.testing.assert_allclose(found["one"].scores, found["sharded"].scores, atol=1e-4)
    one_process, through = (float(np.median(walls[name])) for name in ("one", "sharded"))
    return (
        f"one process {one_process:.0f} ms, through shards {through:.0f} ms ({through - one_process:+.0f}); processor: "
        f"router {np.median(own):.0f} ms, all shards {1e3 * work / len(own):.0f} ms"
    )


def _busy(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _rates(one: dsi.Retriever, sharded: dsi.Retriever, batches: list, callers: int) -> str:
    rates: dict[str, list[float]] = {"one": [], "sharded": []}
    for _ in range(ROUNDS):
        for name, index in (("one", one), ("sharded", sharded)):
            rates[name].append(_rate(index.search, batches, callers))
    return (
        ", ".join(f"{name} {np.median(own):.0f} ({min(own):.0f} to {max(own):.0f})" for name, own in rates.items())
        + " queries a second"
    )


def _rate(search: Callable, batches: list, callers: int) -> float:
    """Return the queries a second that some callers get, each of which waits for its answers."""
    start = time.monotonic()
    end, answered = start + SECONDS, [0] * callers

    def call(caller: int) -> None:
        number = 7 * caller
        while time.monotonic() < end:
            queries = batches[number % len(batches)]
            search(queries)
            answered[caller] += len(queries)
            number += 1

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered) / (time.monotonic() - start)


if __name__ == "__main__":
    main()
