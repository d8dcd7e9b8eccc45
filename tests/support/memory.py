"""Memory of a process."""

import gc
import os
from pathlib import Path


def resident_megabytes(process: int | str = "self") -> float:
    """Memory of a process, by default this one, that no file holds."""
    gc.collect()
    resident, shared = map(int, Path(f"/proc/{process}/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20
