"""A Ray cluster of its own for a module of tests: two nodes on this machine, in a folder that is deleted."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "300",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
}


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """The address of a cluster with two nodes."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    own = {**VARIABLES, "RAY_TMPDIR": str(folder), "HOME": str(folder)}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=2)
            yield cluster.address
        finally:
            cluster.shutdown()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)
