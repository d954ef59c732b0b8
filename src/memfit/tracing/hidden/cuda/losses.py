"""Losses that are reduced inside: the loss of each element is made first."""

from __future__ import annotations

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.reductions import KINDS, add_scratch
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_NONE = 0
"""at::Reduction::None; 1 is the mean, 2 the sum."""


def elementwise(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``mse_loss``, ``smooth_l1_loss`` and ``huber_loss``: a tensor of the input's size, reduced.

    native/Loss.cpp: "Tensor loss" between the kernel and ``mean_out`` or ``sum_out``.
    """
    data, target = tensor(call, 0), tensor(call, 1)
    if data is None or target is None:
        return None
    reduction = call.argument(2, 1)
    steps = Steps(num_outputs)
    if reduction == _NONE:
        return None
    shape = torch.broadcast_shapes(data.shape, target.shape)
    common = torch.promote_types(data.dtype, target.dtype)
    loss = _contiguous(shape, common)
    is_structured = num_outputs == 0
    if is_structured:
        steps.outputs()
    whole = steps.take(loss.num_bytes)
    steps.outputs()
    kind = KINDS["aten::mean" if reduction == 1 else "aten::sum"]
    add_scratch(steps, loss, None, common, kind, kernels)
    steps.give(whole)
    return steps.sequence()


def nll_loss(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``nll_loss_forward``, ``nll_loss2d_forward`` and their backward: strided operands are copied.

    native/cuda/Loss.cu and NLLLoss2d.cu; nothing else is taken.
    """
    steps = Steps(num_outputs)
    steps.outputs()
    operands = [value for value in call.args if isinstance(value, TensorSpec)]
    steps.passing(*[0 if value.is_contiguous else value.num_bytes for value in operands])
    return steps.sequence()


def _contiguous(shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(tuple(shape), tuple(reversed(strides)), dtype, 0, 0)
