"""Scratch memory inside CPU kernels, by formula: each with where it stands in PyTorch's sources.

Paths are below ``aten/src/ATen`` of torch 2.11 to 2.13.  A call that no rule here covers is learnt
(``learn``); a test holds every rule against what is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import TypeAlias

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.sequences import Event, Give, Output, Sequence, Take, outputs_only

Rule: TypeAlias = Callable[[Call, int], Sequence | None]

_WRAPPED_BYTES = 8
"""A Python number as a 0-d tensor: float64 or int64 (c10::scalar_to_tensor, ScalarOps.h)."""


def formula(call: Call, num_outputs: int) -> Sequence | None:
    """What happens inside the call; None where no rule covers it."""
    rule = _RULES.get(call.op)
    return rule(call, num_outputs) if rule is not None else None


def _sequence(*events: Event) -> Sequence:
    return Sequence(events, "formula")


def _outputs(num_outputs: int) -> tuple[Output, ...]:
    return tuple(Output(index) for index in range(num_outputs))


# ------------------------------------------------------------------ nothing but the outputs


def _plain(call: Call, num_outputs: int) -> Sequence | None:
    """The kernel writes its outputs and takes nothing else, whatever the arguments."""
    return outputs_only(num_outputs)


def _plain_if_alike(call: Call, num_outputs: int) -> Sequence | None:
    """TensorIterator takes nothing when all operands have the dtype that is computed in."""
    dtypes = {tensor.dtype for tensor in call.tensors()}
    return outputs_only(num_outputs) if len(dtypes) <= 1 and _is_float(dtypes) else None


def _plain_if_one_dtype(call: Call, num_outputs: int) -> Sequence | None:
    """Tensors of one dtype go through, or together, without a cast, whatever it is."""
    dtypes = {tensor.dtype for tensor in call.tensors()}
    return outputs_only(num_outputs) if len(dtypes) == 1 else None


def _plain_choice(call: Call, num_outputs: int) -> Sequence | None:
    """``where`` of two tensors of one dtype (native/TensorCompare.cpp, where_self_out)."""
    condition, *values = call.tensors()
    alike = condition.dtype is torch.bool and len({value.dtype for value in values}) == 1
    return outputs_only(num_outputs) if alike and len(values) == 2 else None


def _plain_if_bool(call: Call, num_outputs: int) -> Sequence | None:
    """A logical op of bools."""
    alike = all(tensor.dtype is torch.bool for tensor in call.tensors())
    return outputs_only(num_outputs) if alike else None


def _plain_if_contiguous(call: Call, num_outputs: int) -> Sequence | None:
    """The kernel calls ``.contiguous()``, which takes nothing when it is."""
    return outputs_only(num_outputs) if all(map(_is_contiguous, call.tensors())) else None


def _plain_product(call: Call, num_outputs: int) -> Sequence | None:
    """A matrix product by BLAS, whose own buffers PyTorch does not see.

    native/LinearAlgebra.cpp, addmm_impl_cpu_: a matrix is copied unless one of its dimensions has
    stride 1.  oneDNN, which takes over bf16 where the processor has it, is left to be learnt.
    """
    tensors = call.tensors()
    if any(t.dtype is not torch.float32 for t in tensors) and _onednn_has_bf16():
        return None
    matrices = [t for t in tensors if len(t.shape) >= 2]
    return outputs_only(num_outputs) if all(map(_is_blas_matrix, matrices)) else None


def _adding_product(call: Call, num_outputs: int) -> Sequence | None:
    """``addmm`` copies what is added into its result first (``copy_``, in addmm_impl_cpu_)."""
    inner = _plain_product(call, num_outputs)
    added, rows, columns = (call.argument(index) for index in range(3))
    if inner is None or dict(call.kwargs).get("beta") == 0:
        return inner
    is_whole = added.shape == (rows.shape[0], columns.shape[1])
    return _sequence(*inner.events, *_transposing(added)) if is_whole else inner


def _plain_reduction(call: Call, num_outputs: int) -> Sequence | None:
    """A reduction to more than one number, or of few numbers, of one floating dtype.

    native/ReduceOps.cpp, should_use_acc_buffer: a half precision sum over several dimensions may go
    through an fp32 copy.
    native/TensorIteratorReduce.cpp: a reduction to one number of at least GRAIN_SIZE elements goes
    in two passes, with a buffer a thread.
    """
    data = call.tensors()[0]
    asked = dict(call.kwargs).get("dtype")
    if not _is_float({data.dtype}) or asked not in (None, data.dtype):
        return None
    reduced = [
        size for dim, size in enumerate(data.shape) if _is_reduced(dim, call.argument(1), data)
    ]
    if data.dtype.itemsize < 4 and sum(size > 1 for size in reduced) > 1:
        return None
    return None if _goes_in_two_passes(data, call.argument(1)) else outputs_only(num_outputs)


def _plain_test(call: Call, num_outputs: int) -> Sequence | None:
    """``all`` and ``any`` of bools: a reduction without a dtype to convert to."""
    data = call.tensors()[0]
    if data.dtype is not torch.bool or _goes_in_two_passes(data, call.argument(1)):
        return None
    return outputs_only(num_outputs)


def _goes_in_two_passes(data: TensorSpec, dims: object) -> bool:
    kept = prod(size for dim, size in enumerate(data.shape) if not _is_reduced(dim, dims, data))
    return kept == 1 and data.numel >= _GRAIN_SIZE


_GRAIN_SIZE = 32768
"""at::internal::GRAIN_SIZE, TensorIterator.h."""


def _copying(call: Call, num_outputs: int) -> Sequence | None:
    """A transposed matrix is copied through a square buffer.

    native/Copy.cpp, copy_transpose_valid and copy_same_type_transpose_: into a contiguous tensor of
    the same dtype, from 60 x 60 elements on.
    """
    if call.op == "aten::copy_":
        target, source = call.argument(0), call.argument(1)
        into_rows = target.is_contiguous and target.shape == source.shape
        same_dtype = target.dtype is source.dtype
    else:
        source, named = call.argument(0), dict(call.kwargs)
        into_rows = named.get("memory_format") is torch.contiguous_format
        same_dtype = named.get("dtype") in (None, source.dtype)
    if not (into_rows and same_dtype):
        return outputs_only(num_outputs)
    return _sequence(*_outputs(num_outputs), *_transposing(source))


def _transposing(source: TensorSpec) -> tuple[Event, ...]:
    """The buffer of copying ``source`` into rows: none unless it is a transposed matrix."""
    is_transposed = len(source.shape) == 2 and source.stride == (1, source.shape[0])
    if not is_transposed or source.numel < _SQUARE * _SQUARE:
        return ()
    side = _SQUARE_OF_BYTES if source.dtype is torch.uint8 else _SQUARE
    return Take(0, side * side * source.dtype.itemsize), Give(0)


_SQUARE = 60
"""BLOCK_SZ, and the root of MIN_SZ, in native/Copy.cpp."""

_SQUARE_OF_BYTES = 120
"""BLOCK_SZ of kByte, in the same place."""


# ------------------------------------------------------------------ operands that are cast


def _promoting(call: Call, num_outputs: int) -> Sequence | None:
    """A pointwise op of two operands casts one that is not of the common dtype.

    TensorIterator.cpp, compute_types: "promotes inputs by creating temporaries of the correct
    dtype", a scalar that was wrapped too; before the outputs are made.
    """
    first, second = call.argument(0), call.argument(1)
    common = _common_dtype(first, second)
    casts = [value for value in (first, second) if _is_cast(value, common)]
    if num_outputs == 0 and _is_cast(first, common):
        return None
    if not casts:
        return outputs_only(num_outputs)
    if len(casts) > 1:
        return None
    num_bytes = _numel(casts[0]) * common.itemsize
    return _sequence(Take(0, num_bytes), *_outputs(num_outputs), Give(0))


def _wrapping(call: Call, num_outputs: int) -> Sequence | None:
    """``op.Scalar`` wraps its number and calls ``op.Tensor`` (native/BinaryOps.cpp)."""
    inner = _promoting(call, num_outputs)
    if inner is None:
        return None
    events = tuple(_shifted(event) for event in inner.events)
    return _sequence(Take(0, _WRAPPED_BYTES), *events, Give(0))


def _comparing(call: Call, num_outputs: int) -> Sequence | None:
    """``gt.Scalar`` and its like hold the wrapped number only until the operands are ready.

    native/BinaryOps.cpp, the structured comparison ops: wrapped_scalar_tensor is a temporary of
    the meta function, the cast of it belongs to the iterator.
    """
    inner = _promoting(call, num_outputs)
    if inner is None:
        return None
    events = [_shifted(event) for event in inner.events]
    if events and isinstance(events[-1], Give):
        events.insert(-1, Give(0))
    else:
        events.append(Give(0))
    return _sequence(Take(0, _WRAPPED_BYTES), *events)


def _shifted(event: Event) -> Event:
    """The event with its scratch slot moved up by one."""
    if isinstance(event, Take):
        return Take(event.slot + 1, event.num_bytes)
    return Give(event.slot + 1) if isinstance(event, Give) else event


def _dividing_after(call: Call, num_outputs: int) -> Sequence | None:
    """``mean`` sums, then divides by a wrapped number (native/ReduceOps.cpp, mean_kernel)."""
    inner = _plain_reduction(call, num_outputs)
    if inner is None or call.tensors()[0].dtype is not torch.float32:
        return None
    cast = torch.float32.itemsize
    return _sequence(*inner.events, Take(0, _WRAPPED_BYTES), Take(1, cast), Give(1), Give(0))


def _raising_a_number(call: Call, num_outputs: int) -> Sequence | None:
    """``pow.Scalar`` wraps the base after its output is made (native/Pow.cpp)."""
    exponent = call.argument(1)
    if not isinstance(exponent, TensorSpec) or exponent.dtype is not torch.float32:
        return None
    takes = (Take(0, _WRAPPED_BYTES), Take(1, exponent.dtype.itemsize))
    return _sequence(*_outputs(num_outputs), *takes, Give(1), Give(0))


# ------------------------------------------------------------------ kernels with buffers


def _adding_up(call: Call, num_outputs: int) -> Sequence | None:
    """``cumsum`` casts what is not of the result's dtype, after its output is made.

    native/ReduceOps.cpp, impl_func_cum_ops; integers and bools are added up as int64.
    """
    data = call.argument(0)
    asked = dict(call.kwargs).get("dtype")
    result = asked or (data.dtype if data.dtype.is_floating_point else torch.int64)
    if data.dtype is result:
        return outputs_only(num_outputs)
    num_bytes = data.numel * result.itemsize
    return _sequence(*_outputs(num_outputs), Take(0, num_bytes), Give(0))


def _embedding(call: Call, num_outputs: int) -> Sequence | None:
    """A strided index is copied first (native/Embedding.cpp: ``indices.reshape(-1)``)."""
    index = call.argument(1)
    if _is_contiguous(index):
        return outputs_only(num_outputs)
    return _sequence(Take(0, index.num_bytes), *_outputs(num_outputs), Give(0))


def _embedding_backward(call: Call, num_outputs: int) -> Sequence | None:
    """A strided index is copied after the result is zeroed (embedding_dense_backward_cpu)."""
    gradient, index = call.argument(0), call.argument(1)
    if not _is_contiguous(gradient):
        return None
    if _is_contiguous(index):
        return outputs_only(num_outputs)
    return _sequence(*_outputs(num_outputs), Take(0, index.num_bytes), Give(0))


def _layer_norm_backward(call: Call, num_outputs: int) -> Sequence | None:
    """One row of dgamma and one of dbeta a thread, in the input's dtype.

    native/cpu/layer_norm_kernel.cpp, LayerNormBackwardKernelImplInternal: ``buffer =
    at::empty({2, num_threads, N}, X.options())`` when dgamma or dbeta is asked for.
    """
    data, shape = call.argument(1), call.argument(2)
    if not all(map(_is_contiguous, call.tensors())) or call.argument(7) != (True, True, True):
        return None
    num_bytes = 2 * torch.get_num_threads() * prod(shape) * data.dtype.itemsize
    return _sequence(*_outputs(num_outputs), Take(0, num_bytes), Give(0))


def _safe_softmax(call: Call, num_outputs: int) -> Sequence | None:
    """Softmax, then rows that are all -inf become zero (native/SoftMax.cpp, _safe_softmax).

    The mask of -inf (a byte a score), its ``all`` over a row, and a zero to put there.
    """
    data = call.argument(0)
    if not _is_contiguous(data) or call.argument(1) not in (-1, len(data.shape) - 1):
        return None
    if data.dtype is not torch.float32 or call.argument(2) is not None:
        return None
    sizes = [data.numel, data.numel // data.shape[-1], data.dtype.itemsize]
    return _sequence(*_outputs(num_outputs), *_nested(sizes))


def _flash_attention(call: Call, num_outputs: int) -> Sequence | None:
    """Scores, running maximum and sum, and the result's rows of one block of queries a thread.

    native/cpu/FlashAttentionKernel.cpp, cpu_flash_attention: ``size_per_thread``.
    """
    query, key = call.argument(0), call.argument(1)
    if not _is_flash_covered(call, 5):
        return None
    q_split, kv_split = _flash_splits(query.shape[2], key.shape[2])
    per_thread = q_split * kv_split + 2 * q_split + q_split * query.shape[3]
    sizes = [torch.get_num_threads() * per_thread * 4]
    if query.dtype is torch.bfloat16:
        sizes.append(torch.get_num_threads() * q_split * kv_split * 2)
    return _sequence(*_outputs(num_outputs), *_nested(sizes))


def _flash_attention_backward(call: Call, num_outputs: int) -> Sequence | None:
    """Scores and their gradient of one block a thread, then one row of sums a thread.

    native/cpu/FlashAttentionKernel.cpp, cpu_flash_attention_backward.  The gradient is copied first
    unless it lies in memory as (B, T, H, D).  The row of sums is taken inside the parallel loop, so
    that only this thread's is seen.
    """
    gradient, query, key = call.argument(0), call.argument(1), call.argument(2)
    if not _is_flash_covered(call, 8):
        return None
    q_split, kv_split = _flash_splits(query.shape[2], key.shape[2])
    sizes = [] if _is_contiguous(gradient.transposed(1, 2)) else [gradient.num_bytes]
    sizes.append(torch.get_num_threads() * 2 * q_split * kv_split * 4)
    if query.dtype is torch.bfloat16:
        sizes.append(torch.get_num_threads() * 2 * q_split * kv_split * 2)
    sizes.append(q_split * 4)
    return _sequence(*_outputs(num_outputs), *_nested(sizes))


def _is_flash_covered(call: Call, mask_position: int) -> bool:
    """Without a mask; in bf16 only where oneDNN's does not add buffers to pack matrices into."""
    named = dict(call.kwargs)
    mask = call.argument(mask_position, named.get("attn_mask"))
    dtype = call.tensors()[0].dtype
    is_plain = dtype is torch.float32 or (dtype is torch.bfloat16 and not _onednn_has_bf16())
    return mask is None and is_plain


