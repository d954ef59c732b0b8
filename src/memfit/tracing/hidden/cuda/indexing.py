"""Indexing: gradients of look-ups, which sort the indices to add equal ones in one place."""

from __future__ import annotations

from math import prod

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.cub import (
    num_bits_of,
    radix_sort_pairs_bytes,
    scan_bytes,
    select_bytes,
)
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_INDEX_BYTES = 8
_MASKS = (torch.bool, torch.uint8)


def index_put(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``index_put_`` that accumulates, or is deterministic, sorts the indices.

    native/cuda/Indexing.cu, index_put_with_sort_kernel; the order and sizes are those of recordings
    of torch 2.6 and 2.11 for one int64 index.  Indices are wrapped (``remainder``), multiplied by
    their stride, and added up to a linear index; then sorted with their numbers.  A mask is turned
    into places first; how many it has shows in the values.
    """
    target, values = tensor(call, 0), tensor(call, 2)
    listed = call.argument(1, ())
    if target is None or values is None or not isinstance(listed, tuple):
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    indices = [index for index in listed if isinstance(index, TensorSpec)]
    moved = [steps.take(values.dtype.itemsize if values.on_host else 0)]
    has_mask = any(index.dtype in _MASKS for index in indices)
    if indices and (call.argument(3, False) or kernels.deterministic):
        places = _places(target, listed, values) if has_mask else ()
        if places:
            found = steps.take(len(places) * places[0].num_bytes)
            listed = (*listed[: _first(listed)], *places)
            _add_sorted(steps, target, listed, list(places), values, kernels, found)
        elif not has_mask:
            _add_sorted(steps, target, listed, indices, values, kernels)
    elif not has_mask:
        moved += [steps.take(index.numel * _INDEX_BYTES) for index in indices if index.on_host]
    steps.give(*reversed(moved))
    return steps.sequence()


def _add_sorted(
    steps: Steps,
    target: TensorSpec,
    listed: tuple[TensorSpec | None, ...],
    indices: list[TensorSpec],
    values: TensorSpec,
    kernels: Kernels,
    *found: int,
) -> None:
    """``found`` is freed when the linear index is there."""
    num_indices = prod(torch.broadcast_shapes(*[index.shape for index in indices]))
    each = num_indices * _INDEX_BYTES
    copy = steps.take(0 if target.is_contiguous else target.num_bytes)
    casts = [
        steps.take(index.numel * _INDEX_BYTES)
        for index in indices
        if index.dtype is torch.int32 and not index.on_host
    ]
    linear = _scale(steps, indices[0], each)
    for index in indices[1:]:
        steps.give(_scale(steps, index, each))
    steps.give(*casts, *found)
    slice_size, before = _sizes_around(target, listed)
    expected = num_indices * slice_size * before
    is_plain = values.numel == expected and values.is_contiguous
    expanded = steps.take(0 if is_plain else expected * values.dtype.itemsize)
    if len(indices) == 1 and not _is_in_order(indices[0]):  # reshape(-1) copies
        flat = steps.take(each)
        steps.give(linear)
        linear = flat
    ordered, order, numbers = (steps.take(each) for _ in range(3))
    largest = max(0, target.numel - 1) // max(1, slice_size)
    sorting = radix_sort_pairs_bytes(num_indices, 8, 8, num_bits_of(largest), kernels)
    steps.passing(sorting)
    steps.give(numbers, order, ordered, expanded, linear, copy)


def _first(listed: tuple[TensorSpec | None, ...]) -> int:
    """Where the first index stands."""
    return next(place for place, index in enumerate(listed) if isinstance(index, TensorSpec))


def _places(
    target: TensorSpec, listed: tuple[TensorSpec | None, ...], values: TensorSpec
) -> tuple[TensorSpec, ...]:
    """The places of a mask that stands alone, one index for each of its dimensions."""
    place = _first(listed)
    mask = listed[place]
    if len(listed) > place + 1 or mask is None:
        return ()
    rest = target.shape[:place] + target.shape[place + len(mask.shape) :]
    count = values.numel // max(1, prod(rest))
    one = TensorSpec((count,), (1,), torch.int64, 0, 0)
    return (one,) * len(mask.shape)


def _scale(steps: Steps, index: TensorSpec, num_bytes: int) -> int:
    """The index wrapped (``remainder``) and times its stride; on the host for a host index."""
    wrapped = steps.take(0 if index.on_host else num_bytes)
    scaled = steps.take(num_bytes)
    steps.give(wrapped)
    return scaled


def _sizes_around(target: TensorSpec, listed: tuple[TensorSpec | None, ...]) -> tuple[int, int]:
    """Elements of the target behind one index, and before it."""
    places = [place for place, index in enumerate(listed) if isinstance(index, TensorSpec)]
    return prod(target.shape[places[-1] + 1 :]), prod(target.shape[: places[0]])


def _is_in_order(index: TensorSpec) -> bool:
    """Whether a pointwise result of it is contiguous: dimensions from slowest to fastest."""
    steps = [step for size, step in zip(index.shape, index.stride, strict=True) if size > 1]
    return steps == sorted(steps, reverse=True)


_SMALL = 3072
"""embedding_dense_backward_cuda, native/cuda/Embedding.cu: up to here one kernel does it all."""

_ROWS_PER_THREAD = 10
"""NROWS_PER_THREAD, native/cuda/EmbeddingBackwardKernel.cu."""

_MAX_BLOCK = 1024
"""MAX_BLOCK_SIZE, native/cuda/SortingCommon.cuh."""

ATOMIC_FROM = TorchVersion(2, 11)
"""Few rows are added up by atomics instead of in two steps: read in the compiled 2.14.1, absent
from 2.9's sources; the border between is inferred."""


def embedding_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``embedding_dense_backward``: above 3072 indices they are sorted, and added up in parts.

    native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu.  Partial sums are fp32, a row for each
    ten equal indices and one for each distinct one.
    """
    gradient, index = tensor(call, 0), tensor(call, 1)
    if gradient is None or index is None:
        return None
    num_rows, padding = int(call.argument(2)), int(call.argument(3, -1))
    by_frequency = bool(call.argument(4, False))
    steps = Steps(num_outputs)
    copies = [
        steps.take(0 if index.is_contiguous else index.num_bytes),
        steps.take(0 if gradient.is_contiguous else gradient.num_bytes),
    ]
    if index.numel > _SMALL or by_frequency:
        _sort_and_add(steps, gradient, index, num_rows, padding, by_frequency, kernels)
    steps.outputs()
    steps.give(*reversed(copies))
    return steps.sequence()


def _sort_and_add(
    steps: Steps,
    gradient: TensorSpec,
    index: TensorSpec,
    num_rows: int,
    padding: int,
    by_frequency: bool,
    kernels: Kernels,
) -> None:
    num_indices, each = index.numel, index.dtype.itemsize
    width = gradient.shape[-1]
    ordered, order = (steps.take(num_indices * each) for _ in range(2))
    numbers = steps.take(num_indices * each)
    bits = num_bits_of(num_rows if padding >= 0 else num_rows - 1 - padding)
    sorting = steps.take(radix_sort_pairs_bytes(num_indices, each, each, bits, kernels))
    steps.give(sorting, numbers)
    count = steps.take(num_indices * each if by_frequency else 0)
    if by_frequency:
        steps.passing(scan_bytes(num_indices, each))
        steps.passing(scan_bytes(num_indices, each))
    steps.outputs()
    starts, num_starts = steps.take(num_indices * each), steps.take(8)
    steps.passing(select_bytes(num_indices))
    most = min(num_indices, num_rows)
    parts, part_starts = steps.take(most * each), steps.take(most * each)
    steps.passing(scan_bytes(most, each))
    num_parts = steps.take(8)
    most_parts = num_indices // _ROWS_PER_THREAD + most
    part_offsets = steps.take(most_parts * each)
    if _goes_by_atomics(most, most_parts, width, kernels):
        owners = steps.take(most_parts * each)
        wide = num_rows * width * 4 if gradient.dtype.itemsize == 2 else 0
        steps.passing(wide)
        steps.give(owners)
    else:
        steps.passing(most_parts * width * max(4, gradient.dtype.itemsize))
    steps.give(part_offsets, num_parts, part_starts, parts, num_starts, starts)
    steps.give(count, order, ordered)


def _goes_by_atomics(most: int, most_parts: int, width: int, kernels: Kernels) -> bool:
    if kernels.version < ATOMIC_FROM or kernels.deterministic:
        return False
    warped = -(-width // 32) * 32
    grid = -(-most * warped // min(warped, _MAX_BLOCK))
    return grid < 4 * kernels.sms and most_parts > 4 * grid
