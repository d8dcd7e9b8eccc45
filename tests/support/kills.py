"""Processes that are killed: forked from the tests' own, so that none has to import anything."""

import faulthandler
import os
import random
import signal
import sys
import threading
from collections.abc import Callable

from tqdm import tqdm


def fork(work: Callable[[], object], dies_at_write: int = 0) -> int:
    """Start a process that does some work and says nothing; returns its id.

    Args:
        work: its exit status is 0 if this returns, and 1 if it raises.
        dies_at_write: the change to the file system at which it ends silently, with status 9; 0 for none.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    tqdm.set_lock(threading.RLock())  # of libraries' bars: a killed child would keep the one that all share
    try:
        faulthandler.disable()  # which pytest enables; a child that is meant to crash prints nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.environ.get("DSI_KILLS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        if dies_at_write:
            _die_at_write(dies_at_write)
        work()
        status = 0
    finally:
        if status and (error := sys.exc_info()[1]):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(status)


def status_of(child: int) -> int:
    """Wait for a process and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_within(seconds: float, work: Callable[[], object], chance: random.Random) -> int:
    """Start a process and kill it after a random time below `seconds`; returns its exit status."""
    child = fork(work)
    timer = threading.Timer(chance.uniform(0, seconds), os.kill, (child, signal.SIGKILL))
    timer.start()
    # WNOWAIT leaves the dead process in the table, so that its id is nobody else's when the timer ends
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    timer.cancel()
    timer.join()
    return status_of(child)


def _die_at_write(count: int) -> None:
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        writes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree") or (
            event == "open" and isinstance(arguments[1], str) and any(mode in arguments[1] for mode in "wax+")
        )
        seen += writes
        if writes and seen >= count:
            os._exit(9)

    sys.addaudithook(hook)
