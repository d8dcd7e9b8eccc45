"""Where tensors are computed. Imports torch alone, and only where that is asked."""

import sys
from importlib.util import find_spec
from pathlib import Path

_CARDS = ("/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""What a system has that has a GPU: of NVIDIA, of Windows below Linux, of AMD."""


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
