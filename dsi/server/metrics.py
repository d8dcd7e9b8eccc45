"""What a server counts, in the text format of Prometheus. Knows nothing of indexes."""

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus-client: the folder in which several processes count together."""


class Metrics:
    """Requests by path and status, their seconds, the queries of batches, and what waits.

    Args:
        waiting: says how many requests wait.
        documents: says how many documents the index has.
    """

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
