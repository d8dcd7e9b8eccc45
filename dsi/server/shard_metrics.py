"""Numbers of the shards of a served index for Prometheus: queue, times, restarts, hedges, coverage. Knows nothing of HTTP."""

import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dsi.cluster.fleet import Fleet


class ShardMetrics(Collector):
    """Reads the state of a fleet whenever it is asked for numbers.

    Args:
        fleet: the shards.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Yield all numbers."""
        status = self.fleet.status()
        names = [str(own.shard) for own in status], [str(own.replica) for own in status]
        labels = list(zip(*names, strict=True))
        queue = GaugeMetricFamily(
            "dsi_shard_queue", "Calls that a replica has not answered.", labels=["shard", "replica"]
        )
        alive = GaugeMetricFamily("dsi_shard_generation", "Of the index; 0 if it is dead.", labels=["shard", "replica"])
        restarts = CounterMetricFamily("dsi_shard_restarts", "Restarts of a replica.", labels=["shard", "replica"])
        for own, label in zip(status, labels, strict=True):
            queue.add_metric(label, own.queue)
            alive.add_metric(label, own.generation)
            restarts.add_metric(label, own.restarts)
        yield from (queue, alive, restarts)
        yield from self._of_shards()
        yield CounterMetricFamily("dsi_partial_answers", "Answers that miss shards.", value=self.fleet.partial)
        yield GaugeMetricFamily(
            "dsi_coverage", "Share of the documents in the last such answer.", value=self.fleet.coverage
        )

    def _of_shards(self) -> Iterator[Metric]:
        seconds = GaugeMetricFamily("dsi_shard_seconds", "Seconds of recent calls.", labels=["shard", "quantile"])
        hedges = CounterMetricFamily("dsi_shard_hedges", "Questions that went to a second replica.", labels=["shard"])
        timeouts = CounterMetricFamily("dsi_shard_timeouts", "Questions without an answer in time.", labels=["shard"])
        for shard, own in enumerate(self.fleet.statistics):
            for share in (0.5, 0.95, 0.99):
                if not math.isnan(value := own.quantile(share)):
                    seconds.add_metric([str(shard), str(share)], value)
            hedges.add_metric([str(shard)], own.hedges)
            timeouts.add_metric([str(shard)], own.timeouts)
        yield from (seconds, hedges, timeouts)
