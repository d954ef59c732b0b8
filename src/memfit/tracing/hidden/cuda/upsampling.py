"""Upsampling: strided operands are copied, as the kernels index plain memory.

native/cuda/UpSampleNearest{1,2,3}d.cu and UpSampleBilinear2d.cu: after the output, a plain copy of
an output that is not plain itself, then of the operand that is read.  Two dimensions have a kernel
for channels-last tensors of at least four channels, which needs neither.
"""

from __future__ import annotations

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import named, tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_CHANNELS_LAST_FROM = 4
"""Channels from which the channels-last kernel is taken; both ways, and of either kind."""


def upsample(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``upsample_nearest`` of any dimension.  Recorded in torch 2.5 for three."""
    return _copied(call, num_outputs, named(call, "out"))


def upsample_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Its gradient, and that of the bilinear kind."""
    return _copied(call, num_outputs, named(call, "grad_input"))


def _copied(call: Call, num_outputs: int, output: TensorSpec | None) -> Sequence | None:
    data = tensor(call, 0)
    if data is None:
        return None
    is_image = len(data.shape) == 4
    if is_image and output is not None:
        if output.shape == data.shape:
            return None
        if _is_channels_last(data) and _is_channels_last(output):
            return None
    steps = Steps(num_outputs)
    steps.outputs()
    plain = output is None or output.is_contiguous
    steps.passing(
        0 if plain or output is None else output.num_bytes,
        0 if data.is_contiguous else data.num_bytes,
    )
    return steps.sequence()


def _is_channels_last(image: TensorSpec) -> bool:
    channels = image.shape[1]
    last = image.transposed(1, 2).transposed(2, 3)  # (N, H, W, C)
    return channels >= _CHANNELS_LAST_FROM and last.is_contiguous
