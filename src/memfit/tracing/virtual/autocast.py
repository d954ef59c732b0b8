"""CUDA's autocast on the virtual GPU: which ops cast their operands, and to what.

The lists are those of aten/src/ATen/autocast_mode.h.  The kernels stand at AutocastPrivateUse1,
which ``torch.autocast("cuda")`` switches together with CUDA's own key.  What is cast and kept is in
``casts``; ``_cudnn_rnn``, which casts and flattens its weights anew, stands in ``rnn``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual.casts import CastCache, drop_in_order, is_eligible

KEY = "AutocastPrivateUse1"
BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
"""What a kernel excludes while it calls the op again."""

_LOWER = """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
scaled_dot_product_attention
"""

_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa linalg_matrix_sqrth
"""

_FP32_BY_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
"""Ops that take a dtype: fp32 where the caller gives none, so that the kernel casts as it reads."""

_FP32_APPENDED = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""Ops whose overload with a dtype is called in their place."""

_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add vdot
"""

_RAISES = "binary_cross_entropy"

_SINCE = {"rms_norm": TorchVersion(2, 12), "linalg_matrix_sqrth": TorchVersion(2, 14)}
"""Entries younger than the oldest version known here (pytorch pull request 174824; the dispatcher's
table of 2.14.1)."""


def register(version: TorchVersion) -> list[torch.library.Library]:
    """Registers CUDA's lists and makes ``torch.autocast("cuda")`` reach the virtual GPU.

    The libraries must be kept for the kernels to stay.
    """
    cache = CastCache(version)
    _switch_both()
    _clear_with(cache)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, KEY)
    aten = torch.library.Library("aten", "IMPL")
    makers = _policies()
    for name in sorted(listed(version)):
        op = _resolve(name)
        if op is not None:
            aten.impl(name, makers[name](op, cache), KEY)
    return [everything, aten]


def listed(version: TorchVersion) -> frozenset[str]:
    """Every op in this version's lists, as ``name.overload``."""
    return frozenset(name for name in _policies() if version >= _SINCE.get(name, version))


_Kernel = Callable[..., Any]


def _policies() -> dict[str, Callable[[Any, CastCache], _Kernel]]:
    return {
        **dict.fromkeys(_LOWER.split(), _lower),
        **dict.fromkeys(_FP32.split(), _fp32),
        **dict.fromkeys(_FP32_BY_DTYPE.split(), _fp32_by_dtype),
        **dict.fromkeys(_FP32_APPENDED, _fp32_appended),
        **dict.fromkeys(_WIDEST.split(), _widest),
        _RAISES: _raises,
    }


def _lower(op: Any, cache: CastCache) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            return _call(op, args, kwargs, cache, torch.get_autocast_dtype("cuda"))

    return kernel


def _fp32(op: Any, cache: CastCache) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            return _call(op, args, kwargs, cache, torch.float32)

    return kernel


def _fp32_by_dtype(op: Any, cache: CastCache) -> _Kernel:
    position, is_keyword = next(
        (index, argument.kwarg_only)
        for index, argument in enumerate(op._schema.arguments)
        if argument.name == "dtype"
    )

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype")
        if not is_keyword and len(args) > position:
            given = args[position]
            args = args[:position]
        if given is None and is_eligible(_first(args, kwargs)):
            given = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            return op(*args, **{**kwargs, "dtype": given})

    return kernel


def _fp32_appended(op: Any, cache: CastCache) -> _Kernel:
    name = op.name().removeprefix("aten::")
    with_dtype = _resolve(_FP32_APPENDED[name])
    dims = () if name == "norm.Scalar" else ((), False)

    def kernel(self: torch.Tensor, p: Any = 2, *rest: Any) -> Any:
        dtype = torch.float32 if is_eligible(self) else self.dtype
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            return with_dtype(self, p, *rest, *dims[len(rest) :], dtype=dtype)

    return kernel


def _widest(op: Any, cache: CastCache) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            dtype = _widest_dtype([*args, *kwargs.values()], torch.get_autocast_dtype("cuda"))
            return _call(op, args, kwargs, cache, dtype)

    return kernel


def _raises(op: Any, cache: CastCache) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
            "Take the sigmoid before it out and use binary_cross_entropy_with_logits or "
            "torch.nn.BCEWithLogitsLoss, which are safe."
        )

    return kernel


def _call(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cache: CastCache, dtype: torch.dtype
) -> Any:
    """``op`` on cast arguments, which die first to last as soon as it has run."""
    named = kwargs
    if kwargs:
        named = dict(zip(kwargs, cache.cast_all(list(kwargs.values()), dtype), strict=True))
    cast = cache.cast_all(args, dtype)
    try:
        return op(*cast, **named)
    finally:
        drop_in_order(cast)


def _widest_dtype(values: list[Any], lower: torch.dtype) -> torch.dtype:
    """fp32 if one of the tensors is, else the region's dtype.

    Raises:
        RuntimeError: a tensor has another 16-bit dtype than the region.
    """
    widest = lower
    for value in values:
        if isinstance(value, (list, tuple)):
            dtype = _widest_dtype(list(value), lower)
        elif isinstance(value, torch.Tensor) and is_eligible(value):
            dtype = value.dtype
        else:
            continue
        if torch.float32 in (dtype, widest):
            widest = torch.float32
        elif dtype is not lower:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return widest


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    value: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
    return value


def _switch_both() -> None:
    """``torch.set_autocast_enabled`` for ``cuda`` switches the virtual GPU's key as well."""
    enable = torch.set_autocast_enabled
    name = torch._C._get_privateuse1_backend_name()

    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        enable(*args, **kwargs)
        if len(args) + len(kwargs) == 1:
            enable(name, args[0] if args else kwargs["enabled"])
        elif _device_type(args, kwargs) == "cuda":
            enable(name, args[1] if len(args) > 1 else kwargs["enabled"])

    torch.set_autocast_enabled = set_autocast_enabled


def _device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("device_type")


def _clear_with(cache: CastCache) -> None:
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        cache.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache


def _resolve(name: str) -> Any:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None
