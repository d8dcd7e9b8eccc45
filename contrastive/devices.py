"""Where tensors are computed. Imports only torch, and only when needed."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_CARDS = ("/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Device files of a GPU: of NVIDIA, of NVIDIA in Windows' Linux (WSL), of AMD."""


def check_device(device: str | None) -> None:
    """Raise ValueError unless tensors can be made on a device; None chooses one."""
    if device in (None, "cpu"):
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device {device!r} cannot be used here ({reason}); use cpu, or leave it out.") from None


def choose_device(device: str | None) -> str:
    """Return the device, or the best one here if it is None."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def has_gpu() -> bool:
    """True if torch has a GPU here, as far as that is known without importing it."""
    if "torch" in sys.modules:
        return choose_device(None) != "cpu"
    return any(Path(card).exists() for card in _CARDS) and find_spec("torch") is not None


def has_bfloat16(*, use_cpu: bool) -> bool:
    """True if the device has instructions for bfloat16, without which it is slow; old versions of torch do not say."""
    import torch

    if not use_cpu:
        from transformers.utils import is_torch_bf16_gpu_available

        return bool(is_torch_bf16_gpu_available())
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(has for name, has in capabilities.items() if "bf16" in name)
