"""What a measured number was measured on, and how much memory it took."""

import os
import platform
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from contrastive.inference import has_bfloat16
from dsi.index import package_versions


def provenance() -> dict[str, Any]:
    """What results are measured with: hardware, versions, commit ("" outside a checkout)."""
    git = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        "hardware": ", ".join([f"{_processor()}, {torch.get_num_threads()} threads", *_accelerators()]),
        "versions": package_versions(),
        "commit": found.stdout.strip(),
    }


def _processor() -> str:
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in about if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{os.cpu_count()} x {name} {'with' if has_bfloat16(use_cpu=True) else 'without'} bfloat16"


def _accelerators() -> list[str]:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [f"{names.count(name)} x {name}" for name in sorted(set(names))]


class PrivateMemory:
    """The most memory that this process held for itself alone while the block ran (Linux), files mapped into it left out.

    Attributes:
        peak: bytes, sampled twenty times a second.
    """

    def __enter__(self) -> "PrivateMemory":
        self.peak, self._done = 0, threading.Event()
        self._sampling = threading.Thread(target=self._sample)
        self._sampling.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._done.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            anonymous = next(line for line in lines if line.startswith("RssAnon"))
            self.peak = max(self.peak, 1024 * int(anonymous.split()[1]))
