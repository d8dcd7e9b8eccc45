"""Ray clusters for tests: nodes on this machine, in a folder that is deleted."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_worker_niceness": "0",  # other tests take the processors
    "RAY_idle_worker_killing_time_threshold_ms": "600000",  # a process that has imported all gets the next task
}


@pytest.fixture(scope="package")
def ray_address() -> Iterator[str]:
    """The address of a cluster with two nodes, which all modules of a package share."""
    with ray_cluster(nodes=2) as address:
        yield address


@contextmanager
def ray_cluster(nodes: int, **options: Any) -> Iterator[str]:
    """Yield the address of a cluster, whose nodes have one processor each.

    Args:
        nodes: how many.
        options: of the first one, as Ray's `Cluster` takes them.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    before = _variables()
    os.environ.update({**VARIABLES, "RAY_TMPDIR": str(folder), "HOME": str(folder)})
    try:
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False, **options}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=1)
            yield cluster.address
        finally:
            cluster.shutdown()
    finally:
        for name in _variables():
            del os.environ[name]
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


def _variables() -> dict[str, str]:
    """The variables of the environment that this or Ray sets."""
    return {
        name: own for name, own in os.environ.items() if name.startswith("RAY_") or name in ("HOME", "PYTHONBREAKPOINT")
    }
