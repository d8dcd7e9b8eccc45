"""How a node's scores by generator and encoder become one: functions of two tensors of log-probabilities.

A fusion gets log P of the children of some nodes by the generator and by the encoder, [batch, beams, fan_out] each, and alpha.
It returns log-probabilities of that shape, at most 0, which are summed along a path. Knows no decoder and no tree.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsi.docids.extensions import FUSIONS, extension_names, load_extension
from dsi.docids.files.checks import shown

Fusion = Callable[[Tensor, Tensor, float], Tensor]
"""(log P by the generator, log P by the encoder, alpha) -> log P."""


def product(generator: Tensor, encoder: Tensor, alpha: float) -> Tensor:
    """Return alpha log P_T5 + (1 - alpha) log P_ANN (DR-SCL eq. 11)."""
    return alpha * generator + (1 - alpha) * encoder


def mixture(generator: Tensor, encoder: Tensor, alpha: float) -> Tensor:
    """Return log(alpha P_T5 + (1 - alpha) P_ANN): what one of the two thinks impossible, the other can still find.

    >>> round(mixture(torch.tensor(0.0), torch.tensor(-1e9), 0.5).exp().item(), 3)
    0.5
    """
    weights = torch.tensor([alpha, 1 - alpha], device=generator.device).log()
    return torch.logaddexp(generator + weights[0], encoder + weights[1])


PRODUCT = "product"
BUILT_IN: dict[str, Fusion] = {PRODUCT: product, "mixture": mixture}
"""The fusions of the library by name. At alpha 0 they do not read the generator."""


def find_fusion(name: str) -> Fusion:
    """Return the fusion of that name or import path: one of `BUILT_IN`, or another's function (generator, encoder, alpha)."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    fusion: Fusion | None = load_extension(FUSIONS, name)
    if fusion is None:
        names = ", ".join(extension_names(FUSIONS, list(BUILT_IN)))
        raise ValueError(f"search.fusion must be one of {names}, or the import path of a function, got {shown(name)}.")
    if not inspect.isfunction(fusion) or [*inspect.signature(fusion).parameters] != ["generator", "encoder", "alpha"]:
        raise ValueError(
            f"The fusion {name!r} must be a function whose parameters are named generator, encoder and alpha, "
            f"got {shown(fusion)}."
        )
    return fusion


def fuse(name: str, generator: Tensor, encoder: Tensor, alpha: float, exists: Tensor) -> Tensor:
    """Return what a fusion makes of log-probabilities [batch, beams, fan_out]; it is given -1e9 where no child `exists`."""
    generator, encoder = (each.masked_fill(~exists, -1e9) for each in (generator, encoder))
    fused: Any = find_fusion(name)(generator, encoder, alpha)
    if (shape := getattr(fused, "shape", None)) != generator.shape:
        raise ValueError(
            f"The fusion {name!r} must return the shape of its tensors, {list(generator.shape)}, got "
            f"{shown(fused) if shape is None else list(shape)}."
        )
    fused = torch.as_tensor(fused, device=generator.device).float().masked_fill(~exists, 0.0)
    if not (fused <= 1e-6).all():  # which NaN is not
        wrong = fused[~(fused <= 1e-6)][0].item()
        raise ValueError(f"The fusion {name!r} must return log-probabilities, at most 0, got {wrong:g}.")
    return fused.clamp(max=0.0)
