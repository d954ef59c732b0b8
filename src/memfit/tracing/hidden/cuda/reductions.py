"""Reductions: the scratch through which blocks of a global reduction talk to each other.

``native/cuda/Reduce.cuh``: ``setReduceConfig`` decides how a reduction is spread over threads,
blocks and, if there are many inputs to few outputs, over several blocks an output.  In that last
case ``gpu_reduce_kernel`` takes a buffer of partial results and then semaphores, after the output,
and frees the semaphores first.  Read in the header of torch 2.13 (shipped with it), and equal to
every recorded size of torch 2.6 and 2.11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import named, output_dtype
from memfit.tracing.hidden.cuda.iterator import Reduction, reduction
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_MAX_THREADS = 512
"""mnt_wrapper::MAX_NUM_THREADS; half as many for complex128, which is left out here."""

_WARP = 32
_INPUT_VECTOR = 4
_SPLIT_FROM_VALUES = 16
"""min_values_per_thread."""

_SPLIT_TO_VALUES = 256
"""max_values_per_thread."""

_SEMAPHORE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Scratch:
    """Sizes of the two blocks that a global reduction takes."""

    buffer_bytes: int
    semaphore_bytes: int


def scratch_of(shape: Reduction, accumulator_bytes: int, kernels: Kernels) -> Scratch | None:
    """What one launch of a reduction takes; None unless it is spread over blocks.

    How many inputs a thread loads at once (``input_vec_size``, 2 to 8 by op and version) matters
    only for rows below 4,096 elements, which are never spread; 4 stands for all.

    Args:
        shape: after TensorIterator, of at most 2 GiB.
        accumulator_bytes: size of one partial result (``arg_t``).
        kernels: the card.
    """
    num_outputs, num_inputs = shape.num_outputs, shape.num_inputs
    if not shape.shape:
        return None
    reduced = shape.num_reduced
    along = reduced == len(shape.shape) or shape.inputs[0] < shape.inputs[reduced]
    # dim0: what lies behind one another in memory, and goes along block.x
    dim0, dim1 = (num_inputs, num_outputs) if along else (num_outputs, num_inputs)
    output_vector = 1
    if shape.inputs[0 if along else reduced] == shape.input_itemsize:
        if along and dim0 >= 128 and reduced == 1:
            dim0 //= _INPUT_VECTOR
        elif not along:
            output_vector = _output_vector(shape)
            dim0 //= output_vector
    width, height = _block(dim0, dim1, output_vector)
    step_input = width if along else 1
    step_output = 1 if along else width
    values = -(-num_inputs // step_input)
    across_warps = values >= min(height * 16, _SPLIT_TO_VALUES)
    if across_warps:
        step_input *= height
    else:
        step_output *= height
    values = -(-num_inputs // step_input)
    grid = -(-(num_outputs // output_vector) // step_output)
    target = kernels.sms * (kernels.threads_per_sm // (width * height))
    if not across_warps or values < _SPLIT_TO_VALUES or grid > target:
        return None
    blocks = max(
        min(-(-target // grid), -(-values // _SPLIT_FROM_VALUES)), -(-values // _SPLIT_TO_VALUES)
    )
    if blocks <= 1:
        return None
    buffer = accumulator_bytes * num_outputs * blocks
    if not along:
        buffer *= width * output_vector
    return Scratch(buffer, _SEMAPHORE_BYTES * grid)


def _output_vector(shape: Reduction) -> int:
    """get_output_vec_size: outputs that a thread computes at once."""
    itemsize, fastest = shape.input_itemsize, shape.num_reduced
    strides = [step // itemsize for i, step in enumerate(shape.inputs) if i != fastest]
    vector = 4
    for number in (shape.offset // itemsize, shape.shape[fastest], *strides):
        while number % vector:
            vector //= 2
    return vector


def _block(dim0: int, dim1: int, output_vector: int) -> tuple[int, int]:
    """ReduceConfig::set_block_dimension: width and height of a block of threads."""
    most = _MAX_THREADS // output_vector
    wide = _last_power(dim0) if dim0 < most else most
    high = _last_power(dim1) if dim1 < most else most
    width = min(wide, _WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _last_power(number: int) -> int:
    """The largest power of two that is not above, at least 1."""
    return 1 << (number.bit_length() - 1) if number > 0 else 1


# ------------------------------------------------------------------ the ops


@dataclass(frozen=True, slots=True)
class Kind:
    """How one op reduces."""

    dims_position: int | None
    """Where its dimensions stand among the arguments; None: it reduces all."""

    accumulator_bytes: Callable[[torch.dtype, torch.dtype], int]
    """Of the dtype reduced and the output's."""

    casts: bool = False
    """Whether an input of another dtype is cast first, unless it is half precision into fp32."""


