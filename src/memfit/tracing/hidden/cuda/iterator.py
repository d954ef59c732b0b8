"""The shape in which a CUDA reduction sees its operands (TensorIterator), without their data.

Paths are below ``aten/src/ATen``.  ``TensorIterator.cpp`` sorts the dimensions so that the fastest
comes first and merges those that lie behind one another; a reduction looks at what is left.
Strides here are in bytes, and an output's stride along a reduced dimension is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from memfit.tracing.calls import TensorSpec

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction after TensorIterator: dimensions from fastest to slowest."""

    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    """Strides of the output, in bytes; 0 along a reduced dimension."""

    inputs: tuple[int, ...]
    """Strides of the input, in bytes."""

    offset: int
    """Bytes from the start of the input's storage, which lies at a multiple of 512."""

    input_itemsize: int

    @property
    def num_reduced(self) -> int:
        """Number of reduced dimensions, which come first."""
        return sum(stride == 0 for stride in self.outputs)

    @property
    def num_outputs(self) -> int:
        """Number of output elements."""
        return prod(size for size, step in zip(self.shape, self.outputs, strict=True) if step != 0)

    @property
    def num_inputs(self) -> int:
        """Number of input elements to one output element."""
        return prod(self.shape) // self.num_outputs

    @property
    def fits_32_bits(self) -> bool:
        """TensorIteratorBase::can_use_32bit_indexing: of elements and of bytes."""
        if prod(self.shape) > _INT32_MAX:
            return False
        extents = (self._extent(strides) for strides in (self.outputs, self.inputs))
        return all(1 + extent <= _INT32_MAX for extent in extents)

    def _extent(self, strides: tuple[int, ...]) -> int:
        return sum((size - 1) * step for size, step in zip(self.shape, strides, strict=True))

    def pieces(self) -> Iterator[Reduction]:
        """The parts of at most 2 GiB that are reduced one after the other.

        TensorIterator.cpp, SplitUntil32Bit: the dimension of the largest extent is halved.
        """
        if self.fits_32_bits:
            yield self
            return
        dim = self._dim_to_split()
        first = self.shape[dim] // 2
        yield from self._narrowed(dim, 0, first).pieces()
        yield from self._narrowed(dim, first, self.shape[dim] - first).pieces()

    def _dim_to_split(self) -> int:
        """TensorIteratorBase::get_dim_to_split."""
        best, found = -1, 0
        for dim in reversed(range(len(self.shape))):
            for strides in (self.outputs, self.inputs):
                extent = (self.shape[dim] - 1) * strides[dim]
                if extent > best:
                    best, found = extent, dim
        return found

    def _narrowed(self, dim: int, start: int, size: int) -> Reduction:
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return replace(self, shape=shape, offset=self.offset + start * self.inputs[dim])


def reduction(data: TensorSpec, dims: object, output_itemsize: int) -> Reduction | None:
    """The reduction of ``data`` over ``dims`` into a contiguous output.

    ``dims`` is a number, a tuple of numbers, or None or () for all.  None where there is nothing
    to reduce.
    """
    if 0 in data.shape:
        return None
    rank = len(data.shape)
    reduced = _reduced_dims(dims, rank)
    outputs = [0] * rank
    step = output_itemsize
    for dim in reversed(range(rank)):
        if dim not in reduced:
            outputs[dim] = step
            step *= data.shape[dim]
    inputs = [stride * data.dtype.itemsize for stride in data.stride]
    order = _sorted_dims(data.shape, outputs, inputs)
    shape, outputs, inputs = _merged(
        [data.shape[dim] for dim in order],
        [outputs[dim] for dim in order],
        [inputs[dim] for dim in order],
    )
    offset = data.offset * data.dtype.itemsize
    return Reduction(tuple(shape), tuple(outputs), tuple(inputs), offset, data.dtype.itemsize)


def _reduced_dims(dims: object, rank: int) -> set[int]:
    """make_dim_mask (ReduceOpsUtils.h)."""
    if dims is None or dims == () or rank == 0:
        return set(range(rank))
    wanted = dims if isinstance(dims, tuple) else (dims,)
    return {int(dim) % rank for dim in wanted}


def _sorted_dims(shape: tuple[int, ...], outputs: list[int], inputs: list[int]) -> list[int]:
    """TensorIteratorBase::reorder_dimensions: an insertion sort from the last dimension on."""
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        dim1 = i
        for dim0 in reversed(range(i)):
            comparison = _should_swap(order[dim0], order[dim1], shape, outputs, inputs)
            if comparison > 0:
                order[dim0], order[dim1] = order[dim1], order[dim0]
                dim1 = dim0
            elif comparison < 0:
                break
    return order


def _should_swap(
    dim0: int, dim1: int, shape: tuple[int, ...], outputs: list[int], inputs: list[int]
) -> int:
    """1 where dim1 belongs before dim0, -1 where it does not, 0 where it is open."""
    first, second = outputs[dim0], outputs[dim1]
    if (first == 0) != (second == 0):
        return 1 if second == 0 else -1
    for strides in (outputs, inputs):
        first, second = strides[dim0], strides[dim1]
        if first == 0 or second == 0:
            continue
        if first != second:
            return 1 if first > second else -1
        if shape[dim0] > shape[dim1]:
            return 1
    return 0


def _merged(
    shape: list[int], outputs: list[int], inputs: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """TensorIteratorBase::coalesce_dimensions."""
    if len(shape) <= 1:
        return shape, outputs, inputs
    merged = [[shape[0], outputs[0], inputs[0]]]
    for size, output, step in zip(shape[1:], outputs[1:], inputs[1:], strict=True):
        last = merged[-1]
        follows = last[0] * last[1] == output and last[0] * last[2] == step
        if last[0] == 1:
            merged[-1] = [size, output, step]
        elif size == 1 or follows:
            last[0] *= size
        else:
            merged.append([size, output, step])
    return [row[0] for row in merged], [row[1] for row in merged], [row[2] for row in merged]
