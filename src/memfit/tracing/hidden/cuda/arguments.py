"""Reading the arguments of a call."""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.calls import Call, TensorSpec

_OUTPUTS = ("out", "grad_input", "grad_weight", "output", "out0", "values", "max", "min", "result")


def named(call: Call, name: str) -> Any:
    """The argument given by name; None when it is left out."""
    return dict(call.kwargs).get(name)


def tensor(call: Call, position: int) -> TensorSpec | None:
    """The tensor at a position; None where there is none."""
    value = call.argument(position)
    return value if isinstance(value, TensorSpec) else None


def output_dtype(call: Call) -> torch.dtype | None:
    """The dtype of the output that C++ allocated before the call; None in the functional form."""
    for name, value in call.kwargs:
        if name in _OUTPUTS and isinstance(value, TensorSpec):
            return value.dtype
    return None


def is_dense(operand: TensorSpec) -> bool:
    """Non-overlapping and dense: contiguous in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(operand.stride, operand.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
