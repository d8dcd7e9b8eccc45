"""Numbers of the shards of a served index for Prometheus: queue, times, restarts, hedges, coverage. Knows nothing of HTTP."""

import math
from collections.abc import Iterator

from dsi.cluster.fleet import Fleet


class ShardMetrics:
    """A collector of `prometheus_client`: reads the state of a fleet whenever Prometheus reads it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def collect(self) -> Iterator[object]:
        """Yield all numbers."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        replica, shard = ["shard", "replica"], ["shard"]
        queue = GaugeMetricFamily("dsi_shard_queue", "Calls that a replica has not answered.", labels=replica)
        alive = GaugeMetricFamily("dsi_shard_generation", "Of the index; 0 if it is dead.", labels=replica)
        restarts = CounterMetricFamily("dsi_shard_restarts", "Restarts of a replica.", labels=replica)
        seconds = GaugeMetricFamily("dsi_shard_seconds", "Seconds of recent calls.", labels=["shard", "quantile"])
        hedges = CounterMetricFamily("dsi_shard_hedges", "Questions that went to a second replica.", labels=shard)
        timeouts = CounterMetricFamily("dsi_shard_timeouts", "Questions without an answer in time.", labels=shard)
        for own in self.fleet.status():
            label = [str(own.shard), str(own.replica)]
            queue.add_metric(label, own.queue)
            alive.add_metric(label, own.generation)
            restarts.add_metric(label, own.restarts)
            if own.replica:
                continue
            for share, value in ((0.5, own.p50), (0.95, own.p95), (0.99, own.p99)):
                if not math.isnan(value):
                    seconds.add_metric([str(own.shard), str(share)], value)
            hedges.add_metric(label[:1], own.hedges)
            timeouts.add_metric(label[:1], own.timeouts)
        yield from (queue, alive, restarts, seconds, hedges, timeouts)
        yield CounterMetricFamily("dsi_partial_answers", "Answers that miss shards.", value=self.fleet.partial)
        coverage = "Share of the documents in the last such answer."
        yield GaugeMetricFamily("dsi_coverage", coverage, value=self.fleet.coverage)
