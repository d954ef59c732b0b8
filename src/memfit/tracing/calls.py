"""Calls: what distinguishes one call of an op from another, as far as memory goes.

A :class:`Call` holds the op and its arguments without their data.  Two calls with equal keys ask
for the same memory, so scratch is looked up, computed or learnt once per key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from memfit.tracing.memory import storage_address


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    storage: int
    """Number of its storage among the storages of the call, in order of appearance."""

    on_host: bool = False
    """On the virtual GPU: whether it is a host tensor, a scalar among the device's."""

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other, the last dimension fastest."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def transposed(self, first: int, second: int) -> TensorSpec:
        """The view with two dimensions exchanged."""
        order = list(range(len(self.shape)))
        order[first], order[second] = order[second], order[first]
        shape = tuple(self.shape[dim] for dim in order)
        return replace(self, shape=shape, stride=tuple(self.stride[dim] for dim in order))

    @property
    def extent_bytes(self) -> int:
        """Bytes from the start of the storage to the end of the tensor's last element."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (self.offset + last + 1) * self.dtype.itemsize

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements, as if contiguous."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Call:
    """An op and its arguments, tensors replaced by their specs.

    ``args`` holds numbers, strings, dtypes, None, :class:`TensorSpec`, and tuples of those;
    ``kwargs`` is a tuple of (name, argument).  A Python number in the place of a tensor is a
    scalar that PyTorch has wrapped.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def tensors(self) -> list[TensorSpec]:
        """The tensor arguments in order, those inside lists included."""
        found: list[TensorSpec] = []
        _collect(self.args, found)
        _collect(tuple(value for _, value in self.kwargs), found)
        return found

    def argument(self, position: int, default: Any = None) -> Any:
        """The positional argument, or ``default`` when the call leaves it out."""
        return self.args[position] if position < len(self.args) else default


def describe(
    op: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    tell_host: bool = False,
) -> tuple[Call, list[torch.Tensor]]:
    """The call of ``op`` with these arguments, without their data; and its tensor arguments.

    ``tell_host`` marks host tensors as such: the virtual GPU's ops may have some among their
    operands.
    """
    storages: dict[int, int] = {}
    tensors: list[torch.Tensor] = []
    stripped = tuple([_strip(value, storages, tensors, tell_host) for value in args])
    named = tuple(
        [(name, _strip(value, storages, tensors, tell_host)) for name, value in kwargs.items()]
    )
    return Call(op.name(), stripped, named), tensors


def rebuild(
    call: Call, make: Callable[[TensorSpec], torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments with each spec replaced by ``make(spec)``."""
    args = [_fill(value, make) for value in call.args]
    return args, {name: _fill(value, make) for name, value in call.kwargs}


# Not closures: a function that calls itself by name from inside another is a reference cycle, and
# would hold the tensors it saw until the garbage is collected.


def _strip(
    value: Any, storages: dict[int, int], tensors: list[torch.Tensor], tell_host: bool
) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        number = storages.setdefault(storage_address(value), len(storages))
        offset = int(value.storage_offset())
        on_host = tell_host and value.is_cpu
        return TensorSpec(tuple(value.shape), value.stride(), value.dtype, offset, number, on_host)
    if isinstance(value, (list, tuple)):
        return tuple([_strip(item, storages, tensors, tell_host) for item in value])
    if isinstance(value, torch.Generator):
        return None
    return value


def _fill(value: Any, make: Callable[[TensorSpec], torch.Tensor]) -> Any:
    if isinstance(value, TensorSpec):
        return make(value)
    if isinstance(value, tuple):
        return [_fill(item, make) for item in value]
    return value


def wrap_numbers(
    op: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any], device: str
) -> None:
    """Python numbers in the place of tensors become 0-d tensors of ``device`` again, in place.

    PyTorch wraps them before it dispatches, hands them out as numbers, and takes numbers back from
    Python for a few ops only.  A 0-d tensor of the default dtype promotes as the number did, but
    for a float among 0-d tensors only: it has no say there, and takes the dtype of the first.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    for position, argument in enumerate(op._schema.arguments):
        if "Tensor" not in str(argument.type) or "[" in str(argument.type):
            continue
        if position < len(args):
            if isinstance(args[position], (bool, int, float, complex)):
                args[position] = _wrapped(args[position], tensors, device)
        elif isinstance(kwargs.get(argument.name), (bool, int, float, complex)):
            kwargs[argument.name] = _wrapped(kwargs[argument.name], tensors, device)


def _wrapped(
    number: bool | float | complex, tensors: list[torch.Tensor], device: str
) -> torch.Tensor:
    floating = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
    takes_theirs = isinstance(number, float) and floating and all(t.dim() == 0 for t in floating)
    return torch.tensor(number, dtype=floating[0].dtype if takes_theirs else None, device=device)


def argument_of(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    """The argument that stands at ``position`` of the schema, however it was passed."""
    return args[position] if position < len(args) else kwargs.get(name)


def call_below(op: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls ``op`` below autograd and autocast, which have had their say where a trace stands."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        return op(*args, **kwargs)


def _collect(values: tuple[Any, ...], found: list[TensorSpec]) -> None:
    for value in values:
        if isinstance(value, TensorSpec):
            found.append(value)
        elif isinstance(value, tuple):
            _collect(value, found)