def _flash_splits(num_queries: int, num_keys: int) -> tuple[int, int]:
    """Rows of a block of queries and of keys (flash_attention_kernel_impl)."""
    q_split = 256 if num_queries >= 768 else 64 if num_queries >= 192 else 32
    return min(q_split, num_queries), min(512, num_keys)


def _narrowing_blocks(call: Call, num_outputs: int) -> Sequence | None:
    """bitsandbytes' ``quantize_blockwise`` makes the scales, which it returns second, first.

    bitsandbytes 0.50, backends/cpu/ops.py; what is not contiguous is copied before.
    """
    return _of_rows(call.argument(0), tuple(reversed(_outputs(num_outputs))))


def _widening_blocks(call: Call, num_outputs: int) -> Sequence | None:
    """bitsandbytes' ``dequantize_blockwise``, in the same file."""
    return _of_rows(call.argument(0), _outputs(num_outputs))


def _of_rows(data: TensorSpec, outputs: tuple[Output, ...]) -> Sequence:
    """The outputs of a kernel that begins with ``data = data.contiguous()``."""
    if data.is_contiguous:
        return _sequence(*outputs)
    buffer = tuple(_shifted(event) for event in _transposing(data))
    return _sequence(Take(0, data.num_bytes), *buffer, *outputs, Give(0))


