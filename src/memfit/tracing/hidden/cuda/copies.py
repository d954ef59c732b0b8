"""Copies between host and device, and operands that must be contiguous."""

from __future__ import annotations

from memfit.tracing.calls import Call
from memfit.tracing.hidden.cuda.arguments import is_dense, tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence


def copy(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``copy_`` to or from the host stages what is strided or of another dtype.

    native/cuda/Copy.cu, copy_requires_temporaries and copy_kernel_cuda: dtypes are converted on the
    device where the copy is ``non_blocking``, on the host otherwise.  Copies on the device take
    nothing.
    """
    target, source = tensor(call, 0), tensor(call, 1)
    if target is None or source is None or target.on_host == source.on_host:
        return None
    same_dtype = target.dtype is source.dtype
    alike = is_dense(target) and target.stride == source.stride and target.shape == source.shape
    if same_dtype and (alike or (target.is_contiguous and source.is_contiguous)):
        return None
    converts_here = bool(call.argument(2, False))
    steps = Steps(num_outputs)
    if source.on_host:
        plain = target.is_contiguous and (same_dtype or not converts_here)
        dtype = source.dtype if converts_here else target.dtype
        steps.passing(0 if plain else target.numel * dtype.itemsize)
    else:
        dtype = target.dtype if converts_here else source.dtype
        plain = source.is_contiguous and source.shape == target.shape and dtype is source.dtype
        steps.passing(0 if plain else target.numel * dtype.itemsize)
    return steps.sequence()


def embedding(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """A strided index is copied first (native/Embedding.cpp: ``indices.reshape(-1)``)."""
    index = tensor(call, 1)
    if index is None or index.is_contiguous:
        return None
    steps = Steps(num_outputs)
    copied = steps.take(index.num_bytes)
    steps.outputs()
    steps.give(copied)
    return steps.sequence()


def pad(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``reflection_pad`` copies a strided input, after its output (native/cuda/ReflectionPad.cu).

    Recorded in torch 2.5 for three dimensions.
    """
    data = tensor(call, 0)
    if data is None or data.is_contiguous:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    steps.passing(data.num_bytes)
    return steps.sequence()
