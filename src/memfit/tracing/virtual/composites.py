"""Ops that PyTorch composes of others, with a branch for CUDA that the virtual GPU would miss.

Their C++ asks ``is_cuda()``, which the virtual GPU cannot answer; so the branch is taken here,
above autograd.  Attention stands in ``attention``, recurrent nets in ``rnn``.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual import old_einsum

_FUSED_RMS_NORM = TorchVersion(2, 9)
"""Pull request 153666; before, a chain of pointwise ops and a mean."""

_WEIGHED_IN_FP32 = TorchVersion(2, 7)
"""Pull request 147203 (of 2025-03-08); before, half precision was cast back before the weight."""

_LARGEST_BATCH = {True: 880801, False: 65535}
"""Of cuDNN's batch norm, by whether it trains (native/Normalization.cpp, batch norm backends)."""

_INT32_MAX = 2**31 - 1


def register(version: TorchVersion) -> list[torch.library.Library]:
    """Registers CUDA's branches; the libraries must be kept for the kernels to stay."""
    kernels = {
        "softmax.int": _softmax(torch.ops.aten._softmax.default),
        "log_softmax.int": _softmax(torch.ops.aten._log_softmax.default),
        "_batch_norm_impl_index": _batch_norm_impl_index,
        "_weight_norm": _weight_norm,
    }
    if version < _FUSED_RMS_NORM:
        kernels["rms_norm"] = _rms_norm if version >= _WEIGHED_IN_FP32 else _first_rms_norm
    if version < old_einsum.EXCHANGED:
        kernels["einsum"] = old_einsum.einsum
    aten = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels.items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            aten.impl(name, kernel, key)
    # The nested tensors it would lead to are not traced; a padded batch, which is larger, is.
    aten.impl("_nested_tensor_from_mask_left_aligned", lambda tensor, mask: False, "PrivateUse1")
    return [aten]


def _softmax(op: Any) -> Any:
    """fp16 to fp32 is cast inside the kernel; any other cast is an op before it (SoftMax.cpp)."""

    def kernel(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if x.dtype is torch.float16 and dtype is torch.float32:
            return op(x, dim, True)  # type: ignore[no-any-return]
        converted = x if dtype is None else x.to(dtype)
        return op(converted, dim, False)  # type: ignore[no-any-return]

    return kernel


def _rms_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """As composed in 2.7 and 2.8 (native/layer_norm.cpp, rms_norm)."""
    result = _normed(x, len(normalized_shape), eps)
    if weight is not None:
        result = result.mul(weight)
    return result.contiguous().type_as(x)


def _first_rms_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """As composed up to 2.6: with a weight of fp32 the result is of fp32."""
    result = _normed(x, len(normalized_shape), eps).type_as(x)
    return result if weight is None else result.mul(weight)


def _normed(x: torch.Tensor, num_dims: int, eps: float | None) -> torch.Tensor:
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.to(torch.float32 if is_half else x.dtype)
    if eps is None:
        eps = torch.finfo(wide.dtype).eps
    dims = list(range(x.dim() - num_dims, x.dim()))
    scale = torch.rsqrt(torch.pow(wide, 2).mean(dims, keepdim=True).add_(eps))
    return wide.mul(scale)


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """One kernel where the norm is over all dimensions but the first or the last."""
    v, g = v.contiguous(), g.contiguous()
    if dim in (0, v.dim() - 1):
        return torch.ops.aten._weight_norm_interface(v, g, dim)[0]  # type: ignore[no-any-return]
    norm: torch.Tensor = torch.ops.aten.norm_except_dim(v, 2, dim)
    return v * (g / norm)


def takes_cudnn_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    means: tuple[torch.Tensor | None, torch.Tensor | None],
    training: bool,
) -> bool:
    """Whether cuDNN normalizes, and not PyTorch's own kernel."""
    if weight is None or bias is None or not torch.backends.cudnn.enabled:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype):
        return False
    if x.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    known = [mean is not None for mean in means]
    return (
        (all(known) or (not any(known) and training))
        and x.dim() >= 3
        and x.shape[0] <= _LARGEST_BATCH[training]
        and x.numel() < _INT32_MAX
    )


def _batch_norm_impl_index(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    aten = torch.ops.aten
    means = (running_mean, running_var)
    if not training and None in means:
        raise RuntimeError("running_mean and running_var must be defined in evaluation mode")
    if takes_cudnn_batch_norm(x, weight, bias, means, training):
        assert weight is not None and bias is not None
        results = aten.cudnn_batch_norm(
            x.contiguous(memory_format=_suggested(x)),
            weight.contiguous(),
            bias.contiguous(),
            None if running_mean is None else running_mean.contiguous(),
            None if running_var is None else running_var.contiguous(),
            training,
            momentum,
            eps,
        )
        return (*results, 1)
    reserve = torch.ops.aten.empty.memory_format([0], dtype=torch.uint8, device=x.device)
    results = aten.native_batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return (*results, reserve, 0)


def _suggested(x: torch.Tensor) -> torch.memory_format:
    """``suggest_memory_format``."""
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=memory_format):
            return torch.contiguous_format if x.is_contiguous() else memory_format
    return torch.contiguous_format