def _nested(sizes: list[int]) -> tuple[Take | Give, ...]:
    """Blocks taken one after the other and given back in reverse."""
    takes = [Take(slot, size) for slot, size in enumerate(sizes)]
    gives = [Give(slot) for slot in reversed(range(len(sizes)))]
    return (*takes, *gives)


# ------------------------------------------------------------------ what the rules ask


def _is_float(dtypes: set[torch.dtype]) -> bool:
    return all(dtype.is_floating_point for dtype in dtypes)


def _is_contiguous(tensor: TensorSpec) -> bool:
    return tensor.is_contiguous


def _is_blas_matrix(tensor: TensorSpec) -> bool:
    rows, columns = tensor.stride[-2:]
    num_rows, num_columns = tensor.shape[-2:]
    row_major = columns == 1 and rows >= max(1, num_columns)
    column_major = rows == 1 and columns >= max(1, num_rows)
    return row_major or column_major


def _is_reduced(dim: int, dims: object, data: TensorSpec) -> bool:
    if not isinstance(dims, tuple) or not dims:
        return True
    return dim in dims or dim - len(data.shape) in dims


def _common_dtype(first: object, second: object) -> torch.dtype:
    """The dtype that two operands are computed in (TensorIterator's result_type)."""
    return torch.result_type(_stand_in(first), _stand_in(second))


