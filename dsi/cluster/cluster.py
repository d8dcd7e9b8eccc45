"""A cluster: builds an index block by block, and serves it by shards, on this machine or on those of a Ray cluster."""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from dsi.cluster import backends
from dsi.cluster.backends import Backend, Closes, LocalBackend
from dsi.cluster.fleet import Fleet, ReplicaStatus
from dsi.cluster.ray_backend import RayBackend
from dsi.cluster.router import ShardedRetriever
from dsi.cluster.shards import shard_edges
from dsi.docids.files.checks import plain, user_path
from dsi.docids.files.processes import Processes
from dsi.search.vector_search import VectorEngine
from dsi.store.folder.loading import load_index

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")


class Cluster(Closes):
    """Processes that build an index together, and shards that serve it.

    Example:
        >>> cluster = Cluster("local", processes=2)
        >>> dsi.train(collection, "INDEX", cluster=cluster)

    Args:
        address: "local" for this machine, where shards are objects of this process, for trying; else a Ray cluster, as
            `ray.init` takes it: "auto" inside one, "HOST:PORT", or "ray://HOST:PORT".
        processes: tasks that run at a time; by default one per core of the cluster, and of Ray at most that.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ConnectionError: no Ray cluster answers at the address.
        ValueError: it runs another version of Python or Ray, or `processes` is below 1.
    """

    def __init__(self, address: str = "local", *, processes: int | None = None) -> None:
        if processes is not None and plain(int, processes, "processes") < 1:
            raise ValueError(f"processes must be at least 1, got {processes}.")
        self.address, self._fleets = plain(str, address, "address"), list[Fleet]()
        self.backend: Backend = LocalBackend(processes) if address == "local" else RayBackend(address, processes)

    def __repr__(self) -> str:
        return f"Cluster({self.address!r}, processes={self.backend.size})"

    def close(self) -> None:
        """End the shards and processes that this cluster has started."""
        for fleet in self._fleets:
            fleet.close()
        self.backend.close()

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replica that serves an index."""
        return [status for fleet in self._fleets if not fleet.is_closed for status in fleet.status()]

    # Building.

    @property
    def processes(self) -> Processes:
        """The cluster for the code that builds an index: this process gives the work away."""
        return _Workers(backend=self.backend)

    def check(self, folder: Path) -> None:
        """Raise unless all machines see a folder and have our versions; make the folder.

        Raises:
            FileNotFoundError: a machine does not see the folder.
            ValueError: a machine has other versions.
        """
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        seen = folder / f".cluster-{uuid4().hex}"
        seen.touch()
        try:
            machines = self.backend.machines(str(seen))
        finally:
            seen.unlink(missing_ok=True)
        ours = backends.versions()
        for name, theirs, sees in machines:
            if theirs != ours:
                raise ValueError(f"The machine {name} has {theirs}, this one has {ours}; install the same.")
            if not sees:
                raise FileNotFoundError(
                    f"The machine {name} does not see {folder}; put it on a folder that all machines share."
                )

    # Serving.

    def serve(self, run: str | Path, **options: Any) -> ShardedRetriever:
        """Serve an index by shards; `serve_shards` describes the options."""
        return serve_shards(run, cluster=self, **options)


@dataclass(frozen=True, kw_only=True)
class _Workers(Processes):
    """One process that has its work done by a cluster."""

    backend: Backend  # of the cluster

    @property
    def are_remote(self) -> bool:
        return True

    def map(self, work: Callable[..., U], pieces: Sequence[T], values: Callable[[T], tuple[Any, ...]]) -> list[U]:
        names = [f"{work.__name__.strip('_')} {piece}" for piece in pieces]
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else 1
        return self.backend.map(work, map(values, pieces), names, threads)


def serve_shards(
    run: str | Path,
    *,
    cluster: Cluster,
    shards: int,
    replicas: int = 1,
    timeout: float = 1.0,
    require_all: bool = False,
    device: str | None = None,
    dtype: str = "float32",
) -> ShardedRetriever:
    """Serve an index by shards of a cluster, each a range of neighbouring children of the root.

    Example:
        >>> with serve_shards("INDEX", cluster=Cluster("auto"), shards=2) as retriever:
        ...     hits = retriever.search("rivers of europe")

    Args:
        run: folder of the index, which all machines see under this name.
        cluster: where the shards run.
        shards: how many.
        replicas: processes for each of them, on different machines where there are several.
        timeout: seconds that a search waits for a shard, in each of its rounds: one, and with late interaction a second one,
            which does not ask a shard again that was late in the first. Then it answers without it, with `coverage` below 1.
        require_all: raise `ShardError` instead.
        device: of the encoder.
        dtype: of the encoder, "float32" or "bfloat16".

    Raises:
        FileNotFoundError: no index in the folder, or a machine does not see it.
        ValueError: the index has a generator, too many shards, a machine with another version, or a damaged index.
        ShardError: a shard cannot load the index.
    """
    # 1) Check the arguments, and load the index for the router.
    folder = user_path(run).resolve()
    for name, value in (("replicas", replicas), ("shards", shards)):
        if plain(int, value, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not 0 < plain(float, timeout, "timeout") < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, got {timeout}.")
    held = load_index(folder, device, dtype)
    engine = held.snapshot.engine
    if not isinstance(engine, VectorEngine):
        raise ValueError(f"{folder} has a generator, which shards do not run; serve it in one process.")
    shard_edges(engine.tree, shards)  # or there are too many
    cluster.check(folder)
    # 2) Start the shards.
    fleet = Fleet(cluster.backend, str(folder), shards, replicas, timeout, require_all=require_all)
    try:
        fleet.load(held.state)
    except BaseException:
        fleet.close()
        raise
    cluster._fleets = [*(earlier for earlier in cluster._fleets if not earlier.is_closed), fleet]
    logger.info("%s is served by %d shards with %d replicas each", folder, shards, replicas)
    return ShardedRetriever(held, fleet)
