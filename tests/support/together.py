"""Processes that work together, as under `accelerate launch`: forked from the tests' own, so that none has to import much."""

import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

from accelerate.state import AcceleratorState

from tests.support.kills import fork, status_of

LONGEST = 300
"""Seconds after which a process ends itself: one that waits for another that failed."""


def together(processes: int, work: Callable[[], object], folder: Path) -> str:
    """Have several processes do some work, each as one of a launch, and return what they print.

    Raises:
        RuntimeError: one of them failed; with what they print.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    printed = [folder / f"process-{rank}.log" for rank in range(processes)]
    children = [
        fork(lambda rank=rank: _as_one_of(processes, rank, port, work, printed[rank])) for rank in range(processes)
    ]
    statuses = [status_of(child) for child in children]
    said = "".join(path.read_text() for path in printed)
    if any(statuses):
        raise RuntimeError(said)
    return said


def _as_one_of(processes: int, rank: int, port: int, work: Callable[[], object], printed: Path) -> None:
    signal.alarm(LONGEST)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    AcceleratorState._reset_state(reset_partial_state=True)  # the tests' own process is alone
    with printed.open("w") as file, contextlib.redirect_stdout(file):
        try:
            work()
        except BaseException:
            traceback.print_exc(file=file)
            raise
