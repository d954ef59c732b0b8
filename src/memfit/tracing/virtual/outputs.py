"""What CUDA's kernels return where PyTorch's meta kernels say something else.

Meta kernels describe CUDA in general; the few that do not are corrected here, by op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.memory import contiguous_strides
from memfit.tracing.shapes import Fresh, Outputs


@dataclass(frozen=True, slots=True)
class OnHost:
    """A 0-d output that a CUDA kernel returns on the host."""

    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """A fresh one."""
        return torch.zeros((), dtype=self.dtype, device="cpu")


def as_cuda(call: Call, outputs: Outputs) -> Outputs:
    """The outputs of a call, corrected."""
    correct = _CORRECTIONS.get(call.op.partition(".")[0])
    if correct is None:
        return outputs
    return Outputs(correct(call, list(outputs.leaves)), outputs.tree)


def _row_major(size: list[int], dtype: torch.dtype) -> Fresh:
    return Fresh(size, contiguous_strides(size), dtype, math.prod(size) * dtype.itemsize)


def _efficient_attention(call: Call, leaves: list[Any]) -> list[Any]:
    """Outside graph capture the random state stays on the host (attention.cu)."""
    return [*leaves[:2], OnHost(torch.int64), OnHost(torch.int64)]


def _efficient_attention_backward(call: Call, leaves: list[Any]) -> list[Any]:
    """Grouped heads: gradients of key and value have as many heads as these."""
    for place, position in ((1, 2), (2, 3)):
        batch, heads, rows, size = call.args[position].shape
        dtype = call.args[position].dtype
        strides = [rows * heads * size, size, heads * size, 1]
        num_bytes = batch * heads * rows * size * dtype.itemsize
        leaves[place] = Fresh([batch, heads, rows, size], strides, dtype, num_bytes)
    return leaves


_COMPUTES_SUMS = 4
"""Where _scaled_dot_product_cudnn_attention is told whether it returns log-sum-exp."""


def _cudnn_attention(call: Call, leaves: list[Any]) -> list[Any]:
    """No log-sum-exp without a gradient; seed and offset are vectors of one (MHA.cpp)."""
    if not call.argument(_COMPUTES_SUMS):
        leaves[1] = None
    return [
        _row_major([1], torch.int64) if isinstance(leaf, Fresh) and not leaf.size else leaf
        for leaf in leaves
    ]


def _norm_statistics(call: Call, leaves: list[Any]) -> list[Any]:
    """Mean and rstd of 16-bit inputs are fp32 (layer_norm_kernel.cu, group_norm_kernel.cu)."""
    return [leaves[0], *(_as_fp32(leaf) for leaf in leaves[1:])]


def _as_fp32(leaf: Any) -> Any:
    if not isinstance(leaf, Fresh) or leaf.dtype not in (torch.float16, torch.bfloat16):
        return leaf
    return Fresh(leaf.size, leaf.stride, torch.float32, 2 * leaf.num_bytes)


def _is_channels_last(spec: TensorSpec) -> bool:
    """``suggest_memory_format`` of an image or a volume: channels vary fastest."""
    return (
        len(spec.shape) in (4, 5)
        and not spec.is_contiguous
        and list(spec.stride) == _channels_last(list(spec.shape))
    )


def _channels_last(size: list[int]) -> list[int]:
    _, channels, *spatial = size
    strides = [channels * math.prod(spatial[dim + 1 :]) for dim in range(len(spatial))]
    return [channels * math.prod(spatial), 1, *strides]


def _takes_channels_last(image: TensorSpec, weight: TensorSpec) -> bool:
    """cudnn_conv_use_channels_last (native/ConvUtils.h): either operand decides for both."""
    if torch.float64 in (image.dtype, weight.dtype) or len(image.shape) != len(weight.shape):
        return False
    return _is_channels_last(image) or _is_channels_last(weight)


def _convolution(call: Call, leaves: list[Any]) -> list[Any]:
    if not _takes_channels_last(call.args[0], call.args[1]):
        return leaves
    return [replace(leaf, stride=_channels_last(leaf.size)) for leaf in leaves]


def _convolution_backward(call: Call, leaves: list[Any]) -> list[Any]:
    """Gradients of image and weight have the format that the kernel ran in."""
    if not _takes_channels_last(call.args[1], call.args[2]):
        return leaves
    return [
        replace(leaf, stride=_channels_last(leaf.size))
        if isinstance(leaf, Fresh) and len(leaf.size) > 1
        else leaf
        for leaf in leaves
    ]


def _group_norm(call: Call, leaves: list[Any]) -> list[Any]:
    """Statistics have the weight's dtype in mixed precision (native/group_norm.cpp)."""
    weight = call.argument(1)
    if not isinstance(weight, TensorSpec):
        return leaves
    stats = [_row_major(leaf.size, weight.dtype) for leaf in leaves[1:]]
    return [leaves[0], *stats]


_CORRECTIONS: dict[str, Callable[[Call, list[Any]], list[Any]]] = {
    "aten::_scaled_dot_product_efficient_attention": _efficient_attention,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn_attention,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_layer_norm": _norm_statistics,
}
