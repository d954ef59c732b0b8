"""Normalisations: partial sums of the gradients of weight and bias."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.reductions import KINDS, add_scratch
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

PARTIAL_SUMS_FROM = TorchVersion(2, 8)
"""Partial sums for many short rows: read in 2.14's and 2.12's sources, absent from 2.4's; the
border between is inferred (PR #148605, March 2025)."""

_FP32 = 4


def layer_norm(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``native_layer_norm`` and ``_fused_rms_norm``: operands that are strided are copied first.

    native/cuda/layer_norm_kernel.cu.  Mean and 1/deviation are outputs.
    """
    return _copying(call, num_outputs)


def layer_norm_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``native_layer_norm_backward``: above 65,536 short rows the weights' gradients go in parts.

    layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel: one row of sums a block, then a sum
    over the blocks into new tensors; the gradients allocated before are freed.
    """
    gradient, data = tensor(call, 0), tensor(call, 1)
    weight, mask = tensor(call, 5), call.argument(7, (True, True, True))
    if gradient is None or data is None:
        return None
    return _backward(gradient, data, call.argument(2), weight, mask, num_outputs, kernels)


def rms_norm_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``_fused_rms_norm_backward``: as the layer norm's, without a bias."""
    gradient, data = tensor(call, 0), tensor(call, 1)
    weight, mask = tensor(call, 4), call.argument(5, (True, True))
    if gradient is None or data is None:
        return None
    return _backward(gradient, data, call.argument(2), weight, mask, num_outputs, kernels)


def _backward(
    gradient: TensorSpec,
    data: TensorSpec,
    shape: tuple[int, ...],
    weight: TensorSpec | None,
    mask: tuple[bool, ...],
    num_outputs: int,
    kernels: Kernels,
) -> Sequence | None:
    steps = Steps(num_outputs)
    operands = [operand for operand in (data, weight) if operand is not None]
    copies = [steps.take(_copy_bytes(operand)) for operand in operands]
    width = prod(shape)
    rows = data.numel // max(1, width)
    wanted = [index for index, is_wanted in enumerate(mask) if is_wanted]
    is_split = (
        kernels.version >= PARTIAL_SUMS_FROM
        and rows > 65_536
        and width // 32 < kernels.sms // 2
        and weight is not None
    )
    if not is_split or weight is None:
        steps.outputs()
        steps.passing(_copy_bytes(gradient))
        steps.give(*reversed(copies))
        return steps.sequence()
    if mask[0]:
        steps.output(0)
    of_weights = [position for position, index in enumerate(wanted) if index > 0]
    firsts = [steps.take(weight.num_bytes) for _ in of_weights]
    copy = steps.take(_copy_bytes(gradient))
    num_blocks = min(32_768 // -(-width // 32), -(-rows // 32))
    parts = replace(weight, shape=(num_blocks, width), stride=(width, 1), offset=0)
    sums = [steps.take(parts.num_bytes) for _ in of_weights]
    for position, first in zip(of_weights, firsts, strict=True):
        steps.output(position)
        add_scratch(steps, parts, 0, weight.dtype, KINDS["aten::sum"], kernels)
        steps.give(first)
    steps.give(*reversed(sums), copy, *reversed(copies))
    return steps.sequence()


def group_norm(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``native_group_norm`` folds weight, mean and deviation into a factor and a term a channel.

    native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal: two fp32 buffers of N x C.
    """
    data, weight, bias = (tensor(call, position) for position in range(3))
    if data is None:
        return None
    num, channels, length = (int(call.argument(position)) for position in (3, 4, 5))
    steps = Steps(num_outputs)
    copies = [
        steps.take(_copy_bytes(operand)) for operand in (data, weight, bias) if operand is not None
    ]
    steps.outputs()
    is_folded = length > 1 and (weight is not None or bias is not None)
    folded = num * channels * _accumulator_bytes(data) if is_folded else 0
    steps.passing(folded, folded)
    steps.give(*reversed(copies))
    return steps.sequence()


def group_norm_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``native_group_norm_backward``: two sums a channel, and up to three factors.

    GroupNormBackwardKernelImplInternal: ds and db of N x C, c2 and c3 of N x G, c1 of N x C.
    """
    gradient, data = tensor(call, 0), tensor(call, 1)
    weight, mask = tensor(call, 4), call.argument(9, (True, True, True))
    if gradient is None or data is None:
        return None
    num, channels, length, groups = (int(call.argument(position)) for position in (5, 6, 7, 8))
    steps = Steps(num_outputs)
    copies = [steps.take(_copy_bytes(operand)) for operand in (gradient, data)]
    steps.outputs()
    each = _accumulator_bytes(data)
    sums = [steps.take(num * channels * each) for _ in range(2)]
    if mask[0] and length > 1:
        factors = [steps.take(num * groups * each) for _ in range(2)]
        factors.append(steps.take(num * channels * each if weight is not None else 0))
        steps.give(factors[1], factors[0], factors[2])
    steps.give(*reversed(sums), *reversed(copies))
    return steps.sequence()


def _copying(call: Call, num_outputs: int) -> Sequence | None:
    steps = Steps(num_outputs)
    operands = [value for value in call.args if isinstance(value, TensorSpec)]
    copies = [steps.take(_copy_bytes(operand)) for operand in operands]
    steps.outputs()
    steps.give(*reversed(copies))
    return steps.sequence()


def _copy_bytes(operand: TensorSpec) -> int:
    return 0 if operand.is_contiguous else operand.num_bytes


def _accumulator_bytes(data: TensorSpec) -> int:
    return 8 if data.dtype is torch.float64 else _FP32
