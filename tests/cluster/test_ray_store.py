"""A full object store of Ray is one clear line, and the workers go on."""

import re

import pytest

from dsi.cluster.cluster import Cluster
from tests.support.cluster_work import square
from tests.support.ray_cluster import ray_cluster

pytestmark = pytest.mark.slow
FULL = r"Ray's object store is full \(Local disk is full\); give its nodes more memory or disk\."


def test_a_full_object_store_is_an_error_and_costs_no_worker():
    """The store has its least size, and nothing that is larger may go to a file."""
    store = {"object_store_memory": 80_000_000, "_system_config": {"local_fs_capacity_threshold": 1e-9}}
    with ray_cluster(nodes=1, **store) as address, Cluster(address, processes=1) as cluster:
        for function, argument in ((len, b"a" * 300_000_000), (bytes, 300_000_000)):  # too large a question, or answer
            with pytest.raises(OSError, match="object store") as raised:
                cluster.backend.map(function, [(argument,)])
            assert re.fullmatch(FULL, str(raised.value))
            assert cluster.backend.map(square, [(3,), (4,)]) == [9, 16]
