"""What a measured number was measured on."""

import os
import platform


def hardware() -> str:
    """Cores and processor of this machine, as results files name it."""
    return f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
