"""Linear layers packed for inference on CPUs, and whether a device has instructions for bfloat16.

oneDNN multiplies by a weight matrix faster if it may choose the matrix's layout in memory; here it chooses once, not at every
call. Against `F.linear` on two cores with AVX512: 1.2 times as fast at 640 rows, 1.5 at 80, 2.5 at 10, in float32. Knows
nothing of what the layers are for.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import is_torch_bf16_gpu_available

_ROWS = 64
"""Input rows that the layout is optimised for; in measurements it suits 1 to 640 rows better than a layout for 1."""


class PackedLinear(nn.Linear):
    """`nn.Linear` without gradients, its weights packed for the CPU; on other devices an ordinary one.

    Args:
        weight: [out, in], shared; later changes do not reach the packed copy.
        bias: [out], if any.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(bias.detach(), requires_grad=False)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS) if _packable(weight) else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the weights, as packed ones cannot be."""
        return PackedLinear, (self.weight, self.bias)

    @torch.no_grad()
    def forward(self, input: Tensor, then: str = "none") -> Tensor:  # noqa: A002 - nn.Linear's name
        """[..., in] -> [..., out]; `then` may be "relu", in the same pass over memory."""
        if self.packed is None:
            output = F.linear(input, self.weight, self.bias)
            return output.relu_() if then == "relu" else output
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, then, [], "")  # type: ignore[no-any-return]


def has_bfloat16(*, use_cpu: bool) -> bool:
    """True if the device has instructions for bfloat16; without them bfloat16 takes twice as long as float32.

    False on CPUs under old versions of torch, which do not report a CPU's instructions.
    """
    if not use_cpu:
        return bool(is_torch_bf16_gpu_available())
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(there for name, there in capabilities.items() if "bf16" in name)


def _packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    bfloat16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32 or bool(bfloat16)


def for_inference(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a model for inference: weights in the given dtype, linear layers packed. Weights of that dtype are shared."""
    tensors = [*model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, {id(t): t for t in tensors if t.dtype == dtype or not t.is_floating_point()})
    for module in list(copied.to(dtype).modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias))
    return copied.eval()
