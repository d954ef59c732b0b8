"""Which kernel CUDA runs for scaled_dot_product_attention, and why not the others.

Pure: specs in, a choice with reasons out.  The rules are those of
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h, in their order, for dense
inputs; which release of cuDNN a wheel of torch brings decides some of them.

Tensors are (B, H, S, D): batch, heads, length, size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import TensorSpec

CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"

_HALF = (torch.float16, torch.bfloat16)

_CUDNN_RELEASES = (
    (TorchVersion(2, 14), (9, 24, 0)),
    (TorchVersion(2, 11), (9, 19, 0)),
    (TorchVersion(2, 8), (9, 10, 2)),
    (TorchVersion(2, 7), (9, 5, 1)),
    (TorchVersion(2, 6), (9, 1, 0)),
)
"""First torch whose wheel requires this cuDNN (the wheels' metadata; 2.12 and 2.13 not looked at,
and the rules here hold for 9.15.1 to 9.22 alike)."""

_MOST_CUDNN_BLOCKS = 65535
_GQA_IN_EFFICIENT = TorchVersion(2, 14)
"""Pull request 191085; the same release takes keys with one head without being told."""

_POINTERS_CHECKED = TorchVersion(2, 14)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """One call of scaled_dot_product_attention."""

    query: TensorSpec
    key: TensorSpec
    value: TensorSpec
    mask: TensorSpec | None = None
    mask_needs_grad: bool = False
    dropout: float = 0.0
    is_causal: bool = False
    needs_grad: bool = False
    """Whether query, key or value does, and gradients are on."""

    enable_gqa: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """What ``torch.backends.cuda``, ``sdpa_kernel`` and ``use_deterministic_algorithms`` say."""

    order: tuple[str, ...]
    enabled: frozenset[str] = frozenset({CUDNN, FLASH, EFFICIENT, MATH})
    deterministic: bool = False
    """Without ``warn_only``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The kernel, and why those that stand before it were refused."""

    kernel: str
    """Empty: none may run, which CUDA calls an error."""

    refusals: tuple[tuple[str, str], ...]
    """(kernel, reason)."""

    def explain(self) -> str:
        """``flash; not cudnn: ...``, one line."""
        reasons = "; ".join(f"not {kernel}: {reason}" for kernel, reason in self.refusals)
        return "; ".join(part for part in (self.kernel or "no kernel", reasons) if part)


def cudnn_release(version: TorchVersion) -> tuple[int, int, int]:
    """The cuDNN that comes with a wheel of this torch."""
    return next(cudnn for since, cudnn in _CUDNN_RELEASES if version >= since)


def default_order(capability: tuple[int, int], version: TorchVersion) -> tuple[str, ...]:
    """The order in which kernels are asked (check_prefer_cudnn_attention).

    cuDNN comes first on Hopper and Blackwell data center cards where its release is newer than
    9.15.0; 2.9 did not ask for the release (pull request 162073; not seen in a 2.9 tree).
    """
    prefers = version == (2, 9) or cudnn_release(version) > (9, 15, 0)
    if prefers and capability[0] in (9, 10):
        return (CUDNN, FLASH, EFFICIENT, MATH)
    return (FLASH, EFFICIENT, MATH, CUDNN)


def choose(
    attention: Attention, capability: tuple[int, int], version: TorchVersion, switches: Switches
) -> Choice:
    """The first kernel in order that takes the call."""
    refusals: list[tuple[str, str]] = []
    for kernel in switches.order:
        reason = refusal(kernel, attention, capability, version, switches)
        if not reason:
            return Choice(kernel=kernel, refusals=tuple(refusals))
        refusals.append((kernel, reason))
    return Choice(kernel="", refusals=tuple(refusals))


def refusal(
    kernel: str,
    attention: Attention,
    capability: tuple[int, int],
    version: TorchVersion,
    switches: Switches,
) -> str:
    """Why the kernel may not take the call; empty where it may."""
    if kernel not in switches.enabled:
        return "it is switched off"
    return _CHECKS[kernel](_Case(attention, capability, version, switches.deterministic))


class _Case:
    """A call on a card."""

    def __init__(
        self,
        attention: Attention,
        capability: tuple[int, int],
        version: TorchVersion,
        deterministic: bool,
    ) -> None:
        self.call = attention
        self.q, self.k, self.v = attention.query, attention.key, attention.value
        self.capability = capability
        self.version = version
        self.deterministic = deterministic

    @property
    def is_data_center(self) -> bool:
        return self.capability == (9, 0) or self.capability[0] == 10

    @property
    def cudnn_takes_256(self) -> bool:
        return self.is_data_center and cudnn_release(self.version) > (9, 22, 0)


def _first(case: _Case, *checks: Callable[[_Case], str]) -> str:
    for check in checks:
        reason = check(case)
        if reason:
            return reason
    return ""


def _cudnn(case: _Case) -> str:
    return _first(
        case,
        _four_dims,
        lambda c: "it is not deterministic" if c.deterministic else "",
        _half_only,
        _mask_shape,
        _recent_card,
        lambda c: "" if (16 * c.call.dropout).is_integer() else "dropout is not a multiple of 1/16",
        _nonzero_lengths,
        lambda c: _unit_strides(c, ignore_size_1=True),
        lambda c: _batch_and_heads(c, takes_gqa=True, same_kv_heads=False),
        _cudnn_shapes,
        _cudnn_backward_shapes,
    )


def _flash(case: _Case) -> str:
    return _first(
        case,
        _four_dims,
        lambda c: "it takes no mask" if c.call.mask is not None else "",
        _flash_head_size,
        _recent_card,
        _flash_backward_on_small_cards,
        _causal_is_square,
        _half_only,
        lambda c: _batch_and_heads(c, takes_gqa=True),
        _nonzero_lengths,
        lambda c: _unit_strides(c, ignore_size_1=True),
    )


def _efficient(case: _Case) -> str:
    takes_gqa = case.version >= _GQA_IN_EFFICIENT
    return _first(
        case,
        _four_dims,
        _efficient_head_size,
        _aligned_pointers,
        _nonzero_lengths,
        lambda c: _unit_strides(c, ignore_size_1=False),
        lambda c: _batch_and_heads(c, takes_gqa=takes_gqa),
        _efficient_dtype,
    )


_CHECKS: dict[str, Callable[[_Case], str]] = {
    CUDNN: _cudnn,
    FLASH: _flash,
    EFFICIENT: _efficient,
    MATH: lambda case: "",
}


def _four_dims(case: _Case) -> str:
    dims = [len(tensor.shape) for tensor in (case.q, case.k, case.v)]
    return "" if dims == [4, 4, 4] else f"query, key and value have {dims} dimensions, not 4"


def _recent_card(case: _Case) -> str:
    major, minor = case.capability
    return "" if (8, 0) <= case.capability <= (12, 1) else f"the card is sm{major}{minor}, not sm80"


def _half_only(case: _Case) -> str:
    allowed = _HALF if case.capability[0] >= 8 else (torch.float16,)
    return _dtype_in(case, allowed)


def _efficient_dtype(case: _Case) -> str:
    allowed = (torch.float16, torch.float32)
    return _dtype_in(case, (*allowed, torch.bfloat16) if case.capability[0] >= 8 else allowed)


def _dtype_in(case: _Case, allowed: tuple[torch.dtype, ...]) -> str:
    found = {tensor.dtype for tensor in (case.q, case.k, case.v)}
    if len(found) == 1 and found <= set(allowed):
        return ""
    names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in found))
    return f"it does not compute in {names} on this card"


def _mask_shape(case: _Case) -> str:
    mask = case.call.mask
    if mask is None:
        return ""
    if case.call.mask_needs_grad:
        return "the mask needs a gradient"
    batch, heads, rows, _ = case.q.shape
    wanted = (batch, heads, rows, case.k.shape[2])
    if len(mask.shape) in (2, 4) and all(
        have in (1, want) for have, want in zip(mask.shape, wanted[-len(mask.shape) :], strict=True)
    ):
        return ""
    return f"a mask of shape {mask.shape} does not spread to {wanted}"


def _nonzero_lengths(case: _Case) -> str:
    return "a length is 0" if 0 in (case.q.shape[2], case.k.shape[2]) else ""


def _unit_strides(case: _Case, *, ignore_size_1: bool) -> str:
    mask = case.call.mask
    if mask is not None and mask.stride[-1] != 1:
        return "the mask's last dimension is strided"
    if ignore_size_1 and case.q.shape[-1] == 1:
        return ""
    if all(tensor.stride[-1] == 1 for tensor in (case.q, case.k, case.v)):
        return ""
    return "the last dimension of query, key or value is strided"


def _batch_and_heads(case: _Case, *, takes_gqa: bool, same_kv_heads: bool = True) -> str:
    batches = [tensor.shape[0] for tensor in (case.q, case.k, case.v)]
    if len(set(batches)) > 1:
        return f"query, key and value have batches of {batches}"
    heads, of_keys, of_values = (tensor.shape[1] for tensor in (case.q, case.k, case.v))
    if heads == of_keys == of_values:
        return ""
    said = f"{heads}, {of_keys} and {of_values} heads"
    is_mqa = of_keys == of_values == 1 and case.version >= _GQA_IN_EFFICIENT
    if not takes_gqa or not (case.call.enable_gqa or is_mqa):
        return f"query, key and value have {said}"
    if same_kv_heads and of_keys != of_values:
        return f"key and value differ: {said}"
    if of_keys == 0 or of_values == 0 or heads % of_keys or heads % of_values:
        return f"heads do not divide: {said}"
    return ""


def _cudnn_shapes(case: _Case) -> str:
    batch, heads, rows, size = case.q.shape
    width, columns = case.v.shape[3], case.k.shape[2]
    if batch > _MOST_CUDNN_BLOCKS or heads > _MOST_CUDNN_BLOCKS:
        return f"a batch of {batch} x {heads} heads is over {_MOST_CUDNN_BLOCKS}"
    most = 128
    if case.cudnn_takes_256:
        most = 256
    elif (
        case.is_data_center
        and cudnn_release(case.version) >= (9, 11, 0)
        and (size, width) == (192, 128)
    ):
        most = 192
    if size > most or width > most:
        return f"a head of {max(size, width)} is over {most}"
    if size % 8 or width % 8:
        return "the size of a head is not a multiple of 8"
    if columns == 1:
        return "the key's length is 1"
    if rows == 1 and case.call.dropout:
        return "the query's length is 1, with dropout"
    return ""


def _cudnn_backward_shapes(case: _Case) -> str:
    if not case.call.needs_grad or not case.cudnn_takes_256:
        return ""
    size, width = case.q.shape[3], case.v.shape[3]
    if max(size, width) <= 128 or (size, width) in ((192, 128), (256, 256)):
        return ""
    return f"it has no backward for heads of {size} and {width}"


def _flash_head_size(case: _Case) -> str:
    sizes = {tensor.shape[-1] for tensor in (case.q, case.k, case.v)}
    if len(sizes) > 1:
        return f"the sizes of a head differ: {sorted(sizes)}"
    return "" if max(sizes) <= 256 else f"a head of {max(sizes)} is over 256"


def _flash_backward_on_small_cards(case: _Case) -> str:
    """Cards with 100 KiB of shared memory: sm86 to sm89, sm120, sm121."""
    small = (8, 6) <= case.capability <= (8, 9) or (12, 0) <= case.capability <= (12, 1)
    size = case.q.shape[-1]
    if not case.call.needs_grad or not small or size <= 192:
        return ""
    if size > 224 and case.call.dropout == 0:
        return ""
    with_dropout = " with dropout" if size > 224 else ""
    return f"it has no backward for a head of {size}{with_dropout} on this card"


def _causal_is_square(case: _Case) -> str:
    rows, columns = case.q.shape[2], case.k.shape[2]
    if case.call.is_causal and rows != columns:
        return f"it is causal over {rows} x {columns}, not a square"
    return ""


def _alignment(case: _Case) -> int:
    """Elements that a row must be a multiple of (minimum_gemm_alignment)."""
    is_half = case.q.dtype in _HALF
    major = case.capability[0]
    uses_tensor_cores = major >= 8 or (major >= 7 and is_half)
    fewest = 4 if major >= 8 else 1
    return max(fewest, 8 if is_half else 4) if uses_tensor_cores else fewest


def _efficient_head_size(case: _Case) -> str:
    size, of_keys, width = (tensor.shape[-1] for tensor in (case.q, case.k, case.v))
    multiple = _alignment(case)
    if size != of_keys:
        return f"query and key have heads of {size} and {of_keys}"
    if size == 0 or width == 0 or size % multiple or width % multiple:
        return f"heads of {size} and {width} are not multiples of {multiple}"
    return ""


def _aligned_pointers(case: _Case) -> str:
    if case.capability[0] < 8 or case.version < _POINTERS_CHECKED:
        return ""
    multiple = _alignment(case)
    for tensor in (case.q, case.k, case.v):
        if math.prod(tensor.shape) and tensor.offset % multiple:
            return f"query, key or value starts at no multiple of {multiple} elements"
    return ""
