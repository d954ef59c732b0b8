"""``where``: operands of another dtype, and 0-d operands on the host."""

from __future__ import annotations

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence


def where(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Operands are cast to the result's dtype, and host scalars copied, before the output.

    native/TensorCompare.cpp, where_self_out; all of it is freed after the kernel.  ``where(c, x,
    0.0)`` hands a host scalar over: recorded in torch 2.6 and 2.11 as 2 or 4 bytes.
    """
    operands = [value for value in call.args[:3] if isinstance(value, TensorSpec)]
    if len(operands) < 3:
        return None
    condition, *values = operands
    common = torch.result_type(*map(_stand_in, values))
    steps = Steps(num_outputs)
    casts = [
        steps.take(value.numel * common.itemsize)
        for value in values
        if not value.on_host and value.dtype is not common
    ]
    copies = [steps.take(1)] if _is_scalar(condition) else []
    copies += [steps.take(common.itemsize) for value in values if _is_scalar(value)]
    if condition.dtype is torch.uint8:
        copies.append(steps.take(condition.numel))
    steps.outputs()
    steps.give(*reversed(copies), *reversed(casts))
    return steps.sequence()


def _is_scalar(operand: TensorSpec) -> bool:
    return operand.on_host and not operand.shape


def _stand_in(operand: TensorSpec) -> torch.Tensor:
    return torch.empty((1,) * len(operand.shape), dtype=operand.dtype, device="meta")