def _summed(data: torch.dtype, output: torch.dtype) -> int:
    """Half precision is added up in fp32, everything else in its own dtype."""
    return 4 if data.itemsize == 2 and data.is_floating_point else output.itemsize


def _own(data: torch.dtype, output: torch.dtype) -> int:
    return data.itemsize


def _with_index(data: torch.dtype, output: torch.dtype) -> int:
    """A pair of a value and an int64 index, padded to 16 bytes."""
    return 16


def _truth(data: torch.dtype, output: torch.dtype) -> int:
    return 1


def _welford(data: torch.dtype, output: torch.dtype) -> int:
    """WelfordData (SharedReduceOps.h): mean, M2, an int32 count and a floating one."""
    return 32 if data is torch.float64 else 16


KINDS: dict[str, Kind] = {
    "aten::sum": Kind(1, _summed, casts=True),
    "aten::nansum": Kind(1, _summed, casts=True),
    "aten::mean": Kind(1, _summed, casts=True),
    "aten::prod": Kind(1, _summed, casts=True),
    "aten::linalg_vector_norm": Kind(2, _summed, casts=True),
    "aten::norm": Kind(2, _summed, casts=True),
    "aten::amax": Kind(1, _own),
    "aten::amin": Kind(1, _own),
    "aten::max": Kind(1, _with_index),
    "aten::min": Kind(1, _with_index),
    "aten::argmax": Kind(1, _with_index),
    "aten::argmin": Kind(1, _with_index),
    "aten::all": Kind(1, _truth),
    "aten::any": Kind(1, _truth),
    "aten::var": Kind(1, _welford),
    "aten::std": Kind(1, _welford),
    "aten::var_mean": Kind(1, _welford),
    "aten::std_mean": Kind(1, _welford),
}
"""native/cuda/Reduce*Kernel.cu, TensorCompare.cu: the arguments of ``gpu_reduce_kernel``."""


def reduce(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Output, a cast of the input, and for each launch its buffer and semaphores."""
    base = call.op.split(".")[0]
    kind, data = KINDS[base], call.argument(0)
    if not isinstance(data, TensorSpec) or data.on_host:
        return None
    steps = Steps(num_outputs)
    steps.outputs()
    output = _result_dtype(call, data)
    dims = _dims(call, kind)
    if isinstance(dims, TensorSpec):
        return None  # max of two tensors
    if dims is None and base in ("aten::max", "aten::min"):
        # over all elements, values only: native/ReduceAllOps.cpp
        kind = Kind(None, _own)
    cast = steps.take(_cast_bytes(kind, data, output))
    if _cast_bytes(kind, data, output):
        data = TensorSpec(data.shape, _contiguous_strides(data.shape), output, 0, data.storage)
    add_scratch(steps, data, dims, output, kind, kernels)
    steps.give(cast)
    return steps.sequence()


def add_scratch(
    steps: Steps,
    data: TensorSpec,
    dims: object,
    output: torch.dtype,
    kind: Kind,
    kernels: Kernels,
) -> None:
    """The blocks of a reduction of ``data``, launch by launch."""
    shape = reduction(data, dims, output.itemsize)
    if shape is None:
        return
    accumulator = kind.accumulator_bytes(data.dtype, output)
    half = data.dtype.itemsize == 2 and data.dtype is output and data.dtype.is_floating_point
    total = 0 if shape.fits_32_bits or not half else accumulator * shape.num_outputs
    whole = steps.take(total)
    for piece in shape.pieces():
        scratch = scratch_of(piece, accumulator, kernels)
        if scratch is not None:
            steps.passing(scratch.buffer_bytes, scratch.semaphore_bytes)
    steps.give(whole)


def _dims(call: Call, kind: Kind) -> object:
    overload = call.op.partition(".")[2]
    if kind.dims_position is None or "unary_out" in overload or overload in ("all_out", "any_out"):
        return None
    dims = call.argument(kind.dims_position)
    return None if isinstance(dims, bool) else dims


def _result_dtype(call: Call, data: TensorSpec) -> torch.dtype:
    """The dtype reduced in: of the ``out`` given, asked for, or by the rule of the op."""
    asked = named(call, "dtype")
    if isinstance(asked, torch.dtype):
        return asked
    given = output_dtype(call)
    if given is not None:
        return given
    if call.op.startswith(("aten::sum", "aten::prod", "aten::nansum")):
        return data.dtype if data.dtype.is_floating_point else torch.int64
    return data.dtype


def _cast_bytes(kind: Kind, data: TensorSpec, output: torch.dtype) -> int:
    """meta::make_reduction (ReduceOpsUtils.h): half precision into fp32 is cast by the kernel."""
    if not kind.casts or data.dtype is output:
        return 0
    if data.dtype in (torch.float16, torch.bfloat16) and output is torch.float32:
        return 0
    return data.numel * output.itemsize


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
