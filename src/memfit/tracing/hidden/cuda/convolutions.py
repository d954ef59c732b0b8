"""Convolutions: cuDNN's workspace is an estimate.

cuDNN picks a plan by its own heuristics, and no formula gives the plan's workspace.  What is known
(NVIDIA, "Deep Learning Performance: Convolutional Layers", section "Tensor Layouts"): tensor core
kernels work on channels-last data, and operands in NCHW are transposed on the way in and out.  So
the estimate is one channels-last copy of each operand that is not, and nothing otherwise.  It may
be 0 (a kernel for NCHW) or a multiple of that (Winograd and FFT kernels); a result that hangs on it
should be read as anything from none of it to twice of it.  Depthwise convolutions run kernels of
PyTorch's own, which take nothing (recorded in torch 2.5 for three dimensions).
"""

from __future__ import annotations

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import ESTIMATE, Steps
from memfit.tracing.hidden.sequences import Sequence

_ALIGN = 256


def convolution(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Copies of strided operands, the output, and the plan's workspace.

    native/Convolution.cpp and native/cudnn/ConvShared.cpp: input and weight are brought into one
    memory format first; the workspace is freed before the bias is added.
    """
    data, weight = tensor(call, 0), tensor(call, 1)
    if data is None or weight is None:
        return None
    steps = Steps(num_outputs)
    copies, is_last = _bring_together(steps, data, weight)
    is_plain = is_last or _is_depthwise(call, data, weight, 6)
    steps.outputs()
    if not is_plain:
        output = _output_numel(call, data, weight) * data.dtype.itemsize
        steps.passing(_workspace(data.num_bytes, weight.num_bytes, output))
    steps.give(*reversed(copies))
    return steps.sequence("formula" if is_plain else ESTIMATE)


def convolution_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """The input's gradient and the weight's, each with a plan and a workspace of its own."""
    gradient, data, weight = (tensor(call, position) for position in range(3))
    if gradient is None or data is None or weight is None:
        return None
    mask = call.argument(10, (True, True, True))
    steps = Steps(num_outputs)
    copies, is_last = _bring_together(steps, data, weight, gradient)
    is_plain = is_last or _is_depthwise(call, data, weight, 7)
    position = 0
    for wanted in mask[:2]:
        if wanted:
            steps.output(position)
            position += 1
            if not is_plain:
                steps.passing(_workspace(data.num_bytes, weight.num_bytes, gradient.num_bytes))
    steps.outputs()
    steps.give(*reversed(copies))
    return steps.sequence("formula" if is_plain else ESTIMATE)


def _bring_together(steps: Steps, *operands: TensorSpec) -> tuple[list[int], bool]:
    """Copies of the operands that are not in the format of the first two; whether it is NHWC."""
    is_last = any(_is_channels_last(operand) for operand in operands[:2])
    lies = _is_channels_last if is_last else _is_contiguous
    return [steps.take(0 if lies(operand) else operand.num_bytes) for operand in operands], is_last


def _is_depthwise(call: Call, data: TensorSpec, weight: TensorSpec, position: int) -> bool:
    """ConvParams::is_depthwise (native/Convolution.cpp); ``transposed`` stands at ``position``."""
    channels, groups = data.shape[1], int(call.argument(position + 2, 1))
    return (
        not call.argument(position, False)
        and len(data.shape) in (4, 5)
        and channels == groups > 1
        and weight.shape[0] % channels == 0
    )


def _is_contiguous(operand: TensorSpec) -> bool:
    return operand.is_contiguous


def _is_channels_last(operand: TensorSpec) -> bool:
    """Dense with the channels fastest, and not contiguous at the same time."""
    if len(operand.shape) < 4 or operand.is_contiguous:
        return False
    order = [0, *range(2, len(operand.shape)), 1]
    step = 1
    for dim in reversed(order):
        if operand.shape[dim] != 1 and operand.stride[dim] != step:
            return False
        step *= operand.shape[dim]
    return True


def _output_numel(call: Call, data: TensorSpec, weight: TensorSpec) -> int:
    """Elements of the output of ``aten::convolution``."""
    stride, padding, dilation = (call.argument(position) for position in (3, 4, 5))
    is_transposed, extra = bool(call.argument(6, False)), call.argument(7, ())
    groups = int(call.argument(8, 1))
    channels = weight.shape[1] * groups if is_transposed else weight.shape[0]
    numel = data.shape[0] * channels
    for dim, size in enumerate(data.shape[2:]):
        step, pad, spread = (_at(values, dim) for values in (stride, padding, dilation))
        reach = spread * (weight.shape[2 + dim] - 1)
        if is_transposed:
            numel *= (size - 1) * step - 2 * pad + reach + _at(extra, dim, 0) + 1
        else:
            numel *= (size + 2 * pad - reach - 1) // step + 1
    return numel


def _at(values: object, dim: int, default: int = 1) -> int:
    if not isinstance(values, tuple) or not values:
        return default
    return int(values[dim] if dim < len(values) else values[-1])


def _workspace(*sizes: int) -> int:
    return sum(-(-size // _ALIGN) * _ALIGN for size in sizes)
