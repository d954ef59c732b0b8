"""What an op returns, without running it: shapes, strides and dtypes from PyTorch's meta kernels.

The meta kernels describe what CUDA would give in a few places where the CPU differs; those are
corrected here, and a test compares every op of the tested models with the real kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.tracing.calls import Call, TensorSpec, call_below, rebuild, wrap_numbers
from memfit.tracing.memory import contiguous_strides


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output in a storage of its own."""

    size: list[int]
    stride: list[int]
    dtype: torch.dtype
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a call returns: leaves are :class:`Fresh`, or plain values."""

    leaves: list[Any]
    tree: pytree.TreeSpec

    def fresh(self) -> list[Fresh]:
        """The outputs that need memory, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Fresh)]


def infer_outputs(op: torch._ops.OpOverload, call: Call, *, like_cuda: bool = False) -> Outputs:
    """Runs the op's meta kernel on the call's shapes.

    Args:
        op: the op.
        call: its arguments.
        like_cuda: what CUDA's kernel returns, which meta kernels describe, and not the CPU's.

    Raises:
        NotImplementedError, RuntimeError: the op has no meta kernel, or refuses these arguments.
    """
    if call.op in _META_KNOWS_BF16_ONLY:
        dtype = call.tensors()[0].dtype
        leaves, tree = _infer(op, _as_bf16(call, dtype))
        leaves = _as_dtype(leaves, dtype)
    else:
        leaves, tree = _infer(op, call)
    return Outputs(leaves if like_cuda else _correct_for_cpu(call, leaves), tree)


def _infer(op: torch._ops.OpOverload, call: Call) -> tuple[list[Any], pytree.TreeSpec]:
    metas: list[torch.Tensor] = []

    def to_meta(spec: TensorSpec) -> torch.Tensor:
        # A CPU scalar keeps its device: meta kernels allow a 0-d CPU tensor among others.
        meta = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
        metas.append(meta)
        return meta

    args, kwargs = rebuild(call, to_meta)
    if "device" in kwargs or any(argument.name == "device" for argument in op._schema.arguments):
        kwargs["device"] = torch.device("meta")
    wrap_numbers(op, args, kwargs, "meta")
    result = call_below(op, args, kwargs)
    leaves, tree = pytree.tree_flatten(result)
    inputs = {meta.untyped_storage()._cdata for meta in metas}
    return [_describe(leaf, inputs, op) for leaf in leaves], tree


def _describe(leaf: Any, inputs: set[int], op: torch._ops.OpOverload) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    storage = leaf.untyped_storage()
    if storage._cdata in inputs:
        raise NotImplementedError(f"{op} returns one of its arguments; memfit cannot trace that")
    return Fresh(list(leaf.shape), list(leaf.stride()), leaf.dtype, storage.nbytes())


_META_KNOWS_BF16_ONLY = {"aten::_grouped_mm"}
"""Ops whose meta kernel asks for bf16, while CPU and CUDA take fp32 and fp16 too
(native/GroupedMMUtils.h, the fallback)."""


def _as_bf16(call: Call, dtype: torch.dtype) -> Call:
    def bf16(value: Any) -> Any:
        is_operand = isinstance(value, TensorSpec) and value.dtype is dtype
        return replace(value, dtype=torch.bfloat16) if is_operand else value

    named = tuple((name, bf16(value)) for name, value in call.kwargs)
    return Call(call.op, tuple(bf16(value) for value in call.args), named)


def _as_dtype(leaves: list[Any], dtype: torch.dtype) -> list[Any]:
    return [
        replace(leaf, dtype=dtype, num_bytes=leaf.num_bytes // 2 * dtype.itemsize)
        if isinstance(leaf, Fresh)
        else leaf
        for leaf in leaves
    ]


_NORMS = {"aten::native_layer_norm": 2, "aten::native_batch_norm": 1, "aten::native_group_norm": 1}
"""Norms, and where their weight stands among the arguments."""

_TRAINING = 5
"""Where native_batch_norm is told whether it takes statistics of the batch."""


_GIVE_ROWS = {"bitsandbytes::quantize_blockwise", "bitsandbytes::dequantize_blockwise"}
"""Ops that return contiguous tensors, while their meta kernel keeps the strides of what is given
(bitsandbytes 0.50, backends/cpu/ops.py and _ops.py)."""


def _correct_for_cpu(call: Call, leaves: list[Any]) -> list[Any]:
    if call.op in _NORMS:
        return _of_a_norm(call, leaves)
    return [_in_rows(leaf) for leaf in leaves] if call.op in _GIVE_ROWS else leaves


def _in_rows(leaf: Fresh) -> Fresh:
    num_bytes = _numel(leaf.size) * leaf.dtype.itemsize
    return replace(leaf, stride=contiguous_strides(leaf.size), num_bytes=num_bytes)


def _of_a_norm(call: Call, leaves: list[Any]) -> list[Any]:
    """What the CPU keeps of mean and rstd.

    They have the weight's dtype, and the input's where there is no weight
    (aten/src/ATen/native/layer_norm.cpp, layer_norm_cpu: param_scalar_type; mixed_data_type.h).
    The meta kernels give the input's for mixed precision and fp32 for 16 bits alone.
    A batch norm that is not training keeps none (native/Normalization.cpp, batch_norm_cpu).
    """
    if call.op == "aten::native_batch_norm" and not call.argument(_TRAINING):
        return [leaves[0], *(Fresh([0], [1], leaf.dtype, 0) for leaf in leaves[1:])]
    weight, data = call.argument(_NORMS[call.op]), call.argument(0)
    dtype = weight.dtype if isinstance(weight, TensorSpec) else data.dtype
    stats = [
        Fresh(leaf.size, leaf.stride, dtype, _numel(leaf.size) * dtype.itemsize)
        for leaf in leaves[1:]
    ]
    return [leaves[0], *stats]


def _numel(size: list[int]) -> int:
    count = 1
    for extent in size:
        count *= extent
    return count
