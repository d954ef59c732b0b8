"""Softmax and log-softmax (``native/cuda/SoftMax.cu``)."""

from __future__ import annotations

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence


def softmax(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """host_softmax copies an input that is not contiguous."""
    data = tensor(call, 0)
    if data is None:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    steps.passing(_copy_bytes(data))
    return steps.sequence()


def softmax_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """softmax_backward_cuda_out makes ``grad * output`` first, as large as the scores."""
    gradient, output = tensor(call, 0), tensor(call, 1)
    if gradient is None or output is None:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    common = torch.promote_types(gradient.dtype, output.dtype)
    product = steps.take(gradient.numel * common.itemsize)
    # the product lies as its operands do where both are dense alike
    lies_alike = gradient.stride == output.stride
    is_plain = gradient.is_contiguous or output.is_contiguous
    copied = steps.take(0 if is_plain or not lies_alike else gradient.numel * common.itemsize)
    output_copy = steps.take(_copy_bytes(output))
    steps.give(output_copy, copied, product)
    return steps.sequence()


def log_softmax_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """host_softmax_backward copies a gradient and an output that are not contiguous."""
    gradient, output = tensor(call, 0), tensor(call, 1)
    if gradient is None or output is None:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    steps.passing(_copy_bytes(gradient), _copy_bytes(output))
    return steps.sequence()


def _copy_bytes(data: TensorSpec) -> int:
    return 0 if data.is_contiguous else data.num_bytes
