"""Sorts, running sums and ``nonzero``: CUB's scratch and index buffers."""

from __future__ import annotations

from math import ceil, log2

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import named, output_dtype, tensor
from memfit.tracing.hidden.cuda.cub import (
    radix_sort_pairs_bytes,
    reduce_bytes,
    scan_bytes,
    segmented_sort_pairs_bytes,
    select_bytes,
)
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_INDEX_BYTES = 8
_SMALL = 4096
"""should_use_small_sort, native/cuda/Sort.h: such slices are sorted where they lie."""

_LARGE = 1_000_000
"""launch_stable_sort_kernel, native/cuda/SortStable.cu: such slices are sorted one by one."""

_FEW = 128
"""Fewer slices than this are sorted together, by value and then by slice."""

_INT_MAX = 2**31 - 1


def sort(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``sort``: numbers of the elements, and CUB's second copy of keys and values.

    native/cuda/Sort.cpp, sort_cuda_kernel, and SortStable.cu.
    """
    data = tensor(call, 0)
    if data is None or not data.shape or data.numel == 0:
        return None
    given = named(call, "dim")
    dim = int(call.argument(1, -1) if given is None else given) % len(data.shape)
    steps = Steps(num_outputs)
    steps.outputs()
    length = data.shape[dim]
    if length <= _SMALL:
        steps.passing(length * _INDEX_BYTES)  # fillSliceWithIndex: a range
        return steps.sequence()
    is_last = dim == len(data.shape) - 1
    copies = []
    if not (data.is_contiguous and is_last):
        copies.append(steps.take(data.num_bytes))
    if not is_last:
        copies += [steps.take(data.num_bytes), steps.take(data.numel * _INDEX_BYTES)]
    most = _INT_MAX // length * length
    remaining = data.numel
    while remaining > 0:
        _sort_batch(steps, min(remaining, most), length, data.dtype.itemsize, kernels)
        remaining -= most
    steps.give(*reversed(copies))
    return steps.sequence()


def _sort_batch(steps: Steps, count: int, length: int, each: int, kernels: Kernels) -> None:
    num_slices = count // length
    bits = 8 * each
    if num_slices == 1 or length >= _LARGE:
        numbers = steps.take(length * _INDEX_BYTES)
        for _ in range(num_slices):
            steps.passing(radix_sort_pairs_bytes(length, each, _INDEX_BYTES, bits, kernels))
        steps.give(numbers)
    elif num_slices < _FEW:
        first, second = steps.take(count * 8), steps.take(count * 8)
        steps.passing(count * each, radix_sort_pairs_bytes(count, each, 8, bits, kernels))
        by_slice = max(1, ceil(log2(num_slices)))
        steps.passing(radix_sort_pairs_bytes(count, 8, 0, by_slice, kernels))
        steps.give(second, first)
    else:
        numbers = steps.take(count * _INDEX_BYTES)
        steps.passing(segmented_sort_pairs_bytes(count, each, _INDEX_BYTES))
        steps.give(numbers)


def cumulate(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``cumsum`` and ``cumprod``: a cast, a copy if strided, and in one dimension CUB's scan.

    native/ReduceOps.cpp, impl_func_cum_ops; native/cuda/ScanUtils.cuh, scan_dim.
    """
    data = tensor(call, 0)
    if data is None or data.numel == 0:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    dtype = output_dtype(call) or data.dtype
    needs_cast = dtype is not data.dtype
    cast = steps.take(data.numel * dtype.itemsize if needs_cast else 0)
    copy = steps.take(data.num_bytes if not needs_cast and not data.is_contiguous else 0)
    dim = int(call.argument(1, 0))
    if data.shape and data.shape[dim] == data.numel:
        steps.passing(scan_bytes(data.numel, dtype.itemsize))
    steps.give(copy, cast)
    return steps.sequence()


def nonzero(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``nonzero`` counts first, then writes the places.

    native/cuda/Nonzero.cu: the count (4 bytes) and CUB's sum before the output, its selection
    after.
    """
    data = tensor(call, 0)
    if data is None:
        return None
    steps = Steps(num_outputs)
    copy = steps.take(0 if data.is_contiguous else data.num_bytes)
    count = steps.take(4)
    steps.passing(reduce_bytes(data.numel, 4, kernels))
    steps.outputs()
    if data.shape:
        steps.passing(select_bytes(data.numel))
    steps.give(count, copy)
    return steps.sequence()


def topk(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``topk`` copies a strided input; its counters (some KiB for long slices) are left out.

    native/cuda/TensorTopK.cpp, topk_out_cuda.
    """
    data = tensor(call, 0)
    if not isinstance(data, TensorSpec) or data.is_contiguous:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    steps.passing(data.num_bytes)
    return steps.sequence()
