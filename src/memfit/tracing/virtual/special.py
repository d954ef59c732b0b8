"""Ops of the virtual GPU that a meta kernel cannot speak for: those that hand values to Python or
size their results by values, copies between host and device, and the gradient scaler's tests.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.log import Use
from memfit.tracing.memory import storage_address
from memfit.tracing.virtual.blocks import CPU_KEYS
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.kinds import Handler
from memfit.tracing.virtual.memory import is_virtual

_BACKWARDS_OF_COPIES = ("ToCopyBackward0", "torch::autograd::CopyBackwards")
"""Autograd's nodes that bring gradients of tensors that moved to the host."""

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def _item(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """One number: the true one where it is known, else 1.0, 1 or False, which harm nothing."""
    tensor = args[0]
    values = gpu.shadows.of(tensor)
    if values is not None:
        return values.item()
    gpu.shadows.note_read()
    if tensor.dtype is torch.bool:
        return False
    if tensor.dtype.is_complex:
        return 1 + 0j
    return 1.0 if tensor.dtype.is_floating_point else 1


def _copy(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """``target.copy_(source)``: known values; unknown ones are 1.0 or 0 on the host."""
    target, source = args[0], args[1]
    if source.shape != target.shape:
        torch.broadcast_shapes(source.shape, target.shape)
    known = gpu.shadows.of(source) if is_virtual(source) else source
    if not is_virtual(target):
        if known is not None:
            target.copy_(known)
        else:
            target.fill_(1 if target.dtype.is_floating_point else 0)
        return target
    gpu.name_made([target], "aten::copy_")
    if not is_virtual(source) and source.dim() > 0:
        gpu.use([target], _use_of_arrival())  # until the tracer learns that it is a parameter
    if known is not None:
        values = gpu.shadows.give(target, gpu.storage_bytes(target))
        if values is not None:
            values.copy_(known)
            return target
    gpu.shadows.forget(target)
    return target


def _use_of_arrival() -> Use:
    """What a copy from the host is for: backward fetches no inputs, but what was saved for it."""
    if torch._C._current_graph_task_id() == -1:
        return Use.INPUT
    node: Any = torch._C._current_autograd_node()
    is_gradient = node is not None and node.name() in _BACKWARDS_OF_COPIES
    return Use.UNKNOWN if is_gradient else Use.SAVED


def _copy_from(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return _copy(gpu, op, (args[1], args[0]), {})


def _resize(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    gpu.resize(args[0], list(args[1]))
    return args[0]


def _set(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return op.redispatch(CPU_KEYS, *args, **kwargs)


def _record_stream(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return None


def _is_pinned(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return False


def _unscale(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Gradients of a healthy run: ``found_inf`` keeps its zero, so that every step is taken."""
    for tensor in args[0]:
        gpu.shadows.forget(tensor)


def _update_scale(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    return args[0]


def _constant(gpu: Dispatch, size: Any, dtype: torch.dtype, value: Any, op: str) -> torch.Tensor:
    tensor = gpu.empty(list(size), None, dtype, op)
    values = gpu.shadows.give(tensor, gpu.storage_bytes(tensor))
    if values is not None:
        values.fill_(value)
    return tensor


def _is_healthy(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """``isnan``, ``isinf``, ``isfinite`` of unknown values: training is taken to be healthy."""
    if gpu.shadows.is_known(args[0]):
        return NotImplemented
    name = op.name().partition(".")[0]
    return _constant(gpu, args[0].size(), torch.bool, name == "aten::isfinite", name)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    layout = (tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride())
    return storage_address(tensor), *layout


def _equal(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    if all(map(is_virtual, args)) and _place(args[0]) == _place(args[1]):
        return True
    first, second = (gpu.shadows.of(t) if is_virtual(t) else t for t in args)
    if first is None or second is None:
        return False
    return bool(torch.equal(first, second))


def _all_or_any(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Of unknown values: ``all`` is taken to hold, ``any`` not."""
    if gpu.shadows.is_known(args[0]) or kwargs.get("out") is not None:
        return NotImplemented
    name = op.name().partition(".")[0]
    meta = torch.empty_strided(args[0].size(), args[0].stride(), dtype=args[0].dtype, device="meta")
    result = op(meta, *args[1:], **kwargs)
    return _constant(gpu, result.size(), result.dtype, name == "aten::all", name)


def _nonzero(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Places of non-zeros; of unknown values all of them, the most there can be."""
    tensor = args[0]
    if gpu.shadows.is_known(tensor):
        return NotImplemented
    gpu.shadows.note_size()
    count, dims = tensor.numel(), tensor.dim()
    # CUDA's kernel writes one row of places a dim and returns the transpose.
    size, stride = [count, dims], [1, max(count, 1)]
    return gpu.make_inside(
        op, args, kwargs, lambda: gpu.empty(size, stride, torch.int64, "aten::nonzero")
    )


def _masked_select(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """The selected elements; of an unknown mask all, the most there can be."""
    tensor, mask = args
    values = gpu.shadows.of(mask) if is_virtual(mask) else mask
    if values is None:
        gpu.shadows.note_size()
        count = torch.broadcast_shapes(tensor.shape, mask.shape).numel()
    else:
        shape = torch.broadcast_shapes(tensor.shape, values.shape)
        count = int(values.expand(shape).sum())
    return gpu.empty([count], None, tensor.dtype, "aten::masked_select")


def _index(gpu: Dispatch, op: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """``tensor[indices]``: a mask among them is turned into places first, as many as it has."""
    tensor, indices = args
    present = [index for index in indices if index is not None]
    if not is_virtual(tensor):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )
    known = [not is_virtual(index) or gpu.shadows.is_known(index) for index in present]
    if all(known) and not any(index.dtype in (torch.bool, torch.uint8) for index in present):
        return NotImplemented
    if "out" in kwargs or (all(known) and gpu.shadows.is_known(tensor)):
        return NotImplemented  # C++ has found the places and allocated the result already
    metas: list[torch.Tensor | None] = []
    for index in indices:
        if index is None:
            metas.append(None)
        elif index.dtype in (torch.bool, torch.uint8):
            values = gpu.shadows.of(index) if is_virtual(index) else index
            if values is None:
                gpu.shadows.note_size()
            count = index.numel() if values is None else int(values.count_nonzero())
            metas += [torch.empty(count, dtype=torch.int64, device="meta")] * index.dim()
        else:
            metas.append(
                torch.empty_strided(index.size(), index.stride(), dtype=index.dtype, device="meta")
            )
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    result = torch.ops.aten.index.Tensor(meta, metas)
    return gpu.empty(list(result.size()), list(result.stride()), result.dtype, "aten::index")


def empty(
    gpu: Dispatch,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """The kernel of ``aten::empty.memory_format``."""
    dtype = dtype or torch.get_default_dtype()
    size = list(size)
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
        return gpu.empty(size, list(meta.stride()), dtype)
    return gpu.empty(size, None, dtype)


def empty_strided(
    gpu: Dispatch,
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """The kernel of ``aten::empty_strided``."""
    return gpu.empty(list(size), list(stride), dtype or torch.get_default_dtype())


HANDLERS: dict[str, Handler] = {
    "aten::_local_scalar_dense": _item,
    "aten::copy_": _copy,
    "aten::_copy_from": _copy_from,
    "aten::_copy_from_and_resize": _copy_from,
    "aten::resize_": _resize,
    "aten::set_": _set,
    "aten::record_stream": _record_stream,
    "aten::is_pinned": _is_pinned,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::_amp_update_scale_": _update_scale,
    "aten::isnan": _is_healthy,
    "aten::isinf": _is_healthy,
    "aten::isfinite": _is_healthy,
    "aten::equal": _equal,
    "aten::all": _all_or_any,
    "aten::any": _all_or_any,
    "aten::nonzero": _nonzero,
    "aten::masked_select": _masked_select,
    "aten::index": _index,
    "aten::_unsafe_index": _index,
}
"""Base name -> what serves it first; NotImplemented leaves it to the fallback."""
