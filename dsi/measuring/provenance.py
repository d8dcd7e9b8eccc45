"""Where a measured number comes from: hardware, versions, commit. Knows nothing of what was measured."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from dsi.contrastive.devices import has_bfloat16
from dsi.store.folder.versions import package_versions


def provenance() -> dict[str, Any]:
    """Return hardware, package versions and commit ("" outside a checkout of this package, or without git) of this process."""
    return {
        "hardware": ", ".join([f"{_processor()}, {torch.get_num_threads()} threads", *_accelerators()]),
        "versions": package_versions(),
        "commit": _git("rev-parse", "HEAD") if _git("ls-files", Path(__file__).name) else "",
    }


def _git(*arguments: str) -> str:
    """Return what git prints in the folder of this file; "" if it fails, or is not there."""
    try:
        output = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return output.stdout.strip()


def _processor() -> str:
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in about if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name} {'with' if has_bfloat16(use_cpu=True) else 'without'} bfloat16"


def _accelerators() -> list[str]:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"{names.count(name)} x {name}" for name in sorted(set(names))]