def _stand_in(value: object) -> torch.Tensor | float:
    if isinstance(value, TensorSpec):
        return torch.empty((1,) * len(value.shape), dtype=value.dtype, device="meta")
    return value  # type: ignore[return-value]


def _is_cast(value: object, common: torch.dtype) -> bool:
    if isinstance(value, TensorSpec):
        return value.dtype is not common
    wrapped = torch.float64 if isinstance(value, float) else torch.int64
    return wrapped is not common


def _numel(value: object) -> int:
    return value.numel if isinstance(value, TensorSpec) else 1


@cache
def _onednn_has_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_RULES: dict[str, Rule] = {
    **_named(
        _plain,
        "arange arange.start arange.start_step bernoulli_.float constant_pad_nd "
        "empty.memory_format empty_like empty_strided fill_.Scalar full full_like gather "
        "normal_ ones ones_like rand randint randint.low randn scalar_tensor select_backward "
        "slice_backward tril uniform_ zero_ zeros zeros_like",
    ),
    **_named(
        _plain_if_alike,
        "addcdiv_ addcmul_ lerp_.Scalar clamp cos exp gelu gelu_backward neg pow.Tensor_Scalar "
        "reciprocal relu rsqrt sigmoid sigmoid_backward silu silu_backward sin sqrt tanh "
        "tanh_backward threshold_backward",
    ),
    **_named(
        _plain_if_contiguous,
        "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data "
        "native_layer_norm nll_loss_forward nll_loss_backward",
    ),
    **_named(_copying, "clone copy_ _to_copy"),
    **_named(_plain_if_one_dtype, "cat stack _foreach_mul_.Tensor _foreach_norm.Scalar"),
    **_named(_plain_choice, "where.self"),
    **_named(_plain_if_bool, "bitwise_and.Tensor bitwise_not bitwise_or.Tensor"),
    **_named(_plain_test, "all all.dim any any.dim"),
    **_named(_plain_product, "baddbmm bmm mm"),
    "aten::addmm": _adding_product,
    **_named(_plain_reduction, "linalg_vector_norm sum sum.dim_IntList"),
    **_named(
        _promoting,
        "add.Tensor add_.Tensor div.Tensor div_.Tensor mul.Tensor mul_.Tensor "
        "sub.Tensor sub_.Tensor",
    ),
    **_named(
        _wrapping,
        "add.Scalar add_.Scalar div.Scalar div_.Scalar mul.Scalar mul_.Scalar sub.Scalar "
        "sub_.Scalar",
    ),
    **_named(_comparing, "eq.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar ne.Scalar"),
    **_named(_dividing_after, "mean mean.dim"),
    "aten::cumsum": _adding_up,
    "aten::pow.Scalar": _raising_a_number,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _flash_attention_backward,
    "bitsandbytes::quantize_blockwise": _narrowing_blocks,
    "bitsandbytes::dequantize_blockwise": _widening_blocks,
}
"""Op -> rule.  An op that is not here is learnt."""
