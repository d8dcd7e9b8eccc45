"""Where tensors are computed. Imports torch alone, so that a missing device is reported soon."""

import torch


def check_device(device: str | None) -> None:
    """Raise ValueError unless tensors can be made on a device; None chooses one."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device {device!r} cannot be used here ({reason}); use cpu, or leave it out.") from None


def choose_device(device: str | None) -> str:
    """Return the device, or the best one here if it is None."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")
