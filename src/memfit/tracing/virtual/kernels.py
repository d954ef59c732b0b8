"""Registers the virtual GPU's kernels where CUDA has kernels of its own.

The dispatcher prefers an op's composite kernel to a device's fallback, so ops that have both a
composite kernel and one for CUDA are named here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.special import empty, empty_strided

_CUDA_BESIDE_COMPOSITE = (
    "_chunk_cat",
    "_chunk_cat.out",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_grouped_mm",
    "addr",
    "all",
    "all.dim",
    "all.dims",
    "any",
    "any.dim",
    "any.dims",
    "convolution",
    "convolution_backward",
    "copy_",
    "embedding",
    "equal",
    "is_pinned",
    "isinf",
    "isnan",
    "linalg__powsum",
    "mish_backward",
    "native_group_norm",
    "native_layer_norm",
    "silu_backward",
    "split_with_sizes_copy.out",
)
"""Ops with a composite kernel and one for CUDA, beside ``_foreach_*``: listed from a CUDA build of
torch 2.14 by ``_dispatch_has_kernel_for_dispatch_key``."""

_FACTORIES = ("tril_indices", "triu_indices", "_efficientzerotensor", "randperm.generator_out")
"""Ops that make tensors without an operand, with a kernel for each device."""


def register(gpu: Dispatch) -> list[torch.library.Library]:
    """Registers everything below autograd; the libraries must be kept for the kernels to stay."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(gpu.run, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for name, make in (("empty.memory_format", empty), ("empty_strided", empty_strided)):
        kernel = partial(make, gpu)
        aten.impl(name, kernel, "PrivateUse1")
        # Python that was not told another device says cuda to C++, on builds with and without it.
        aten.impl(name, kernel, "CUDA", allow_override=True)
    for name in [*_CUDA_BESIDE_COMPOSITE, *_foreach_ops()]:
        op = _resolve(name)
        if op is not None:
            aten.impl(name, _kernel(gpu, op), "PrivateUse1")
    for name in _FACTORIES:
        op = _resolve(name)
        if op is not None:
            for key in ("PrivateUse1", "CUDA"):
                aten.impl(name, _factory(gpu, op), key, allow_override=True)
    return [everything, aten]


def _kernel(gpu: Dispatch, op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: gpu.run(op, *args, **kwargs)


def _factory(gpu: Dispatch, op: Any) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        name = op.name().partition(".")[0]
        out = kwargs.pop("out", None)
        if out is not None:
            gpu.resize(out, [args[0]])
            values = gpu.shadows.give(out, gpu.storage_bytes(out))
            if values is not None:
                values.copy_(torch.randperm(args[0]))
            return out
        return gpu.with_values(op(*args, **{**kwargs, "device": torch.device("cpu")}), name)

    return make


def _foreach_ops() -> list[str]:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return [
        name.removeprefix("aten::")
        for name in names
        if name.startswith("aten::_foreach_") and has_kernel(name, "CompositeExplicitAutograd")
    ]


def _resolve(name: str) -> Any:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None) if packet is not None else None
