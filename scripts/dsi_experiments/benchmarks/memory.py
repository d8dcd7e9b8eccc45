"""Memory of this process in MiB, as the benchmarks tell it (Linux). Knows nothing of what uses it."""

import gc
from contextlib import suppress

import psutil

from dsi.docids.files.memory import give_back_memory, own_memory


def family_memory() -> int:
    """Private bytes of this process and of all that it has started."""
    total = own_memory()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            total += own_memory(child)
    return total


def private_mib() -> float:
    """Private memory of this process in MiB: what the system cannot drop, as it can mapped files, without what was freed."""
    gc.collect()
    give_back_memory()
    return own_memory() / 2**20
