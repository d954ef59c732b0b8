"""scaled_dot_product_attention on the virtual GPU: CUDA's choice, and what surrounds the kernel.

Stands where CUDA's composite does (aten/src/ATen/native/transformers/attention.cpp): above
autograd, so the kernel's own backward is recorded.  Masks, padding of heads and slices of outputs
are ordinary ops and take memory as such.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch

from memfit.tracing.calls import TensorSpec
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.memory import storage_address
from memfit.tracing.virtual.attention_choice import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    Attention,
    Choice,
    Switches,
    choose,
    default_order,
    refusal,
)
from memfit.tracing.virtual.dispatch import Dispatch

_FLASH_MULTIPLE = 8
"""FlashAttention-2 takes heads padded to multiples of 8 (pad_last_dim<8>)."""

_MASK_MULTIPLE = 8
"""Strides of a mask for the memory-efficient kernel (preprocess_mask: mem_eff_alignment)."""

_NUMBERS = {MATH: 0, FLASH: 1, EFFICIENT: 2, CUDNN: 3}
"""Of at::SDPBackend (aten/src/ATen/SDPBackend.h)."""


def register(gpu: Dispatch, kernels: Kernels) -> list[torch.library.Library]:
    """Registers the op and sets the card's default order; the libraries must be kept."""
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1":
        order = default_order(kernels.capability, kernels.version)
        torch._C._set_sdp_priority_order([_NUMBERS[name] for name in order])
    run = _Attend(gpu, kernels)
    _tell_python(run)
    aten = torch.library.Library("aten", "IMPL")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        aten.impl("scaled_dot_product_attention", run, key)
    return [aten]


def chosen_for(heads: torch.Tensor, kernels: Kernels) -> str:
    """The kernel for attention of ``heads``, (B, H, S, D), to themselves, under the switches."""
    attention = _described(heads, heads, heads, None, 0.0, is_causal=False, enable_gqa=False)
    return choose(attention, kernels.capability, kernels.version, _switches()).kernel


def _tell_python(run: _Attend) -> None:
    """``torch.backends.cuda`` says of a call what would run."""
    backends = torch.backends.cuda
    backends.is_flash_attention_available = lambda: True
    backends.can_use_flash_attention = lambda params, debug=False: run.takes(FLASH, params)
    backends.can_use_efficient_attention = lambda params, debug=False: run.takes(EFFICIENT, params)
    backends.can_use_cudnn_attention = lambda params, debug=False: run.takes(CUDNN, params)


class _Attend:
    """The kernel of scaled_dot_product_attention."""

    def __init__(self, gpu: Dispatch, kernels: Kernels) -> None:
        self._gpu = gpu
        self._kernels = kernels

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        _check(query, key, value, attn_mask)
        attention = _described(
            query, key, value, attn_mask, dropout_p, is_causal=is_causal, enable_gqa=enable_gqa
        )
        needs_grad = attention.needs_grad
        kernel = self._choose(attention).kernel
        mask = self._additive(attn_mask, query.dtype)
        del attn_mask
        aten = torch.ops.aten
        options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal}
        if kernel == CUDNN:
            result = aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, needs_grad, dropout_p, is_causal, False, scale=scale
            )
            return result[0]  # type: ignore[no-any-return]
        if kernel == FLASH:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == EFFICIENT:
            mask = None if mask is None else _aligned(mask, query, key)
            result = aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
            )
            return result[0]  # type: ignore[no-any-return]
        result = aten._scaled_dot_product_attention_math(
            query, key, value, mask, **options, scale=scale, enable_gqa=enable_gqa
        )
        return result[0]  # type: ignore[no-any-return]

    def takes(self, kernel: str, params: Any) -> bool:
        """Whether the kernel would take a call of these ``SDPAParams``."""
        attention = _described(
            params.query,
            params.key,
            params.value,
            params.attn_mask,
            params.dropout,
            is_causal=params.is_causal,
            enable_gqa=params.enable_gqa,
        )
        kernels = self._kernels
        return not refusal(kernel, attention, kernels.capability, kernels.version, _switches())

    def _choose(self, attention: Attention) -> Choice:
        """The choice under what is switched on now.

        Raises:
            RuntimeError: no kernel may run, as on CUDA; with the reasons.
        """
        choice = choose(attention, self._kernels.capability, self._kernels.version, _switches())
        if not choice.kernel:
            raise RuntimeError(f"No available kernel. Aborting execution. ({choice.explain()})")
        return choice

    def _additive(self, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
        """A mask that says what may be seen, as one that is added (convert_boolean_attn_mask)."""
        if mask is None or mask.dtype is not torch.bool:
            return mask
        hidden = torch.ops.aten.scalar_tensor(-math.inf, dtype=dtype, device=self._gpu.device)
        return torch.ops.aten.where.ScalarSelf(mask, 0.0, hidden)  # type: ignore[no-any-return]


def _described(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    *,
    is_causal: bool,
    enable_gqa: bool,
) -> Attention:
    operands_need_grad = query.requires_grad or key.requires_grad or value.requires_grad
    return Attention(
        query=_spec(query),
        key=_spec(key),
        value=_spec(value),
        mask=None if mask is None else _spec(mask),
        mask_needs_grad=mask is not None and mask.requires_grad,
        dropout=dropout,
        is_causal=is_causal,
        needs_grad=torch.is_grad_enabled() and operands_need_grad,
        enable_gqa=enable_gqa,
    )


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Pads heads to a multiple of 8 and cuts the output, where needed."""
    size = query.shape[-1]
    scale = 1 / math.sqrt(size) if scale is None else scale
    padding = -size % _FLASH_MULTIPLE
    if padding:
        query, key, value = (torch.ops.aten.pad(t, [0, padding]) for t in (query, key, value))
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, is_causal, False, scale=scale
    )[0]
    del value, key, query  # C++ frees its locals last to first
    return output[..., :size] if padding else output


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask with aligned strides, over all batches and heads (preprocess_mask)."""
    *strides, last = mask.stride()
    if last != 1 or any(stride % _MASK_MULTIPLE for stride in strides):
        columns = mask.shape[-1]
        padding = _MASK_MULTIPLE - columns % _MASK_MULTIPLE
        mask = torch.ops.aten.pad(mask, [0, padding])[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _switches() -> Switches:
    backends = torch.backends.cuda
    enabled = {
        CUDNN: backends.cudnn_sdp_enabled(),
        FLASH: backends.flash_sdp_enabled(),
        EFFICIENT: backends.mem_efficient_sdp_enabled(),
        MATH: backends.math_sdp_enabled(),
    }
    names = {number: name for name, number in _NUMBERS.items()}
    order = torch._C._get_sdp_priority_order()
    return Switches(
        order=tuple(names[number] for number in order if number in names),
        enabled=frozenset(name for name, is_on in enabled.items() if is_on),
        deterministic=torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        int(tensor.storage_offset()),
        storage_address(tensor),
    )


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> None:
    """What validate_sdpa_input refuses."""
    dtypes = [query.dtype, key.dtype, value.dtype]
    if len(set(dtypes)) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{dtypes[0]}, key.dtype: {dtypes[1]} and value.dtype: {dtypes[2]} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.dim()}, key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {query.dtype} instead."
        )
