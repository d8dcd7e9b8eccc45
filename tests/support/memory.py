"""Memory of a process."""

import gc
import os
from pathlib import Path


def resident_megabytes() -> float:
    """Memory of this process that no file holds."""
    gc.collect()
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
